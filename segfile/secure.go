package segfile

import (
	"errors"
	"path/filepath"

	"github.com/penstock/penstock/internal/vfs"
)

// extentsMax bounds how many ranges of data are told apart in the last segment; a
// file of more pieces is read to its end.
const extentsMax = 256

// secured is what makes the end of a log durable while it is being read: after
// a kill it may be in the page cache only. The scan keeps a processor busy, and
// the syncs the disk.
//
// Invariant: between secure and wait nobody else uses state.slot or removes the
// prepared segment, and nobody writes to the active one.
type secured struct {
	done     chan struct{}
	err      error    // of the sync of the segment
	stateErr error    // of the sync of state.slot
	data     []extent // outside of these the segment holds only zeros; valid when known
	known    bool
}

// secure starts it, for what lies from a position on. The caller waits before
// it closes the file.
func (r *recovery) secure(f vfs.File, from int64) *secured {
	s := &secured{done: make(chan struct{})}
	// Syncs two files, removes a third and ends; secured.wait waits for it.
	go func() {
		defer close(s.done)
		// The file system is asked for the data behind the sync: what was written
		// before it is known by then, whatever a page cache holds.
		if s.err = f.Sync(); s.err == nil {
			s.data, s.known = dataFrom(f, from)
		}
		if st := r.p.w.state; st.safe < 0 {
			s.stateErr = st.sync()
		}
		_ = r.dropSpare() // a failure shows when it is tried again
	}()
	return s
}

// wait blocks until nothing is under way.
func (s *secured) wait() { <-s.done }

// failed returns the error of a sync, after wait.
func (s *secured) failed() error { return errors.Join(s.err, s.stateErr) }

// dropSpare removes a file that did not become a segment; its name is needed.
func (r *recovery) dropSpare() error {
	if !r.spare {
		return nil
	}
	err := r.p.cfg.FS.Remove(filepath.Join(r.p.dir, spareName))
	r.spare = err != nil
	return err
}

// written returns where what was written to a file ends, or a part of it, from a
// position on. It is for reading ahead only. Zeros that are read where nothing
// was ever written come into the page cache, and some system that reads ahead
// with them; from then on they count as data, which the next open has to read. It
// returns 0 when that is not known.
func written(f vfs.File, from int64) int64 {
	at, to, err := f.Data(from)
	switch {
	case err != nil:
		return 0
	case at > from:
		return from
	}
	return to
}

// dataFrom returns the ranges of a file from a position on that may hold
// anything else than zeros, and whether it could find out.
func dataFrom(f vfs.File, from int64) (data []extent, known bool) {
	size, err := f.Size()
	for err == nil && len(data) < extentsMax {
		var d extent
		if d.from, d.to, err = f.Data(from); err != nil {
			break
		}
		if d.from >= size {
			return data, true
		}
		if d.to <= d.from { // it makes no sense; so nothing else may
			break
		}
		data = append(data, d)
		from = d.to
	}
	return nil, false // then all of it is read
}
