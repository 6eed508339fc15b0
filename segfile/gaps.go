package segfile

import "github.com/penstock/penstock"

// gap is a run of bytes that are no frames, and the events [first, to) that they
// held: none when only a frame without records is bad.
type gap struct {
	pos       int64
	first, to penstock.Offset
	cause     error
}

// passGaps follows the frames of a segment from a place, shows each to a
// function, and goes on behind each gap that another one passes, until it comes
// to a seal, to the end of the view, or to the end of the log, which is behind
// the offset end. It returns where it stopped. The error is one of the
// functions', or that of a look at the file.
func passGaps(v *fileView, from mark, end penstock.Offset, each func(int64, []byte, header) error, pass func(gap) error) (scanned, error) {
	for {
		r, err := follow(v, from, each)
		rest := behind{}
		if err == nil && !r.sealed && r.pos < v.size {
			rest, err = search(v, from.seg.seed, r.pos, r.end)
		}
		g := gap{pos: r.pos, first: r.end, to: max(end, r.end), cause: r.cause}
		if isRead(err) { // perhaps only a sector is bad
			g.cause = err
			rest, err = v.searchBlind(from.seg.seed, r.pos, r.end)
		}
		switch {
		case err != nil:
			return r, err
		case r.sealed || r.pos >= v.size || r.end >= end:
			return r, nil
		case rest.frames == 0:
			return r, pass(g)
		}
		g.to = rest.first
		if err := pass(g); err != nil {
			return r, err
		}
		from = r.mark
		from.pos, from.end = rest.position, rest.first
	}
}

// until says where a log ends whose last segment is damaged: where state.slot
// says so when it was closed, else behind the last whole frame behind the
// damage.
func (e *ending) until(f *found) (pos int64, end penstock.Offset) {
	pos, end = e.pos, e.scanned.end
	if !e.damage && e.err == nil {
		return pos, end
	}
	known := f.known(e.seg)
	if !known || !f.state.clean {
		pos, end = max(pos, e.rest.after), max(end, e.rest.end)
	}
	if known {
		pos, end = max(pos, f.state.position), max(end, f.state.end)
	}
	return pos, max(end, e.told)
}
