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
	// Reclaimed is called when the owner of the topic has reclaimed the events
	// [first, end) before they could be shown. The dump goes on at end, also
	// without it. It must not block for long.
	Reclaimed func(first, end penstock.Offset)
}

var (
	// errDumped ends a scan that has shown enough.
	errDumped = errors.New("shown")
	// errReclaimed is the end of a look whose files are gone.
	errReclaimed = errors.New("reclaimed since it was looked at")
)

// Dump calls fn with the records of a partition, in order, without the topic's
// lock. The records are valid until fn returns; an error of it ends the dump.
// Dump returns the offset behind the last record that was shown, or could have
// been, and how many whole records lie behind it that are not known to be
// synced. Errors: *[penstock.CorruptError] at damage, unless Skip passes it;
// [penstock.ErrOffsetOutOfRange], From lies below the first event kept;
// [penstock.ErrNotFound], there is no such partition; that of ctx and of fn; and
// one that says so when the owner reclaims faster than the dump reads.
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
	start := f.first()
	if c.From == 0 {
		c.From = start
	}
	if c.From < start {
		return 0, 0, fmt.Errorf("offset %d, first event kept %d: %w", c.From, start, penstock.ErrOffsetOutOfRange)
	}
	d := &dump{in: in, f: f, cfg: &c, fn: fn, next: c.From}
	for try := 0; ; try++ {
		if err = d.all(ctx); !errors.Is(err, errReclaimed) {
			break
		}
		if try == lookTries {
			err = fmt.Errorf("partition %d: events are reclaimed faster than they are read: %w", f.id, errMoving)
			break
		}
		if d.f, err = in.look(f.id); err != nil {
			break
		}
		d.reclaimed(d.f.first())
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
}

// all shows what the last look found from next on.
func (d *dump) all(ctx context.Context) error {
	for i := range d.f.segs {
		if err := d.segment(ctx, i); err != nil {
			return err
		}
	}
	if d.f.missing() {
		return d.lost(segmentName(d.f.state.segment), gap{first: d.next, to: max(d.f.state.end, d.next), cause: errMissing})
	}
	return nil
}

// reclaimed passes what the owner took away.
func (d *dump) reclaimed(start penstock.Offset) {
	if start <= d.next {
		return
	}
	if d.cfg.Reclaimed != nil {
		d.cfg.Reclaimed(d.next, start)
	}
	d.next = start
}

func (d *dump) segment(ctx context.Context, i int) error {
	s := &d.f.segs[i]
	last := i == len(d.f.segs)-1
	switch {
	case !last && d.f.segs[i+1].base <= d.next:
		return nil
	case s.base > d.next:
		if err := d.lost(s.name(), gap{first: d.next, to: s.base, cause: errChain}); err != nil {
			return err
		}
	}
	if s.err == nil && i > 0 && !d.f.follows(i) && s.seg.hdr.prevEnd == s.base { // foreign, and in place of another
		s.err = errChain
	}
	switch end := max(d.f.bound(i), d.next); {
	case s.err != nil && end == d.next && d.f.uncounted(i):
		return d.tell(s.name(), gap{first: d.next, to: d.next + 1, cause: fmt.Errorf("%w; %w", s.err, errUncounted)})
	case s.err != nil:
		return d.lost(s.name(), gap{first: d.next, to: end, cause: s.err})
	case last:
		return d.last(ctx, s)
	default:
		if err := d.frames(ctx, s, s.size, end); err != nil {
			return err
		}
		return d.lost(s.name(), gap{pos: s.size, first: d.next, to: end, cause: errShort}) // none, unless the file was cut
	}
}

// lost passes events that cannot be read, or returns the error.
func (d *dump) lost(file string, g gap) error {
	g.first = max(g.first, d.next)
	if g.to <= g.first || d.cfg.To > 0 && g.first >= d.cfg.To {
		return nil
	}
	if err := d.tell(file, g); err != nil {
		return err
	}
	d.next = g.to
	return nil
}

// tell returns the damage, or what becomes of it.
func (d *dump) tell(file string, g gap) error {
	e := &penstock.CorruptError{
		Topic: d.in.topic.Topic, Partition: d.f.id, File: file, Position: g.pos, First: g.first, Last: g.to - 1, Cause: g.cause,
	}
	if d.cfg.Skip == nil {
		return e
	}
	return d.cfg.Skip(e)
}

// last shows the last segment, as far as it is known to be synced.
func (d *dump) last(ctx context.Context, s *foundSegment) error {
	e, err := d.in.end(ctx, d.f, true, nil, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errReclaimed
	case err != nil:
		return err
	}
	limit, end := e.until(d.f)
	if !d.cfg.Unsynced && !e.sealed {
		limit = min(e.safe, limit)
	}
	if err := d.frames(ctx, s, limit, end); err != nil {
		return err
	}
	if e.damage || e.err != nil { // unless it was passed with the frames
		first, to, cause := e.lost(d.f)
		if err := d.lost(s.name(), gap{pos: e.pos, first: first, to: to, cause: cause}); err != nil {
			return err
		}
	}
	d.unsynced = uint64(end - min(d.next, end))
	return nil
}

// frames shows the frames of a segment up to a position, and passes what is
// damaged in them when it may. The segment ends at an offset.
func (d *dump) frames(ctx context.Context, s *foundSegment, limit int64, end penstock.Offset) error {
	file, err := d.in.fs.Open(s.seg.path, false)
	if errors.Is(err, fs.ErrNotExist) {
		return errReclaimed
	}
	if err != nil {
		return err
	}
	defer file.Close()
	v := &fileView{file: file, size: limit, look: ended(ctx, nil)}
	from := lookup(readIndex(s.seg, file), s.base, d.next)
	_, err = passGaps(v, mark{seg: s.seg, pos: from.pos, end: from.offset}, end, d.show, func(g gap) error { return d.lost(s.name(), g) })
	return err
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
