package segfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// SalvageConfig says what is to be salvaged, and where to.
type SalvageConfig struct {
	InspectConfig
	To    string // data directory that gets the topic; it must not have one of the name
	Apply bool   // without it the report says what could be read, and nothing is written
}

// Salvaged says what became of a partition.
type Salvaged struct {
	Partition int
	Events    uint64                   // copied
	Lost      []*penstock.CorruptError // what could not be read, in order
	Groups    []GroupRepair            // positions, which stand before the same events as before

	gone []span // what was passed, lost or reclaimed meanwhile
}

// span is the events [first, end).
type span struct{ first, end penstock.Offset }

// Salvage copies every event that can be read into a topic of the same name in
// another data directory, with its time, and leaves the topic as it is. Batches
// stay whole unless a part is lost; offsets are counted anew from 0. Positions
// of groups come along, without what was settled above them: such events come
// again. It takes no lock: what is appended meanwhile may be missing.
//
// The error matches [penstock.ErrExists] when the target has the topic; a copy
// that was cut short has to be removed before the next one.
func Salvage(ctx context.Context, c SalvageConfig) ([]Salvaged, error) {
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	in, err := Inspect(c.InspectConfig)
	if err != nil {
		return nil, err
	}
	s := &salvage{in: in, now: time.Now()}
	if c.Apply {
		if err := s.open(&c); err != nil {
			return nil, err
		}
	}
	var all []Salvaged
	for id := range in.topic.Partitions {
		var r Salvaged
		if r, err = s.partition(ctx, id); err != nil {
			break
		}
		all = append(all, r)
	}
	if s.to != nil {
		if cerr := s.to.Close(); err == nil {
			err = cerr
		}
	}
	return all, err
}

// salvage is a salvage under way. to is nil when nothing is to be written.
type salvage struct {
	in  *Inspection
	to  *Log
	now time.Time // of the record that is appended
}

// open makes the topic that gets the events.
func (s *salvage) open(c *SalvageConfig) error {
	t := s.in.topic
	if _, err := c.FS.Stat(filepath.Join(c.To, EscapeName(t.Topic))); err == nil {
		return fmt.Errorf("topic %q in %s: %w", t.Topic, c.To, penstock.ErrExists)
	}
	size := penstock.Bytes(defaultSegmentBytes)
	for id := range t.Partitions { // room for the largest frame
		f, err := s.in.look(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for i := range f.segs {
			if seg := f.segs[i].seg; seg != nil {
				size = max(size, penstock.Bytes(seg.hdr.size))
			}
		}
	}
	var err error
	s.to, err = open(Config{
		FS: c.FS, Dir: c.To, Topic: t.Topic, Partitions: t.Partitions, Router: t.Router, Codec: t.Codec, Tenant: t.Tenant,
		SegmentBytes: size, MaxFrame: min(frameRoom(size), maxFrameBytes), Durability: penstock.Written,
	}, seams{now: func() time.Time { return s.now }, random: rand.Uint64, idle: idleBarrier})
	return err
}

// partition copies a partition and its positions.
func (s *salvage) partition(ctx context.Context, id int) (Salvaged, error) {
	r := Salvaged{Partition: id}
	f, err := s.in.look(id)
	if errors.Is(err, fs.ErrNotExist) { // as much of the others as there is
		r.Lost = append(r.Lost, &penstock.CorruptError{Topic: s.in.topic.Topic, Partition: id, File: partitionName(id), Cause: errNoPartition})
		return r, nil
	}
	if err != nil {
		return r, err
	}
	start := f.first()
	_, _, err = s.in.dump(ctx, f, DumpConfig{Partition: id, Unsynced: true, Skip: func(e *penstock.CorruptError) error {
		r.Lost = append(r.Lost, e)
		if !errors.Is(e.Cause, errUncounted) {
			r.gone = append(r.gone, span{e.First, e.Last + 1})
		}
		return nil
	}, Reclaimed: func(first, end penstock.Offset) {
		r.gone = append(r.gone, span{first, end})
	}}, func(rec Records) error {
		r.Events += uint64(rec.N)
		return s.copy(ctx, id, rec)
	})
	if err != nil {
		return r, err
	}
	for _, g := range f.groups {
		to := GroupRepair{Name: g.name, From: g.stored.committed, Err: g.err}
		if g.err == nil {
			to.To = min(r.moved(g.stored.committed, start), penstock.Offset(r.Events))
		}
		if err := s.position(id, to); err != nil {
			return r, err
		}
		r.Groups = append(r.Groups, to)
	}
	return r, nil
}

// moved returns where an offset stands in the copy: before the same event, or
// the next one that is there.
func (r *Salvaged) moved(at, start penstock.Offset) penstock.Offset {
	lost := penstock.Offset(0)
	for _, g := range r.gone {
		if g.first < at {
			lost += min(at, g.end) - g.first
		}
	}
	return max(at, start) - start - lost
}

// copy appends the records of one frame.
func (s *salvage) copy(ctx context.Context, id int, rec Records) error {
	if s.to == nil {
		return nil
	}
	f := NewFrame(rec.N)
	for i := range rec.N {
		f.Add(rec.At(i))
	}
	f.SetEnveloped(rec.Enveloped())
	f.SetTag(rec.tag)
	f.unchecked = true
	f.SetMaxTime(rec.maxTime)
	s.now = time.Unix(0, rec.Time)
	receipt, err := s.to.Partition(id).Append(ctx, f)
	if err == nil {
		_, err = receipt.Wait(ctx)
	}
	return err
}

// position stores the position of a group in the copy.
func (s *salvage) position(id int, g GroupRepair) error {
	if s.to == nil {
		return nil
	}
	c, err := s.to.Partition(id).Cursor(g.Name, StartEarliest)
	if err != nil {
		return err
	}
	return c.Store(g.To, nil, true)
}
