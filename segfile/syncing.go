package segfile

import (
	"errors"
	"fmt"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// The segments of a partition are synced by whoever needs it: the committer, a
// background sync, a commit, a caller of Sync. They never do it at the same
// time: the system tells a write-back that failed once for an open file, and of
// two syncs that wait for it the other one succeeds and has nothing to show for
// it. Whoever comes after a sync that failed finds the partition stopped.

// syncAlone runs a sync while no other one runs. After one that failed it
// returns the error that has stopped the partition.
func (p *Partition) syncAlone(sync func() error) error {
	p.syncs <- struct{}{}
	defer func() { <-p.syncs }()
	p.mu.Lock()
	err := p.broken
	p.mu.Unlock()
	if err != nil {
		return err
	}
	return sync()
}

// syncWritten makes everything written durable. After an error the partition
// stops: a sync is never repeated. It needs the baton.
func (p *Partition) syncWritten() error { return p.syncUpTo(p.written) }

// syncUpTo is syncWritten up to a mark that is not the end yet.
func (p *Partition) syncUpTo(m mark) error {
	return p.syncAlone(func() error {
		if err := p.w.file.Sync(); err != nil {
			return p.syncFailed(m, err)
		}
		p.secured(m)
		return nil
	})
}

// syncLog makes what was written before the call durable. It may run beside
// the holder of the baton.
func (p *Partition) syncLog() error {
	p.mu.Lock()
	m := p.written
	if m.seg == nil || m == p.safe || m.sealed || p.broken != nil { // a sealed segment is synced by its seal
		err := p.broken
		p.mu.Unlock()
		return err
	}
	f, err := m.seg.acquire() // open already: the writer holds it
	p.mu.Unlock()
	if err != nil {
		return p.stop(writeError(err))
	}
	err = p.syncAlone(func() error {
		if p.securedSince(m) {
			return nil // by the one before
		}
		err := f.Sync()
		if err == nil {
			err = p.checkLength(f, m)
		}
		if errors.Is(err, vfs.ErrRemoved) && p.securedSince(m) {
			err = nil // sealed and trimmed under our hands
		}
		if err != nil {
			return p.syncFailed(m, err)
		}
		p.secured(m)
		return nil
	})
	if err != nil {
		_ = m.seg.release() // the sync's error says more
		return err
	}
	return m.seg.release()
}

// syncFailed stops the partition.
func (p *Partition) syncFailed(m mark, err error) error {
	return p.stop(fmt.Errorf("%w: sync of %s: %w", penstock.ErrUnknownOutcome, segmentName(m.seg.hdr.base), err))
}

// securedSince reports whether another sync has made everything up to m
// durable.
func (p *Partition) securedSince(m mark) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.safe
	return s.seg != nil && (s.seg.hdr.base > m.seg.hdr.base || s.seg == m.seg && s.pos >= m.pos)
}

// secured records that everything up to m is durable.
func (p *Partition) secured(m mark) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.syncs++
	if s := p.safe; s.seg == nil || s.seg.hdr.base < m.seg.hdr.base || s.seg == m.seg && s.pos < m.pos {
		p.safe = m
		p.durable.Store(uint64(m.end))
	}
}

// Sync makes every event acknowledged before the call durable, whatever the
// level. It blocks for one sync of the disk, and for one that is under way.
func (p *Partition) Sync() error { return p.syncLog() }
