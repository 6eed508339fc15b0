package segfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/penstock/penstock"
)

// SegmentState says in what part of its life a segment is.
type SegmentState uint8

const (
	SegmentSealed  SegmentState = iota // full, and never changed again
	SegmentActive                      // the last one, which takes appends
	SegmentTrimmed                     // below the start of the log; the next trim or open removes it
	SegmentDamaged                     // its header or its place is wrong
)

// String returns the state as it stands in JSON: sealed, active, trimmed,
// damaged.
func (s SegmentState) String() string {
	switch s {
	case SegmentSealed:
		return "sealed"
	case SegmentActive:
		return "active"
	case SegmentTrimmed:
		return "trimmed"
	}
	return "damaged"
}

// SegmentInfo describes a segment file.
type SegmentInfo struct {
	Partition int
	File      string
	State     SegmentState
	First     penstock.Offset // of its events, [First, End)
	End       penstock.Offset
	Bytes     penstock.Bytes // up to the end of its last frame
	Size      penstock.Bytes // of the file; the last one has its full size from the start
	Created   time.Time      // zero when the header is damaged
	// Groups are those that have not committed all of the segment, by name:
	// they are why it is kept.
	Groups []string
	Err    error // why it is damaged, or not readable to its end
}

// Segments lists the segments of the topic, by partition and offset. Of the
// last segment of a partition what is not known to be synced is read, to find
// its end. The error is that of ctx, or says why a directory cannot be read.
func (in *Inspection) Segments(ctx context.Context) ([]SegmentInfo, error) {
	var all []SegmentInfo
	for id := range in.topic.Partitions {
		infos, err := in.segmentsOf(ctx, id)
		if err != nil {
			return all, err
		}
		all = append(all, infos...)
	}
	return all, nil
}

func (in *Inspection) segmentsOf(ctx context.Context, id int) ([]SegmentInfo, error) {
	f, err := in.look(id)
	if err != nil {
		return nil, err
	}
	var all []SegmentInfo
	for i := range f.segs {
		s := &f.segs[i]
		info := SegmentInfo{Partition: id, File: s.name(), First: s.base, End: s.base, Bytes: penstock.Bytes(s.size), Size: penstock.Bytes(s.size), Err: s.err}
		last := i == len(f.segs)-1
		info.End = f.bound(i)
		switch {
		case s.err != nil:
			info.State, info.Bytes = SegmentDamaged, 0
		case i > 0 && !f.follows(i):
			info.State, info.Err = SegmentDamaged, errChain
		case s.file != "":
			info.State, info.Err = SegmentDamaged, fmt.Errorf("is the segment of offset %d under another name", s.base)
		case f.lost == nil && !last && info.End <= f.state.start:
			info.State = SegmentTrimmed
		case last:
			if err := in.describeLast(ctx, f, &info); err != nil {
				return all, err
			}
		}
		if s.seg != nil {
			info.Created = time.Unix(0, s.seg.hdr.created).UTC()
		}
		for _, g := range f.groups {
			if g.err == nil && g.stored.committed < info.End {
				info.Groups = append(info.Groups, g.name)
			}
		}
		all = append(all, info)
	}
	for i := range f.strays {
		s := &f.strays[i]
		all = append(all, SegmentInfo{
			Partition: id, File: s.name(), State: SegmentDamaged, First: s.base, End: s.base, Size: penstock.Bytes(s.size),
			Err: fmt.Errorf("%w: %w", errStray, s.err),
		})
	}
	return all, nil
}

// describeLast finds the end of the last segment.
func (in *Inspection) describeLast(ctx context.Context, f *found, info *SegmentInfo) error {
	e, err := in.end(ctx, f, false, nil, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist): // sealed and trimmed since we looked
		info.State = SegmentTrimmed
		return nil
	case err != nil:
		return err
	}
	pos, end := e.until(f)
	info.State, info.End, info.Bytes = SegmentActive, end, penstock.Bytes(pos)
	if e.sealed {
		info.State = SegmentSealed
	}
	if e.damage || e.err != nil {
		_, _, info.Err = e.lost(f)
		info.State = SegmentDamaged
	}
	return nil
}
