package segfile

import (
	"context"
	"fmt"

	"github.com/penstock/penstock"
)

// tailTries is how often a bad frame in the last segment is looked at again
// before it counts as damage: its owner may be writing it just now.
const tailTries = 4

// ending is the end of the log as it looks from outside.
type ending struct {
	scanned
	rest   behind
	safe   int64           // position up to which the file is known to be synced
	damage bool            // what stands at pos had been synced and is bad
	err    error           // why the file cannot be read; pos is where
	told   penstock.Offset // where a stored position says that the log went to, behind the end; 0 when none does
}

// known reports whether state.slot tells a place in the segment.
func (f *found) known(seg *segment) bool {
	return f.lost == nil && f.state.segment == seg.hdr.base && f.state.position >= headerSize && f.state.end >= seg.hdr.base
}

// end finds the end of the log in the last segment: with whole, from its
// start, else from where state.slot knows it. each, if not nil, sees the frames
// that are passed. The error is that of ctx, or of each.
func (in *Inspection) end(ctx context.Context, f *found, whole bool, look func(int64) error, each func(int64, []byte, header) error) (ending, error) {
	seg := f.segs[len(f.segs)-1].seg
	file, err := in.fs.Open(seg.path, false)
	if err != nil {
		return ending{}, err
	}
	defer file.Close()
	size, err := file.Size()
	if err != nil {
		return ending{}, err
	}
	e := ending{scanned: scanned{mark: mark{seg: seg, pos: headerSize, end: seg.hdr.base}}, safe: headerSize}
	if f.known(seg) {
		e.safe = f.state.position
		if !whole && e.safe <= size {
			e.mark = mark{seg: seg, pos: e.safe, end: f.state.end, rolling: f.state.rolling, sealed: f.state.sealed}
		}
	}
	for try := 0; ; try++ {
		if size, err = file.Size(); err != nil { // its owner may cut it when it seals it
			return e, err
		}
		v := &fileView{file: file, size: size, look: ended(ctx, look)}
		s, err := follow(v, e.mark, each)
		s.epoch, s.durable, s.maxTime = max(s.epoch, e.epoch), max(s.durable, e.durable), max(s.maxTime, e.maxTime)
		s.index, s.bytes = append(e.index, s.index...), s.bytes+e.bytes
		moved := s.pos > e.pos
		e.scanned = s
		if err == nil && !s.sealed {
			e.rest, err = search(v, seg.seed, s.pos, s.end)
		}
		if isRead(err) { // perhaps only a sector is bad
			e.err = err
			if e.rest, err = v.searchBlind(seg.seed, s.pos, s.end); err == nil {
				return e, nil
			}
		}
		if err != nil {
			return e, err
		}
		e.safe = max(e.safe, s.durable, e.rest.durable)
		if s.sealed || !s.damaged(e.rest, e.safe) {
			in.heed(f, &e, size)
			return e, nil
		}
		if moved && try < lookTries { // the owner goes on; so do we
			continue
		}
		if try >= tailTries {
			e.damage = true
			return e, nil
		}
	}
}

// heed takes it for damage when a stored position tells of events behind an end
// that was found by a scan.
func (in *Inspection) heed(f *found, e *ending, size int64) {
	if f.known(e.seg) && f.state.clean && f.state.position <= size {
		return
	}
	w := f.witness()
	if cause := w.contradicts(e.scanned.end); cause != nil {
		e.damage, e.cause, e.told = true, cause, w.at
	}
	cause := f.state.shorter(f.lost != nil, e.seg, size)
	if e.damage || e.sealed || cause == nil {
		return
	}
	// Its owner may have cut it since, and has told so before.
	if _, st, err := in.state(f); err == nil && st.segment == f.state.segment && st.whole {
		e.damage, e.cause = true, cause
	}
}

// ended returns what is asked before each block: the end of ctx, and look.
func ended(ctx context.Context, look func(int64) error) func(int64) error {
	return func(pos int64) error {
		if look != nil {
			if err := look(pos); err != nil {
				return err
			}
		}
		return penstock.ContextError(ctx) // nil while it goes on
	}
}

// lost says which events [first, to) the damage at the end takes, and why.
func (e *ending) lost(f *found) (first, to penstock.Offset, cause error) {
	first = e.scanned.end
	if _, to = e.until(f); e.rest.frames > 0 {
		to = e.rest.first
	}
	if e.err != nil {
		return first, to, e.err
	}
	if cause = e.cause; cause == nil {
		cause = fmt.Errorf("the file ends at %d", e.pos)
	}
	return first, to, cause
}
