package stage

import "sync/atomic"

// A doorbell wakes one sleeper. Any number of goroutines ring; the one owner
// arms, looks once more, and then waits:
//
//	bell.arm()
//	if work found { bell.disarm() } else { bell.wait() }
//
// Why no wake-up is lost: a ringer first makes its work visible (an atomic
// store, or a store under a mutex) and then loads sleeping; the owner first
// stores sleeping and then looks for work. Go's atomics are sequentially
// consistent, so at least one of the two sees the other: either the owner finds
// the work, or the ringer finds the owner sleeping and leaves a token.
//
// Why a ringer never blocks: only the ringer that turns sleeping from true to
// false leaves a token, the owner takes that token before it arms again, and
// the channel has room for one.
//
// Parking on a channel, and nothing else, lets a whole graph run inside a
// testing/synctest bubble (ADR 0015).
type doorbell struct {
	_        [64]byte // ringers read it all the time: no busy neighbour on its line
	sleeping atomic.Bool
	token    chan struct{}
	_        [64]byte
}

func newDoorbell() *doorbell { return &doorbell{token: make(chan struct{}, 1)} }

// ring wakes the owner if it sleeps or is about to. It costs one load
// otherwise. It never blocks.
func (d *doorbell) ring() {
	if d.sleeping.Load() && d.sleeping.CompareAndSwap(true, false) {
		d.token <- struct{}{}
	}
}

// arm announces that the owner is about to sleep.
func (d *doorbell) arm() { d.sleeping.Store(true) }

// disarm takes the announcement back. A token that a ringer has left, or is
// about to leave, is taken with it.
func (d *doorbell) disarm() {
	if !d.sleeping.CompareAndSwap(true, false) {
		<-d.token
	}
}

// wait parks the owner until someone rings. The bell must be armed.
func (d *doorbell) wait() { <-d.token }
