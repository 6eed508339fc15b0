package stream

import (
	"time"

	"github.com/penstock/penstock"
)

// Lagging is implemented by cursors that can say how much lies before them, as
// those of the caches of this package can. Without it a subscription's lag
// counts only what its consumer was offered.
type Lagging interface {
	// Lag returns how many events of its stream Next would still return, and
	// when the queue took the first of them in, zero when it does not say. It
	// does not block, and its cost does not depend on the number.
	Lag() (events uint64, oldest time.Time)
}

// Lag implements [Lagging].
func (c *shelfCursor) Lag() (events uint64, oldest time.Time) {
	if c.closed {
		return 0, time.Time{}
	}
	if c.at == nil && !c.lost {
		c.locate()
	}
	first := c.at
	if c.lost { // what was dropped is not there to be counted
		first = c.p.head
	}
	if first == nil {
		return 0, time.Time{}
	}
	return c.p.events - first.ahead, first.c.Time
}

// backlog is what has not been settled: how many events, and when the queue
// took the oldest of them in.
type backlog struct {
	events uint64
	oldest time.Time
}

// add counts events behind those that are there.
func (b *backlog) add(n uint64, oldest time.Time) {
	if b.oldest.IsZero() && n > 0 {
		b.oldest = oldest
	}
	b.events += n
}

// age returns how old the oldest event is; 0 when nothing is outstanding or the
// queue does not say.
func (b *backlog) age(now time.Time) time.Duration {
	if b.oldest.IsZero() {
		return 0
	}
	return max(0, now.Sub(b.oldest))
}

// worst makes b hold the larger number and the older event of both.
func (b *backlog) worst(o backlog) {
	b.events = max(b.events, o.events)
	if b.oldest.IsZero() || !o.oldest.IsZero() && o.oldest.Before(b.oldest) {
		b.oldest = o.oldest
	}
}

// backlog returns what the subscription has not settled of what was read.
func (s *subscription) backlog() (b backlog) {
	if d := s.outstanding(); d != nil {
		if n := d.events(); n > 0 {
			b.add(uint64(n), d.since())
		}
		if n := len(d.rest); n > 0 {
			b.add(uint64(events(d.rest)), d.rest[0].Time)
		}
	}
	at := s.cursor
	if at == nil {
		at = s.pin
	}
	if c, ok := at.(Lagging); ok {
		b.add(c.Lag())
	}
	return b
}

// backlog returns what the slowest subscription of the stream has not settled,
// or what waits for its subscriptions to be found.
func (e *streamEntry) backlog() (b backlog) {
	if e.waits() {
		if c, ok := e.pin.(Lagging); ok {
			b.add(c.Lag())
		}
	}
	for _, sub := range e.subs {
		b.worst(sub.backlog())
	}
	return b
}

// backlog returns what was read of the queue and is not settled by everyone. An
// event counts once, however many subscriptions it waits for. It runs on the
// loop; its cost grows with the number of busy streams.
func (r *run) backlog() (b backlog) {
	for _, e := range r.busy.list {
		s := e.backlog()
		n := b.events + s.events
		b.worst(s)
		b.events = n
	}
	for i := range r.pumping.backlog {
		c := &r.pumping.backlog[i]
		b.add(uint64(c.Events.Len()), c.Time)
	}
	return b
}

// Measurer is implemented by adapters that can tell how much a queue holds, so
// that what was not even read is seen.
type Measurer interface {
	// Unread returns how many containers the queue holds behind the one with
	// the token, or, when known is false, altogether; ok is false when it
	// cannot tell now. It must be safe for concurrent use and must not block.
	Unread(q QueueID, read penstock.Token, known bool) (containers uint64, ok bool)
}

// Unread implements [Measurer].
func (a *topicAdapter) Unread(q QueueID, read penstock.Token, known bool) (containers uint64, ok bool) {
	part := a.group.Stats().Partitions[q.Number]
	from := uint64(part.Committed)
	if known {
		from = max(from, read.Lo+1)
	}
	return max(uint64(part.End), from) - from, true
}
