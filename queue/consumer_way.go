package queue

import "github.com/penstock/penstock"

// Ways of a pull.
const (
	everyStep   = iota
	autoCommits // the short way, in a group with AutoCommit
	autoBounded // the same where producers may wait for capacity
	byCommit    // the short way, in a group that commits by call
)

// halt makes the next pull take every step, and so look at what has changed:
// the caller changes it first.
func (c *Consumer[T]) halt() { c.way.Store(everyStep) }

// liven lets pulls go the short way, unless something stands against it.
// Whoever changes that halts afterwards, so one of both looks is late enough.
func (c *Consumer[T]) liven() {
	switch {
	case !c.auto:
		c.way.Store(byCommit)
	case c.budget != nil:
		c.way.Store(autoBounded)
	default:
		c.way.Store(autoCommits)
	}
	if c.group.closed.Load() || c.group.control.busy.Load() || c.mine.gone || c.share.Load() != c.mine ||
		c.shaped && c.group.config.BatchBytes > 0 {
		c.halt()
	}
	for _, cur := range c.cursors {
		if cur.sought.Load() != nil {
			c.halt()
		}
		// Looked at for nothing but this: what the next pulls of all partitions
		// need comes from memory at the same time, not one after the other.
		cur.hold.Committed()
		cur.source.end()
	}
}

// enter checks at the start of a call that the group is open and is pulled. A
// pull looks at no batch, and takes the newest share.
func (c *Consumer[T]) enter(pull bool) error {
	if c.group.closed.Load() {
		c.giveBack()
		return penstock.ErrClosed
	}
	if !c.claimed {
		if err := c.group.claim(pulled); err != nil {
			return err
		}
		if c.group.closed.Load() { // Close looks at the use after it has set closed
			return penstock.ErrClosed
		}
		c.claimed = true
	}
	if c.way.Load() == everyStep {
		if pull {
			c.adopt() // also of partitions that it is about to leave: what was in hand is abandoned
			c.takeShare()
		}
		for _, cur := range c.cursors {
			cur.completed = nil // a pull begins at the commit, whatever Run had done beyond it
		}
		c.adopt()
		c.liven()
	}
	if pull && c.mine.gone {
		return ErrReassigned
	}
	return nil
}

// giveBack ends the loans of a group that is closed. What Run has, it gives back
// itself.
func (c *Consumer[T]) giveBack() {
	if c.group.use.Load() != pulled {
		return
	}
	last := c.share.Load() // perhaps never taken
	for _, cursors := range [][]*cursor[T]{c.cursors, last.left, last.cursors} {
		for _, cur := range cursors {
			cur.loan.end()
		}
	}
}
