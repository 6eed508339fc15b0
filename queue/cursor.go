package queue

import (
	"fmt"
	"math"
	"reflect"
	"runtime"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/seglog"
)

// window is a run of events that lie next to each other in memory, as a
// storage hands them to a cursor. All slices are the storage's.
type window[T any] struct {
	First  penstock.Offset
	Values []T
	Metas  []penstock.Meta    // nil, or as long as Values
	Times  []penstock.TimeRun // append times of Values, from the first on
	Epoch  uint32             // the writer's
	Whole  penstock.Offset    // no memory comes back before all below it is finished with
	bad    *UndecodableError  // not nil: its one event stands for one that cannot be decoded
}

func (w *window[T]) end() penstock.Offset { return w.First + penstock.Offset(len(w.Values)) }

// source is how a cursor gets windows from the storage of its partition. It is
// called once per window, not once per event or batch. One goroutine at a
// time, except end.
type source[T any] interface {
	// fill returns events from offset at on. end is one that the caller has from
	// the source, and not before at. The window is empty only when at is the end of
	// what is readable. It holds at least max events if that many are below end, and
	// may hold more; with lasting set it may hold fewer, but at least one. It is
	// valid until the next fill; with lasting set, until release has passed it. fill
	// does not wait for data.
	fill(at, end penstock.Offset, max int, lasting bool) (window[T], error)
	// end returns one past the newest readable event. Safe for concurrent use.
	end() penstock.Offset
	// endBy is end, as far as a look shows it that the sources of a topic share.
	endBy(look *seglog.Look) penstock.Offset
	// release says that nothing below low is looked at any more. The hold's
	// low is still where it was before.
	release(low penstock.Offset)
	// store keeps the commit where it survives what the topic's durability
	// promises to survive, with the completions above it as bits (see
	// settle.Config.Completed; nil is none). It is called before the hold's
	// commit moves, so a failed store moves nothing.
	store(commit penstock.Offset, completed []byte) error
	// close gives back what the source holds.
	close()
}

// sweepEvery is after how many finished events memory is given back at the
// earliest, where the events keep nothing alive; where they do, see
// sweepPointers.
const (
	sweepEvery    = 512
	sweepPointers = 64
)

// cursor is one group's place in one partition. It belongs to one goroutine at
// a time: the owner of the partition in the group. Only the hold is read by
// others.
//
// Invariants: committed <= read <= limit, and hold.Low <= committed. The
// events in [read, limit) lie in win. ticket counts deliveries, so that a
// batch knows whether it is the last one.
type cursor[T any] struct {
	next   *cursor[T] // whose turn is after this one's, in a ring
	place  int        // in its consumer's list
	group  *Group[T]
	topic  *Topic[T]
	part   *partition[T]
	hold   *seglog.Hold // the owner's; see seek.go
	source source[T]
	loan   *loan
	saved  bool            // the commit is stored outside memory
	joined int             // the largest batch that is copied together; see least
	sweeps penstock.Offset // after how many finished events memory is given back
	drains bool            // also when all are finished: they keep other memory alive

	win window[T]
	// smooth is up to where the next pull needs no step but to move on. It is 0
	// while a pulled batch is not committed: that comes again.
	smooth    penstock.Offset
	limit     penstock.Offset
	read      penstock.Offset
	committed penstock.Offset
	low       penstock.Offset // the hold's, without the atomic
	sweepAt   penstock.Offset // release memory when low may rise to this
	ticket    uint64
	completed []byte // completions above committed: restored by the source, kept by Run

	standing atomic.Pointer[seglog.Hold] // hold, for others
	sought   atomic.Pointer[sought]      // nil unless the owner has to move
	moved    atomic.Pointer[moved]       // not nil when another cursor counts, see resize.go
	skipped  atomic.Pointer[Skip]        // what the owner has not been told, see skip.go

	delivery  penstock.Delivery
	runsUntil penstock.Offset // delivery.Times[0] covers [win.First or later, runsUntil)
	runs      []penstock.TimeRun
	run0      [1]penstock.TimeRun // backs runs until it must be longer
}

// newCursor joins a hold with a source that starts at the hold.
func newCursor[T any](g *Group[T], p *partition[T], hold *seglog.Hold, s source[T]) *cursor[T] {
	t, at := g.topic, hold.Committed()
	c := &cursor[T]{group: g, topic: t, part: p, hold: hold, source: s, saved: t.disk != nil, sweeps: sweepEvery, joined: math.MaxInt}
	if p.log != nil {
		c.joined = joinedBytes / max(1, int(reflect.TypeFor[T]().Size()))
		if c.drains = p.log.HoldsPointers(); c.drains {
			c.sweeps = sweepPointers
		}
		// Smaller segments are used again only if they come back one by one.
		if size := penstock.Offset(t.config.SegmentSize); size > 0 {
			c.sweeps = min(c.sweeps, size)
		}
	}
	c.standing.Store(hold)
	c.read, c.limit, c.committed, c.low, c.win.First = at, at, at, at, at
	c.sweepAt = at + c.sweeps
	c.delivery = penstock.Delivery{Topic: t.config.Name, Partition: p.index, Carrier: c}
	c.runs = c.run0[:0]
	c.loan = newLoan(p, s)
	runtime.AddCleanup(c, (*loan).forget, c.loan)
	return c
}

// take moves on over the next events, at most max, and returns them: none when
// the window is used up. The delivery describes them afterwards.
func (c *cursor[T]) take(max int) []T {
	k := min(max, int(c.limit-c.read))
	if k == 0 {
		return nil
	}
	if i := int(c.read - c.win.First); c.read+penstock.Offset(k) > c.runsUntil || c.win.Metas != nil {
		c.describe(&c.delivery, &c.runs, i, k)
	}
	i := int(c.read - c.win.First)
	c.delivery.First = c.read
	c.read += penstock.Offset(k)
	c.ticket++
	c.smooth = 0
	return c.win.Values[i : i+k : i+k]
}

// smoothen lets the next pulls go the short way, as far as nothing else is to
// be done. All that was taken is committed.
func (c *cursor[T]) smoothen() {
	if c.win.Metas == nil && !(c.saved && c.group.config.AutoCommit) {
		c.smooth = min(c.limit, c.sweepAt, c.runsUntil)
	}
}

// describe fills in what the window knows of its events [i, i+k). runs backs
// the times when they are not all the same.
func (c *cursor[T]) describe(d *penstock.Delivery, runs *[]penstock.TimeRun, i, k int) {
	d.Epoch = c.win.Epoch
	d.Metas = nil
	if c.win.Metas != nil {
		d.Metas = c.win.Metas[i : i+k : i+k]
	}
	list := (*runs)[:0]
	c.runsUntil = 0
	first := c.win.First + penstock.Offset(i)
	for _, r := range c.win.Times {
		if i >= r.N {
			i -= r.N
			continue
		}
		here := r.N - i
		list = append(list, penstock.TimeRun{N: here, UnixNano: r.UnixNano})
		if len(list) == 1 {
			c.runsUntil = first + penstock.Offset(here)
		}
		i = 0
		if k -= here; k <= 0 {
			break
		}
	}
	if len(list) > 1 {
		c.runsUntil = 0 // the next batch begins inside another run
	}
	*runs = list
	d.Times = list
}

// joinedBytes is how many bytes of a batch are copied together at most when it
// crosses segments in memory. A larger one ends with the segment: it is shorter
// than it might be, but a view, and the next one follows it.
const joinedBytes = 4096

// least returns how many events the window of a pulled batch of max must hold,
// if they are below end.
func (c *cursor[T]) least(end penstock.Offset, max int) int {
	if max > c.joined && int(end-c.read) > c.joined {
		return 1
	}
	return max
}

// refill gets the next window, of at least so many events if they are below end,
// which is not before read. Afterwards take gives something unless nothing is
// readable; after an error there is none.
func (c *cursor[T]) refill(end penstock.Offset, least int, lasting bool) error {
	w, err := c.source.fill(c.read, end, least, lasting)
	if err != nil { // what the window held may be overwritten, or emptied
		c.win, c.limit, c.runsUntil, c.smooth = window[T]{First: c.read}, c.read, 0, 0
		return fmt.Errorf("topic %q partition %d: %w", c.topic.config.Name, c.part.index, err)
	}
	c.win, c.limit, c.runsUntil, c.smooth = w, w.end(), 0, 0
	if w.Whole > 0 && !lasting { // else the window may be far ahead of what is finished
		c.sweepAt = max(c.low+c.sweeps, w.Whole)
	}
	return nil
}

// rewind goes back to the commit, so that what was taken and not committed
// comes again (BQ-74).
func (c *cursor[T]) rewind() { c.seek(c.committed) }

// seek goes to an offset that the hold keeps alive.
func (c *cursor[T]) seek(to penstock.Offset) {
	c.read, c.runsUntil, c.smooth = to, 0, 0
	if to < c.win.First || to > c.limit {
		c.win, c.limit = window[T]{First: to}, to
	}
}

// commit moves the committed position to the offset to, which lies in
// [committed, read], and gives capacity back. Where commits are stored, it
// stores the completions too. It returns ErrReassigned, and changes nothing,
// when another cursor counts.
func (c *cursor[T]) commit(to penstock.Offset) error {
	if c.saved {
		if err := c.source.store(to, c.completed); err != nil {
			c.group.noteError(KindCommit, c.part.index, to, err)
			return fmt.Errorf("commit topic %q partition %d: %w", c.topic.config.Name, c.part.index, err)
		}
	}
	if !c.hold.Commit(to) && !c.storedBeforeMove(to) {
		return ErrReassigned
	}
	c.committed = to
	c.topic.freed()
	return nil
}

// finish commits everything that was taken.
func (c *cursor[T]) finish() error {
	if c.read == c.committed {
		return nil
	}
	if err := c.settle(c.read); err != nil {
		return err
	}
	c.smoothen()
	return nil
}

// settle is commit where no batch below the offset to stays in hands.
func (c *cursor[T]) settle(to penstock.Offset) error {
	if err := c.commit(to); err != nil {
		return err
	}
	if c.saved || to >= c.sweepAt || c.drains && to == c.source.end() {
		c.letGo(to) // on disk at once: a few large events may fill it
	}
	return nil
}

// letGo says that nothing below the offset to, which is at most committed, is
// in hands any more, and gives memory back if no other group needs it.
func (c *cursor[T]) letGo(to penstock.Offset) {
	c.source.release(to)
	if c.saved && to >= c.limit { // its values are emptied, or were made for it alone
		c.win, c.limit, c.runsUntil = window[T]{First: to}, to, 0
	}
	c.low = to
	c.sweepAt = to + c.sweeps
	c.hold.Lower(to)
	c.part.sweep()
}

// idle gives back what only the last events keep, when nothing is left to read:
// what they point to, or files. Memory that comes back by segment does so when
// the window has passed one.
func (c *cursor[T]) idle() {
	if c.low == c.committed {
		return
	}
	if c.saved || c.drains || c.win.Metas != nil || c.committed >= c.sweepAt {
		c.letGo(c.committed)
	}
}

// readable returns how many events can be taken without waiting.
func (c *cursor[T]) readable() int { return int(c.source.end() - c.read) }

// sweep gives the memory, or the segments on disk, below the low-water mark
// back.
func (p *partition[T]) sweep() {
	if p.log != nil {
		p.log.Release(p.marks.Low())
		return
	}
	p.file.sweep(p.marks.Low())
}
