package segfile

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/penstock/penstock"
)

// A process may be killed between the making of a name and the sync of its
// directory. Then the name is there for the next process, which builds on it,
// and a loss of power takes it with everything behind it. So an open syncs the
// directories whose names may be in doubt. It takes it for proof that a name is
// durable that something was stored which is stored only afterwards: a place in
// a segment, in state.slot, follows the sync of the segment's name, that of
// every earlier one, and of the names that lead to the topic (ADR 0094).

// named reports whether the names in the directory of a partition are known to
// be durable, except for that of producers.slot.
func (r *recovery) named() bool {
	if r.lost {
		return false
	}
	if r.placed() {
		r.p.log.named = true
		return r.st.clean || r.bases[len(r.bases)-1] <= r.st.segment
	}
	return r.st.clean
}

// placed reports whether state.slot has a place in a segment that is there.
func (r *recovery) placed() bool { return r.st.position >= headerSize && len(r.bases) > 0 }

// syncNames makes the names durable that lead to the topic, and those in its
// directory.
func (l *Log) syncNames() error {
	return errors.Join(l.syncParent(l.cfg.Dir), l.syncParent(l.dir), l.cfg.FS.SyncDir(l.dir))
}

// syncParent makes the name of a directory durable.
func (l *Log) syncParent(dir string) error {
	err := l.cfg.FS.SyncDir(filepath.Dir(filepath.Clean(dir)))
	if dir == l.cfg.Dir && errors.Is(err, fs.ErrPermission) {
		return nil // a parent that we may not read is older than we are
	}
	return err
}

// namedTable makes the name of producers.slot durable: it is when the table was
// written again since it was made.
func (r *recovery) namedTable(slot *slotFile) error {
	if slot.seq > 1 {
		return nil
	}
	return r.p.syncDirectory()
}

// misnamed reports whether the file of a segment below the log start is another
// one, which is still needed: then names were changed, and nothing is removed.
func (r *recovery) misnamed(base penstock.Offset) bool {
	f, err := r.p.cfg.FS.Open(filepath.Join(r.p.dir, segmentName(base)), false)
	if err != nil {
		return false
	}
	defer f.Close()
	hdr, err := readHeader(f)
	if err != nil || hdr.base < r.st.start || hdr.belongs(r.p.owner(), hdr.base, r.p.cfg.Codec) != nil {
		return false
	}
	r.note("%s has the header of the segment at %d, which is kept: it is not removed", segmentName(base), hdr.base)
	return true
}
