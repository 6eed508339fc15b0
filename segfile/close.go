package segfile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/penstock/penstock"
)

// close ends the partition: see [Log.Close].
func (p *Partition) close() error {
	p.mu.Lock()
	p.closing = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.wakeRoomLocked()
	p.mu.Unlock()
	return p.do(p.finish, true)
}

// finish runs with the baton, after everything that waited was written.
func (p *Partition) finish() error {
	p.bg.Wait()
	p.unmap()
	var errs []error
	fault := p.Fault()
	switch {
	case fault == nil && p.w.begun:
		errs = append(errs, p.finishLog())
	case !errors.Is(fault, penstock.ErrCorrupt): // damage was reported by Open, and lost nothing since
		errs = append(errs, fault)
	}
	for _, c := range p.openCursors() {
		errs = append(errs, c.close())
	}
	if fault == nil && p.w.begun && errors.Join(errs...) == nil {
		if err := p.saveState(true, true); err != nil {
			errs = append(errs, fmt.Errorf("state.slot: %w", err))
		}
	}
	if p.w.file != nil {
		errs = append(errs, p.written.seg.release())
		p.w.file = nil
	}
	errs = append(errs, p.shutSegments(), p.dropPrepared(), p.w.state.file.Close())
	if p.w.producers != nil {
		errs = append(errs, p.w.producers.file.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close partition %d: %w", p.id, err)
	}
	return nil
}

// shutSegments closes the files that readers still hold.
func (p *Partition) shutSegments() error {
	p.mu.Lock()
	all := slices.Concat(p.segs, p.trimmed)
	p.mu.Unlock()
	var errs []error
	for _, s := range all {
		errs = append(errs, s.shut())
	}
	return errors.Join(errs...)
}

// finishLog makes the log durable and retries removals.
func (p *Partition) finishLog() error {
	if err := p.syncLog(); err != nil {
		return err
	}
	if err := p.saveProducers(); err != nil {
		return err
	}
	return p.removeGarbage()
}

// dropPrepared removes the spare segment, if there is one.
func (p *Partition) dropPrepared() error {
	p.mu.Lock()
	s := p.spare
	p.spare = spare{}
	p.mu.Unlock()
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	if rerr := p.cfg.FS.Remove(filepath.Join(p.dir, spareName)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	return err
}
