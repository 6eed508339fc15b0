package queue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/seglog"
)

// Reader reads one partition of a group ahead of the group's commit, for
// callers that settle events later and in an order of their own. It is for one
// goroutine at a time; Close may be called from any.
//
// What was read stays valid, values and metadata, until Commit has passed it.
// A bounded topic so bounds what is read and not committed.
//
// Invariant: Committed <= Next <= End.
type Reader[T any] struct {
	group  *Group[T]
	cursor *cursor[T]
	waker  *seglog.Waker
	closed atomic.Bool

	// Deliveries of batches that are not committed yet, oldest first: those of
	// out from first on. And those that can be used again.
	out   []*ahead
	first int
	idle  []*ahead
}

// ahead is the delivery of one batch that was read and not committed.
type ahead struct {
	delivery penstock.Delivery
	runs     []penstock.TimeRun
	end      penstock.Offset
}

// readers are the open readers of a group, by partition.
type readers[T any] struct {
	mu   sync.Mutex
	open map[int]*Reader[T]
}

// Reader opens the reader of a partition. It starts at the group's commit. The
// error matches [penstock.ErrExists] while the partition has an open reader or
// when the group is used in another way, [penstock.ErrInvalid] when partition is
// not in [0, Partitions), when the group has a Rate, which readers do not keep
// to, or the topic HardRetention, and [penstock.ErrClosed] after Close of group or
// topic. A reader that is not at the commit is moved by its own Seek, not by
// the group's.
func (g *Group[T]) Reader(partition int) (*Reader[T], error) {
	if err := g.checkPartition(partition); err != nil {
		return nil, err
	}
	if g.control.bucket != nil {
		return nil, &penstock.FieldError{Field: "Rate", Reason: "readers do not keep to it"}
	}
	if g.topic.config.HardRetention {
		return nil, &penstock.FieldError{Field: "HardRetention", Reason: "readers cannot be moved by it"}
	}
	if err := g.claim(readAhead); err != nil {
		return nil, err
	}
	// A seek is refused from the claim on; one that came before it is over when
	// the lock is there.
	g.topic.groupsMu.Lock()
	defer g.topic.groupsMu.Unlock()
	if g.closed.Load() {
		return nil, penstock.ErrClosed
	}
	g.cursor(partition).adopt() // of a seek before; while a reader is open there is none
	g.readers.mu.Lock()
	defer g.readers.mu.Unlock()
	if g.closed.Load() {
		return nil, penstock.ErrClosed
	}
	if g.readers.open[partition] != nil {
		return nil, fmt.Errorf("group %q: reader of partition %d: %w", g.name, partition, penstock.ErrExists)
	}
	if g.readers.open == nil {
		g.readers.open = make(map[int]*Reader[T])
	}
	cur := g.cursor(partition)
	cur.rewind()
	cur.completed = nil // a reader begins at the commit, whatever Run had done beyond it
	r := &Reader[T]{group: g, cursor: cur, waker: seglog.NewWaker(1)}
	g.topic.addWaker(cur.part, r.waker.Place(0))
	r.waker.Notify(0)
	g.readers.open[partition] = r
	return r, nil
}

// Read returns the events from Next on, at least one and at most max, or false
// when nothing is there now, the partition is paused ([Group.Pause]) or max is
// not positive. It does not wait. It may return fewer events than are there; the
// next call goes on. An event on disk that cannot be decoded is an
// [*UndecodableError], again at each call until Seek passes it. The error matches
// [penstock.ErrClosed] after Close of reader, group or topic.
func (r *Reader[T]) Read(max int) (penstock.Batch[T], bool, error) {
	if err := r.enter(); err != nil || max <= 0 || r.held() {
		return penstock.Batch[T]{}, false, err
	}
	c := r.cursor
	if c.read == c.limit {
		r.waker.Take(0)
		if err := c.refill(c.source.end(), max, true); err != nil {
			return penstock.Batch[T]{}, false, err
		}
	}
	values := c.take(max)
	if values == nil {
		return penstock.Batch[T]{}, false, nil
	}
	a := r.fetch()
	a.end = c.read
	a.delivery.First = c.delivery.First
	c.describe(&a.delivery, &a.runs, int(a.delivery.First-c.win.First), len(values))
	r.out = append(r.out, a)
	return penstock.NewBatch(values, &a.delivery), true, nil
}

// fetch returns a delivery that no batch uses.
func (r *Reader[T]) fetch() *ahead {
	if n := len(r.idle); n > 0 {
		a := r.idle[n-1]
		r.idle = r.idle[:n-1]
		return a
	}
	a := &ahead{}
	a.delivery.Topic, a.delivery.Partition = r.group.topic.config.Name, r.cursor.part.index
	return a
}

// Wait blocks until Read may give something. It returns an error that matches
// ctx.Err() and its cause when ctx ends first, and [penstock.ErrClosed] after
// Close of reader, group or topic.
func (r *Reader[T]) Wait(ctx context.Context) error {
	for {
		if err := penstock.ContextError(ctx); err != nil {
			return err
		}
		if err := r.enter(); err != nil {
			return err
		}
		r.waker.Take(0)
		if r.cursor.read < r.cursor.source.end() && !r.held() {
			return nil
		}
		if err := r.waker.Wait(ctx, nil); err != nil {
			return err
		}
	}
}

// held reports whether the reader's partition is paused.
func (r *Reader[T]) held() bool { return r.group.control.held(r.cursor.part.index) }

// Next returns the offset that the next Read begins at.
func (r *Reader[T]) Next() penstock.Offset { return r.cursor.read }

// Committed returns the group's commit.
func (r *Reader[T]) Committed() penstock.Offset { return r.cursor.committed }

// End returns one past the newest readable event.
func (r *Reader[T]) End() penstock.Offset { return r.cursor.source.end() }

// Seek makes the next Read begin at the offset to, in [Committed, End]; any
// other is [penstock.ErrOffsetOutOfRange].
func (r *Reader[T]) Seek(to penstock.Offset) error {
	if err := r.enter(); err != nil {
		return err
	}
	if end := r.End(); to < r.cursor.committed || to > end {
		return fmt.Errorf("seek to %d outside [%d, %d]: %w", to, r.cursor.committed, end, penstock.ErrOffsetOutOfRange)
	}
	r.cursor.seek(to)
	return nil
}

// Commit says that the group has finished with every event below upTo and that
// nobody looks at them any more. An upTo at or below an earlier one changes
// nothing; one above Next is [penstock.ErrOffsetOutOfRange].
func (r *Reader[T]) Commit(upTo penstock.Offset) error {
	if err := r.enter(); err != nil {
		return err
	}
	c := r.cursor
	if upTo <= c.committed {
		return nil
	}
	if upTo > c.read {
		return fmt.Errorf("commit up to %d, read up to %d: %w", upTo, c.read, penstock.ErrOffsetOutOfRange)
	}
	if err := c.settle(upTo); err != nil {
		return err
	}
	for r.first < len(r.out) && r.out[r.first].end <= upTo {
		r.idle = append(r.idle, r.out[r.first])
		r.first++
	}
	if r.first > len(r.out)/2 { // each delivery is moved once, however many are out
		n := copy(r.out, r.out[r.first:])
		clear(r.out[n:])
		r.out, r.first = r.out[:n], 0
	}
	return nil
}

// Close ends the reader. Another one may then be opened for the partition; it
// starts at the commit. A Wait under way returns [penstock.ErrClosed]. The
// owner calls it, or knows that the owner makes no further call but Wait. A
// second call does nothing.
func (r *Reader[T]) Close() error {
	g := r.group
	g.readers.mu.Lock()
	defer g.readers.mu.Unlock()
	if r.shut() {
		delete(g.readers.open, r.cursor.part.index)
	}
	return nil
}

func (r *Reader[T]) shut() bool {
	if r.closed.Swap(true) {
		return false
	}
	r.waker.Close()
	r.group.topic.removeWaker(r.cursor.part, r.waker)
	return true
}

func (r *Reader[T]) enter() error {
	if r.group.closed.Load() {
		r.cursor.loan.end()
		return penstock.ErrClosed
	}
	if r.closed.Load() {
		return penstock.ErrClosed
	}
	return nil
}

// ring makes the readers that wait look again.
func (rs *readers[T]) ring() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.open {
		r.waker.Ring()
	}
}

// shut ends all readers.
func (rs *readers[T]) shut() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.open {
		r.shut()
	}
}
