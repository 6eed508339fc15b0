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
	if k.missing() {
		whole = false
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

// missing notices segments that state.slot knows and the directory does not
// have.
func (k *checker) missing() bool {
	f := k.f
	if !f.missing() {
		return false
	}
	k.add(penstock.Alarm, segmentName(f.state.segment), 0, "%v", errMissing).events(f.state.segment, max(f.state.end, 1)-1)
	return true
}

var errMissing = errors.New("segment is missing")

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
	next := s.base + 1
	if !last {
		next = f.segs[i+1].base
	}
	if s.err != nil {
		k.add(penstock.Alarm, s.name(), 0, "%v", s.err).events(s.base, max(s.base, next-1))
		return judged{end: next}, nil
	}
	ok := true
	switch {
	case i == 0 && s.base > start:
		k.add(penstock.Alarm, s.name(), 0, "the first segment begins at %d, the log at %d", s.base, start).events(start, s.base-1)
		ok = false
	case i > 0 && !f.follows(i):
		k.add(penstock.Alarm, s.name(), 0, "%v", errChain).events(min(k.sealEnd, s.base-1), s.base-1)
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
		first, lost, cause := e.lost(f)
		k.add(penstock.Alarm, s.name(), e.pos, "%v", cause).events(first, lost)
		return judged{end: max(e.scanned.end, lost+1)}, nil
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
		k.add(penstock.Alarm, s.name(), 0, "its seal tells %d events to %d, the next segment begins at %d", sum.count, sum.end, next).events(min(sum.end, next), max(sum.end, next)-1)
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
	from, ok, index := mark{seg: s.seg, pos: headerSize, end: s.base}, true, newIndexCheck(sum)
	for {
		r, err := follow(v, from, index.frame)
		k.report.Read += penstock.Bytes(r.bytes)
		rest := behind{}
		if err == nil && !r.sealed {
			rest, err = search(v, s.seg.seed, r.pos, r.end)
		}
		switch {
		case isRead(err):
			k.add(penstock.Alarm, s.name(), r.pos, "%v", err).events(r.end, next-1)
			return false, nil
		case err != nil:
			return false, err
		case r.sealed && ok:
			if sum == nil && r.pos < v.size && allZeros(v, r.pos) {
				return true, nil // the cut of the file behind its seal did not reach the disk
			}
			return k.seal(s, &r, sum, index), nil
		case r.sealed:
			return false, nil
		}
		lost := next - 1
		if rest.frames > 0 {
			lost = rest.first - 1
		}
		if r.end < next {
			k.add(penstock.Alarm, s.name(), r.pos, "%v", r.cause).events(r.end, max(r.end, lost))
		} else { // all events are there
			k.add(penstock.Warning, s.name(), r.pos, "the seal is bad: %v", r.cause)
		}
		ok = false
		if rest.frames == 0 {
			return false, nil
		}
		from = mark{seg: s.seg, pos: rest.position, end: rest.first}
	}
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
