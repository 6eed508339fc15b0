package stream

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// receipt is what a visibility queue puts into Container.Raw.
type receipt struct{ number uint64 }

// visibleQueue is one queue of a [VisibilityQueue].
//
// Invariants: a message is ready or hidden, never both; ready is ordered by
// number; a hidden message has the receipt it is listed under; no hidden
// message expires before soonest; events is the sum over all messages.
type visibleQueue struct {
	config *VisibilityConfig

	mu       sync.Mutex
	ready    []*message
	hidden   map[uint64]*message // by receipt
	soonest  time.Time           // zero when nothing is hidden
	events   int
	number   uint64 // of the message enqueued last
	token    uint64 // of the container handed out last
	receipts uint64 // number of the last one
	stats    VisibilityStats
	news     chan struct{} // of capacity 1: something became ready
}

type message struct {
	c        Container
	number   uint64
	received int // how often it was handed out
	until    time.Time
}

func newVisibleQueue(c *VisibilityConfig) *visibleQueue {
	return &visibleQueue{config: c, hidden: map[uint64]*message{}, news: make(chan struct{}, 1)}
}

func (q *visibleQueue) enqueue(c Container, now time.Time) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.events+c.Events.Len() > q.config.Capacity {
		return fmt.Errorf("visibility queue: %d of %d events, %d more do not fit: %w", q.events, q.config.Capacity, c.Events.Len(), penstock.ErrFull)
	}
	q.number++
	c.Token, c.Time, c.Attempts, c.Raw = penstock.Token{}, now, 0, nil
	q.ready = append(q.ready, &message{c: c, number: q.number})
	q.events += c.Events.Len()
	q.tell()
	return nil
}

// tell wakes a waiter.
func (q *visibleQueue) tell() {
	select {
	case q.news <- struct{}{}:
	default:
	}
}

// receive hands out up to limit containers, and separately those that were
// handed out too often already. Both are hidden.
func (q *visibleQueue) receive(limit int, now time.Time) (got, dead []Container) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.expire(now)
	n := min(limit, len(q.ready))
	for _, m := range q.ready[:n] {
		q.receipts++
		q.hide(m, q.receipts, now)
		c := m.c
		c.Attempts, c.Raw = m.received, receipt{q.receipts}
		if q.config.MaxReceives > 0 && m.received >= q.config.MaxReceives {
			dead = append(dead, c)
			continue
		}
		if m.received > 0 {
			q.stats.Repeated++
		}
		m.received++
		q.token++
		c.Token = penstock.Token{Lo: q.token}
		got = append(got, c)
	}
	clear(q.ready[:n])
	q.ready = q.ready[n:]
	return got, dead
}

func (q *visibleQueue) hide(m *message, receipt uint64, now time.Time) {
	m.until = now.Add(q.config.Visibility)
	q.hidden[receipt] = m
	if q.soonest.IsZero() || m.until.Before(q.soonest) {
		q.soonest = m.until
	}
}

// expire makes visible again what nobody acknowledged in time.
func (q *visibleQueue) expire(now time.Time) {
	if q.soonest.IsZero() || now.Before(q.soonest) {
		return
	}
	var back []*message
	q.soonest = time.Time{}
	for n, m := range q.hidden {
		switch {
		case !now.Before(m.until):
			back = append(back, m)
			delete(q.hidden, n)
		case q.soonest.IsZero() || m.until.Before(q.soonest):
			q.soonest = m.until
		}
	}
	q.show(back)
}

// show puts messages back to where they were.
func (q *visibleQueue) show(back []*message) {
	if len(back) == 0 {
		return
	}
	q.ready = append(back, q.ready...)
	slices.SortFunc(q.ready, func(a, b *message) int { return cmp.Compare(a.number, b.number) })
	q.tell()
}

// live returns the hidden message of a receipt that has not expired.
func (q *visibleQueue) live(receipt uint64, now time.Time) *message {
	q.expire(now)
	m := q.hidden[receipt]
	if m == nil {
		q.stats.LateReceipts++
	}
	return m
}

func (q *visibleQueue) acknowledge(receipt uint64, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := q.live(receipt, now)
	if m == nil {
		return false
	}
	q.stats.Acknowledged++
	q.remove(receipt, m)
	return true
}

func (q *visibleQueue) remove(receipt uint64, m *message) {
	delete(q.hidden, receipt)
	q.events -= m.c.Events.Len()
}

// buried takes out what the dead-letter handler has taken, however long that
// took.
func (q *visibleQueue) buried(receipt uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if m := q.hidden[receipt]; m != nil {
		q.stats.DeadLettered++
		q.remove(receipt, m)
	}
}

func (q *visibleQueue) renew(receipt uint64, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := q.live(receipt, now)
	if m == nil {
		return false
	}
	m.until = now.Add(q.config.Visibility)
	return true
}

// release makes messages visible at once.
func (q *visibleQueue) release(receipts []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var back []*message
	for _, n := range receipts {
		if m := q.hidden[n]; m != nil {
			delete(q.hidden, n)
			back = append(back, m)
		}
	}
	q.show(back)
}

// wait returns when something is ready. Several may wait; one that is woken
// wakes the next.
func (q *visibleQueue) wait(ctx context.Context) error {
	for {
		now := time.Now()
		q.mu.Lock()
		q.expire(now)
		ready, soonest := len(q.ready) > 0, q.soonest
		q.mu.Unlock()
		if err := penstock.ContextError(ctx); err != nil {
			return err
		}
		if ready {
			q.tell()
			return nil
		}
		var expiry <-chan time.Time
		if !soonest.IsZero() {
			expiry = time.After(soonest.Sub(now))
		}
		select {
		case <-q.news:
		case <-expiry:
		case <-ctx.Done():
			return penstock.ContextError(ctx)
		}
	}
}

func (q *visibleQueue) statistics(now time.Time) VisibilityStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.expire(now)
	s := q.stats
	s.Ready, s.Hidden, s.Events = len(q.ready), len(q.hidden), q.events
	return s
}
