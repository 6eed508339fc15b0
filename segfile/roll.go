package segfile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// spare is the prepared next segment file.
type spare struct {
	file vfs.File
	size int64
	busy chan struct{} // closed when the preparation, or the removal, has ended; nil when none runs
}

// roll seals the active segment, if there is one, and begins the next. Its
// disk space is allocated first: when the disk is full, everything stays as it
// was. It needs the baton.
func (p *Partition) roll() error {
	p.mu.Lock()
	err := p.claimLocked()
	p.mu.Unlock()
	if err != nil {
		return err
	}
	f, size, err := p.takeSpare()
	if errors.Is(err, vfs.ErrNoSpace) && p.makeRoom() {
		f, size, err = p.takeSpare()
	}
	if err != nil {
		return unwritten(p.at(spareName, err))
	}
	if m := p.written; m.seg != nil && !m.sealed {
		if err := p.seal(); err != nil {
			p.dropSpare(f)
			return err
		}
	}
	seg, err := p.install(f, size)
	if err != nil {
		return err
	}
	p.begun(seg, f)
	if err := p.saveState(false, true); err != nil { // from now on a missing file is noticed
		return p.stop(fmt.Errorf("state.slot: %w", err))
	}
	if p.log.full.Swap(false) {
		p.trimNow() // others wait for room
	}
	return nil
}

// install gives the prepared file its header and its name. The header is
// durable before the name is, and the name before the first frame is
// acknowledged.
func (p *Partition) install(f vfs.File, size int64) (*segment, error) {
	m := p.written
	hdr := segmentHeader{
		minor: formatMinor, topic: p.log.uuid, partition: uint32(p.id), epoch: p.w.epoch, base: m.end,
		created: p.log.seams.stamp(), nonce: p.log.seams.random(), prevEnd: m.end, size: size,
		codec: penstock.HashKey(p.cfg.Codec),
	}
	switch {
	case m.seg == nil:
	case m.seg.hdr.base == m.end: // it has no events, and loses its name to this one
		hdr.prevNonce = m.seg.hdr.prevNonce
	default:
		hdr.prevNonce = m.seg.hdr.nonce
	}
	_, err := f.WriteAt(hdr.encode(), 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = p.cfg.FS.Rename(filepath.Join(p.dir, spareName), filepath.Join(p.dir, segmentName(hdr.base)))
	}
	if err != nil {
		p.dropSpare(f)
		return nil, unwritten(p.at(segmentName(hdr.base), fmt.Errorf("begin the segment: %w", err)))
	}
	p.taken(segmentName(hdr.base))
	if err := p.syncDirectory(); err != nil {
		_ = f.Close() // the file is empty; it is taken up or refused at the next open
		return nil, p.stop(writeError(fmt.Errorf("begin segment %s: %w", segmentName(hdr.base), err)))
	}
	return newSegment(p.cfg.FS, p.dir, hdr), nil
}

// syncDirectory makes the names in the partition's directory durable.
func (p *Partition) syncDirectory() error { return p.cfg.FS.SyncDir(p.dir) }

// begun makes seg the active segment.
func (p *Partition) begun(seg *segment, f vfs.File) {
	seg.share(f)
	p.w.file, p.w.allocated, p.w.whole, p.w.index = f, true, true, nil
	p.w.refreshed = headerSize
	p.mu.Lock()
	defer p.mu.Unlock()
	seg.disk, p.claimed = int64(p.cfg.SegmentBytes), false // what was claimed
	m := mark{seg: seg, pos: headerSize, end: seg.hdr.base}
	p.written, p.safe = m, m
	if n := len(p.segs); n > 0 && p.segs[n-1].hdr.base == seg.hdr.base { // it had no events, and its name is taken
		p.log.disk.give(p.segs[n-1].disk)
		p.trimmed = slices.DeleteFunc(append(p.trimmed, p.segs[n-1]), (*segment).retire)
		p.segs = p.segs[: n-1 : n-1]
	}
	p.segs = append(p.segs, seg)
	p.starved = false
	p.counts.rolls++
}

// makeRoom deletes what the last Trim allowed, now that the disk is full, and
// reports whether anything went. It needs the baton.
func (p *Partition) makeRoom() bool {
	p.mu.Lock()
	p.starved = true
	p.mu.Unlock()
	p.log.full.Store(true)
	made := p.trimNow()
	for _, q := range p.log.parts {
		made = q.giveUpSpare() || made // another's next segment can wait; ours cannot
	}
	return made
}

// trimNow deletes what the last Trim allowed and reports whether anything went.
// It needs the baton.
func (p *Partition) trimNow() bool {
	p.mu.Lock()
	below := p.unneeded
	p.mu.Unlock()
	return p.trimmable(below) && p.trim(below) == nil // a failure shows at the next Trim
}

// giveUpSpare removes the prepared file, if there is one, and reports whether
// it did. It needs no baton.
func (p *Partition) giveUpSpare() bool {
	p.mu.Lock()
	f := p.spare.file
	if f == nil {
		p.mu.Unlock()
		return false
	}
	done := make(chan struct{})
	p.spare = spare{busy: done} // nobody makes a new one while the name is taken
	p.mu.Unlock()
	p.dropSpare(f)
	p.mu.Lock()
	p.spare = spare{}
	p.mu.Unlock()
	close(done)
	return true
}

// seal writes the seal frame, makes the segment durable and gives the space
// behind it back. It needs the baton.
func (p *Partition) seal() error {
	p.unmap() // before the file is cut
	m := p.written
	seg, was := m.seg, m
	b := encodeSeal(
		&summary{count: uint64(m.end - seg.hdr.base), end: m.end, rolling: m.rolling, index: p.w.index},
		stamp{seed: seg.seed, base: m.end, epoch: p.w.epoch, time: p.log.seams.now().UnixNano(), durable: p.safePosition(seg)})
	if _, err := p.w.file.WriteAt(b, m.pos); err != nil {
		return p.writeFailed(err, was)
	}
	m.pos += int64(len(b))
	m.sealed = true
	if err := p.syncUpTo(m); err != nil {
		return err
	}
	p.mu.Lock()
	p.written, p.loose = m, false
	p.mu.Unlock()
	_ = p.saveProducers() // sticky; what it would cover is read at open
	if err := p.w.file.Truncate(m.pos); err != nil {
		return p.stop(writeError(fmt.Errorf("seal %s: %w", segmentName(seg.hdr.base), err)))
	}
	p.log.disk.give(seg.disk - m.pos)
	seg.disk = m.pos
	p.publish(m)
	p.w.file, p.w.index = nil, nil
	if err := seg.release(); err != nil {
		return p.stop(writeError(err))
	}
	if fn := p.sealed.Load(); fn != nil {
		(*fn)()
	}
	return nil
}

// prepareSpare makes the next segment file in the background, so that a roll
// is a rename. It needs the baton.
func (p *Partition) prepareSpare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.spare.file != nil || p.spare.busy != nil || p.closing || p.broken != nil {
		return
	}
	if !p.claimed && !p.log.disk.take(int64(p.cfg.SegmentBytes)) {
		return // the next frame asks for it
	}
	p.claimed = true
	done := make(chan struct{})
	p.spare.busy = done
	p.bg.Add(1)
	// Makes one file and ends; waited for by Close.
	go func() {
		defer p.bg.Done()
		size := int64(p.cfg.SegmentBytes)
		f, err := p.makeSpare(size)
		if err != nil {
			p.cfg.Logger.Debug("no spare segment; the roll will make one", "topic", p.cfg.Topic, "partition", p.id, "err", err)
		}
		p.mu.Lock()
		p.spare = spare{file: f, size: size}
		p.mu.Unlock()
		close(done)
	}()
}

// makeSpare makes a file with disk space behind all of it, or leaves nothing.
func (p *Partition) makeSpare(size int64) (vfs.File, error) {
	path := filepath.Join(p.dir, spareName)
	if err := p.cfg.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := p.cfg.FS.Create(path)
	if err != nil {
		return nil, err
	}
	if err := f.Allocate(size); err != nil {
		p.dropSpare(f)
		return nil, err
	}
	return f, nil
}

// takeSpare returns the prepared file, or makes one.
func (p *Partition) takeSpare() (vfs.File, int64, error) {
	p.mu.Lock()
	for p.spare.busy != nil { // again: what was prepared may be given up before we look
		busy := p.spare.busy
		p.mu.Unlock()
		<-busy
		p.mu.Lock()
	}
	s := p.spare
	p.spare = spare{}
	p.mu.Unlock()
	if s.file != nil {
		return s.file, s.size, nil
	}
	size := int64(p.cfg.SegmentBytes)
	f, err := p.makeSpare(size)
	return f, size, err
}

// dropSpare gives the space of a file that did not become a segment back.
func (p *Partition) dropSpare(f vfs.File) {
	_ = f.Close() // nothing of it is wanted
	if err := p.cfg.FS.Remove(filepath.Join(p.dir, spareName)); err != nil {
		p.cfg.Logger.Warn("cannot remove a file that did not become a segment", "topic", p.cfg.Topic, "partition", p.id, "file", spareName, "err", err)
	}
}
