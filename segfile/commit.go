package segfile

import (
	"errors"
	"fmt"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// refreshEvery is how many bytes of a segment are synced before state.slot
// says so: an open after a crash scans about as much.
const refreshEvery = 8 << 20

// commit writes and syncs a group and wakes its waiters. It needs the baton.
func (p *Partition) commit(g *group) {
	g.firsts = append(g.someFirsts[:0], make([]penstock.Offset, len(g.frames))...)
	for g.failed < len(g.frames) && g.err == nil {
		var n int
		n, g.err = p.append(g.frames[g.failed:], g.firsts[g.failed:])
		g.failed += n
	}
	for i, f := range g.frames {
		if i >= g.failed {
			p.failed(f, g.err)
		}
		f.Release()
	}
	g.frames, g.someFrames = nil, [4]*Frame{}
	close(g.done)
}

// commitOne is commit for one frame at level written. It needs the baton.
func (p *Partition) commitOne(f *Frame) (penstock.Offset, error) {
	frames, firsts := [1]*Frame{f}, [1]penstock.Offset{}
	_, err := p.append(frames[:], firsts[:])
	if err != nil {
		p.failed(f, err)
	}
	f.Release()
	return firsts[0], err
}

// failed ends a frame that was not appended.
func (p *Partition) failed(f *Frame, err error) {
	if f.failed != nil {
		f.failed(err)
	}
	if f.numbered() {
		p.endTag(f, 0, false)
	}
}

// append writes as many of the frames as fit the active segment with one
// call, at level synced makes them durable, and lets readers see them. It
// returns how many frames that were and the error that befell the others.
func (p *Partition) append(frames []*Frame, firsts []penstock.Offset) (int, error) {
	safe, err := p.prepare(frames[0])
	if err != nil {
		return 0, fmt.Errorf("append partition %d: %w", p.id, err)
	}
	was := p.written // only the baton's holder changes it
	now := p.log.seams.stamp()
	m := was
	n, buf := p.encode(&m, frames, firsts, safe, now)
	stored, err := p.put(buf, was.pos)
	if err != nil {
		return 0, fmt.Errorf("append partition %d: %w", p.id, p.writeFailed(err, was))
	}
	p.indexFrames(was, frames[:n])
	safe, due := p.advance(&m, n, stored, now)
	if p.cfg.Durability == penstock.Synced {
		if err := p.syncWritten(); err != nil {
			return 0, fmt.Errorf("append partition %d: %w", p.id, err)
		}
		safe = p.safePosition(m.seg)
	}
	for i, f := range frames[:n] {
		if f.appended != nil {
			f.appended()
		}
		if f.numbered() {
			p.endTag(f, firsts[i], true)
		}
	}
	p.publish(m)
	p.afterAppend(m, safe, due)
	return n, nil
}

// prepare makes sure that the session has begun and that the active segment
// has room for the frame, and returns how far that segment is known to be
// durable.
func (p *Partition) prepare(f *Frame) (safe int64, err error) {
	m := p.written
	p.mu.Lock()
	err = p.faultLocked()
	safe = p.safeLocked(m.seg)
	p.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if err := p.begin(); err != nil {
		return 0, err
	}
	if m.seg == nil || m.sealed || !p.fits(m, f) {
		return headerSize, p.roll()
	}
	return safe, p.allocate()
}

// begin clears the clean-shutdown mark, durably, before the first write of a
// session.
func (p *Partition) begin() error {
	if p.w.begun {
		return nil
	}
	if err := p.saveState(false, true); err != nil {
		return p.stop(fmt.Errorf("state.slot: %w", err))
	}
	p.w.begun = true
	return nil
}

func (p *Partition) fits(m mark, f *Frame) bool {
	size := m.seg.hdr.size
	if m.pos+int64(f.Size())+int64(sealSize(indexEntries(size))) > size {
		return false
	}
	has, limit := int(m.end-m.seg.hdr.base), p.cfg.SegmentEvents
	return limit == 0 || has == 0 || has+f.Len() <= limit
}

// allocate gives the active file its full size again after a full disk or a
// crash took that away.
func (p *Partition) allocate() error {
	if p.w.allocated {
		return nil
	}
	if err := p.w.file.Allocate(p.written.seg.hdr.size); err != nil {
		return p.writeFailed(err, p.written)
	}
	p.w.allocated = true
	return nil
}

// encode builds what is written next, at least the first frame, and moves m
// behind it.
func (p *Partition) encode(m *mark, frames []*Frame, firsts []penstock.Offset, safe, now int64) (int, []byte) {
	st := stamp{seed: m.seg.seed, epoch: p.w.epoch, time: now, durable: safe}
	buf, n, size := p.w.buf[:0], 0, 0
	for n < len(frames) {
		f := frames[n]
		size = f.Size()
		if n > 0 && (!p.fits(*m, f) || len(buf)+size > maxGroupBytes) {
			break
		}
		st.base = m.end
		if len(frames) == 1 {
			buf = f.inPlace(st)
		} else {
			buf = f.appendTo(buf, st)
		}
		firsts[n] = m.end
		m.rolling = roll(m.rolling, buf[len(buf)-size:])
		m.pos += int64(size)
		m.end += penstock.Offset(f.Len())
		n++
	}
	if len(frames) > 1 && cap(buf) <= 2*maxGroupBytes {
		p.w.buf = buf
	}
	return n, buf
}

// safePosition returns how far the segment is known to be durable.
func (p *Partition) safePosition(seg *segment) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.safeLocked(seg)
}

func (p *Partition) safeLocked(seg *segment) int64 {
	if p.safe.seg != seg {
		return headerSize
	}
	return p.safe.pos
}

// indexFrames adds entries to the sparse index for the frames written at was.
func (p *Partition) indexFrames(was mark, frames []*Frame) {
	pos, offset := was.pos, was.end
	for _, f := range frames {
		p.w.maxTime = max(p.w.maxTime, f.maxTime)
		last := int64(headerSize)
		if n := len(p.w.index); n > 0 {
			last = p.w.index[n-1].pos
		}
		if pos-last >= indexEvery {
			p.w.index = append(p.w.index, indexEntry{offset, pos, p.w.maxTime})
		}
		pos, offset = pos+int64(f.Size()), offset+penstock.Offset(f.Len())
	}
}

// advance records what was written, and when it was handed over. It returns how
// far the segment is known to be durable, and whether a background sync is due.
//
// The fields of m have just been stored one by one. To copy it as a whole would
// load two at a time, for which the processor waits until both are in the cache.
func (p *Partition) advance(m *mark, frames int, stored bool, now int64) (safe int64, due bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.times.note(p.written.end, now, p.Earliest())
	m.seg.newest.Store(now)
	w := &p.written // the segment stays, and is not sealed
	w.pos, w.end, w.rolling = m.pos, m.end, m.rolling
	p.counts.frames += uint64(frames)
	if stored {
		p.counts.stored += uint64(frames)
	}
	p.counts.groups++
	p.loose = p.cfg.Durability == penstock.Synced
	return p.safeLocked(m.seg), p.dueLocked()
}

// writeFailed ends an attempt to write behind was. When the disk is full the
// file is cut back, so that nothing of the attempt can be found later, and the
// partition goes on when there is room again; any other error stops it.
func (p *Partition) writeFailed(err error, was mark) error {
	err = p.at(segmentName(was.seg.hdr.base), err)
	if !errors.Is(err, vfs.ErrNoSpace) && !errors.Is(err, vfs.ErrFileLimit) {
		return p.stop(writeError(err))
	}
	p.w.allocated = false
	p.unmap() // before the file is cut
	cut := p.mayBeCut()
	if cut == nil {
		cut = p.w.file.Truncate(was.pos)
	}
	if cut == nil {
		cut = p.syncAlone(p.w.file.Sync)
	}
	if cut != nil {
		return p.stop(fmt.Errorf("%w: cannot take back a write on a full disk: %w", penstock.ErrUnknownOutcome, cut))
	}
	return writeError(err)
}

// afterAppend does what need not be done before the acknowledgement. safe is
// how far the segment is known to be durable, due says that a background sync
// is.
func (p *Partition) afterAppend(m mark, safe int64, due bool) {
	if due {
		p.syncInBackground()
	}
	if safe-p.w.refreshed >= refreshEvery {
		// Not synced: what it says was synced before, and the older slot stays.
		if err := p.saveState(false, false); err != nil {
			_ = p.stop(fmt.Errorf("state.slot: %w", err)) // reported by the next append
			return
		}
		p.w.refreshed = safe
		if p.cfg.Durability == penstock.Synced {
			_ = p.saveProducers() // sticky; what it would cover is read at open
		}
	}
	if limit := p.cfg.SegmentEvents; limit > 0 && int(m.end-m.seg.hdr.base) >= limit {
		_ = p.seal() // a failure is sticky, or shows again at the roll
		return
	}
	if m.pos > m.seg.hdr.size/2 {
		p.prepareSpare()
	}
}

// saveState writes state.slot. That of a damaged partition goes on to say what
// tells of the damage: only where the log starts changes.
func (p *Partition) saveState(clean, sync bool) error {
	if p.fault != nil {
		st := p.w.told
		st.start = p.w.start
		return p.w.state.write(st.encode(), sync)
	}
	p.mu.Lock()
	m := p.safe
	p.mu.Unlock()
	st := state{start: p.w.start, end: m.end, segment: m.end, epoch: p.w.epoch, clean: clean, sealed: m.sealed, rolling: m.rolling}
	if m.seg != nil {
		st.segment, st.position = m.seg.hdr.base, m.pos
		st.whole = p.w.whole && !m.sealed && !clean
	}
	return p.w.state.write(st.encode(), sync)
}
