package segfile

import (
	"fmt"
)

// The file of an active segment has its full size from the start, and is durable
// so. We make it shorter for two reasons only: to take back a write on a full
// disk, and to cut a torn tail. state.slot tells whether that may have happened
// (ADR 0099); when it may not, somebody else has cut the file, and what was
// acknowledged went with it.

// shorter returns what is wrong with the size of the last segment's file, unless
// it ends with a seal; nil when nothing is known to be.
func (s *state) shorter(lost bool, seg *segment, size int64) error {
	if lost || !s.whole || s.segment != seg.hdr.base || size >= seg.hdr.size {
		return nil
	}
	return fmt.Errorf("the file was cut from %d bytes to %d: how many events went with them is not known", seg.hdr.size, size)
}

// mayBeCut makes state.slot say, durably, that the active file may be shorter than
// it was made. It needs the baton.
func (p *Partition) mayBeCut() error {
	if !p.w.whole {
		return nil
	}
	p.w.whole = false
	if err := p.saveState(false, true); err != nil {
		return fmt.Errorf("%s: %w", stateName, writeError(err))
	}
	return nil
}

// mayBeCut is Partition.mayBeCut before the end of the log is known.
func (r *recovery) mayBeCut() error {
	if r.p.cramped { // it is known by now, and the start of the log may have moved
		return r.p.mayBeCut()
	}
	if r.p.w.whole = false; r.lost || !r.st.whole {
		return nil
	}
	st := r.st
	st.whole, st.clean = false, false
	if err := r.p.w.state.write(st.encode(), true); err != nil {
		return fmt.Errorf("%s: %w", stateName, writeError(err))
	}
	return nil
}
