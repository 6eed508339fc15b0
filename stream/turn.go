package stream

import (
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// turn is the right to touch the state of a run. One goroutine at a time holds
// it: the loop of the run, or a worker that brings a result when nobody else
// holds it, and which then applies the result itself, so that a delivery that
// ends and the next one need no other goroutine (ADR 0081). A worker that finds
// the turn held leaves its result with the holder and does not wait for it.
//
// Invariants: state is turnFree exactly while nobody holds the turn, and
// turnWanted only while the loop waits for it; a result in waiting is applied by
// the present holder, by the next one, or, when the holder has work of its own,
// by the loop, whom it calls; once broken is closed the turn is never given back.
type turn struct {
	state  atomic.Int32
	grant  chan struct{} // of capacity 1: to the loop, which holds it then
	call   chan struct{} // of capacity 1: results wait, and the loop is to apply them
	broken chan struct{} // closed when the goroutine that held the turn failed
	err    error         // why; read it after broken

	waiting atomic.Int64 // length of results
	mu      sync.Mutex
	results []result // oldest first; at most one per worker
}

// result is what a task came to.
type result struct {
	task task
	err  error
}

// Of a turn.
const (
	turnHeld   int32 = iota
	turnWanted       // held, and the loop waits
	turnFree
)

// newTurn is one that the caller holds.
func newTurn() *turn {
	return &turn{grant: make(chan struct{}, 1), call: make(chan struct{}, 1), broken: make(chan struct{})}
}

// take waits for the turn; false when it will never come, because its holder
// has failed. Only the loop waits.
func (t *turn) take() bool {
	for !t.tryTake() {
		if !t.state.CompareAndSwap(turnHeld, turnWanted) {
			continue // it became free
		}
		select {
		case <-t.grant:
			return true
		case <-t.broken:
			return false
		}
	}
	return true
}

// tryTake takes the turn if nobody holds it.
func (t *turn) tryTake() bool {
	return t.state.Load() == turnFree && t.state.CompareAndSwap(turnFree, turnHeld)
}

// give gives it back, to the loop if that waits.
func (t *turn) give() {
	if !t.state.CompareAndSwap(turnHeld, turnFree) {
		t.state.Store(turnHeld)
		t.grant <- struct{}{} // does not wait: one waits, once
	}
}

// leave puts a result where the holder finds it.
func (t *turn) leave(x result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.results = append(t.results, x)
	t.waiting.Store(int64(len(t.results)))
}

// next takes the oldest result that waits.
func (t *turn) next() (x result, ok bool) {
	if t.waiting.Load() == 0 {
		return result{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.results) == 0 {
		return result{}, false
	}
	x = t.results[0]
	n := copy(t.results, t.results[1:])
	t.results[n] = result{}
	t.results = t.results[:n]
	t.waiting.Store(int64(n))
	return x, true
}

// resultsMax is how many results of others a holder applies before it gives the
// turn back: it may be a worker that has a delivery to make.
const resultsMax = 16

// giveTurn applies results that came meanwhile and gives the turn back. Whoever
// leaves a result and then finds the turn held is sure that this look, which
// comes after the turn is free, or the look of the next holder sees it.
func (r *run) giveTurn() {
	for n := 0; ; {
		if n == resultsMax {
			select {
			case r.turn.call <- struct{}{}:
			default:
			}
			r.turn.give()
			return
		}
		if x, ok := r.turn.next(); ok {
			n++
			x.task.done(r, x.err)
			continue
		}
		r.turn.give()
		if r.turn.waiting.Load() == 0 || !r.turn.tryTake() {
			return
		}
	}
}

// bring applies a result, on the goroutine that brings it or on the one that
// holds the turn.
func (r *run) bring(x result) {
	if r.turn.tryTake() {
		r.holdTurn(&x)
		return
	}
	r.turn.leave(x)
	if r.turn.tryTake() {
		r.holdTurn(nil)
	}
}

// holdTurn is a turn on a worker. A cache that panics, or ends the goroutine,
// leaves a state that cannot be trusted: the turn is not given back, and the
// loop hears why.
func (r *run) holdTurn(x *result) {
	finished := false
	defer func() {
		if !finished {
			r.turn.err = &penstock.PanicError{Where: r.name(), Value: recover(), Stack: debug.Stack()}
			close(r.turn.broken)
		}
	}()
	if x != nil {
		x.task.done(r, x.err)
	}
	r.giveTurn()
	finished = true
}
