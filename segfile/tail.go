package segfile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// tail finds the end of the log in the last segment and makes it ready for
// appends.
func (r *recovery) tail() error {
	p := r.p
	if p.fault != nil {
		return nil
	}
	n := len(p.segs)
	if n == 0 {
		p.earliest.Store(uint64(p.w.start))
		r.adopt(mark{end: p.w.start})
		r.report.Clean = r.st.clean && !r.lost
		if !r.report.Clean {
			p.w.epoch++
		}
		return nil
	}
	seg := p.segs[n-1]
	f, err := p.cfg.FS.Open(seg.path, true)
	if err != nil {
		return err
	}
	p.w.file = seg.share(f)
	p.written.seg = seg // for abandon
	size, err := f.Size()
	if err != nil {
		return err
	}
	if err := r.findEnd(seg, f, size); err != nil {
		return err
	}
	if m := p.written; m.sealed || p.fault != nil {
		p.w.file = nil
		return seg.release()
	}
	return nil
}

// adopt makes m the end of the log.
func (r *recovery) adopt(m mark) {
	p := r.p
	p.written, p.safe = m, m
	p.durable.Store(uint64(m.end))
	p.readable.Store(uint64(m.end))
	if m.seg != nil {
		m.seg.limit.Store(m.pos)
		m.seg.end.Store(uint64(m.end))
	}
	p.w.refreshed = m.pos
}

// findEnd decides where the log ends: at the clean mark, or where a scan from
// the last known safe position stops.
func (r *recovery) findEnd(seg *segment, f vfs.File, size int64) error {
	p, st := r.p, r.st
	known := !r.lost && st.segment == seg.hdr.base && st.position >= headerSize && st.end >= seg.hdr.base
	if known && st.clean && st.position <= size && !r.goesOn(seg, f, size) {
		r.report.Clean = true
		p.w.allocated = size >= seg.hdr.size
		p.w.whole = p.w.allocated
		r.adopt(mark{seg: seg, pos: st.position, end: st.end, rolling: st.rolling, sealed: st.sealed})
		return nil
	}
	from := mark{seg: seg, pos: headerSize, end: seg.hdr.base}
	safe := int64(headerSize)
	if known {
		safe = st.position
		if safe <= size {
			from = mark{seg: seg, pos: st.position, end: st.end, rolling: st.rolling, sealed: st.sealed}
		}
	}
	r.first = r.secure()
	view := &fileView{file: f, size: size, look: r.watch(size), ahead: written(f, from.pos), help: r.first.help()}
	s, err := scan(view, from)
	r.first.ends()
	if err != nil {
		return r.unreadable(s, err)
	}
	r.report.Scanned += penstock.Bytes(s.bytes)
	p.w.index, p.w.maxTime = s.index, s.maxTime
	p.w.epoch = max(p.w.epoch, s.epoch)
	p.w.allocated = size >= seg.hdr.size
	safe, failed := r.store(&s, f, max(safe, s.durable))
	if s.sealed { // nothing can follow a seal; the cut of the file did not reach the disk
		if lost, err := r.contradicted(&s); lost || err != nil {
			return err
		}
		if failed != nil {
			return failed
		}
		return r.settle(s, f, size, safe)
	}
	// The file system is asked for the data behind the sync: what was written
	// before it is known by then, whatever a page cache holds.
	if failed == nil {
		view.data, view.known = dataFrom(f, from.pos)
	}
	rest, err := search(view, seg.seed, s.pos, s.end)
	if err != nil {
		return r.unreadable(s, err)
	}
	safe = max(safe, rest.durable)
	if bad, err := r.spoiled(&s, rest, size, safe); bad || err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	p.w.whole = p.w.allocated // it was synced
	if rest.last > s.pos {
		switch err := r.cut(s, rest, f); {
		case errors.Is(err, vfs.ErrNoSpace):
			// Without room for a copy nothing is cut: readers see what is whole,
			// appends wait for room.
			r.adopt(s.mark)
			p.cramped, p.w.settle = true, func() error { return r.settleLater(s, rest, f, size, safe) }
			p.broken = fmt.Errorf("topic %q partition %d takes no writes until it is opened again: %w", p.cfg.Topic, p.id, writeError(err))
			return nil
		case err != nil:
			return err
		}
	}
	return r.settle(s, f, size, safe)
}

// goesOn reports whether a valid frame follows the end of the log that a clean
// mark tells: the mark is cleared before anything is written there, so that it
// is of another time then. What cannot be read is none.
func (r *recovery) goesOn(seg *segment, f vfs.File, size int64) bool {
	st, b := &r.st, make([]byte, frameHeaderSize)
	if n, _ := f.ReadAt(b, st.position); st.sealed || n < len(b) {
		return false
	}
	n, err := parseLength(b, size-st.position)
	if err != nil {
		return false
	}
	b = make([]byte, n)
	if n, _ := f.ReadAt(b, st.position); n < len(b) {
		return false
	}
	if h, err := parseFrame(b, seg.seed); err != nil || h.base != st.end {
		return false
	}
	r.note("%s says that the log was closed at offset %d, and it goes on there: the file is older than the log", stateName, st.end)
	return true
}

// spoiled reports whether what ends the run of frames is damage, and faults the
// partition then. Nothing is modified.
func (r *recovery) spoiled(s *scanned, rest behind, size, safe int64) (bool, error) {
	if !s.damaged(rest, safe) {
		if bad, err := r.contradicted(s); bad || err != nil {
			return bad, err
		}
		if s.cause = r.st.shorter(r.lost, s.seg, size); s.cause == nil {
			return false, nil
		}
	}
	last := s.end
	if rest.frames > 0 {
		last = max(last, rest.first-1)
	} else if !r.lost && r.st.segment == s.seg.hdr.base && r.st.end > s.end {
		last = r.st.end - 1
	}
	r.adopt(s.mark)
	r.damage(segmentName(s.seg.hdr.base), s.pos, s.end, last, s.cause)
	return true, nil
}

// contradicted reports whether a stored position tells of events behind the end
// that a scan has found, and faults the partition then. Nothing is modified.
func (r *recovery) contradicted(s *scanned) (bool, error) {
	_, f, err := r.told()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	w := f.witness()
	cause := w.contradicts(s.end)
	if cause == nil {
		return false, nil
	}
	r.adopt(s.mark)
	r.damage(segmentName(s.seg.hdr.base), s.pos, s.end, w.at-1, cause)
	return true, nil
}

// store makes durable what the scan found, which is known to be up to safe, and
// returns up to where it is then. What is not known to have been is written again
// first (ADR 0092): where that fails, it is tried again when the end is settled.
// The error is that of a sync, and fails the open unless there is damage: frames
// are written as they are, and nothing else is before that is known.
func (r *recovery) store(s *scanned, f vfs.File, safe int64) (int64, error) {
	again := rewrite(f, safe, s.pos)
	err := f.Sync()
	<-r.first.stored
	err = errors.Join(err, r.first.err)
	if again == nil && err == nil {
		safe = max(safe, s.pos)
	}
	return safe, err
}

// damaged reports whether what ends the run of frames is damage and no torn
// tail: bytes up to safe had been synced.
func (s *scanned) damaged(rest behind, safe int64) bool {
	return s.pos < safe || rest.beyond || errors.Is(s.cause, errBaseOffset)
}

// unreadable faults the partition from where the disk fails to read: one bad
// sector does not stop the others (ADR 0006). Nothing is modified, and an open
// that can read finds everything.
func (r *recovery) unreadable(s scanned, err error) error {
	if !errors.Is(err, errRead) {
		return err
	}
	r.adopt(s.mark)
	r.damage(segmentName(s.seg.hdr.base), s.pos, s.end, max(s.end, max(r.st.end, 1)-1), err)
	return nil
}

// settle takes what the scan found as the end of the log. What is not known to
// have been durable, from safe on, is written again first (ADR 0092).
func (r *recovery) settle(s scanned, f vfs.File, size, safe int64) error {
	if err := r.endThere(s, f, size, safe); err != nil {
		return err
	}
	r.adopt(s.mark)
	return nil
}

// endThere makes durable that the log ends where the scan did.
func (r *recovery) endThere(s scanned, f vfs.File, size, safe int64) error {
	r.p.w.epoch++
	if err := rewrite(f, safe, s.pos); err != nil {
		return fmt.Errorf("%s: write again what may not be on the disk: %w", segmentName(s.seg.hdr.base), err)
	}
	cut := s.sealed && size > s.pos
	if cut {
		if err := r.mayBeCut(); err != nil {
			return err
		}
		if err := f.Truncate(s.pos); err != nil {
			return err
		}
	}
	if cut || safe < s.pos {
		return f.Sync()
	}
	return nil
}

// settleLater cuts a torn tail, for which there was no room at the open, and
// lets the partition take appends. It needs the baton.
func (r *recovery) settleLater(s scanned, rest behind, f vfs.File, size, safe int64) error {
	p := r.p
	err := r.cut(s, rest, f)
	if err == nil {
		err = r.endThere(s, f, size, safe)
	}
	if err == nil {
		p.w.begun = true
		err = p.saveState(false, true)
	}
	if err != nil {
		return err
	}
	p.log.epochs[p.id].Store(p.w.epoch)
	p.cfg.Logger.Warn("a torn tail was cut when there was room", "topic", p.cfg.Topic, "partition", p.id,
		"bytes", int64(r.report.CutBytes), "frames", r.report.CutFrames, "copy", r.report.Quarantine, "end", uint64(s.end), "epoch", p.w.epoch)
	return nil
}

// rewrite writes the bytes [from, to) of a file as they are. A sync alone would
// not do: when one of an earlier process failed, the system may hold them for
// written, and have them in memory only.
func rewrite(f vfs.File, from, to int64) error {
	for from < to {
		b := make([]byte, min(to-from, scanBlock))
		if _, err := f.ReadAt(b, from); err != nil {
			return err
		}
		if _, err := f.WriteAt(b, from); err != nil {
			return err
		}
		from += int64(len(b))
	}
	return nil
}

// cut removes a torn tail: a copy goes to the quarantine, and the bytes become
// zero, durably, before anything is appended. Nothing of it can come back.
func (r *recovery) cut(s scanned, rest behind, f vfs.File) error {
	p := r.p
	name, err := r.quarantine(s, rest, f)
	if err != nil {
		return err
	}
	r.report.CutBytes, r.report.CutFrames, r.report.Quarantine = penstock.Bytes(rest.last-s.pos), rest.frames, name
	if err := r.mayBeCut(); err != nil {
		return err
	}
	if err := f.Truncate(s.pos); err != nil {
		return err
	}
	p.w.allocated = f.Allocate(s.seg.hdr.size) == nil // else: tried again by the first append, which reports it
	if err := f.Sync(); err != nil {
		return err
	}
	p.w.whole = p.w.allocated
	return nil
}

// quarantine copies the torn tail to a file of its own and returns its name.
func (r *recovery) quarantine(s scanned, rest behind, f vfs.File) (string, error) {
	p := r.p
	dir := filepath.Join(p.dir, quarantineDir)
	switch err := p.cfg.FS.Mkdir(dir); {
	case err == nil:
		if err := p.syncDirectory(); err != nil {
			return "", err
		}
	case !errors.Is(err, fs.ErrExist):
		return "", err
	}
	name := fmt.Sprintf("%0*d-%d-%d.tail", nameDigits, uint64(s.seg.hdr.base), s.pos, p.w.epoch)
	path := filepath.Join(dir, name)
	if err := p.cfg.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err // left by a recovery that was cut short itself
	}
	out, err := p.cfg.FS.Create(path)
	if err != nil {
		return "", err
	}
	b := make([]byte, min(rest.last-s.pos, quarantineMax))
	if _, err = f.ReadAt(b, s.pos); err == nil {
		_, err = out.WriteAt(b, 0)
	}
	if err == nil {
		err = out.Sync()
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = p.cfg.FS.SyncDir(dir)
	}
	if err != nil {
		_ = p.cfg.FS.Remove(path) // a part of a copy is no help
		return "", fmt.Errorf("quarantine of a torn tail: %w", err)
	}
	return filepath.Join(partitionName(p.id), quarantineDir, name), nil
}
