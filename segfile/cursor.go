package segfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// CompletedMax is how many offsets above the committed one a cursor can hold
// as completed (ADR 0008).
const CompletedMax = 4096

const (
	groupsDir   = "groups"
	slotExt     = ".slot"
	cursorFixed = 40
)

// Start says where a group that is new in a topic begins.
type Start uint8

const (
	// StartEarliest begins at the first event that is kept.
	StartEarliest Start = iota
	// StartLatest begins behind the last readable event.
	StartLatest
)

// stored is the payload of a cursor's slot.
type stored struct {
	group     uint64 // hash of the group's name
	committed penstock.Offset
	epoch     uint32
	synced    bool // written at level synced: it can never be ahead of the log
	completed []uint64
	touched   bool // stored again after its creation
}

func (s *stored) encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, cursorFixed+8*len(s.completed))
	b = le.AppendUint64(b, s.group)
	b = le.AppendUint64(b, uint64(s.committed))
	b = le.AppendUint32(b, s.epoch)
	var flags uint32
	if s.synced {
		flags |= 1
	}
	if s.touched {
		flags |= 2
	}
	b = le.AppendUint32(b, flags)
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, uint32(len(s.completed)))
	b = le.AppendUint32(b, 0)
	for _, w := range s.completed {
		b = le.AppendUint64(b, w)
	}
	return b
}

func decodeStored(b []byte) (stored, error) {
	le := binary.LittleEndian
	if len(b) < cursorFixed {
		return stored{}, errSlot
	}
	flags, n := le.Uint32(b[20:]), le.Uint32(b[32:])
	if n > CompletedMax/64 || len(b) < cursorFixed+8*int(n) {
		return stored{}, errSlot
	}
	s := stored{
		group: le.Uint64(b), committed: penstock.Offset(le.Uint64(b[8:])), epoch: le.Uint32(b[16:]),
		synced: flags&1 != 0, touched: flags&2 != 0,
	}
	for i := range int(n) {
		s.completed = append(s.completed, le.Uint64(b[cursorFixed+8*i:]))
	}
	return s, nil
}

// trimWords drops zero words at the end.
func trimWords(words []uint64) []uint64 {
	for len(words) > 0 && words[len(words)-1] == 0 {
		words = words[:len(words)-1]
	}
	return words
}

// Cursor is the stored position of one group in one partition. It is safe for
// concurrent use.
//
// Invariants: the committed offset only grows. What is on disk is never ahead
// of the log in the sense of the level: at level synced never ahead of the
// durable log; at level written a power loss may leave it ahead, which open
// repairs. Only the goroutine that holds busy touches slot.
type Cursor struct {
	p         *Partition
	group     string
	slot      *slotFile
	committed atomic.Uint64

	mu     sync.Mutex
	want   stored
	wanted uint64 // counts changes of want
	wrote  uint64 // the change that was last written
	synced uint64 // the change that is durable
	busy   bool
	idle   chan struct{} // closed when busy ends; nil when nobody waits
	failed error         // first failed write or sync; sticky
	closed bool
}

// Group returns the group's name.
func (c *Cursor) Group() string { return c.group }

// Partition returns the partition's number.
func (c *Cursor) Partition() int { return c.p.id }

// Committed returns the offset below which everything is settled, as last
// stored.
func (c *Cursor) Committed() penstock.Offset { return penstock.Offset(c.committed.Load()) }

// Completed returns what is settled above Committed: bit i of the words stands
// for offset Committed()+i. nil when there is nothing. The slice is a copy.
func (c *Cursor) Completed() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.want.completed)
}

// Store records the group's progress: everything below committed is settled,
// and bit i of completed says that committed+i is too; at most CompletedMax
// bits. A lower committed offset than before changes nothing; an equal one
// replaces the completed bits. Concurrent calls share one write.
//
// Store returns when the progress is written to the file, and with sync when
// it and the log below it are durable. Without sync it becomes durable within
// 100 ms, or with the next background sync. After a failed write or sync the
// cursor is sticky: the error matches [penstock.ErrUnknownOutcome] and
// Committed does not move. [penstock.ErrOffsetOutOfRange]: committed is behind
// the readable end.
func (c *Cursor) Store(committed penstock.Offset, completed []uint64, sync bool) error {
	completed = trimWords(completed)
	if len(completed) > CompletedMax/64 {
		return &penstock.FieldError{Field: "completed", Reason: fmt.Sprintf("%d words, at most %d", len(completed), CompletedMax/64)}
	}
	if r := c.p.Readable(); committed > r {
		return fmt.Errorf("commit %d of group %q in partition %d, which ends at %d: %w", committed, c.group, c.p.id, r, penstock.ErrOffsetOutOfRange)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usableLocked(); err != nil {
		return err
	}
	if committed > c.want.committed || committed == c.want.committed && !slices.Equal(completed, c.want.completed) {
		c.want.committed = committed
		c.want.completed = append(c.want.completed[:0], completed...)
		c.want.touched = true
		c.wanted++
	}
	return c.flushLocked(c.wanted, sync)
}

func (c *Cursor) usableLocked() error {
	if c.failed != nil {
		return c.failed
	}
	if c.closed {
		return penstock.ErrClosed
	}
	return nil
}

// flushLocked returns when change n is written, or durable with sync. One
// goroutine at a time does the work for all.
func (c *Cursor) flushLocked(n uint64, sync bool) error {
	for {
		if c.wrote >= n && (!sync || c.synced >= n) {
			return nil
		}
		if err := c.usableLocked(); err != nil {
			return err
		}
		if c.busy {
			if c.idle == nil {
				c.idle = make(chan struct{})
			}
			idle := c.idle
			c.mu.Unlock()
			<-idle
			c.mu.Lock()
			continue
		}
		c.writeLocked(sync)
	}
}

// writeLocked writes the wanted state. It gives mu up during the I/O.
func (c *Cursor) writeLocked(sync bool) {
	c.busy = true
	change, rewrite := c.wanted, c.wanted > c.wrote
	payload := c.want.encode()
	committed := c.want.committed
	c.mu.Unlock()
	err := c.write(payload, committed, rewrite, sync)
	c.mu.Lock()
	c.busy = false
	if c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
	if err != nil {
		c.failed = fmt.Errorf("group %q in partition %d stores no progress until it is opened again: %w", c.group, c.p.id, err)
		return
	}
	c.wrote = change
	if sync {
		c.synced = change
	}
	c.committed.Store(uint64(committed))
}

func (c *Cursor) write(payload []byte, committed penstock.Offset, rewrite, sync bool) error {
	if sync && committed > c.p.Durable() {
		if err := c.p.syncLog(); err != nil {
			return err
		}
	}
	if rewrite {
		if err := c.slot.write(payload, false); err != nil {
			return writeError(err)
		}
	}
	if sync {
		if err := c.slot.sync(); err != nil {
			return writeError(err)
		}
		return nil
	}
	c.p.mu.Lock()
	c.p.armLocked()
	c.p.mu.Unlock()
	return nil
}

// dirty reports whether something is written and not durable.
func (c *Cursor) dirty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed == nil && !c.closed && c.wanted > c.synced
}

// sync makes the progress stored so far durable.
func (c *Cursor) sync() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	return c.flushLocked(c.wanted, true)
}

// close syncs and closes the file; the cursor takes no more progress.
func (c *Cursor) close() error {
	err := c.sync()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	if cerr := c.slot.file.Close(); err == nil {
		err = cerr
	}
	return err
}

// dirtyLocked reports whether a cursor of the partition waits for its sync.
// Lock order: p.mu, then Cursor.mu.
func (p *Partition) dirtyLocked() bool {
	for _, c := range p.cursors {
		if c.dirty() {
			return true
		}
	}
	return false
}

// syncCursors makes the progress of all groups durable and returns the first
// error; the group that it belongs to keeps it.
func (p *Partition) syncCursors() error {
	var first error
	for _, c := range p.openCursors() {
		if err := c.sync(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (p *Partition) openCursors() []*Cursor {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*Cursor
	for _, c := range p.cursors {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}

// GroupInfo is a group that has a stored position.
type GroupInfo struct {
	Name      string
	Committed penstock.Offset
}

// Groups returns the groups with a stored position in the partition, by name,
// also those that nobody has opened (BQ-120).
func (p *Partition) Groups() []GroupInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []GroupInfo
	for name, s := range p.groups {
		at := s.committed
		if c := p.cursors[name]; c != nil {
			at = c.Committed()
		}
		all = append(all, GroupInfo{Name: name, Committed: at})
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
	if s.committed > p.Durable() {
		if err := p.syncLog(); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(p.dir, groupsDir)
	name := EscapeName(group) + slotExt
	slot, err := createSlot(p.cfg.FS, dir, name, cursorMark, p.owner(), s.encode())
	if err != nil {
		return nil, cursorError(err)
	}
	if err := p.cfg.FS.SyncDir(dir); err != nil {
		_ = slot.file.Close() // the error of the sync says more
		return nil, writeError(err)
	}
	return p.newCursor(group, slot, s), nil
}

// cursorError keeps errors about names and permissions as they are.
func cursorError(err error) error {
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrPermission) {
		return err
	}
	return writeError(err)
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
	return p.newCursor(group, slot, s), nil
}

// readCursor reads a group's slot file. Damage is *penstock.CorruptError.
func (p *Partition) readCursor(group string) (*slotFile, stored, error) {
	name := EscapeName(group) + slotExt
	slot, payload, err := openSlot(p.cfg.FS, filepath.Join(p.dir, groupsDir, name), cursorMark, p.owner())
	if slot == nil {
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
		_ = slot.file.Close() // nothing was written to it
		return nil, stored{}, &penstock.CorruptError{Topic: p.cfg.Topic, Partition: p.id, File: name, First: p.Earliest(), Last: p.Earliest(), Cause: err}
	}
	return slot, s, nil
}

// checkCursor compares a stored position with the log.
func (p *Partition) checkCursor(group string, s *stored) error {
	end, start := p.Readable(), p.Earliest()
	switch {
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

// clamp sets a position that is ahead of the log back to its end, in both
// slots, and reports whether it had to. At open, before anything is appended:
// offsets behind the end will be used again, for other events (nats-server
// 6600). Only a position written at level written can be ahead without damage.
func (s *stored) clamp(slot *slotFile, end penstock.Offset) (bool, error) {
	if s.synced {
		return false, nil
	}
	kept := trimWords(completedBelow(s.completed, s.committed, end))
	if s.committed <= end && slices.Equal(kept, s.completed) {
		return false, nil
	}
	s.committed, s.completed = min(s.committed, end), kept
	for range 2 {
		if err := slot.write(s.encode(), true); err != nil {
			return false, writeError(err)
		}
	}
	return true, nil
}

// completedBelow returns the completed bits that stand for offsets below end.
func completedBelow(words []uint64, committed, end penstock.Offset) []uint64 {
	if committed >= end {
		return nil
	}
	n := end - committed // bits that stay
	out := slices.Clone(words)
	for i := range out {
		first := penstock.Offset(i * 64)
		switch {
		case first >= n:
			out[i] = 0
		case n-first < 64:
			out[i] &= 1<<(n-first) - 1
		}
	}
	return out
}
