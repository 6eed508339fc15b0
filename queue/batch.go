package queue

import "github.com/penstock/penstock"

// Batch is a pulled batch: 1 to max events of one partition. Its values are
// valid until it is committed or its consumer pulls again. Marks made with Fail
// have no effect on a pulled batch: what is not to be settled is not
// committed.
type Batch[T any] struct {
	penstock.Batch[T] // and no more: a fifth word would keep it out of registers
}

// Commit commits the batch: the group has finished with its events, and their
// capacity is given back. It is idempotent and never goes back: a second
// commit, and the commit of a batch whose partition was pulled from again,
// change nothing and return nil. It returns [ErrAutoCommit] in a group
// with AutoCommit, [ErrReassigned] when [Group.Resize] has given the partition
// to another consumer, and [penstock.ErrClosed] after Close. Like a pull, it
// belongs to the consumer's goroutine. It panics on the zero Batch.
func (b Batch[T]) Commit() error {
	d, ticket := b.Ticket()
	if d == nil {
		panic("queue: Commit of a batch that was not pulled")
	}
	c := d.Carrier.(*cursor[T])
	switch {
	case c.group.closed.Load():
		return penstock.ErrClosed
	case c.group.config.AutoCommit:
		return ErrAutoCommit
	case ticket != c.ticket || c.sought.Load() != nil:
		return nil
	}
	return c.finish()
}
