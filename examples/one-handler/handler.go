package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/penstock/penstock"
)

// order is the event of this example.
type order struct {
	ID    int
	Cents int64
}

// ledger adds up orders. Its handle method is the one handler of this example:
// this file does not know what carries the events.
type ledger struct {
	mu    sync.Mutex
	seen  map[int]bool // ids that were booked: delivery is at least once
	cents int64
	want  int
	done  chan struct{} // closed when want orders are booked
}

func newLedger(want int) *ledger {
	return &ledger{seen: map[int]bool{}, want: want, done: make(chan struct{})}
}

// handle books a batch. An order whose id ends in 7 fails the first time; the
// carrier delivers it again.
func (l *ledger) handle(_ context.Context, b penstock.Batch[order]) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, o := range b.All() {
		if o.ID%10 == 7 && b.Attempt(i) == 1 {
			b.Fail(i, fmt.Errorf("order %d: the database is busy", o.ID))
			continue
		}
		if !l.seen[o.ID] {
			l.seen[o.ID] = true
			l.cents += o.Cents
			if len(l.seen) == l.want {
				close(l.done)
			}
		}
	}
	return nil
}

// booked returns how many orders were booked and their sum.
func (l *ledger) booked() (orders int, cents int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen), l.cents
}
