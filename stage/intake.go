package stage

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// intake is the buffer of a source: events that came in by its emitter, or that
// its pull callback produced beyond what was asked for, and that nobody has
// taken yet. Any goroutine adds, the source's goroutine takes.
//
// What the buffer may hold at most is its capacity and, on top of it, the open
// demand that the source knew of when it looked last: events that are asked
// for do not count as surplus. Storing [a,b] and then [c] has the same result
// as storing [a,b,c] (ST-60).
//
// Invariants: no store leaves more than max(limit(), what was there before);
// waiters are served in the order they came; closed never becomes false.
type intake[T any] struct {
	capacity int
	policy   Policy
	wantLost bool        // dropped events must be returned, not only counted
	heavy    *weights[T] // nil: events have no weight

	size   atomic.Int64 // len(buf), to look at without the lock
	shut   atomic.Bool  // closed, to look at without the lock
	pushed atomic.Int64 // events that came in by the emitter; written under mu

	mu      sync.Mutex
	buf     deque[T]
	open    int // demand that the buffered events may go over the capacity by
	closed  bool
	err     error // why it was closed; nil for a normal end
	waiters []*waiter
	spare   []*waiter
	cancel  func() // tells a feed to stop
	halted  bool   // it was told
}

// A waiter is a parked PushWait. ready has room for one token.
type waiter struct{ ready chan struct{} }

const maxSpareWaiters = 16

// limit is how many events the buffer may hold now.
func (in *intake[T]) limit() int {
	if in.capacity > Unbounded-in.open {
		return Unbounded
	}
	return in.capacity + in.open
}

// room reports whether the buffer may hold more.
func (in *intake[T]) room() bool {
	n := in.buf.len()
	return n < in.limit() && (in.heavy == nil || n <= in.open || in.heavy.surplus < in.heavy.limit)
}

// store adds vs by the overflow policy. It returns how many events were
// dropped and, when wantLost is set, those events, oldest first.
// ws are their weights, nil where they have none.
func (in *intake[T]) store(vs []T, ws []int) (dropped int, lost []T, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return 0, nil, penstock.ErrClosed
	}
	add(&in.pushed, len(vs))
	dropped, lost = in.keep(vs, ws)
	return dropped, lost, nil
}

// keepOwn is store for the source's own surplus, which is kept also when the
// intake was closed meanwhile.
func (in *intake[T]) keepOwn(vs []T, ws []int) (dropped int, lost []T) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.keep(vs, ws)
}

func (in *intake[T]) keep(vs []T, ws []int) (dropped int, lost []T) {
	if in.heavy != nil {
		return in.keepWeighed(vs, ws)
	}
	room := max(0, in.limit()-in.buf.len())
	if dropped = max(0, len(vs)-room); dropped > 0 {
		vs, lost = in.overflow(vs, dropped)
	}
	in.buf.pushBack(vs)
	in.size.Store(int64(in.buf.len()))
	return dropped, lost
}

// overflow drops as many events as the policy says, and returns what is left
// of vs to store.
func (in *intake[T]) overflow(vs []T, dropped int) (keep, lost []T) {
	if in.policy == KeepFirst {
		kept := len(vs) - dropped
		if in.wantLost {
			lost = slices.Clone(vs[kept:])
		}
		return vs[:kept], lost
	}
	oldest := min(dropped, in.buf.len())
	rest := dropped - oldest // of vs itself
	if in.wantLost {
		first, second := in.buf.spans(oldest)
		lost = slices.Concat(first, second, vs[:rest])
	}
	in.buf.dropFront(oldest)
	return vs[rest:], lost
}

// tryStore adds as many of vs, from the front, as fit, and none while others
// wait in PushWait.
func (in *intake[T]) tryStore(vs []T, ws []int) (taken int, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return 0, penstock.ErrClosed
	}
	if len(in.waiters) > 0 {
		return 0, nil
	}
	return in.fill(vs, ws), nil
}

func (in *intake[T]) fill(vs []T, ws []int) (taken int) {
	if in.heavy != nil {
		return in.fillWeighed(vs, ws)
	}
	taken = min(len(vs), max(0, in.limit()-in.buf.len()))
	in.buf.pushBack(vs[:taken])
	in.size.Store(int64(in.buf.len()))
	add(&in.pushed, taken)
	return taken
}

// storeWait adds all of vs, as room comes, first come first served. added is
// called, without the lock, whenever some were added. It returns how many were.
func (in *intake[T]) storeWait(ctx context.Context, vs []T, ws []int, added func()) (taken int, err error) {
	in.mu.Lock()
	if in.closed {
		in.mu.Unlock()
		return 0, penstock.ErrClosed
	}
	if len(in.waiters) == 0 {
		taken = in.fill(vs, ws)
	}
	if taken == len(vs) {
		in.mu.Unlock()
		added()
		return taken, nil
	}
	w := in.waiter()
	in.waiters = append(in.waiters, w)
	in.mu.Unlock()
	for {
		if taken > 0 {
			added()
		}
		select {
		case <-w.ready:
		case <-ctx.Done():
		}
		in.mu.Lock()
		switch err = penstock.ContextError(ctx); {
		case err != nil:
		case in.closed:
			err = penstock.ErrClosed
		default:
			taken += in.fill(vs[taken:], ws[min(taken, len(ws)):])
		}
		if err != nil || taken == len(vs) {
			in.leave(w)
			in.mu.Unlock()
			added()
			return taken, err
		}
		in.mu.Unlock()
	}
}

// put adds v, as the feed that has waited for room does, and reports whether
// the feed is to go on at once: there is room for another one. v counts as pushed also when the intake is
// closed: then the feed discards it.
func (in *intake[T]) put(v T, ws []int) (goOn bool, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	add(&in.pushed, 1)
	if in.closed {
		return false, penstock.ErrClosed
	}
	if in.heavy != nil {
		in.addWeighed(v, ws[0])
	} else {
		in.buf.pushBack([]T{v})
	}
	in.size.Store(int64(in.buf.len()))
	return in.room() && !in.halted, nil
}

// await waits until there is room for an event, or the feed has to stop.
func (in *intake[T]) await(ctx context.Context) error {
	in.mu.Lock()
	var w *waiter
	for {
		err := penstock.ContextError(ctx)
		if in.closed || in.halted {
			err = penstock.ErrClosed
		}
		if err != nil || in.room() {
			if w != nil {
				in.leave(w)
			}
			in.mu.Unlock()
			return err
		}
		if w == nil {
			w = in.waiter()
			in.waiters = append(in.waiters, w)
		}
		in.mu.Unlock()
		select {
		case <-w.ready:
		case <-ctx.Done():
		}
		in.mu.Lock()
	}
}

// onHalt sets what tells the feed to stop.
func (in *intake[T]) onHalt(cancel func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.cancel = cancel
}

// halt tells the feed to stop, once. It may still put what it has in hands.
func (in *intake[T]) halt() {
	in.mu.Lock()
	cancel := in.cancel
	in.cancel, in.halted = nil, true
	in.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

func (in *intake[T]) waiter() *waiter {
	if n := len(in.spare); n > 0 {
		w := in.spare[n-1]
		in.spare = in.spare[:n-1]
		return w
	}
	return &waiter{ready: make(chan struct{}, 1)}
}

// leave removes w from the line and lets the next one in if there is room.
func (in *intake[T]) leave(w *waiter) {
	if i := slices.Index(in.waiters, w); i >= 0 {
		in.waiters = slices.Delete(in.waiters, i, i+1)
	}
	select {
	case <-w.ready:
	default:
	}
	if len(in.spare) < maxSpareWaiters {
		in.spare = append(in.spare, w)
	}
	in.wakeFirst()
}

// wakeFirst lets the first waiter look again when there is room.
func (in *intake[T]) wakeFirst() {
	if len(in.waiters) > 0 && in.room() {
		select {
		case in.waiters[0].ready <- struct{}{}:
		default: // it has a token already
		}
	}
}

// take moves at most open events to dst, in order, and notes what stays open.
func (in *intake[T]) take(dst []T, open int) []T {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := min(open, in.buf.len())
	if in.heavy != nil {
		in.reopen(open)
		in.heavy.of.dropFront(n)
	}
	if n > 0 {
		dst = in.buf.popFront(dst, n)
		in.size.Store(int64(in.buf.len()))
	}
	in.open = open - n
	in.wakeFirst()
	return dst
}

// setOpen notes what demand pushed events may count on.
func (in *intake[T]) setOpen(open int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.heavy != nil {
		in.reopen(open)
	}
	in.open = open
	in.wakeFirst()
}

// close ends the intake: what is buffered can still be taken, nothing more is
// added. Only the first close counts.
func (in *intake[T]) close(err error) {
	defer in.halt()
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return
	}
	in.closed, in.err = true, err
	in.shut.Store(true)
	for _, w := range in.waiters {
		select {
		case w.ready <- struct{}{}:
		default:
		}
	}
}

// reason returns why the intake was closed.
func (in *intake[T]) reason() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.err
}

// empty removes everything and returns it.
func (in *intake[T]) empty() []T {
	in.mu.Lock()
	defer in.mu.Unlock()
	left := in.buf.popFront(nil, in.buf.len())
	if h := in.heavy; h != nil {
		h.of.dropFront(h.of.len())
		h.surplus = 0
	}
	in.size.Store(0)
	in.wakeFirst()
	return left
}
