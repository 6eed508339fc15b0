package segfile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

const (
	groupsDir = "groups"
	slotExt   = ".slot"
)

// GroupInfo is a group that has a stored position.
type GroupInfo struct {
	Name      string
	Committed penstock.Offset
	// Used is when the position was last stored with Config.StampPositions; the
	// zero time when it never was.
	Used time.Time
}

// Groups returns the groups with a stored position in the partition, by name,
// also those that nobody has opened.
func (p *Partition) Groups() []GroupInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []GroupInfo
	for name, s := range p.groups {
		at, used := s.committed, stampTime(s.used)
		if c := p.cursors[name]; c != nil {
			at, used = c.Committed(), c.used()
		}
		all = append(all, GroupInfo{Name: name, Committed: at, Used: used})
	}
	slices.SortFunc(all, func(a, b GroupInfo) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Cursor opens the group's position, or makes it when the group has none in
// this partition; a position that was made is durable on return. Opening it
// twice gives the same cursor. [Log.Cursors] opens all partitions of a group.
// Errors: [penstock.ErrCorrupt] when the stored position cannot be right,
// [penstock.ErrOffsetOutOfRange] when it lies below the first event kept.
func (p *Partition) Cursor(group string, start Start) (*Cursor, error) {
	c, _, err := p.cursor(group, start.offset(p))
	return c, err
}

// offset returns where a group that is new begins in the partition.
func (s Start) offset(p *Partition) penstock.Offset {
	if s == StartLatest {
		return p.Readable()
	}
	return p.Earliest()
}

// cursor is Cursor that also says whether the position was made.
func (p *Partition) cursor(group string, at penstock.Offset) (*Cursor, bool, error) {
	if err := checkName("group", group); err != nil {
		return nil, false, err
	}
	var c *Cursor
	made := false
	err := p.do(func() (err error) {
		c, made, err = p.cursorWithBaton(group, at)
		return err
	}, false)
	if err != nil {
		return nil, false, fmt.Errorf("group %q, partition %d: %w", group, p.id, err)
	}
	return c, made, nil
}

func (p *Partition) cursorWithBaton(group string, at penstock.Offset) (c *Cursor, made bool, err error) {
	p.mu.Lock()
	closing, c := p.closing, p.cursors[group]
	_, known := p.groups[group]
	p.mu.Unlock()
	switch {
	case closing:
		return nil, false, penstock.ErrClosed
	case c != nil:
		return c, false, nil
	case known:
		c, err = p.openCursor(group)
	default:
		c, err = p.createCursor(group, at)
	}
	if err != nil {
		return nil, false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cursors[group], p.groups[group] = c, c.want
	return c, !known, nil
}

func (p *Partition) createCursor(group string, at penstock.Offset) (*Cursor, error) {
	s := stored{group: penstock.HashKey(group), epoch: p.w.epoch, synced: p.cfg.Durability == penstock.Synced}
	s.committed = max(min(at, p.Readable()), p.Earliest())
	if p.cfg.StampPositions {
		s.used = p.log.seams.now().UnixNano()
	}
	if s.committed > p.Durable() {
		if err := p.syncLog(); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(p.dir, groupsDir)
	name := EscapeName(group) + slotExt
	slot, err := createSlot(p.cfg.FS, dir, name, cursorMark, p.owner(), s.encode())
	if err != nil {
		return nil, unwritten(err)
	}
	if err := p.cfg.FS.SyncDir(dir); err != nil {
		_ = slot.file.Close() // the error of the sync says more
		return nil, writeError(err)
	}
	return p.newCursor(group, slot, s), nil
}

func (p *Partition) newCursor(group string, slot *slotFile, s stored) *Cursor {
	s.synced = p.cfg.Durability == penstock.Synced
	c := &Cursor{p: p, group: group, slot: slot, want: s}
	c.committed.Store(uint64(s.committed))
	return c
}

func (p *Partition) owner() owner { return owner{topic: p.log.uuid, partition: uint32(p.id)} }

// openCursor opens a stored position and checks it against the log.
func (p *Partition) openCursor(group string) (*Cursor, error) {
	slot, s, err := p.readCursor(group)
	if err != nil {
		return nil, err
	}
	if err = p.checkCursor(group, &s); err != nil {
		_ = slot.file.Close() // nothing was written to it
		return nil, err
	}
	c := p.newCursor(group, slot, s)
	c.wanted, c.wrote = 1, 1 // an earlier process has written it, and perhaps not synced
	return c, nil
}

// readCursor reads a group's slot file. Damage is *penstock.CorruptError.
func (p *Partition) readCursor(group string) (*slotFile, stored, error) {
	name := EscapeName(group) + slotExt
	slot, payload, err := openSlot(p.cfg.FS, filepath.Join(p.dir, groupsDir, name), cursorMark, p.owner())
	if slot == nil && !errors.Is(err, vfs.ErrNotRegular) {
		return nil, stored{}, err
	}
	var s stored
	if err == nil {
		s, err = decodeStored(payload)
	}
	if err == nil && s.group != penstock.HashKey(group) {
		err = fmt.Errorf("%w: of another group", errForeign)
	}
	if err != nil {
		if slot != nil {
			_ = slot.file.Close() // nothing was written to it
		}
		return nil, stored{}, &penstock.CorruptError{Topic: p.cfg.Topic, Partition: p.id, File: name, First: p.Earliest(), Last: p.Earliest(), Cause: err}
	}
	return slot, s, nil
}

// checkCursor compares a stored position with the log.
func (p *Partition) checkCursor(group string, s *stored) error {
	end, start := p.Readable(), p.Earliest()
	switch {
	case s.ahead > 0:
		return &penstock.CorruptError{
			Topic: p.cfg.Topic, Partition: p.id, File: EscapeName(group) + slotExt, First: s.committed, Last: s.ahead - 1, Cause: s.errAhead(),
		}
	case s.committed < start && p.cfg.PassOver:
		return nil
	case s.committed < start:
		return fmt.Errorf("committed %d, first event kept %d: %d events were passed over: %w", s.committed, start, start-s.committed, penstock.ErrOffsetOutOfRange)
	case s.committed <= end || p.Fault() != nil:
		return nil
	}
	return &penstock.CorruptError{
		Topic: p.cfg.Topic, Partition: p.id, File: EscapeName(group) + slotExt, First: end, Last: s.committed - 1,
		Cause: fmt.Errorf("committed %d is ahead of the log, which ends at %d", s.committed, end),
	}
}

// securePositions makes durable what positions were found at open. Those that
// nobody has opened are not looked at again. It needs the baton.
func (p *Partition) securePositions() error {
	if err := p.syncCursors(); err != nil {
		return err
	}
	for group := range p.w.found {
		p.mu.Lock()
		_, known := p.groups[group]
		opened := p.cursors[group] != nil
		p.mu.Unlock()
		if known && !opened {
			if err := p.securePosition(group); err != nil {
				return fmt.Errorf("group %q: %w", group, err)
			}
		}
		delete(p.w.found, group)
	}
	return nil
}

func (p *Partition) securePosition(group string) error {
	slot, _, err := p.readCursor(group)
	if err != nil {
		return err
	}
	if err = slot.sync(); err != nil {
		err = writeError(err)
	}
	return errors.Join(err, slot.file.Close())
}

// deleteGroup removes a group's position; it is no error when there is none. When
// it fails the group stays known, so that it can be tried again.
func (p *Partition) deleteGroup(group string) error {
	return p.do(func() error {
		err := p.open()
		if err == nil {
			err = p.removeGroup(group)
		}
		if err != nil {
			return fmt.Errorf("delete group %q, partition %d: %w", group, p.id, err)
		}
		return nil
	}, false)
}

// removeGroup needs the baton.
func (p *Partition) removeGroup(group string) error {
	p.mu.Lock()
	c := p.cursors[group]
	delete(p.cursors, group)
	_, known := p.groups[group]
	p.mu.Unlock()
	if !known {
		return nil
	}
	if c != nil {
		_ = c.close() // its file is removed
		p.mu.Lock()
		p.groups[group] = c.last()
		p.mu.Unlock()
	}
	dir := filepath.Join(p.dir, groupsDir)
	if err := p.cfg.FS.Remove(filepath.Join(dir, EscapeName(group)+slotExt)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := p.cfg.FS.SyncDir(dir); err != nil { // also when the file was gone: the call before may have got so far
		return err
	}
	p.mu.Lock()
	delete(p.groups, group)
	p.mu.Unlock()
	return nil
}
