package stage

import (
	"fmt"
	"runtime/debug"

	"github.com/penstock/penstock"
)

// BufferWeight bounds the source's buffer by weight, for instance by bytes,
// beside its capacity in events: events that nobody has asked for weigh at most
// limit together, and a single one that is heavier is kept when it is alone.
// What is asked for does not count. Policies and waiting work as for the
// capacity; a source made by [Func] may exceed the limit by the one event that it
// has in hands. weigh is called once per event, by the goroutine that brings it;
// it must not keep the pointer, and a negative weight counts as 0. A panic of
// weigh fails the source. It returns s. Call it before the first push. A limit
// below 1, or a nil weigh, is an error at Start.
func (s *Source[T]) BufferWeight(limit int, weigh func(v *T) int) *Source[T] {
	if limit < 1 {
		s.out.invalid("BufferWeight", "a limit of %d", limit)
	}
	if weigh == nil {
		s.out.invalid("BufferWeight", "the function is nil")
		return s
	}
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	s.in.heavy = &weights[T]{limit: limit, weigh: weigh}
	return s
}

// weights are those of the events in a buffer. All of it is guarded by the
// intake's lock, but for limit and weigh, which do not change.
//
// Invariants: of has a weight per event of the buffer; surplus is the sum of
// those beyond the open demand, at most limit unless it is that of one event, or
// demand has fallen.
type weights[T any] struct {
	limit   int
	weigh   func(*T) int
	of      deque[int]
	surplus int
}

// weighAll returns the weights of vs, nil when they have none. User code runs, so
// no lock is held. A panic fails the source, by fail.
func (s *Source[T]) weighAll(vs []T, fail func(error)) (ws []int, err error) {
	h := s.in.heavy
	if h == nil {
		return nil, nil
	}
	done := false
	defer func() {
		if !done {
			err = &penstock.PanicError{Where: fmt.Sprintf("stage %q", s.out.name), Value: recover(), Stack: debug.Stack()}
			fail(err)
		}
	}()
	ws = make([]int, len(vs))
	for i := range vs {
		ws[i] = max(0, h.weigh(&vs[i]))
	}
	done = true
	return ws, nil
}

// fits reports whether an event of weight w may be added.
func (in *intake[T]) fits(w int) bool {
	switch n := in.buf.len(); {
	case n < in.open:
		return true
	case n >= in.limit():
		return false
	default:
		return n == in.open || w <= in.heavy.limit-in.heavy.surplus
	}
}

func (in *intake[T]) addWeighed(v T, w int) {
	if in.buf.len() >= in.open {
		in.heavy.surplus += w
	}
	in.buf.pushBack([]T{v})
	in.heavy.of.pushBack([]int{w})
}

// dropOldest removes the first event; the first of the surplus takes its place
// among those that are asked for.
func (in *intake[T]) dropOldest() T {
	if in.buf.len() > in.open {
		in.heavy.surplus -= in.heavy.of.at(in.open)
	}
	in.heavy.of.dropFront(1)
	return in.buf.pop()
}

// keepWeighed is keep, event by event: so it does not matter how they were
// grouped.
func (in *intake[T]) keepWeighed(vs []T, ws []int) (dropped int, lost []T) {
	drop := func(v T) {
		dropped++
		if in.wantLost {
			lost = append(lost, v)
		}
	}
	for i, v := range vs {
		for in.policy == KeepLast && !in.fits(ws[i]) && in.buf.len() > 0 {
			drop(in.dropOldest())
		}
		if in.fits(ws[i]) {
			in.addWeighed(v, ws[i])
		} else {
			drop(v)
		}
	}
	in.size.Store(int64(in.buf.len()))
	return dropped, lost
}

func (in *intake[T]) fillWeighed(vs []T, ws []int) (taken int) {
	for taken < len(vs) && in.fits(ws[taken]) {
		in.addWeighed(vs[taken], ws[taken])
		taken++
	}
	in.size.Store(int64(in.buf.len()))
	add(&in.pushed, taken)
	return taken
}

// reopen notes the open demand, and which events are beyond it.
func (in *intake[T]) reopen(open int) {
	h, n := in.heavy, in.buf.len()
	for i := min(in.open, n); i < min(open, n); i++ {
		h.surplus -= h.of.at(i)
	}
	for i := min(open, n); i < min(in.open, n); i++ {
		h.surplus += h.of.at(i)
	}
	in.open = open
}
