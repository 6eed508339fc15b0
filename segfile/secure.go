package segfile

import (
	"path/filepath"
	"runtime"

	"github.com/penstock/penstock/internal/vfs"
)

// extentsMax bounds how many ranges of data are told apart in the last segment; a
// file of more pieces is read to its end.
const extentsMax = 256

// secured is what an open does beside the reading of the last segment and its
// sync. It helps the scan, and then makes state.slot durable, which after a kill
// may be in the page cache only: two files are synced in the time of one.
//
// Invariant: between secure and stored nobody else uses state.slot; between secure
// and wait nobody else removes the prepared segment.
type secured struct {
	helpers chan *helper
	scanned bool // helpers is closed
	stored  chan struct{}
	done    chan struct{}
	err     error // of the sync of state.slot; read it behind stored
}

// secure starts it.
func (r *recovery) secure() *secured {
	s := &secured{helpers: make(chan *helper, 1), stored: make(chan struct{}), done: make(chan struct{})}
	// Checks parts of a file, syncs another and removes a third; ended by
	// secured.ends, waited for by secured.wait.
	go func() {
		defer close(s.done)
		for h := range s.helpers {
			h.run()
		}
		if st := r.p.w.state; st.safe < 0 {
			s.err = st.sync()
		}
		close(s.stored)
		_ = r.dropSpare() // a failure shows when it is tried again
	}()
	return s
}

// help is where a scan finds help: nowhere when there is no other processor.
func (s *secured) help() chan<- *helper {
	if runtime.GOMAXPROCS(0) == 1 {
		return nil
	}
	return s.helpers
}

// ends says that the scan has ended.
func (s *secured) ends() {
	if !s.scanned {
		s.scanned = true
		close(s.helpers)
	}
}

// wait blocks until nothing is under way. A nil one has nothing to wait for.
func (s *secured) wait() {
	if s != nil {
		s.ends()
		<-s.done
	}
}

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
