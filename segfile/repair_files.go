package segfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// names gives segments their own names back and makes directories that are
// missing.
func (p *plan) names(fsys vfs.FS) error {
	if err := p.rename(fsys); err != nil {
		return err
	}
	for i := range p.f.segs {
		p.f.segs[i].file = ""
	}
	for _, name := range p.Made {
		if err := fsys.Mkdir(filepath.Join(p.f.dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return writeError(err)
		}
	}
	return fsys.SyncDir(p.f.dir)
}

// rename gives segments their own names, each when no other one has it any more.
// Of those that have changed names with each other one gets a name that no
// segment has in between: a repair that is cut short there finds it under another
// name than its own, as before, and an open finds damage.
func (p *plan) rename(fsys vfs.FS) error {
	left := slices.Clone(p.Renamed)
	move := func(from, to string) error {
		if err := fsys.Rename(filepath.Join(p.f.dir, from), filepath.Join(p.f.dir, to)); err != nil {
			return err
		}
		return fsys.SyncDir(p.f.dir)
	}
	has := func(name string) bool {
		return slices.ContainsFunc(left, func(r Renamed) bool { return r.From == name })
	}
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(r Renamed) bool { return !has(r.To) })
		if i < 0 {
			free := penstock.Offset(math.MaxUint64)
			for p.taken(segmentName(free)) {
				free--
			}
			if err := move(left[0].From, segmentName(free)); err != nil {
				return err
			}
			left[0].From = segmentName(free)
			continue
		}
		if err := move(left[i].From, left[i].To); err != nil {
			return err
		}
		left = slices.Delete(left, i, i+1)
	}
	return nil
}

// taken reports whether a file of the partition has the name of a segment.
func (p *plan) taken(name string) bool {
	for _, s := range slices.Concat(p.f.segs, p.f.strays) {
		if s.name() == name {
			return true
		}
	}
	return false
}

// remove deletes a file of the partition that was copied, durably.
func (p *plan) remove(fsys vfs.FS, name string) error {
	if err := fsys.Remove(filepath.Join(p.f.dir, name)); err != nil {
		return err
	}
	return fsys.SyncDir(p.f.dir)
}

// setAside copies a file of the partition to its quarantine. A copy that is
// there already stays: the file may have been changed since; of a stray another
// is made then.
func (p *plan) setAside(fsys vfs.FS, name string) error {
	dir := filepath.Join(p.f.dir, quarantineDir)
	if err := fsys.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return writeError(err)
	}
	if err := fsys.SyncDir(p.f.dir); err != nil {
		return err
	}
	from, err := fsys.Open(filepath.Join(p.f.dir, name), false)
	if err != nil {
		return err
	}
	defer from.Close()
	to := fmt.Sprintf("repair-%d-%s", p.epoch, filepath.Base(name))
	for n := 2; ; n++ {
		there, err := fsys.Open(filepath.Join(dir, to), false)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
		same, err := true, error(nil)
		if slices.Contains(p.Strays, name) {
			same, err = sameBytes(there, from)
		}
		_ = there.Close() // it was only read
		if err != nil || same {
			return err
		}
		to = fmt.Sprintf("repair-%d-%d-%s", p.epoch, n, filepath.Base(name))
	}
	tmp := filepath.Join(dir, to+".tmp")
	if err := fsys.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := fsys.Create(tmp)
	if err != nil {
		return writeError(err)
	}
	err = copyFile(out, from)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = fsys.Rename(tmp, filepath.Join(dir, to))
	}
	if err != nil {
		_ = fsys.Remove(tmp) // a part of a copy is no help
		return writeError(err)
	}
	return fsys.SyncDir(dir)
}

// sameBytes reports whether two files hold the same.
func sameBytes(a, b vfs.File) (bool, error) {
	size, err := a.Size()
	if err != nil {
		return false, err
	}
	if other, err := b.Size(); err != nil || other != size {
		return false, err
	}
	x, y := &fileView{file: a, size: size}, &fileView{file: b, size: size}
	for pos := int64(0); pos < size; pos += scanBlock {
		p, err := x.bytes(pos, scanBlock)
		if err != nil {
			return false, err
		}
		q, err := y.bytes(pos, scanBlock)
		if err != nil || !bytes.Equal(p, q) {
			return false, err
		}
	}
	return true, nil
}

// copyFile copies a file to an empty one, durably.
func copyFile(to, from vfs.File) error {
	size, err := from.Size()
	if err != nil {
		return err
	}
	v := &fileView{file: from, size: size}
	for pos := int64(0); pos < size; {
		b, err := v.bytes(pos, scanBlock)
		if err != nil {
			return err
		}
		if len(b) == 0 {
			break
		}
		if _, err := to.WriteAt(b, pos); err != nil {
			return err
		}
		pos += int64(len(b))
	}
	return to.Sync()
}

// position gives a group another stored position, in both slots. What is settled
// above it and stays is kept.
func (p *plan) position(in *Inspection, g GroupRepair) (err error) {
	dir, name := filepath.Join(p.f.dir, groupsDir), EscapeName(g.Name)+slotExt
	slot, payload, err := openSlot(in.fs, filepath.Join(dir, name), cursorMark, in.owner(p.f.id))
	if errors.Is(err, fs.ErrNotExist) && slices.Contains(p.gone, g.Name) {
		if slot, err = createSlot(in.fs, dir, name, cursorMark, in.owner(p.f.id), nil); err != nil {
			return writeError(err)
		}
		defer func() { err = errors.Join(err, in.fs.SyncDir(dir)) }()
	}
	if slot == nil {
		return err
	}
	s := stored{group: penstock.HashKey(g.Name), committed: g.To, epoch: p.epoch + 1, synced: true, touched: true}
	if was, werr := decodeStored(payload); g.Err == nil && err == nil && werr == nil && was.committed == g.To {
		s.completed = trimWords(completedBelow(was.completed, g.To, p.Keep))
	}
	for range 2 {
		if err = slot.write(s.encode(), true); err != nil {
			break
		}
	}
	if cerr := slot.file.Close(); err == nil {
		err = cerr
	}
	return err
}

// cut ends the log at Keep, and makes state.slot say so.
func (p *plan) cut(in *Inspection) error {
	st := state{start: min(p.start, p.Keep), end: p.Keep, segment: p.Keep, epoch: p.epoch + 1}
	if i := p.kept(); i >= 0 {
		s, err := p.cutSegment(in.fs, &p.f.segs[i])
		if err != nil {
			return err
		}
		st.segment, st.position, st.rolling, st.sealed = s.seg.hdr.base, s.pos, s.rolling, s.sealed
	}
	slot, _, err := openSlot(in.fs, filepath.Join(p.f.dir, stateName), stateMark, in.owner(p.f.id))
	if slot == nil && errors.Is(err, fs.ErrNotExist) {
		slot, err = createSlot(in.fs, p.f.dir, stateName, stateMark, in.owner(p.f.id), st.encode())
		if err == nil {
			err = in.fs.SyncDir(p.f.dir)
		}
	}
	if slot == nil {
		return err
	}
	for range 2 { // both: the older one knows what is gone
		if err = slot.write(st.encode(), true); err != nil {
			break
		}
	}
	if cerr := slot.file.Close(); err == nil {
		err = cerr
	}
	return err
}

// cutSegment cuts a segment behind its last whole frame in sequence.
func (p *plan) cutSegment(fsys vfs.FS, s *foundSegment) (scanned, error) {
	f, err := fsys.Open(filepath.Join(p.f.dir, s.name()), true)
	if err != nil {
		return scanned{}, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return scanned{}, err
	}
	r, err := passGaps(&fileView{file: f, size: size}, mark{seg: s.seg, pos: headerSize, end: s.base}, p.Keep, nil, func(g gap) error {
		if g.first < g.to {
			return errDumped // a frame without events may be bad before Keep
		}
		return nil
	})
	if err != nil && !errors.Is(err, errDumped) {
		return r, err
	}
	if r.end != p.Keep {
		return r, fmt.Errorf("%s ends at %d, want %d: %w", s.name(), r.end, p.Keep, penstock.ErrCorrupt)
	}
	if !r.sealed && size > r.pos {
		err = f.Truncate(r.pos)
	}
	if err == nil {
		err = f.Sync()
	}
	return r, err
}
