package queue

import (
	"slices"
	"sync/atomic"

	"github.com/penstock/penstock/seglog"
)

// shares says who has which partition of a group. It is replaced as a whole,
// with the topic's groupsMu held and the group open.
type shares[T any] struct {
	cursors   []*cursor[T] // by partition
	consumers []*Consumer[T]
}

// share is what one consumer has of it: the partitions [from, to), and what
// wakes their owner. It does not change; a new one is handed over, which the
// owner takes at its next look.
type share[T any] struct {
	from, to int
	cursors  []*cursor[T] // of [from, to)
	waker    *seglog.Waker
	gone     bool // the consumer gets no partition any more

	// left are the cursors that the consumer may have used and has no more: lost
	// by this share, or by one before it that it was not seen to take. Set before
	// the share is handed over.
	left  []*cursor[T]
	taken atomic.Bool
}

// assignment returns the partitions [from, to) of consumer i of n: contiguous,
// and the first partitions%n consumers have one more (BQ-66).
func assignment(partitions, n, i int) (from, to int) {
	base, more := partitions/n, partitions%n
	from = i*base + min(i, more)
	to = from + base
	if i < more {
		to++
	}
	return from, to
}

// newShare makes a share of the cursors of [from, to). Producers wake its owner
// from now on.
func (g *Group[T]) newShare(cursors []*cursor[T], from, to int) *share[T] {
	s := &share[T]{from: from, to: to, cursors: cursors[from:to:to], waker: seglog.NewWaker(to - from)}
	s.waker.Spin(g.config.Spin)
	for i, cur := range s.cursors {
		g.topic.addWaker(cur.part, s.waker.Place(i))
	}
	return s
}

// stopWaking makes producers forget the owner of a share.
func (g *Group[T]) stopWaking(s *share[T]) {
	for _, cur := range s.cursors {
		g.topic.removeWaker(cur.part, s.waker)
	}
}

// share divides cursors among so many new consumers.
func (g *Group[T]) share(cursors []*cursor[T], consumers int) {
	all := &shares[T]{cursors: cursors}
	for i := range consumers {
		from, to := assignment(len(cursors), consumers, i)
		all.consumers = append(all.consumers, newConsumer(g, g.newShare(cursors, from, to)))
	}
	g.shares.Store(all)
}

// cursor returns the cursor of a partition that counts.
func (g *Group[T]) cursor(partition int) *cursor[T] { return g.shares.Load().cursors[partition] }

// hand gives the consumer another share, without the cursors that it loses,
// which it takes at its next look. Its owner may be at work or asleep.
func (c *Consumer[T]) hand(s *share[T], lost ...*cursor[T]) {
	old := c.share.Load() // nobody else hands one over: the caller holds groupsMu
	s.left = lost
	if !old.taken.Load() {
		s.left = slices.Concat(old.left, lost)
	}
	c.share.Store(s)
	c.halt()
	old.waker.Ring()
	c.group.stopWaking(old)
}

// takeShare makes the newest share the consumer's own. The owner calls it when
// it looks at no batch: what was in hand of partitions that it has no more is
// given back.
func (c *Consumer[T]) takeShare() {
	s := c.share.Load()
	if s == c.mine {
		return
	}
	// Not what is marked as moved: this may be an earlier share, of which a
	// cursor is being taken away just now, and the next pull would be of it.
	for _, cur := range s.left {
		cur.loan.end()
	}
	s.taken.Store(true)
	if s.gone && c.group.control.bucket != nil {
		c.ticket.paid(&c.group.control, 0)
	}
	c.mine, c.cursors, c.waker = s, s.cursors, s.waker
	c.pending = make([]uint64, s.waker.Words())
	timer := c.timer
	c.shaping = newShaping(&c.group.config, len(s.cursors))
	c.timer = timer
	for i, cur := range s.cursors {
		cur.place, cur.next = i, s.cursors[(i+1)%len(s.cursors)]
		c.mark(i)
	}
	c.now = &cursor[T]{} // without an event, so that a pull takes every step
	if len(s.cursors) > 0 {
		c.now = s.cursors[0]
	}
}
