package segfile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sort"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// Trim deletes the sealed segments that lie wholly below the offset, at most
// up to the durable end. What must survive it is made durable first: the log,
// the stored cursors, then the new log start; only then are files removed and
// the directory synced. When a file cannot be removed the trim stays
// valid: the removal is tried again by the next Trim and at the next open.
// It blocks for the syncs. When the disk was too full for the next
// segment and everything in the active one lies below the offset, that one is
// sealed and deleted too: otherwise nothing would ever make room. After an open
// that had no room to keep a copy of a torn tail, a trim deletes what it may and
// then cuts the tail, and appends go on.
func (p *Partition) Trim(below penstock.Offset) error {
	p.mu.Lock()
	p.unneeded = max(p.unneeded, below)
	p.mu.Unlock()
	if !p.trimmable(below) {
		return nil
	}
	return p.do(func() error { return p.trim(below) }, false)
}

// trimmable reports whether Trim has anything to do, without waiting.
func (p *Partition) trimmable(below penstock.Offset) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cramped || len(p.garbage) > 0 || p.sealedBelowLocked(below) > 0 || p.stuckLocked(below)
}

// stuckLocked reports whether the active segment is all that could make room:
// there is none for the next one, and nobody needs its events.
func (p *Partition) stuckLocked(below penstock.Offset) bool {
	m := p.written
	return p.starved && p.fault == nil && p.broken == nil && m.seg != nil && !m.sealed && m.end <= below
}

// sealedBelowLocked counts the sealed segments that lie wholly below offset.
func (p *Partition) sealedBelowLocked(offset penstock.Offset) int {
	sealed := len(p.segs)
	if p.fault != nil {
		offset = min(offset, p.held)
	}
	if p.fault != nil || !p.written.sealed {
		sealed-- // the last one is active, or the damage is in it or behind it
	}
	return sort.Search(max(0, sealed), func(i int) bool { return penstock.Offset(p.segs[i].end.Load()) > offset })
}

// Newest returns where the newest n of those sealed segments begin that lie
// wholly below an offset: the place to which Trim keeps n consumed segments,
// [Partition.Earliest] when there are not more. While the disk is too full for
// the next segment, an active one that lies wholly below is one of the n, so
// that the oldest of them can make room. It does not wait for I/O.
func (p *Partition) Newest(n int, below penstock.Offset) penstock.Offset {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.sealedBelowLocked(below) - n
	if n > 0 && p.stuckLocked(below) {
		first++
	}
	switch {
	case first <= 0:
		return min(p.Earliest(), below)
	case first < len(p.segs):
		return min(p.segs[first].hdr.base, below)
	}
	return below
}

// trim needs the baton.
func (p *Partition) trim(below penstock.Offset) error {
	if err := p.open(); err != nil {
		return fmt.Errorf("trim partition %d: %w", p.id, err)
	}
	p.mu.Lock()
	stuck, cramped := p.stuckLocked(below), p.cramped
	p.mu.Unlock()
	if cramped { // after what can be deleted, which is durable
		defer p.uncramp()
	}
	var err error
	switch {
	case cramped:
	case stuck:
		if err = p.begin(); err == nil {
			err = p.seal() // its room was kept free; it syncs
		}
	case below > p.Durable():
		err = p.syncLog() // BQ-123
	}
	p.mu.Lock()
	if err == nil && !cramped {
		err = p.broken
	}
	n := p.sealedBelowLocked(min(below, p.Durable()))
	old := p.segs[:max(n, 0)]
	p.mu.Unlock()
	if err != nil {
		return err
	}
	if n > 0 {
		if err := p.moveStart(penstock.Offset(old[n-1].end.Load()), n); err != nil {
			return fmt.Errorf("trim partition %d: %w", p.id, err)
		}
	}
	return p.removeGarbage()
}

// uncramp tries again what an open had no room for: to cut a torn tail, after
// which the partition takes appends. It needs the baton.
func (p *Partition) uncramp() {
	err := p.w.settle()
	if errors.Is(err, vfs.ErrNoSpace) {
		return // the next trim tries again
	}
	p.w.settle = nil
	p.mu.Lock()
	p.cramped, p.broken = false, nil
	p.mu.Unlock()
	if err != nil {
		_ = p.stop(writeError(err)) // returned by the next append
	}
}

// moveStart makes start the durable log start and forgets n segments.
func (p *Partition) moveStart(start penstock.Offset, n int) error {
	if err := p.securePositions(); err != nil {
		return err
	}
	if err := p.coverProducers(); err != nil {
		return err
	}
	p.w.start = start
	p.w.begun = true // the mark below is not clean
	if err := p.saveState(false, true); err != nil {
		return p.stop(fmt.Errorf("state.slot: %w", err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.segs[:n] {
		name := filepath.Base(s.path)
		p.garbage = append(p.garbage, name)
		if p.rubbish == nil {
			p.rubbish = map[string]int64{}
		}
		p.rubbish[name] = s.disk
	}
	p.trimmed = slices.DeleteFunc(append(p.trimmed, p.segs[:n]...), (*segment).retire)
	p.segs = append([]*segment(nil), p.segs[n:]...)
	p.earliest.Store(uint64(start))
	return nil
}

// taken takes a name out of what is to be removed: the file of an empty segment
// that stayed was replaced by another segment, which begins at the same offset.
func (p *Partition) taken(name string) {
	p.mu.Lock()
	i := slices.Index(p.garbage, name)
	if i < 0 {
		p.mu.Unlock()
		return
	}
	p.garbage = slices.Delete(p.garbage, i, i+1)
	size := p.rubbish[name]
	delete(p.rubbish, name)
	p.mu.Unlock()
	p.log.disk.give(size)
}

// removeGarbage removes files that lie below the log start. It needs the baton,
// as whoever else changes garbage.
func (p *Partition) removeGarbage() error {
	p.mu.Lock()
	names := slices.Clone(p.garbage) // which stay there: a Trim meanwhile has something to wait for
	p.mu.Unlock()
	var left []string
	var failed error
	for _, name := range names {
		err := p.cfg.FS.Remove(filepath.Join(p.dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			left, failed = append(left, name), err
			continue
		}
		p.mu.Lock()
		size := p.rubbish[name]
		delete(p.rubbish, name)
		p.mu.Unlock()
		p.log.disk.give(size)
	}
	if len(left) < len(names) {
		if err := p.syncDirectory(); err != nil {
			failed = err
		}
	}
	p.mu.Lock()
	p.garbage = left
	p.mu.Unlock()
	if failed == nil {
		return nil
	}
	return fmt.Errorf("trim partition %d: %d files stay and are tried again: %w", p.id, len(left), failed)
}
