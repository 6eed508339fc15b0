package segfile

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// diskUse counts what the segment files of a log take, and what its partitions
// have claimed for the next ones. With a limit nothing is allocated that was not
// claimed before, so used never exceeds it.
//
// A claim is the size of one segment. A partition has one before a frame takes
// its room, so that no append fails for want of it afterwards: what has room and
// is not written fits into one segment (Config.validate), so that it takes
// one roll at most, which turns the claim into the segment; and the frame after
// that needs a new claim.
type diskUse struct {
	limit int64 // 0: none
	used  atomic.Int64

	mu    sync.Mutex
	freed chan struct{} // closed when used falls; nil when nobody waits for it
}

// take claims n bytes, or reports that they are above the limit.
func (d *diskUse) take(n int64) bool {
	for {
		used := d.used.Load()
		if d.limit > 0 && used+n > d.limit {
			return false
		}
		if d.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

func (d *diskUse) give(n int64) {
	d.used.Add(-n)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.freed != nil {
		close(d.freed)
		d.freed = nil
	}
}

// DiskBytes returns what the segment files of all partitions take on disk, with
// the disk space that the active ones have in advance and what is claimed for
// the next ones: at most CapacityDisk, unless the log had more when it was
// opened.
func (l *Log) DiskBytes() penstock.Bytes { return penstock.Bytes(l.disk.used.Load()) }

// Freed returns a channel that is closed when DiskBytes falls after the call.
func (l *Log) Freed() <-chan struct{} {
	d := &l.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.freed == nil {
		d.freed = make(chan struct{})
	}
	return d.freed
}

// MakeRoom gives back what partitions that have nothing to write hold for their
// next segment, and lets the next [Partition.Trim] delete active segments too, of
// which everything lies below its offset. It blocks while prepared files are
// removed.
func (l *Log) MakeRoom() {
	for _, p := range l.parts {
		p.giveUpClaim()
		p.mu.Lock()
		p.starved = true
		p.mu.Unlock()
	}
}

// countDisk takes what the segments took when the log was opened.
func (l *Log) countDisk() {
	l.disk.limit = int64(l.cfg.CapacityDisk)
	for _, p := range l.parts {
		for _, s := range p.segs {
			s.disk = s.found
			if m := p.written; m.seg == s && !m.sealed {
				s.disk = max(s.found, s.hdr.size) // an append makes it as long again
			}
			l.disk.used.Add(s.disk)
		}
	}
}

// claimLocked makes sure that there is room for the partition's next segment.
func (p *Partition) claimLocked() error {
	if p.claimed {
		return nil
	}
	d := &p.log.disk
	if !d.take(int64(p.cfg.SegmentBytes)) {
		p.starved = true // from now on a trim may take the active segment
		return fmt.Errorf("the segment files take the %v that CapacityDisk allows: %w", p.cfg.CapacityDisk, penstock.ErrFull)
	}
	p.claimed = true
	if d.limit > 0 {
		p.starved = false
	}
	return nil
}

// giveUpClaim ends the claim of a partition that has nothing to write, and
// removes the file that was prepared for it.
func (p *Partition) giveUpClaim() {
	p.mu.Lock()
	f := p.spare.file
	if !p.claimed || p.pending > 0 || p.busy || p.spare.busy != nil {
		p.mu.Unlock()
		return
	}
	p.claimed = false
	if f == nil {
		p.mu.Unlock()
		p.log.disk.give(int64(p.cfg.SegmentBytes))
		return
	}
	done := make(chan struct{})
	p.spare = spare{busy: done} // nobody makes a new one while the name is taken
	p.mu.Unlock()
	p.dropSpare(f)
	p.log.disk.give(int64(p.cfg.SegmentBytes)) // the file is gone
	p.mu.Lock()
	p.spare = spare{}
	p.mu.Unlock()
	close(done)
}

// roomEndsLocked gives the room of frames back that the committer took, unless
// they hold it until they are written (Config.CapacityDisk).
func (p *Partition) roomEndsLocked(size int64, written bool) {
	if written == (p.log.disk.limit > 0) {
		p.giveRoomLocked(size)
	}
}

// FirstEnd returns the offset behind the oldest segment, which is the least that
// makes room on disk when it is trimmed; Readable when there is one or none. It
// is Earliest in a damaged partition that keeps its oldest segment.
func (p *Partition) FirstEnd() penstock.Offset {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.fault != nil && (len(p.segs) < 2 || p.segs[1].hdr.base > p.held):
		return p.Earliest()
	case len(p.segs) < 2:
		return p.Readable()
	}
	return p.segs[1].hdr.base
}
