package segfile

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// WritePath says how frames get into the file at level written. The bytes are
// the same either way.
type WritePath uint8

const (
	// WriteAuto stores small frames through a mapping on file systems that are
	// known to keep what was written once (ext4, xfs and tmpfs, on Linux), as
	// soon as they come one after the other, and uses pwrite for all else.
	WriteAuto WritePath = iota
	// WritePwrite writes every frame with pwrite.
	WritePwrite
	// WriteMapping is WriteAuto that does not wait for several small frames, and
	// that an open refuses with [penstock.ErrUnsupported] where there is no such
	// file system. It needs level written.
	WriteMapping
)

var writePaths = [...]string{"auto", "pwrite", "mapping"}

// String returns "auto", "pwrite" or "mapping".
func (w WritePath) String() string {
	if int(w) < len(writePaths) {
		return writePaths[w]
	}
	return fmt.Sprintf("WritePath(%d)", uint8(w))
}

// mmapSwitch is the variable that switches mappings off.
const mmapSwitch = "PENSTOCK_MMAP"

const (
	// pieceBytes is how much of the active segment is mapped at a time. It
	// bounds the memory of a partition that is mapped, and the time that an append
	// spends on the next piece: some 70 us, once in 1500 frames of 100 bytes.
	pieceBytes = 256 << 10
	// storeMost is the largest frame that is stored; a pwrite is as fast from
	// there on.
	storeMost = 8 << 10
	// smallRun is how many small frames one after the other make the first
	// piece worth its cost: about that of as many pwrites.
	smallRun = 32
)

// keepers are the file systems whose mappings are stored into: once a page was
// written there is disk space for it, or a place in memory, and a later store
// into it does not need any. Others may copy on write, compress, or be on
// another machine.
var keepers = []string{"ext4", "xfs", "tmpfs", vfs.MemType}

// blank is what a piece holds before frames are stored into it.
var blank [64 << 10]byte

// chooseWritePath decides whether small frames are stored through a mapping.
func (l *Log) chooseWritePath() error {
	c := &l.cfg
	if c.Durability != penstock.Written || c.WritePath == WritePwrite || os.Getenv(mmapSwitch) == "off" {
		return nil
	}
	name, err := c.FS.Type(l.dir)
	if err != nil {
		return err
	}
	keeps := slices.Contains(keepers, name)
	if c.WritePath == WriteMapping {
		if !keeps {
			return fmt.Errorf("WritePath is %v, and %s is on no file system that is known to keep what a mapping was given: %w", c.WritePath, l.dir, penstock.ErrUnsupported)
		}
		l.mapped = true
		return nil
	}
	l.mapped, l.mapAfter = keeps && name != vfs.MemType, smallRun
	return nil
}

// piece is the part of the active segment that is mapped.
//
// Invariants: while m is not nil, [from, to) of the active segment was written
// once, so that every page of it has disk space; run counts the small frames
// since the last large one outside of it, up to what is needed.
type piece struct {
	m        vfs.Mapping // nil: nothing is mapped
	from, to int64
	run      int
	off      bool // a mapping failed in this session: no more of them
}

// put gets frames into the active segment at pos, and reports whether it stored
// them. It needs the baton.
func (p *Partition) put(b []byte, pos int64) (stored bool, err error) {
	if p.log.mapped && p.covered(pos, int64(len(b))) {
		return true, p.w.piece.m.Store(b, pos)
	}
	_, err = p.w.file.WriteAt(b, pos)
	return false, err
}

// covered reports whether n bytes at pos are to be stored: it moves the piece
// there when that is worth it.
func (p *Partition) covered(pos, n int64) bool {
	w := &p.w.piece
	inside := w.m != nil && pos >= w.from && pos+n <= w.to
	switch {
	case n > storeMost:
		if !inside {
			p.unmap()
			w.run = 0
		}
		return false
	case inside:
		return true
	case w.off:
		return false
	case w.run < p.log.mapAfter:
		w.run++
		return false
	}
	return p.slide(pos, n)
}

// slide maps the next piece of the active segment. It is written first, up to
// its end: an error of that is one of a write, which the pwrite
// meets that then takes the place of the store.
func (p *Partition) slide(pos, n int64) bool {
	p.unmap()
	w, size := &p.w.piece, p.written.seg.hdr.size
	to := min(pos+pieceBytes, size)
	if pos+n > to {
		return false
	}
	for at := pos; at < to; at += int64(len(blank)) {
		if _, err := p.w.file.WriteAt(blank[:min(int64(len(blank)), to-at)], at); err != nil {
			w.run = 0
			return false
		}
	}
	m, err := p.w.file.Map(pos, to-pos)
	if err != nil {
		w.off = true
		p.mu.Lock()
		p.unmapped = true
		p.mu.Unlock()
		p.cfg.Logger.Warn("no mapping for appends; they use pwrite from now on", "topic", p.cfg.Topic, "partition", p.id, "err", err)
		return false
	}
	w.m, w.from, w.to = m, pos, to
	return true
}

// unmap ends the piece. It needs the baton. The next small frame that is not
// the first of its run opens another.
func (p *Partition) unmap() {
	w := &p.w.piece
	if w.m == nil {
		return
	}
	if err := w.m.Close(); err != nil { // nothing is lost: what was stored is in the page cache
		p.cfg.Logger.Warn("cannot end a mapping", "topic", p.cfg.Topic, "partition", p.id, "err", err)
	}
	w.m, w.from, w.to = nil, 0, 0
}

// pathLocked names how small frames are written.
func (p *Partition) pathLocked() string {
	if p.log.mapped && !p.unmapped {
		return WriteMapping.String()
	}
	return WritePwrite.String()
}

// errCut is what a file is that somebody else made shorter.
var errCut = errors.New("the file was cut while it was written")

// checkLength notices a file that was cut below m while it was mapped: a store
// into the page of the new end succeeds, and nobody will ever read it.
func (p *Partition) checkLength(f vfs.File, m mark) error {
	if !p.log.mapped {
		return nil
	}
	size, err := f.Size()
	if err == nil && size < m.pos {
		err = fmt.Errorf("%w: %d bytes, %d were written", errCut, size, m.pos)
	}
	return err
}
