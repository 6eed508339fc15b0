package segfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/penstock/penstock"
)

// DumpConfig says what of a partition is shown.
type DumpConfig struct {
	Partition int
	// From and To bound the events, [From, To). To 0 is the end.
	From, To penstock.Offset
	// Unsynced shows also what is not known to be synced: a power loss may take
	// it, and offsets may then be used again. Without it the last moments of a
	// topic in use are not shown.
	Unsynced bool
	// Skip is called where events cannot be read, with what is lost; when it
	// returns nil the dump goes on behind them. Without it the dump ends there.
	Skip func(*penstock.CorruptError) error
}

// errDumped ends a scan that has shown enough.
var errDumped = errors.New("shown")

// Dump calls fn with the records of a partition, in order, without the topic's
// lock. The records are valid until fn returns; an error of it ends the dump.
// Dump returns the offset behind the last record that was shown, or could have
// been, and how many whole records lie behind it that are not known to be
// synced. Errors: *[penstock.CorruptError] at damage, unless Skip passes it;
// [penstock.ErrOffsetOutOfRange], From lies below the first event kept;
// [penstock.ErrNotFound], there is no such partition; that of ctx and of fn.
func (in *Inspection) Dump(ctx context.Context, c DumpConfig, fn func(Records) error) (end penstock.Offset, unsynced uint64, err error) {
	if c.Partition < 0 || c.Partition >= in.topic.Partitions {
		return 0, 0, fmt.Errorf("partition %d of %d: %w", c.Partition, in.topic.Partitions, penstock.ErrNotFound)
	}
	f, err := in.look(c.Partition)
	if err != nil {
		return 0, 0, err
	}
	return in.dump(ctx, f, c, fn)
}

// dump is Dump of what a look found.
func (in *Inspection) dump(ctx context.Context, f *found, c DumpConfig, fn func(Records) error) (end penstock.Offset, unsynced uint64, err error) {
	start := f.state.start
	if f.lost != nil && len(f.segs) > 0 {
		start = f.segs[0].base
	}
	if c.From == 0 {
		c.From = start
	}
	if c.From < start {
		return 0, 0, fmt.Errorf("offset %d, first event kept %d: %w", c.From, start, penstock.ErrOffsetOutOfRange)
	}
	d := &dump{in: in, f: f, cfg: &c, fn: fn, next: c.From}
	for i := range f.segs {
		if err = d.segment(ctx, i); err != nil {
			break
		}
	}
	if err == nil && f.missing() {
		err = d.lost(segmentName(f.state.segment), 0, d.next, max(f.state.end, 1)-1, errMissing)
	}
	if errors.Is(err, errDumped) {
		err = nil
	}
	return d.next, d.unsynced, err
}

// dump is a dump under way. next is the offset that is shown next.
type dump struct {
	in       *Inspection
	f        *found
	cfg      *DumpConfig
	fn       func(Records) error
	next     penstock.Offset
	unsynced uint64
	limit    int64 // position in the segment behind which nothing is shown
}

func (d *dump) segment(ctx context.Context, i int) error {
	s := &d.f.segs[i]
	last := i == len(d.f.segs)-1
	switch {
	case !last && d.f.segs[i+1].base <= d.next:
		return nil
	case s.base > d.next:
		if err := d.lost(s.name(), 0, d.next, s.base-1, errChain); err != nil {
			return err
		}
	}
	if s.err == nil && i > 0 && !d.f.follows(i) && s.seg.hdr.prevEnd == s.base { // foreign, and in place of another
		s.err = errChain
	}
	if s.err != nil {
		if last {
			return d.lost(s.name(), 0, d.next, max(d.next, d.f.state.end), s.err)
		}
		return d.lost(s.name(), 0, d.next, d.f.segs[i+1].base-1, s.err)
	}
	if last {
		return d.last(ctx, s)
	}
	d.limit = s.size
	return d.frames(ctx, s, d.f.segs[i+1].base)
}

// lost passes events that cannot be read, or returns the error.
func (d *dump) lost(file string, pos int64, first, last penstock.Offset, cause error) error {
	first = max(first, d.next)
	if last < first || d.cfg.To > 0 && first >= d.cfg.To {
		return nil
	}
	e := &penstock.CorruptError{
		Topic: d.in.topic.Topic, Partition: d.f.id, File: file, Position: pos, First: first, Last: last, Cause: cause,
	}
	if d.cfg.Skip == nil {
		return e
	}
	if err := d.cfg.Skip(e); err != nil {
		return err
	}
	d.next = last + 1
	return nil
}

// last shows the last segment, as far as it is known to be synced.
func (d *dump) last(ctx context.Context, s *foundSegment) error {
	e, err := d.in.end(ctx, d.f, true, nil, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist): // trimmed since we looked
		return nil
	case err != nil:
		return err
	}
	d.limit = e.pos
	if !d.cfg.Unsynced && !e.sealed {
		d.limit = min(e.safe, e.pos)
	}
	if err := d.frames(ctx, s, e.scanned.end); err != nil {
		return err
	}
	if e.damage || e.err != nil {
		first, last, cause := e.lost(d.f)
		return d.lost(s.name(), e.pos, first, last, cause)
	}
	d.unsynced = uint64(e.scanned.end - min(d.next, e.scanned.end))
	return nil
}

// frames shows the frames of a segment up to limit, and passes what is damaged
// in them when it may. The segment ends at end.
func (d *dump) frames(ctx context.Context, s *foundSegment, end penstock.Offset) error {
	file, err := d.in.fs.Open(s.seg.path, false)
	if errors.Is(err, fs.ErrNotExist) { // trimmed since we looked
		return d.lost(s.name(), 0, d.next, end-1, penstock.ErrOffsetOutOfRange)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	v := &fileView{file: file, size: d.limit, look: ended(ctx, nil)}
	from := lookup(readIndex(s.seg, file), s.base, d.next)
	at := mark{seg: s.seg, pos: from.pos, end: from.offset}
	for {
		r, err := follow(v, at, d.show)
		rest := behind{}
		if err == nil && !r.sealed && r.pos < d.limit {
			rest, err = search(v, s.seg.seed, r.pos, r.end)
		}
		switch {
		case isRead(err):
			return d.lost(s.name(), r.pos, r.end, end-1, err)
		case err != nil:
			return err
		case r.sealed || r.pos >= d.limit || r.end >= end:
			return nil
		case rest.frames == 0:
			return d.lost(s.name(), r.pos, r.end, end-1, r.cause)
		}
		if err := d.lost(s.name(), r.pos, r.end, rest.first-1, r.cause); err != nil {
			return err
		}
		at = mark{seg: s.seg, pos: rest.position, end: rest.first}
	}
}

// show hands a frame on.
func (d *dump) show(_ int64, b []byte, h header) error {
	if d.cfg.To > 0 && d.next >= d.cfg.To {
		return errDumped
	}
	if h.kind != typeData || h.end() <= d.next {
		return nil
	}
	r := Records{
		First: d.next, Epoch: h.epoch, Time: h.time, flags: h.flags, tag: h.tag, maxTime: h.maxTime,
		frame: b, from: int(d.next - h.base), count: int(h.count),
	}
	r.N = r.count - r.from
	if d.cfg.To > 0 {
		r.N = int(min(penstock.Offset(r.N), d.cfg.To-d.next))
	}
	if err := d.fn(r); err != nil {
		return stopped{err}
	}
	d.next += penstock.Offset(r.N)
	return nil
}
