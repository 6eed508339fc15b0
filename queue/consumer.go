package queue

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
	"github.com/penstock/penstock/seglog"
)

// Errors of the calls of a consumer.
var (
	// ErrNothingPulled: Commit without a batch to commit: nothing was pulled
	// since the last commit.
	ErrNothingPulled = errors.New("nothing pulled since the last commit")
	// ErrAutoCommit: Commit in a group that commits at the pull.
	ErrAutoCommit = errors.New("the group commits automatically")
	// ErrReassigned: Group.Resize has given the partition to another consumer.
	// From a commit: it changed nothing, and what was pulled comes again there.
	// From a pull: the consumer has no partition any more, and never will.
	ErrReassigned = errors.New("the partition was given to another consumer")
)

// Consumer pulls from its share of a group's partitions. It is for one
// goroutine at a time, the commits of its batches included; different
// consumers of a group are independent. [Group.Resize] may change its share,
// which it then gets by itself at its next pull.
//
// A pull returns 1 to max events of one partition, in order; the partitions
// take turns. A batch above 4 KiB may have fewer events than are there: it ends
// with the memory it lies in. A partition whose last batch was not committed
// gives the same events again when its turn comes. The values of a batch are
// valid until it is committed (without AutoCommit) or the consumer pulls again.
//
// Invariant: a partition whose bit in pending is clear, and whose bit in the
// waker's is too, has nothing readable beyond its cursor's window.
type Consumer[T any] struct {
	group   *Group[T]
	cursors []*cursor[T]
	waker   *seglog.Waker
	budget  *demand.Budget // the topic's; nil when unbounded
	max     int            // of Pull
	auto    bool
	claimed bool          // this way of use is decided
	way     atomic.Uint32 // how a pull may go; everyStep after halt

	share atomic.Pointer[share[T]] // the newest
	mine  *share[T]                // the one that the owner has taken

	now     *cursor[T]  // whose turn is next
	pending []uint64    // partitions to look at, a bit each
	look    seglog.Look // at their ends, since the last bit was taken; see ends.go
	last    *cursor[T]  // of the last pull, until Commit
	skips   []Skip      // to be told by the next pulls
	ticket  ticket      // for the group's rate
	shaping             // of its batches
}

func newConsumer[T any](g *Group[T], s *share[T]) *Consumer[T] {
	c := &Consumer[T]{group: g, budget: g.topic.budget, max: g.config.BatchMax, auto: g.config.AutoCommit}
	c.share.Store(s)
	c.takeShare()
	return c
}

// Partitions returns the half-open range [from, to) of the partitions that the
// consumer reads; none when [Group.Resize] has taken all of them away. It is
// safe for concurrent use.
func (c *Consumer[T]) Partitions() (from, to int) {
	s := c.share.Load()
	return s.from, s.to
}

// TryPull returns the next batch of at most max events, or false when nothing
// is there now or max is not positive. It does not wait, but for [DeadLetter]
// with an event that cannot be decoded; without it, or when that fails, the
// error is an [*UndecodableError]. The error matches
// [penstock.ErrClosed] after Close of group or topic, [ErrReassigned] when
// [Group.Resize] has taken the consumer away, and
// [penstock.ErrExists] when the group is used in another way.
func (c *Consumer[T]) TryPull(max int) (b Batch[T], ok bool, err error) {
	// The short way, for small batches out of a large window: nothing to do but
	// to move on. Everything else is in pull. The way is asked first: a consumer
	// that has not pulled yet may have a cursor that is another one's by now, or
	// that Run is at work with.
	way := c.way.Load()
	if way == everyStep {
		return c.pull(context.Background(), max, false)
	}
	cur := c.now
	read := cur.read
	end := read + penstock.Offset(max)
	if max <= 0 || end > cur.smooth {
		return c.pull(context.Background(), max, false)
	}
	c.now = cur.next
	cur.delivery.First = read
	cur.read = end
	at := int(read - cur.win.First) // smooth is not above the window's end
	if way == byCommit {
		cur.ticket++
		cur.smooth = 0
		c.last = cur
		b.Batch = penstock.NewPulledAt(cur.win.Values, at, max, &cur.delivery, cur.ticket)
		return b, true, nil
	}
	if !cur.hold.Advance(max) {
		return c.pull(context.Background(), max, false) // Resize was faster: these are another consumer's
	}
	if way == autoBounded && c.budget.Waiting() > 0 {
		c.budget.Poke()
	}
	b.Batch = penstock.NewPulledAt(cur.win.Values, at, max, &cur.delivery, 0)
	return b, true, nil
}

// pull is TryPull with every step. With linger set, a batch that is not full
// waits for more, and the caller has collected the dirty bits.
func (c *Consumer[T]) pull(ctx context.Context, max int, linger bool) (b Batch[T], ok bool, err error) {
	if err := c.enter(true); err != nil {
		return b, false, err
	}
	if err := c.nextSkip(); err != nil {
		return b, false, err
	}
	cur, values, err := c.next(ctx, max, linger)
	if values == nil {
		if err != nil && (c.share.Load() != c.mine || c.wasPassed(err)) {
			return c.pull(ctx, max, linger) // the partition that failed may be another consumer's, or passed
		}
		return b, false, err
	}
	b.Batch = penstock.NewPulled(values, &cur.delivery, cur.ticket)
	return b, true, nil
}

// Pull returns the next batch of at most BatchMax events, and waits while there
// is none; with GroupConfig.Linger also while it is not full. It returns an
// error that matches ctx.Err() and its cause when ctx has ended, also when
// events are there, and the errors of TryPull.
func (c *Consumer[T]) Pull(ctx context.Context) (Batch[T], error) {
	return c.pullAtMost(ctx, c.max)
}

func (c *Consumer[T]) pullAtMost(ctx context.Context, max int) (Batch[T], error) {
	if ctx.Err() != nil {
		return Batch[T]{}, penstock.ContextError(ctx)
	}
	if c.group.config.Linger > 0 {
		return c.pullFull(ctx, max)
	}
	b, ok, err := c.TryPull(max)
	if ok || err != nil {
		return b, err
	}
	return c.wait(ctx, max)
}

// wait is Pull where nothing was there. It does not sleep while a partition is
// pending: its bit was taken by a look that had passed it already.
func (c *Consumer[T]) wait(ctx context.Context, max int) (Batch[T], error) {
	for {
		if c.group.control.busy.Load() {
			if err := c.waitHeld(ctx); err != nil {
				return Batch[T]{}, err
			}
		} else if !c.anyPending() {
			if err := c.waker.Wait(ctx, nil); err != nil {
				return Batch[T]{}, err
			}
		}
		if ctx.Err() != nil {
			return Batch[T]{}, penstock.ContextError(ctx)
		}
		if b, ok, err := c.pull(ctx, max, false); ok || err != nil {
			return b, err
		}
	}
}

// Batches yields the results of Pull until an error has been yielded or the
// loop is left. The last pair of a loop that is not left holds the reason, for
// example one that matches context.Canceled.
func (c *Consumer[T]) Batches(ctx context.Context) iter.Seq2[Batch[T], error] {
	return func(yield func(Batch[T], error) bool) {
		for {
			b, err := c.Pull(ctx)
			if !yield(b, err) || err != nil {
				return
			}
		}
	}
}

// Commit commits the batch of the last pull, and only that one. It
// returns [ErrNothingPulled] when there is none or it was committed by an
// earlier call, of this or of [Batch.Commit], [ErrAutoCommit] in a group with
// AutoCommit, [ErrReassigned] when [Group.Resize] has given the partition to
// another consumer, and [penstock.ErrClosed] after Close.
func (c *Consumer[T]) Commit() error {
	if err := c.enter(false); err != nil {
		return err
	}
	if c.auto {
		return ErrAutoCommit
	}
	cur := c.last
	if cur == nil || cur.read == cur.committed { // the batch's own Commit was first
		if c.share.Load().gone {
			return ErrReassigned
		}
		return ErrNothingPulled
	}
	if err := cur.finish(); err != nil {
		return err
	}
	c.last = nil
	return nil
}

// next takes the next events of the first partition, in turn, that has any.
// With linger set, one that waits for more has none, and what came since the
// caller collected the dirty bits is left to the next look. The reason of the
// batches of the short way is the one that stands here: they are always full.
func (c *Consumer[T]) next(ctx context.Context, max int, linger bool) (*cursor[T], []T, error) {
	if max <= 0 {
		return nil, nil, nil
	}
	c.ticket.wait(&c.group.control, false)
	for range c.cursors {
		cur := c.now
		i := cur.place
		c.now = cur.next
		if c.auto {
			cur.committed = cur.hold.Committed() // which the short way does not write down
		}
		if c.group.control.held(cur.part.index) {
			continue
		}
		waits := linger
		if cur.read >= cur.sweepAt || cur.read != cur.committed {
			waits = linger && cur.read == cur.committed // what comes again does not
			c.startOver(i, cur)
		}
		if waits && c.filling(i, max) {
			continue
		}
		if int(cur.limit-cur.read) < max && (linger && c.isPending(i) || !linger && c.fresh(i, cur, max)) {
			if err := c.fill(ctx, i, cur, max); err != nil {
				return nil, nil, err
			}
		}
		n, why := max, penstock.FlushCount
		if c.shaped {
			var err error
			if n, why, err = c.shape(i, max, waits); err != nil {
				return nil, nil, err
			}
		}
		if c.group.control.bucket != nil {
			if n = c.allow(cur, n); n == 0 {
				if c.ticket.limited {
					c.now = cur
					return nil, nil, nil
				}
				continue
			}
		}
		values := cur.take(n)
		if values == nil {
			continue
		}
		if len(values) < max && why == penstock.FlushCount {
			why = penstock.FlushLinger
		}
		cur.delivery.Reason = why
		if !c.auto {
			c.last = cur
			return cur, values, nil
		}
		if err := cur.commit(cur.read); err != nil {
			cur.rewind()
			c.mark(i)
			return nil, nil, err
		}
		cur.smoothen()
		return cur, values, nil
	}
	for _, cur := range c.cursors {
		cur.idle()
	}
	return nil, nil, nil
}

// startOver prepares a cursor whose earlier batch is no longer in hands: what
// was not committed comes again, and memory below is given back now and then.
func (c *Consumer[T]) startOver(i int, cur *cursor[T]) {
	if cur.read != cur.committed {
		cur.rewind()
		c.mark(i) // the window may have been left behind
	}
	if cur.read >= cur.sweepAt {
		cur.letGo(cur.read)
	}
}

// refill gets cursor i a window of at least so many events if they are below
// end, which was read after the partition's bit was taken.
func (c *Consumer[T]) refill(i int, cur *cursor[T], end penstock.Offset, least int) error {
	if err := cur.refill(end, least, false); err != nil {
		c.mark(i) // its window is gone, and what it held is not
		return err
	}
	if cur.limit >= end && !cur.endsInDamage() {
		c.unmark(i)
	}
	return nil
}

// isPending reports whether partition i may have events beyond its window, as
// far as that was collected.
func (c *Consumer[T]) isPending(i int) bool { return c.pending[i/64]&(1<<(i%64)) != 0 }

func (c *Consumer[T]) anyPending() bool {
	for _, bits := range c.pending {
		if bits != 0 {
			return true
		}
	}
	return false
}

// unmark notes that all of partition i was seen, as far as it was collected.
func (c *Consumer[T]) unmark(i int) { c.pending[i/64] &^= 1 << (i % 64) }

// mark notes that partition i must be looked at.
func (c *Consumer[T]) mark(i int) { c.pending[i/64] |= 1 << (i % 64) }
