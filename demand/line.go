package demand

import "github.com/penstock/penstock"

// The line of requests that wait for a [Budget]: first come, first served. The
// mutex of the budget is held in every function here but withdraw, which takes
// it.

// waiter is one request in line. Its fields are guarded by the mutex of the
// budget until ready is closed; nothing but its caller touches it afterwards.
type waiter struct {
	events     int
	bytes      penstock.Bytes
	prev, next *waiter
	waits      bool          // still in line
	refused    bool          // left the line because of Close
	ready      chan struct{} // closed when the request leaves the line by grant or close
}

// serve grants what fits, from the front of the line, whole requests only.
func (b *Budget) serve() {
	for w := b.head; w != nil; w = b.head {
		if !b.take(w.events, w.bytes) && !(b.refill() && b.take(w.events, w.bytes)) {
			return
		}
		b.remove(w)
		close(w.ready)
	}
}

// join puts w at the end of the line.
func (b *Budget) join(w *waiter) {
	w.waits = true
	w.prev = b.tail
	if b.tail != nil {
		b.tail.next = w
	} else {
		b.head = w
	}
	b.tail = w
	b.waiting.Add(1)
	b.setSlow()
}

// remove takes w out of the line.
func (b *Budget) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		b.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		b.tail = w.prev
	}
	w.prev, w.next, w.waits = nil, nil, false
	b.waiting.Add(-1)
	b.setSlow()
}

// withdraw takes a request back that its caller gave up: out of the line, or
// what it was granted. Those behind it may fit now.
func (b *Budget) withdraw(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case w.waits:
		b.remove(w)
	case !w.refused:
		b.give(w.events, w.bytes)
	}
	b.serve()
}
