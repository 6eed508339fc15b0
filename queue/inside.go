package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// ErrWaitsForItself: a handler produces into the topic that it consumes, the
// topic is full, and only the handler's own return could make room. The error
// matches [penstock.ErrFull] too. Nothing was accepted, or what a
// [*penstock.PartialError] says.
//
// Whether a call is the handler's own is told by its context alone: Go says
// neither in which goroutine a call is made nor who waits for whom. A goroutine
// that a handler started with its context, and does not wait for, is therefore
// told the same while that handler runs, though the handler's return would
// make room. One that is to outlive the handler needs a context that is not made
// from the handler's, and waits with it as any other producer does.
var ErrWaitsForItself = errors.New("the handler waits for room that only its own return can make")

// insideEvery is how often a producer that waits inside a handler looks
// whether it waits for itself. A handler call shorter than that is never
// suspected.
const insideEvery = 100 * time.Millisecond

// inside is what the context of a handler says about where it runs: which of
// its pusher's jobs it is, for one call after the other.
type inside[T any] struct {
	pusher *pusher[T]
	job    *job[T]
}

type insideKey struct{}

// setInside makes the contexts that the pusher's user code gets.
func (p *pusher[T]) setInside(handlers context.Context) {
	for _, j := range append([]*job[T]{&p.job}, p.crew.jobs...) {
		j.handlers = context.WithValue(handlers, insideKey{}, &inside[T]{p, j})
	}
}

// calledBefore reports whether the call that the context belongs to runs, and
// began at a time or earlier: who waits since then is not left from another one.
func (in *inside[T]) calledBefore(at int64) bool {
	since := in.job.note.since.Load()
	if in.job == &in.pusher.job {
		since = in.pusher.counts.busySince.Load()
	}
	return since != 0 && since <= at
}

// insiders are the producers of a topic that wait inside handlers of its own
// groups.
type insiders[T any] struct {
	mu      sync.Mutex
	waiting []*insider[T]
}

// insider is one of them.
type insider[T any] struct {
	*inside[T]
	since int64 // Unix nanoseconds
	n     int
	bytes penstock.Bytes
}

// acquire waits in line for capacity. Inside a handler of the topic's own it
// gives up when nobody but waiting handlers could make room.
func (t *Topic[T]) acquire(ctx context.Context, n int, bytes penstock.Bytes) error {
	in := t.insideOf(ctx)
	if in == nil {
		defer noteAsk(ctx, ask{n: n, bytes: bytes})()
		return t.budget.Acquire(ctx, n, bytes)
	}
	w := &insider[T]{inside: in, n: n, bytes: bytes}
	return t.waitInside(ctx, w, t.stuck, func(wait context.Context) error { return t.budget.Acquire(wait, n, bytes) })
}

// insideOf returns in which handler of the topic's own groups a context comes
// from; nil when it comes from none.
func (t *Topic[T]) insideOf(ctx context.Context) *inside[T] {
	in, _ := ctx.Value(insideKey{}).(*inside[T])
	if in == nil || in.pusher.group.topic != t {
		return nil
	}
	return in
}

// waitInside is a wait inside a handler, with a context that ends when the wait is
// stuck.
func (t *Topic[T]) waitInside(ctx context.Context, w *insider[T], isStuck func(*insider[T]) bool, inLine func(wait context.Context) error) error {
	self := fmt.Errorf("topic %q: group %q: %w: %w", t.config.Name, w.pusher.group.name, penstock.ErrFull, ErrWaitsForItself)
	w.since = time.Now().UnixNano()
	t.insiders.add(w)
	defer t.insiders.remove(w)
	wait, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var timer *time.Timer
	suspected := false
	var ready sync.Mutex // timer is set before the function reads it
	ready.Lock()
	timer = time.AfterFunc(insideEvery, func() {
		ready.Lock()
		defer ready.Unlock()
		switch stuck := isStuck(w); {
		case stuck && (suspected || len(w.pusher.crew.jobs) == 0):
			giveUp(self)
		case wait.Err() == nil:
			suspected = stuck // the loop may be about to give a worker the next call
			timer.Reset(insideEvery)
		}
	})
	ready.Unlock()
	defer timer.Stop()
	err := inLine(wait)
	if err != nil && ctx.Err() == nil && errors.Is(err, ErrWaitsForItself) {
		return self
	}
	return err
}

func (s *insiders[T]) add(w *insider[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, w)
}

func (s *insiders[T]) remove(w *insider[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(x *insider[T]) bool { return x == w })
}

// calls returns how many handler calls of each pusher wait in line. A call whose
// goroutines wait side by side is one.
func (s *insiders[T]) calls() map[*pusher[T]]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, calls := make(map[*job[T]]bool), make(map[*pusher[T]]int)
	for _, x := range s.waiting {
		if !seen[x.job] && x.calledBefore(x.since) {
			seen[x.job] = true
			calls[x.pusher]++
		}
	}
	return calls
}

// stuck reports whether w can never be admitted: what is free, and what could
// become free without the consumers whose every handler call waits in line
// itself, is less than it needs. Whatever is not known counts as able to make
// room: an open group that nobody runs, one that is only stored, a request that
// was admitted and is not appended yet.
func (t *Topic[T]) stuck(w *insider[T]) bool {
	calls := t.insiders.calls()
	if calls[w.pusher] < w.pusher.atOnce() {
		return false
	}
	events, bytes := t.budget.Available()
	room, held := events, 0
	roomBytes, heldBytes := bytes, penstock.Bytes(0)
	for _, p := range t.parts {
		mark, end := p.marks.Committed(), p.end()
		most := end
		for x, n := range calls {
			if n >= x.atOnce() {
				most = min(most, x.committed(p.index, end))
			}
		}
		most = max(most, mark)
		room, held = room+int(most-mark), held+int(end-mark)
		if p.ledger != nil {
			roomBytes += p.ledger.bytes(mark, most)
			heldBytes += p.ledger.bytes(mark, end)
		}
	}
	room += max(0, t.config.Capacity-events-held) // admitted, not appended
	roomBytes += max(0, t.config.CapacityBytes-bytes-heldBytes)
	return t.config.Capacity > 0 && room < w.n || t.config.CapacityBytes > 0 && roomBytes < w.bytes
}

// stuckOnDisk is stuck for one that waits for disk space: no partition can delete
// its oldest segment without the consumers whose every handler call waits itself.
func (t *Topic[T]) stuckOnDisk(w *insider[T]) bool {
	calls := t.insiders.calls()
	if calls[w.pusher] < w.pusher.atOnce() {
		return false
	}
	for _, p := range t.parts {
		most := p.end()
		for x, n := range calls {
			if n >= x.atOnce() {
				most = min(most, x.committed(p.index, most))
			}
		}
		if first := p.file.log.FirstEnd(); first > p.file.earliest() && most >= first {
			return false
		}
	}
	return true
}

// atOnce returns how many handler calls of the pusher have to wait in line for
// none to be left that could make room: the only one, or all that run.
func (p *pusher[T]) atOnce() int {
	n := 0
	for _, j := range p.crew.jobs {
		if j.note.since.Load() != 0 {
			n++
		}
	}
	return max(1, n)
}

// committed returns how far the pusher's consumer has committed a partition, or
// otherwise when the partition is not its own.
func (p *pusher[T]) committed(partition int, otherwise penstock.Offset) penstock.Offset {
	for _, l := range p.lanes {
		if l.cur.part.index == partition {
			return l.cur.shown().Committed()
		}
	}
	return otherwise
}
