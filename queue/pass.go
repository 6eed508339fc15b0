package queue

import (
	"errors"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

// How limits move groups (ADR 0079). An open group is moved like one that was
// sought: its stored position first, under a new era, then its hold, and its
// owner follows at its next look. A group that is not open keeps its stored
// position, and is moved, and told, when it is opened: a position below the
// first event that is kept says by itself what was passed.

// expire takes the events of a partition below an offset from everyone. It
// returns an error when a position could not be stored; the group is moved all
// the same. Nobody but the caller's own goroutine waits, and groupsMu is held.
func (e *fileEngine[T]) expire(p *partition[T], to penstock.Offset, hard bool) error {
	t := e.topic
	var errs []error
	if hard {
		for _, g := range t.groups {
			errs = append(errs, e.pass(g, p, to))
		}
		for name, holds := range e.parked {
			if h := holds[p.index]; h != nil && h.Committed() < to {
				e.park(p, name, to) // before the other goes: marks never go back
				p.marks.Remove(h)
			}
		}
	}
	from := max(p.marks.Committed(), p.file.earliest())
	if n := p.marks.Expire(to); n > 0 && to > from {
		t.seen.expired.Add(uint64(to - from))
	}
	return errors.Join(errs...)
}

// pass moves an open group forward in a partition.
func (e *fileEngine[T]) pass(g *Group[T], p *partition[T], to penstock.Offset) error {
	c := g.cursor(p.index)
	old := c.shown()
	f, ok := c.source.(*fileSource[T])
	if !ok || old.Committed() >= to {
		return nil
	}
	done, err := f.cursor.Pass(to, e.topic.config.Durability == penstock.Synced)
	hold, _ := p.marks.Seek(old, done.To, false)
	if hold == nil { // it lies below what every group has finished with
		return err
	}
	hold.Lower(done.To) // what its owner looks at lies in memory of its own
	if done.To > done.From {
		g.seen.sought.Add(int64(done.To - done.From))
		g.noteSkip(c, Skip{From: done.From, To: done.To, Events: g.gone(p.index, done)})
	}
	c.sought.Store(&sought{hold: hold, era: done.Era, passed: true})
	p.marks.Remove(old)
	g.recontrol()
	return err
}

// gone returns how many events an open group that was passed does not see any
// more: not those that the retry log holds, which come again, though it may not
// be stored yet that they are parked.
func (g *Group[T]) gone(partition int, done segfile.Passed) uint64 {
	if g.parking == nil {
		return done.Events
	}
	s := &g.parking.lanes[partition].shown
	s.mu.Lock()
	defer s.mu.Unlock()
	n := done.Events
	for o, e := range s.events {
		if e.seq <= s.held && o >= done.From && o < done.To && !done.Completed(o) {
			n--
		}
	}
	return n
}

// noteOpened notes what a group was passed over before it was opened. What it
// has parked is not told as skipped, as far as the retry log can be read: if it
// cannot, Run says so.
func (g *Group[T]) noteOpened(cursors []*cursor[T]) {
	for _, c := range cursors {
		f, ok := c.source.(*fileSource[T])
		if !ok || f.passed.Events == 0 {
			continue
		}
		n := f.passed.Events
		if g.left.some {
			log := g.parking.lanes[c.part.index].log
			entries, err := log.load()
			log.rest()
			for _, e := range entries {
				if err == nil && e.Offset >= f.passed.From && e.Offset < f.passed.To && !f.passed.Completed(e.Offset) {
					n--
				}
			}
		}
		g.noteSkip(c, Skip{From: f.passed.From, To: f.passed.To, Events: n})
	}
}

// passOpened moves a group that is being opened to where it may begin. It runs
// with groupsMu held.
func (e *fileEngine[T]) passOpened(c *segfile.Cursor, group string) (done segfile.Passed) {
	if !e.topic.config.HardRetention {
		return done
	}
	p := e.topic.parts[c.Partition()]
	to := p.file.earliest()
	if holds := e.parked[group]; holds != nil && holds[p.index] != nil {
		to = max(to, holds[p.index].Committed())
	}
	if c.Committed() >= to {
		return done
	}
	done, err := c.Pass(to, e.topic.config.Durability == penstock.Synced)
	if err != nil {
		e.topic.logger.Warn("where a group was moved to is not stored", "group", group, "partition", p.index, "err", err)
	}
	return done
}

// wasPassed reports whether an error of reading says only that the cursor was
// moved meanwhile.
func (c *cursor[T]) wasPassed(err error) bool {
	s := c.sought.Load()
	return s != nil && s.passed && errors.Is(err, penstock.ErrOffsetOutOfRange)
}

// wasPassed is that of the consumer's cursors. The next pull follows.
func (c *Consumer[T]) wasPassed(err error) bool {
	for _, cur := range c.cursors {
		if cur.wasPassed(err) {
			c.halt()
			return true
		}
	}
	return false
}
