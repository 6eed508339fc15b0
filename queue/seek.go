package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/seglog"
)

// A seek has two halves. Whoever seeks gives the partition a new hold at the
// new place, stores that on disk, and takes the old hold away: from then on the
// new place counts, and keeps events alive. The owner of the cursor, who may be
// at work or in user code, still has the old hold and the old era, with which
// it moves nothing any more. At its next look it adopts the new ones, and what
// was in its hands is abandoned (ADR 0034).

// sought is what a seek leaves for the owner of a cursor. One that was passed
// keeps what is parked, so what becomes of a parked event in hand counts there.
type sought struct {
	hold   *seglog.Hold
	era    uint64
	passed bool // by the topic's limits, see pass.go: what is completed or parked stays so
}

// shown returns the hold that counts. It is safe for concurrent use; c.hold is
// the owner's.
func (c *cursor[T]) shown() *seglog.Hold {
	if s := c.sought.Load(); s != nil {
		return s.hold
	}
	return c.standing.Load()
}

// adopt makes the owner's place the one that was sought, and reports whether
// there was one. The owner calls it when it looks at no batch.
func (c *cursor[T]) adopt() bool {
	s := c.sought.Load()
	if s == nil {
		return false
	}
	c.standing.Store(s.hold)
	for !c.sought.CompareAndSwap(s, nil) { // sought again meanwhile
		s = c.sought.Load()
		c.standing.Store(s.hold)
	}
	c.hold = s.hold
	c.completed = nil
	if f, ok := c.source.(*fileSource[T]); ok {
		f.era = s.era
		if s.passed {
			c.completed = f.completed()
		}
	}
	c.ticket++ // a batch from before is not the last one any more
	c.committed, c.low = s.hold.Committed(), s.hold.Low()
	// A window from before may have been emptied: what it copied together is
	// cleared when all of it is let go, which a way back does not undo.
	c.win, c.limit = window[T]{First: c.committed}, c.committed
	c.seek(c.committed)
	c.letGo(c.committed)
	return true
}

// SeekOffset moves the group in one partition to an offset in
// [earliest, end]: the next event that it gets is the one at that offset. It
// may be called at any time, whether the group is pulled, run or neither, and
// counts at once; on disk the new position is stored when it returns, synced at
// level synced. What was in hand is abandoned: a commit or a handler's return
// that comes later changes nothing, and settlements beyond the commit are
// forgotten. A handler that runs is not stopped.
//
// Events that every group has finished with are given back and cannot be sought
// to, so a group can go back only as far as a new group would begin. The error
// matches [penstock.ErrOffsetOutOfRange] then, and names the range that is
// kept; [penstock.ErrInvalid] when there is no such partition,
// [penstock.ErrExists] when the group is used by readers, which seek by
// themselves, or has parked events, [penstock.ErrClosed] after Close, and that
// of ctx when it has ended before the call.
func (g *Group[T]) SeekOffset(ctx context.Context, partition int, offset penstock.Offset) error {
	if err := penstock.ContextError(ctx); err != nil {
		return err
	}
	if err := g.checkPartition(partition); err != nil {
		return err
	}
	return g.named(g.seek(partition, func(penstock.Offset, penstock.Offset) (penstock.Offset, error) { return offset, nil }))
}

// SeekTime moves the group in every partition to the first event that was
// appended at or after t, as far back as [Group.SeekOffset] can: to the
// earliest kept event when all were, and to the end when none was. Append times
// of a partition are taken to rise. One partition is moved after the other; an
// error, for example [penstock.ErrCorrupt] of an event whose time was looked at,
// leaves those before it moved, and its own where it was.
func (g *Group[T]) SeekTime(ctx context.Context, t time.Time) error {
	for _, p := range g.topic.parts {
		if err := penstock.ContextError(ctx); err != nil {
			return err
		}
		err := g.seek(p.index, func(from, end penstock.Offset) (penstock.Offset, error) {
			return p.since(unixNano(t), from, end)
		})
		if err != nil {
			return g.named(err)
		}
	}
	return nil
}

// unixNano is t.UnixNano(), held to its ends for times that it cannot hold.
func unixNano(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}

// Seek moves the group in every partition to the earliest event that is kept
// for it, or behind the latest. Otherwise it is as [Group.SeekTime].
func (g *Group[T]) Seek(ctx context.Context, to Start) error {
	if to > Latest {
		return g.named(&penstock.FieldError{Field: "to", Reason: fmt.Sprintf("%d is neither Earliest nor Latest", uint8(to))})
	}
	for i := range g.topic.parts {
		if err := penstock.ContextError(ctx); err != nil {
			return err
		}
		err := g.seek(i, func(from, end penstock.Offset) (penstock.Offset, error) {
			if to == Latest {
				return end, nil
			}
			return from, nil
		})
		if err != nil {
			return g.named(err)
		}
	}
	return nil
}

// seek moves one partition to where choose says, given the range it has. Where
// choose does not know, it moves nothing.
func (g *Group[T]) seek(partition int, choose func(from, end penstock.Offset) (penstock.Offset, error)) error {
	t, p := g.topic, g.topic.parts[partition]
	t.groupsMu.Lock()
	defer t.groupsMu.Unlock()
	switch {
	case t.groups[g.name] != g:
		return penstock.ErrClosed
	case g.use.Load() == readAhead:
		return fmt.Errorf("the group is used by readers: %w", penstock.ErrExists)
	case g.parkedStats().Keys > 0:
		return fmt.Errorf("the group has parked events: %w", penstock.ErrExists)
	}
	if err := g.refuseLeft(); err != nil {
		return err
	}
	c := g.cursor(partition)
	old := c.shown()
	given := t.budget != nil
	// The range stays as it is until the new hold stands: commits that come
	// meanwhile neither raise its floor nor take away what choose looks at.
	guard := p.marks.Add(func(committed, low penstock.Offset) penstock.Offset {
		if given {
			return committed
		}
		return low
	})
	defer func() {
		p.marks.Remove(guard)
		p.sweep()
		t.freed()
	}()
	from, end := guard.Committed(), p.end()
	to, err := choose(from, end)
	if err != nil {
		return fmt.Errorf("seek partition %d: %w", partition, err)
	}
	hold, from := p.marks.Seek(old, to, given)
	if hold == nil || to > end {
		if hold != nil {
			p.marks.Remove(hold)
		}
		return fmt.Errorf("seek partition %d to %d, kept [%d, %d]: %w", partition, to, from, end, penstock.ErrOffsetOutOfRange)
	}
	next := &sought{hold: hold}
	if f, ok := c.source.(*fileSource[T]); ok {
		era, err := f.cursor.Seek(to, t.config.Durability == penstock.Synced)
		if err != nil {
			p.marks.Remove(hold)
			return fmt.Errorf("seek partition %d: %w", partition, err)
		}
		next.era = era
	}
	g.seen.sought.Add(int64(to) - int64(old.Committed()))
	c.sought.Store(next)
	p.marks.Remove(old)
	g.recontrol()
	return nil
}

// since returns the first offset in [from, end) whose event was appended at or
// after a time; end when there is none.
func (p *partition[T]) since(unixNano int64, from, end penstock.Offset) (at penstock.Offset, err error) {
	appended := func(at penstock.Offset) int64 {
		var times [1]int64
		p.log.TimesAt([]penstock.Offset{at}, times[:])
		return times[0]
	}
	if p.file != nil {
		r, opened := p.file.log.NewReader(from)
		if opened != nil {
			return 0, opened
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		appended = func(at penstock.Offset) int64 {
			if e := r.Seek(at); e != nil {
				err = e
				return 0
			}
			rec, e := r.Next(1)
			if e != nil {
				err = e
			}
			return rec.Time
		}
	}
	n := sort.Search(int(end-from), func(i int) bool { return appended(from+penstock.Offset(i)) >= unixNano })
	return from + penstock.Offset(n), err
}

// adopt moves the consumer's partitions to where they were sought.
func (c *Consumer[T]) adopt() {
	for i, cur := range c.cursors {
		if cur.adopt() {
			cur.completed = nil // a pull begins at the commit
			c.mark(i)
			if c.last == cur {
				c.last = nil
			}
		}
	}
	c.takeSkips()
}

// adopt begins again where the lane was sought. What was in hand is abandoned.
func (l *lane[T]) adopt() error {
	s := l.cur.sought.Load()
	switch {
	case l.park == nil:
	case s != nil && s.passed: // what is parked is delivered from there
		if err := l.park.end(); err != nil {
			return err
		}
	default:
		if err := l.park.forsake(); err != nil {
			return err
		}
	}
	l.cur.skipped.Store(nil) // told by the hook
	return l.begin()
}

// abandon ends a job whose lane was sought meanwhile: what became of its events
// does not count, and the lane begins again when none of its jobs is in hand.
func (p *pusher[T]) abandon(j *job[T]) error {
	l := j.lane
	j.reset()
	if p.inHand(l) {
		return nil
	}
	return p.adopt(l)
}
