package segfile

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock"
)

// cursors reads the stored positions and sets those back that a power loss at
// level written left ahead of the log.
func (r *recovery) cursors() error {
	p := r.p
	dir := filepath.Join(p.dir, groupsDir)
	names, err := p.cfg.FS.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return p.corrupt(groupsDir, errNoGroups)
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		escaped, ok := strings.CutSuffix(name, slotExt)
		group, uerr := UnescapeName(escaped)
		switch {
		case strings.HasSuffix(name, ".tmp"):
			if err := p.cfg.FS.Remove(filepath.Join(dir, name)); err != nil {
				r.note("%v; it is left alone", err)
			}
			continue
		case !ok || uerr != nil:
			r.note("%s/%s is not the name of a stored position and is left alone", groupsDir, name)
			continue
		}
		if err := r.cursor(group); err != nil {
			return err
		}
	}
	if len(p.groups) == 0 {
		return nil
	}
	// Also after a clean end: a process may have been killed while it made a
	// position and nothing else.
	return p.cfg.FS.SyncDir(dir)
}

func (r *recovery) cursor(group string) error {
	p := r.p
	if p.w.found == nil {
		p.w.found = map[string]bool{}
	}
	slot, s, err := p.readCursor(group)
	if errors.Is(err, penstock.ErrCorrupt) {
		// The group is known: it holds everything, and its open reports the damage.
		r.note("group %q: %v", group, err)
		p.groups[group] = stored{committed: p.Earliest()}
		return nil
	}
	switch {
	case err == nil:
	case refused(err) || errors.Is(err, fs.ErrNotExist):
		return err
	default: // a bad sector: it is the trouble of that group, which may open it later (ADR 0006)
		r.note("group %q: %v", group, err)
		p.groups[group] = stored{committed: p.Earliest()}
		return nil
	}
	if slot.spoiled != nil {
		r.note("group %q: %v; if that was its newest position, some events come again", group, slot.spoiled)
	}
	clamped := false
	if p.fault == nil {
		if clamped, err = s.clamp(slot, p.Readable()); s.synced && s.ahead == 0 && s.beyond() > p.Readable() {
			err = s.markAhead(slot, p.Readable())
			r.note("group %q: %v", group, s.errAhead())
		}
	}
	if cerr := slot.file.Close(); err == nil {
		err = cerr
	}
	if clamped {
		r.report.Clamped = append(r.report.Clamped, group)
	} else {
		p.w.found[group] = true
	}
	p.groups[group] = s
	return err
}
