package segfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// RepairConfig says what is to be repaired.
type RepairConfig struct {
	InspectConfig
	// Partition is the one to repair; a negative number is all of them.
	Partition int
	// Apply carries the repair out. Without it nothing is changed, no lock is
	// taken, and the report says what would be done.
	Apply bool
}

// Repair says what a repair does to a partition.
type Repair struct {
	Partition int
	// Damage is the first one; nil when only positions of groups are bad.
	Damage *penstock.CorruptError
	// Events below Keep stay. The events [Keep, End) go: Readable of them could
	// still be read, and lie in the files that are kept aside.
	Keep, End penstock.Offset
	Readable  uint64
	// Files that are changed or removed, below the partition's directory. A copy
	// of each is made in quarantine before.
	Files []string
	// Groups whose stored positions are changed: those that stand behind Keep are
	// set back to it, and those that cannot be read begin at the first event.
	Groups []GroupRepair
}

// GroupRepair is what a repair does to the position of a group.
type GroupRepair struct {
	Name string
	From penstock.Offset // 0 when it could not be read
	To   penstock.Offset
	Err  error // why it could not be read
}

// CutTail ends each damaged partition where its first damage begins, so that it
// takes appends again: everything from there on goes, also what is whole, and
// the offsets are used again, by a later epoch. What goes is copied to the
// quarantine of the partition first, whole files. Without Apply it only says
// what it would do. A repair that was cut short is done again from the
// beginning; nothing is lost by that. It needs as much room as the files that
// go.
//
// It returns a Repair for each partition that has something to repair. Errors:
// *[LockedError], somebody has the topic open; [penstock.ErrDiskFull], there is
// no room for the copies, and nothing was changed; those of [Inspect].
func CutTail(ctx context.Context, c RepairConfig) ([]Repair, error) {
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	in, err := Inspect(c.InspectConfig)
	if err != nil {
		return nil, err
	}
	if c.Partition >= in.topic.Partitions {
		return nil, fmt.Errorf("partition %d of %d: %w", c.Partition, in.topic.Partitions, penstock.ErrNotFound)
	}
	if c.Apply {
		lock, err := lockTopic(in)
		if err != nil {
			return nil, err
		}
		defer lock.Close()
	}
	var all []Repair
	for id := range in.topic.Partitions {
		if c.Partition >= 0 && id != c.Partition {
			continue
		}
		r, err := in.plan(ctx, id)
		if err != nil {
			return all, err
		}
		if r.Damage == nil && len(r.Groups) == 0 {
			continue
		}
		if c.Apply {
			if err := r.apply(in); err != nil {
				return all, fmt.Errorf("repair partition %d: %w", id, err)
			}
		}
		all = append(all, r.Repair)
	}
	return all, nil
}

// lockTopic takes the lock of a topic.
func lockTopic(in *Inspection) (interface{ Close() error }, error) {
	lock, err := in.fs.Lock(filepath.Join(in.dir, lockName), lockNote(time.Now()))
	if err != nil {
		l := &Log{dir: in.dir}
		return nil, l.lockError(err)
	}
	return lock, nil
}

// plan is a repair with what its execution needs.
type plan struct {
	Repair
	f     *found
	epoch uint32 // highest seen
	start penstock.Offset
}

// plan finds the damage of a partition by reading all of it.
func (in *Inspection) plan(ctx context.Context, id int) (*plan, error) {
	f, err := in.look(id)
	if err != nil {
		return nil, err
	}
	if err := f.readable(); err != nil {
		return nil, fmt.Errorf("partition %d: %w", id, err)
	}
	p := &plan{f: f, epoch: f.state.epoch, start: f.state.start}
	p.Partition = id
	if f.lost != nil && len(f.segs) > 0 {
		p.start = f.segs[0].base
	}
	for i := range f.segs {
		if seg := f.segs[i].seg; seg != nil {
			p.epoch = max(p.epoch, seg.hdr.epoch)
		}
	}
	end, _, err := in.dump(ctx, f, DumpConfig{Partition: id, Unsynced: true, Skip: func(e *penstock.CorruptError) error {
		if p.Damage == nil {
			p.Damage, p.Keep = e, e.First
		}
		return nil
	}}, func(r Records) error {
		p.epoch = max(p.epoch, r.Epoch)
		if p.Damage != nil {
			p.Readable += uint64(r.N)
		}
		return nil
	})
	if err == nil && p.Damage != nil && (isRead(p.Damage.Cause) || errors.Is(p.Damage.Cause, penstock.ErrUnsupported)) {
		err = fmt.Errorf("nothing is cut that may be whole; a salvage copies what can be read: %w", p.Damage)
	}
	if err != nil {
		return nil, err
	}
	if p.End = end; p.Damage == nil {
		p.Keep = end
	}
	for i := range f.segs {
		if s := &f.segs[i]; p.Damage != nil && (s.base >= p.Keep || i == p.kept()) {
			p.Files = append(p.Files, s.name())
		}
	}
	p.groups()
	return p, nil
}

// readable returns why something of the partition could not be looked at, for
// a reason that is no damage: a disk that fails, or a later format.
func (f *found) readable() error {
	all := []error{f.lost}
	for i := range f.segs {
		all = append(all, f.segs[i].err)
	}
	for _, g := range f.groups {
		all = append(all, g.err)
	}
	for _, err := range all {
		damage := err == nil || errors.Is(err, fs.ErrNotExist)
		for _, d := range []error{errHeader, errForeign, errNoSlot, errSlot, errChain} {
			damage = damage || errors.Is(err, d)
		}
		if !damage || errors.Is(err, penstock.ErrUnsupported) {
			return err
		}
	}
	return nil
}

// kept returns the index of the segment in which the log is to end; -1 when
// none stays.
func (p *plan) kept() int {
	n := -1
	for i := range p.f.segs {
		if p.f.segs[i].base < p.Keep {
			n = i
		}
	}
	return n
}

// groups finds the positions that have to change.
func (p *plan) groups() {
	for _, g := range p.f.groups {
		switch {
		case g.err != nil:
			p.Groups = append(p.Groups, GroupRepair{Name: g.name, To: p.start, Err: g.err})
		case g.stored.committed > p.Keep:
			p.Groups = append(p.Groups, GroupRepair{Name: g.name, From: g.stored.committed, To: p.Keep})
		}
	}
}

// apply carries the repair out. Each step leaves the partition damaged at the
// same place, until the last one, which makes it whole.
func (p *plan) apply(in *Inspection) error {
	files := p.Files
	for _, g := range p.Groups {
		files = append(files[:len(files):len(files)], filepath.Join(groupsDir, EscapeName(g.Name)+slotExt))
	}
	for _, name := range files {
		if err := p.setAside(in.fs, name); err != nil {
			return fmt.Errorf("copy of %s: %w", name, err)
		}
	}
	for _, g := range p.Groups {
		if err := p.position(in, g); err != nil {
			return fmt.Errorf("position of group %q: %w", g.Name, err)
		}
	}
	if p.Damage == nil {
		return nil
	}
	for i := len(p.f.segs) - 1; i >= 0 && p.f.segs[i].base >= p.Keep; i-- {
		if err := in.fs.Remove(filepath.Join(p.f.dir, p.f.segs[i].name())); err != nil {
			return err
		}
		if err := in.fs.SyncDir(p.f.dir); err != nil {
			return err
		}
	}
	return p.cut(in)
}

// setAside copies a file of the partition to its quarantine. A copy that is
// there already stays: the file may have been changed since.
func (p *plan) setAside(fsys vfs.FS, name string) error {
	dir := filepath.Join(p.f.dir, quarantineDir)
	if err := fsys.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return writeError(err)
	}
	if err := fsys.SyncDir(p.f.dir); err != nil {
		return err
	}
	to := fmt.Sprintf("repair-%d-%s", p.epoch, filepath.Base(name))
	if _, err := fsys.Stat(filepath.Join(dir, to)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	from, err := fsys.Open(filepath.Join(p.f.dir, name), false)
	if err != nil {
		return err
	}
	defer from.Close()
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

// position gives a group another stored position, in both slots.
func (p *plan) position(in *Inspection, g GroupRepair) error {
	path := filepath.Join(p.f.dir, groupsDir, EscapeName(g.Name)+slotExt)
	slot, _, err := openSlot(in.fs, path, cursorMark, in.owner(p.f.id))
	if slot == nil {
		return err
	}
	s := stored{group: penstock.HashKey(g.Name), committed: g.To, epoch: p.epoch + 1, synced: true, touched: true}
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
	r, err := scan(&fileView{file: f, size: size}, mark{seg: s.seg, pos: headerSize, end: s.base})
	if err != nil && !isRead(err) {
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
