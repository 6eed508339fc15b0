package segfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/penstock/penstock"
)

// segments checks the run of segments of the partition at hand and the
// positions in it.
func (k *checker) segments(ctx context.Context) error {
	f := k.f
	start := f.state.start
	if f.lost != nil && len(f.segs) > 0 {
		start = f.segs[0].base
	}
	for len(f.segs) > 1 && f.segs[1].base <= start {
		k.add(penstock.Notice, f.segs[0].name(), 0, "lies below the start of the log; the next trim or open removes it")
		k.done += f.segs[0].size
		f.segs = f.segs[1:]
	}
	end, whole := start, true
	for i := range f.segs {
		good, err := k.segment(ctx, i, start)
		if err != nil {
			return err
		}
		whole = whole && good.whole
		end = max(end, good.end)
		k.done += f.segs[i].size
	}
	if f.missing() {
		k.missing(end)
		end, whole = max(end, f.state.end), false
	}
	k.report.Segments += len(f.segs)
	k.report.Events += uint64(end - min(start, end))
	groups := map[string]stored{}
	for _, g := range f.groups {
		groups[g.name] = g.stored
		k.position(g, start, end, whole)
	}
	k.seen = append(k.seen, groups)
	return nil
}

// missing notes the segments behind an offset that state.slot knows and the
// directory does not have.
func (k *checker) missing(from penstock.Offset) {
	at := k.f.state.segment
	if from >= at {
		k.add(penstock.Alarm, segmentName(at), 0, "%v", errMissing).events(at, k.f.state.end)
		return
	}
	k.add(penstock.Alarm, segmentName(from), 0, "%v, and all behind it up to %s", errMissing, segmentName(at)).events(from, k.f.state.end)
}

var (
	errMissing = errors.New("segment is missing")
	errShort   = errors.New("the file ends before its seal: it was cut")
)

// missing reports whether state.slot knows a segment that is not there.
func (f *found) missing() bool {
	n := len(f.segs)
	switch {
	case f.lost != nil || n > 0 && f.segs[n-1].base >= f.state.segment:
		return false
	case n == 0 && (f.state.position == 0 || f.state.start == f.state.end && f.state.sealed):
		return false // nothing was written, or everything was trimmed
	}
	return true
}

// follows reports whether segment i follows the one before it; also when
// either is damaged itself.
func (f *found) follows(i int) bool {
	s, prev := &f.segs[i], &f.segs[i-1]
	return s.err != nil || prev.err != nil || s.seg.hdr.prevNonce == prev.seg.hdr.nonce && s.seg.hdr.prevEnd == s.base
}

// judged is what became of a segment's check.
type judged struct {
	end   penstock.Offset
	whole bool // positions can be compared with the end
}

// segment checks segment i: its header, its place in the chain, its seal, and
// with Deep all of its frames.
func (k *checker) segment(ctx context.Context, i int, start penstock.Offset) (judged, error) {
	f := k.f
	s := &f.segs[i]
	last := i == len(f.segs)-1
	next := f.bound(i)
	switch {
	case refused(s.err):
		k.add(penstock.Warning, s.name(), 0, "cannot be looked at: %v", s.err)
		return judged{end: next}, nil
	case s.err != nil && next == s.base && f.uncounted(i):
		k.add(penstock.Alarm, s.name(), 0, "%v; from offset %d on, %v", s.err, next, errUncounted)
		return judged{end: next}, nil
	case s.err != nil:
		k.add(penstock.Alarm, s.name(), 0, "%v", s.err).events(s.base, next)
		return judged{end: next}, nil
	}
	ok := true
	if s.file != "" {
		k.add(penstock.Alarm, s.name(), 0, "is the segment of offset %d under another name; a repair gives it its own back", s.base)
		ok = false
	}
	switch {
	case i == 0 && s.base > start:
		k.add(penstock.Alarm, s.name(), 0, "the first segment begins at %d, the log at %d", s.base, start).events(start, s.base)
		ok = false
	case i > 0 && !f.follows(i):
		k.add(penstock.Alarm, s.name(), 0, "%v", errChain).events(min(k.sealEnd, s.base-1), s.base)
		ok = false
	}
	if last {
		return k.last(ctx, ok)
	}
	k.sealEnd = s.base
	err := k.sealed(ctx, s, next, f.follows(i+1), &ok)
	if errors.Is(err, fs.ErrNotExist) { // trimmed since we looked
		err = nil
	}
	return judged{end: next, whole: ok}, err
}

// last checks the last segment.
func (k *checker) last(ctx context.Context, ok bool) (judged, error) {
	f := k.f
	s := &f.segs[len(f.segs)-1]
	e, err := k.in.end(ctx, f, k.cfg.Deep, k.look, nil)
	k.report.Read += penstock.Bytes(e.bytes)
	switch {
	case errors.Is(err, fs.ErrNotExist): // sealed and trimmed since we looked: where it ended is not known
		return judged{end: s.base}, nil
	case err != nil:
		return judged{}, err
	case e.damage, e.err != nil:
		return k.spoiled(ctx, s, &e)
	case e.rest.last > e.pos:
		k.add(penstock.Notice, s.name(), e.pos, "%d bytes behind the last whole frame are being written, or were when the power went: the next open cuts and keeps them",
			e.rest.last-e.pos)
	}
	if k.cfg.Deep && e.sealed {
		s.size = e.pos // its owner may have sealed and cut it since we looked
		err := k.sealed(ctx, s, e.scanned.end, true, &ok)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return judged{}, err
		}
	}
	return judged{end: e.scanned.end, whole: ok}, nil
}

// spoiled notes the damage of the last segment: the first one, and with Deep
// what is damaged behind it.
func (k *checker) spoiled(ctx context.Context, s *foundSegment, e *ending) (judged, error) {
	f := k.f
	limit, end := e.until(f)
	first, to, cause := e.lost(f)
	if begun := f.known(e.seg) && (f.state.clean || e.pos < f.state.position); begun && first == to && e.err == nil {
		k.gap(s, gap{pos: e.pos, first: first, to: to, cause: cause}) // an open begins behind it
	} else {
		k.add(penstock.Alarm, s.name(), e.pos, "%v", cause).events(first, to)
	}
	if !k.cfg.Deep {
		return judged{end: end}, nil
	}
	file, err := k.in.fs.Open(s.seg.path, false)
	if errors.Is(err, fs.ErrNotExist) {
		return judged{end: end}, nil
	}
	if err != nil {
		return judged{}, err
	}
	defer file.Close()
	v := &fileView{file: file, size: limit, look: ended(ctx, k.look)}
	_, err = passGaps(v, e.mark, end, k.count, func(g gap) error {
		if g.pos != e.pos {
			k.gap(s, g)
		}
		return nil
	})
	return judged{end: end}, err
}

// count adds a frame to what was read.
func (k *checker) count(_ int64, b []byte, _ header) error {
	k.report.Read += penstock.Bytes(len(b))
	return nil
}

// gap notes bytes that are no frames.
func (k *checker) gap(s *foundSegment, g gap) {
	if g.first == g.to && !isRead(g.cause) {
		k.add(penstock.Warning, s.name(), g.pos, "a frame without events is bad, and readers pass it: %v", g.cause)
		return
	}
	k.add(penstock.Alarm, s.name(), g.pos, "%v", g.cause).events(g.first, g.to)
}

// sealed checks a segment that ends at next, when the one there follows it.
func (k *checker) sealed(ctx context.Context, s *foundSegment, next penstock.Offset, followed bool, ok *bool) error {
	file, err := k.in.fs.Open(s.seg.path, false)
	if err != nil {
		return err
	}
	defer file.Close()
	sum := sealOf(s, file)
	if sum != nil {
		k.sealEnd = sum.end
		if !followed {
			next = sum.end
		}
	}
	if sum != nil && (sum.end != next || sum.count != uint64(next-s.base)) {
		k.add(penstock.Alarm, s.name(), 0, "its seal tells %d events to %d, the next segment begins at %d", sum.count, sum.end, next).events(min(sum.end, next), max(sum.end, next))
		*ok = false
	}
	if sum != nil && !k.cfg.Deep {
		return nil
	}
	v := &fileView{file: file, size: s.size, look: ended(ctx, k.look)}
	good, err := k.frames(v, s, next, sum)
	*ok = *ok && good
	return err
}

// sealOf reads the seal at the end of a segment file; nil when there is none.
func sealOf(s *foundSegment, file sizedReader) *summary {
	if sum, ok := readSeal(s.seg.seed, file, s.size); ok {
		return &sum
	}
	return nil
}

// frames reads every frame of a sealed segment and notes each gap in them.
func (k *checker) frames(v *fileView, s *foundSegment, next penstock.Offset, sum *summary) (bool, error) {
	index, ok, failed := newIndexCheck(sum), true, false
	each := func(pos int64, b []byte, h header) error {
		k.report.Read += penstock.Bytes(len(b))
		return index.frame(pos, b, h)
	}
	r, err := passGaps(v, mark{seg: s.seg, pos: headerSize, end: s.base}, next, each, func(g gap) error {
		ok, failed = false, failed || isRead(g.cause)
		k.gap(s, g)
		return nil
	})
	switch {
	case err != nil, failed:
		return false, err
	case r.sealed && ok:
		if sum == nil && r.pos < v.size && allZeros(v, r.pos) {
			return true, nil // the cut of the file behind its seal did not reach the disk
		}
		return k.seal(s, &r, sum, index), nil
	case !r.sealed && r.end >= next: // all events are there
		cause := r.cause
		if cause == nil {
			cause = errLength
		}
		k.add(penstock.Warning, s.name(), r.pos, "the seal is bad: %v", cause)
	case !r.sealed && r.pos >= v.size: // the rest was cut where a frame begins, or before the first
		k.gap(s, gap{pos: r.pos, first: r.end, to: next, cause: errShort})
	}
	return false, nil
}

// seal compares what a seal says with what was read.
func (k *checker) seal(s *foundSegment, r *scanned, sum *summary, index *indexCheck) bool {
	problem := ""
	switch {
	case sum == nil:
		problem = "its length does not stand at its end"
	case sum.end != r.end || sum.count != uint64(r.end-s.base):
		problem = fmt.Sprintf("it tells %d events to %d, there are %d to %d", sum.count, sum.end, r.end-s.base, r.end)
	case sum.rolling != r.rolling:
		problem = "its checksum over all frames does not match"
	case index.wrong >= 0 || index.next < len(index.entries):
		e := index.entries[max(index.wrong, 0)]
		problem = fmt.Sprintf("its index says that offset %d stands at %d, which it does not", e.offset, e.pos)
	}
	if problem != "" {
		k.add(penstock.Alarm, s.name(), r.pos, "the seal is wrong: %s", problem)
	}
	return problem == ""
}

// indexCheck compares a sparse index with the frames as they are passed.
type indexCheck struct {
	entries []indexEntry
	next    int
	wrong   int // first entry that names no frame; -1 for none
}

func newIndexCheck(sum *summary) *indexCheck {
	c := &indexCheck{wrong: -1}
	if sum != nil {
		c.entries = sum.index
	}
	return c
}

func (c *indexCheck) frame(pos int64, _ []byte, h header) error {
	for c.next < len(c.entries) && c.entries[c.next].pos <= pos {
		if e := c.entries[c.next]; (e.pos != pos || e.offset != h.base) && c.wrong < 0 {
			c.wrong = c.next
		}
		c.next++
	}
	return nil
}

// allZeros reports whether nothing stands in a file behind a position.
func allZeros(v *fileView, pos int64) bool {
	for pos < v.size {
		b, err := v.bytes(pos, scanBlock)
		if err != nil || len(b) == 0 || lastNonZero(b) >= 0 {
			return false
		}
		pos += int64(len(b))
	}
	return true
}
