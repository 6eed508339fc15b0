package stream

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// receipt is what a visibility queue puts into Container.Raw.
type receipt struct{ number uint64 }

// visibleQueue is one queue of a [VisibilityQueue].
//
// Invariants: a message is ready, in fresh or in again, or hidden, never both;
// fresh is ordered by number; a hidden message has the receipt it is listed
// under, and is in due unless it is with the dead-letter handler; events is the
// sum over all messages.
type visibleQueue struct {
	config *VisibilityConfig

	mu       sync.Mutex
	fresh    []*message          // ready, and never handed out
	again    messagesByNumber    // ready, and handed out before
	hidden   map[uint64]*message // by receipt
	due      messagesByDue       // hidden, and ready again when their time is over
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
	received int       // how often it was handed out
	receipt  uint64    // while it is hidden
	until    time.Time // while it is in due
	place    int       // in due; -1 when it is not there
}

func newVisibleQueue(c *VisibilityConfig) *visibleQueue {
	return &visibleQueue{config: c, hidden: map[uint64]*message{}, news: make(chan struct{}, 1)}
}

func (q *visibleQueue) enqueue(c Container, now time.Time) error {
	n := c.Events.Len()
	if n > q.config.Capacity {
		return fmt.Errorf("visibility queue: %d events never fit into %d: %w", n, q.config.Capacity, penstock.ErrTooLarge)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.events+n > q.config.Capacity {
		return fmt.Errorf("visibility queue: %d of %d events, %d more do not fit: %w", q.events, q.config.Capacity, n, penstock.ErrFull)
	}
	q.number++
	c.Token, c.Time, c.Attempts, c.Raw = penstock.Token{}, now, 0, nil
	q.fresh = append(q.fresh, &message{c: c, number: q.number, place: -1})
	q.events += n
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
// handed out too often already. Both are hidden, the latter until kept or buried
// says what became of them.
func (q *visibleQueue) receive(limit int, now time.Time) (got, dead []Container) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.expire(now)
	for range min(limit, q.ready()) {
		m := q.oldest()
		q.receipts++
		m.receipt = q.receipts
		q.hidden[m.receipt] = m
		c := m.c
		c.Attempts, c.Raw = m.received, receipt{m.receipt}
		if q.config.MaxReceives > 0 && m.received >= q.config.MaxReceives {
			dead = append(dead, c)
			continue
		}
		q.keep(m, now)
		if m.received > 0 {
			q.stats.Repeated++
		}
		m.received++
		q.token++
		c.Token = penstock.Token{Lo: q.token}
		got = append(got, c)
	}
	return got, dead
}

func (q *visibleQueue) ready() int { return len(q.fresh) + len(q.again) }

// oldest takes the ready message that was enqueued first.
func (q *visibleQueue) oldest() *message {
	if len(q.fresh) == 0 || len(q.again) > 0 && q.again[0].number < q.fresh[0].number {
		return heap.Pop(&q.again).(*message)
	}
	m := q.fresh[0]
	q.fresh[0], q.fresh = nil, q.fresh[1:]
	return m
}

// keep hides a message for Visibility from now on.
func (q *visibleQueue) keep(m *message, now time.Time) {
	m.until = now.Add(q.config.Visibility)
	if m.place < 0 {
		heap.Push(&q.due, m)
	} else {
		heap.Fix(&q.due, m.place)
	}
}

// unhide takes a message out of those that are hidden.
func (q *visibleQueue) unhide(m *message) {
	delete(q.hidden, m.receipt)
	if m.place >= 0 {
		heap.Remove(&q.due, m.place)
	}
}

// show makes a hidden message ready.
func (q *visibleQueue) show(m *message) {
	q.unhide(m)
	heap.Push(&q.again, m)
	q.tell()
}

// expire makes visible again what nobody acknowledged in time.
func (q *visibleQueue) expire(now time.Time) {
	for len(q.due) > 0 && !now.Before(q.due[0].until) {
		q.show(q.due[0])
	}
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
	q.remove(m)
	return true
}

func (q *visibleQueue) remove(m *message) {
	q.unhide(m)
	q.events -= m.c.Events.Len()
}

// buried takes out what the dead-letter handler has taken, however long that
// took.
func (q *visibleQueue) buried(receipt uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if m := q.hidden[receipt]; m != nil {
		q.stats.DeadLettered++
		q.remove(m)
	}
}

// kept hides for Visibility what the dead-letter handler has not taken.
func (q *visibleQueue) kept(receipt uint64, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if m := q.hidden[receipt]; m != nil {
		q.keep(m, now)
		q.tell() // who waits has not counted on it
	}
}

func (q *visibleQueue) renew(receipt uint64, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := q.live(receipt, now)
	if m == nil {
		return false
	}
	q.keep(m, now)
	return true
}

// release makes messages visible at once.
func (q *visibleQueue) release(receipts []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, n := range receipts {
		if m := q.hidden[n]; m != nil {
			q.show(m)
		}
	}
}

// wait returns when something is ready. Several may wait; one that is woken
// wakes the next.
func (q *visibleQueue) wait(ctx context.Context) error {
	for {
		now := time.Now()
		q.mu.Lock()
		q.expire(now)
		ready := q.ready() > 0
		var soonest time.Time // zero: nothing will be ready by itself
		if len(q.due) > 0 {
			soonest = q.due[0].until
		}
		q.mu.Unlock()
		if err := penstock.ContextError(ctx); err != nil {
			q.tell() // another one waits for what is due
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
		}
	}
}

func (q *visibleQueue) statistics(now time.Time) VisibilityStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.expire(now)
	s := q.stats
	s.Ready, s.Hidden, s.Events = q.ready(), len(q.hidden), q.events
	return s
}

// messagesByNumber is a heap: the message that was enqueued first comes first.
type messagesByNumber []*message

func (h messagesByNumber) Len() int           { return len(h) }
func (h messagesByNumber) Less(i, j int) bool { return h[i].number < h[j].number }
func (h messagesByNumber) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *messagesByNumber) Push(m any)        { *h = append(*h, m.(*message)) }
func (h *messagesByNumber) Pop() any          { return pop((*[]*message)(h)) }

// messagesByDue is a heap whose messages know their place: the one whose time is
// over first comes first.
type messagesByDue []*message

func (h messagesByDue) Len() int           { return len(h) }
func (h messagesByDue) Less(i, j int) bool { return h[i].until.Before(h[j].until) }

func (h messagesByDue) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *messagesByDue) Push(m any) {
	m.(*message).place = len(*h)
	*h = append(*h, m.(*message))
}

func (h *messagesByDue) Pop() any {
	m := pop((*[]*message)(h))
	m.place = -1
	return m
}

func pop(h *[]*message) *message {
	last := len(*h) - 1
	m := (*h)[last]
	(*h)[last], *h = nil, (*h)[:last]
	return m
}
