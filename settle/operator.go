package settle

import (
	"container/heap"
	"time"
)

// What an operator does with a parked key once the cause is known. Neither call
// writes an entry: a crash before the next delivery of an event leaves it
// parked as it was. Whoever wants more keeps the order, and changes the entries
// that the next machine begins with.

// RetryParked makes all parked events of a key due at once; they still come
// one at a time, in their order. The key "" means every event without one. An
// event in hand stays as it is. It returns how many events it was.
func (m *Machine) RetryParked(key string) int {
	return m.change(key, func(e *parkedEvent) bool {
		if e.inHand {
			return false
		}
		e.hurry()
		return true
	})
}

// DiscardParked gives all parked events of a key up: they are handed over as
// dead letters at once, one at a time, in their order, with the error that
// cause makes of the last one, which is nil for an event that was never
// delivered. The key "" means every event without one. An event in hand keeps
// that attempt, and is given up when it fails; one that is a dead letter already
// stays as it is. It returns how many events it was.
func (m *Machine) DiscardParked(key string, cause func(last error) error) int {
	return m.change(key, func(e *parkedEvent) bool {
		switch {
		case e.dead:
			return false
		case e.inHand:
			e.discard = cause
		default:
			e.giveUp(cause)
		}
		return true
	})
}

// giveUp makes e, which waits, a dead letter that is due at once.
func (e *parkedEvent) giveUp(cause func(last error) error) {
	e.hurry()
	e.dead = true
	e.attempt-- // of a dead letter it is how many were made
	e.past.cause = cause(e.past.cause)
}

// hurry makes e due at once. Its past may be shared, so it gets its own.
func (e *parkedEvent) hurry() {
	past := *e.past
	past.due = time.Time{}
	e.past = &past
}

// change applies do to the parked events of a key that are not settled, and
// counts those for which it returns true.
func (m *Machine) change(key string, do func(*parkedEvent) bool) int {
	if m.lot == nil {
		return 0
	}
	n := 0
	for _, k := range m.lot.named(key) {
		for _, e := range k.events[k.past:] {
			if do(e) {
				n++
			}
		}
		if k.place > 0 {
			heap.Fix(&m.lot.ready, k.place-1)
		}
	}
	return n
}

// named returns the parked keys of that name: one at most, but for "".
func (l *lot) named(key string) []*parkedKey {
	if key != "" {
		if k := l.keys[keyID{key: key}]; k != nil {
			return []*parkedKey{k}
		}
		return nil
	}
	var all []*parkedKey
	for _, o := range sortedKeys(l.events) {
		if k := l.events[o].key; k.id.key == "" {
			all = append(all, k)
		}
	}
	return all
}

// LeaveBudget gives back what parked events have taken of the budget, for a
// machine that is replaced by a new one with the same budget. The machine must
// not be used any more.
func (m *Machine) LeaveBudget() {
	if m.lot == nil {
		return
	}
	for _, e := range m.lot.events {
		if e.counted {
			m.lot.budget.Release(1, e.size)
		}
	}
	m.lot = nil
}
