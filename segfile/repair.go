package segfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
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
	// Damage is the first one; nil when no event goes.
	Damage *penstock.CorruptError
	// Events below Keep stay. The events [Keep, End) go: Readable of them could
	// still be read, and lie in the files that are kept aside.
	Keep, End penstock.Offset
	Readable  uint64
	// Files that are changed or removed, below the partition's directory. A copy
	// of each is made in quarantine before.
	Files []string
	// Groups whose stored positions are changed: those that stand behind Keep are
	// set back to it, those that have settled events behind it forget that, and
	// those that cannot be read begin at the first event.
	Groups []GroupRepair
	// Strays are files that have the name of a segment and no place in the log.
	// They are moved to quarantine; no event goes with them.
	Strays []string
	// Renamed are whole segments under another name, which get their own back.
	Renamed []Renamed
	// Made are directories that are missing and are made.
	Made []string
}

// Renamed is a segment file that gets its own name back, in the directory of
// its partition.
type Renamed struct {
	From, To string
}

// nothing reports whether there is nothing to repair.
func (r *Repair) nothing() bool {
	return r.Damage == nil && len(r.Groups)+len(r.Strays)+len(r.Renamed)+len(r.Made) == 0
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
		if r.nothing() {
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
	gone  []string // groups that other partitions know, and whose positions here went with their directory
}

// plan finds the damage of a partition by reading all of it.
func (in *Inspection) plan(ctx context.Context, id int) (*plan, error) {
	f, err := in.look(id)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("partition %d: %w", id, errNoPartition)
	}
	if err != nil {
		return nil, err
	}
	if err := f.readable(); err != nil {
		return nil, fmt.Errorf("partition %d: %w", id, err)
	}
	if f.exchanged() {
		return nil, &penstock.CorruptError{Topic: in.topic.Topic, Partition: id, File: partitionName(id), Cause: errExchanged}
	}
	p := &plan{f: f, epoch: f.state.epoch, start: f.first()}
	p.Partition = id
	p.files()
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
	if p.End = end; err == nil && p.Damage == nil {
		err = p.unsaid(ctx, in)
	}
	if err == nil && p.Damage != nil && (isRead(p.Damage.Cause) || errors.Is(p.Damage.Cause, penstock.ErrUnsupported)) {
		err = fmt.Errorf("nothing is cut that may be whole; a salvage copies what can be read: %w", p.Damage)
	}
	if err != nil {
		return nil, err
	}
	if p.Damage == nil {
		p.Keep = end
	}
	if f.bare {
		if p.gone, err = in.known(id); err != nil {
			return nil, err
		}
	}
	for i := range f.segs {
		if s := &f.segs[i]; p.Damage != nil && (s.base >= p.Keep || i == p.kept()) {
			p.Files = append(p.Files, segmentName(s.base))
		}
	}
	p.groups()
	return p, nil
}

// known returns the groups that have a position in another partition, sorted.
func (in *Inspection) known(except int) (all []string, err error) {
	for id := range in.topic.Partitions {
		if id == except {
			continue
		}
		f := &found{id: id, dir: filepath.Join(in.dir, partitionName(id))}
		if err := in.lookAtGroups(f); err != nil {
			return nil, fmt.Errorf("partition %d: %w", id, err)
		}
		for i := range f.groups {
			all = append(all, f.groups[i].name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// files finds what is repaired without the loss of an event.
func (p *plan) files() {
	for i := range p.f.segs {
		s := &p.f.segs[i]
		if s.seg != nil {
			p.epoch = max(p.epoch, s.seg.hdr.epoch)
		}
		if s.file != "" {
			p.Renamed = append(p.Renamed, Renamed{From: s.file, To: segmentName(s.base)})
		}
	}
	for i := range p.f.strays {
		p.Strays = append(p.Strays, p.f.strays[i].name())
	}
	if p.f.bare {
		p.Made = append(p.Made, groupsDir)
	}
}

// unsaid finds what an open takes for damage although no event is known to be
// lost by it.
func (p *plan) unsaid(ctx context.Context, in *Inspection) error {
	damage := func(s *foundSegment, pos int64, at penstock.Offset, cause error) {
		p.Keep = min(at, p.End)
		p.Readable = uint64(p.End - p.Keep) // all was shown
		p.Damage = &penstock.CorruptError{
			Topic: in.topic.Topic, Partition: p.f.id, File: s.name(), Position: pos, First: p.Keep, Last: p.Keep, Cause: cause,
		}
	}
	n := len(p.f.segs)
	if p.f.missing() { // it had no events
		damage(&foundSegment{base: p.f.state.segment}, 0, p.End, errMissing)
		return nil
	}
	if i, cause := p.f.broken(); i >= 0 {
		damage(&p.f.segs[i], 0, p.f.segs[i].base, cause)
		return nil
	}
	if n == 0 || p.f.lost == nil && p.f.state.clean {
		return nil
	}
	e, err := in.end(ctx, p.f, false, nil, nil)
	if err == nil && (e.damage || e.err != nil) {
		at, _, cause := e.lost(p.f)
		damage(&p.f.segs[n-1], e.pos, at, cause)
	}
	return err
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
		case g.stored.ahead > 0:
			p.Groups = append(p.Groups, GroupRepair{Name: g.name, From: g.stored.ahead, To: max(p.start, min(g.stored.committed, p.Keep))})
		case g.spoiled != nil && g.stored.committed < p.start: // its newest position was not below
			p.Groups = append(p.Groups, GroupRepair{Name: g.name, From: g.stored.committed, To: p.start})
		case g.stored.beyond() > p.Keep:
			p.Groups = append(p.Groups, GroupRepair{Name: g.name, From: g.stored.committed, To: min(g.stored.committed, p.Keep)})
		}
	}
	for _, name := range p.gone {
		p.Groups = append(p.Groups, GroupRepair{Name: name, To: p.start, Err: fs.ErrNotExist})
	}
}

// apply carries the repair out. Each step leaves the partition damaged at the
// same place, until the last one, which makes it whole.
func (p *plan) apply(in *Inspection) error {
	if err := p.names(in.fs); err != nil {
		return err
	}
	files := slices.Concat(p.Files, p.Strays)
	for _, g := range p.Groups {
		if !slices.Contains(p.gone, g.Name) {
			files = append(files, filepath.Join(groupsDir, EscapeName(g.Name)+slotExt))
		}
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
	for _, name := range p.Strays {
		if err := p.remove(in.fs, name); err != nil {
			return err
		}
	}
	if p.Damage == nil {
		return nil
	}
	for i := len(p.f.segs) - 1; i >= 0 && p.f.segs[i].base >= p.Keep; i-- {
		if err := p.remove(in.fs, segmentName(p.f.segs[i].base)); err != nil {
			return err
		}
	}
	return p.cut(in)
}
