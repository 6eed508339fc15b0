package segfile

import (
	"time"

	"github.com/penstock/penstock"
)

// idleBarrier is how long a partition at level synced is idle, at the least,
// before a barrier frame proves that its last frames were synced; twice as long
// at the most. It is also the longest time that a cursor stored without a sync
// stays unsynced.
const idleBarrier = 100 * time.Millisecond

// armLocked starts the timer when something is left to do later.
func (p *Partition) armLocked() {
	if p.armed || p.closing || p.broken != nil || p.fault != nil {
		return
	}
	wait := p.log.seams.idle
	switch {
	case p.cfg.Durability == penstock.Written && p.written != p.safe:
		wait = p.cfg.SyncEvery.Interval
	case p.loose, p.dirtyLocked():
	default:
		return
	}
	p.armed, p.seen = true, p.counts.frames
	if p.timer == nil {
		// Runs onTimer and ends; stopped by Close, and counted in bg while it works.
		p.timer = time.AfterFunc(wait, p.onTimer)
	} else {
		p.timer.Reset(wait)
	}
}

// onTimer syncs what is unsynced, or writes a barrier when nothing was
// appended since the timer was armed.
func (p *Partition) onTimer() {
	p.mu.Lock()
	p.armed = false
	if p.closing || p.broken != nil || p.fault != nil {
		p.mu.Unlock()
		return
	}
	barrier := p.loose && p.seen == p.counts.frames && !p.busy
	if barrier {
		p.busy = true
		p.bg.Add(1)
	}
	p.mu.Unlock()
	if barrier {
		if err := p.writeBarrier(); err != nil {
			p.cfg.Logger.Warn("no barrier frame", "topic", p.cfg.Topic, "partition", p.id, "err", err)
		}
		p.bg.Done()
		p.handOn(0)
	}
	p.syncInBackground()
	p.mu.Lock()
	p.armLocked()
	p.mu.Unlock()
}

// dueLocked reports whether the limits of level written are reached behind
// which a background sync is due.
func (p *Partition) dueLocked() bool {
	if p.cfg.Durability != penstock.Written || p.syncing || p.written.seg == nil {
		return false
	}
	events, size := p.written.end-p.safe.end, p.written.pos
	if p.safe.seg == p.written.seg {
		size -= p.safe.pos
	}
	every := p.cfg.SyncEvery
	return every.Events > 0 && events >= penstock.Offset(every.Events) || every.Bytes > 0 && size >= int64(every.Bytes)
}

// syncInBackground starts a background sync for anything unsynced.
func (p *Partition) syncInBackground() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.syncing || p.closing || p.broken != nil {
		return
	}
	unsynced := p.cfg.Durability == penstock.Written && p.written != p.safe || p.dirtyLocked()
	if !unsynced {
		return
	}
	p.syncing = true
	p.bg.Add(1)
	// One background sync: ends by itself; waited for by Close.
	go p.background()
}

// background syncs the log and then the cursors, in this order, so that no
// cursor is made durable ahead of the log.
func (p *Partition) background() {
	defer p.bg.Done()
	err := p.syncLog()
	if err == nil {
		p.syncCursors()
	}
	p.mu.Lock()
	p.syncing = false
	p.armLocked()
	p.mu.Unlock()
}

// writeBarrier writes a frame without records, whose durable position proves
// that everything before it was synced, and syncs it. It needs the baton.
func (p *Partition) writeBarrier() error {
	p.mu.Lock()
	m := p.written
	p.loose = false // whatever becomes of it: one attempt per idle time
	p.mu.Unlock()
	if m.seg == nil || m.sealed || p.safePosition(m.seg) < m.pos ||
		m.pos+frameHeaderSize+int64(sealSize(indexEntries(m.seg.hdr.size))) > m.seg.hdr.size {
		return nil
	}
	b := make([]byte, frameHeaderSize)
	now := p.log.seams.now().UnixNano()
	h := header{kind: typeBarrier, base: m.end, epoch: p.w.epoch, time: now, maxTime: now, durable: m.pos}
	h.put(b, m.seg.seed)
	if _, err := p.w.file.WriteAt(b, m.pos); err != nil {
		return p.writeFailed(err, m)
	}
	m.pos += frameHeaderSize
	p.mu.Lock()
	p.written = m
	p.mu.Unlock()
	if err := p.syncWritten(); err != nil {
		return err
	}
	p.publish(m)
	return nil
}
