package segfile

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// CompletedMax is how many offsets above the committed one a cursor can hold
// as completed (ADR 0008).
const CompletedMax = 4096

// Start says where a group that is new in a topic begins.
type Start uint8

const (
	// StartEarliest begins at the first event that is kept.
	StartEarliest Start = iota
	// StartLatest begins behind the last readable event.
	StartLatest
)

// Cursor is the stored position of one group in one partition. It is safe for
// concurrent use.
//
// Invariants: the committed offset only grows, but by Seek. What is on disk is never ahead
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
	era    uint64 // counts the seeks and turns of this session
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
// bits. Bits of events that are not readable yet are not stored. A lower committed offset than before changes nothing; an equal one
// replaces the completed bits. Concurrent calls share one write.
//
// Store returns when the progress is written to the file, and with sync when
// it and the log below it are durable. Without sync it becomes durable within
// 100 ms, or with the next background sync. After a failed write or sync the
// cursor is sticky: the error matches [penstock.ErrUnknownOutcome] and
// Committed does not move. [penstock.ErrOffsetOutOfRange]: committed is behind
// the readable end.
func (c *Cursor) Store(committed penstock.Offset, completed []uint64, sync bool) error {
	return c.StoreIn(c.Era(), committed, completed, sync)
}

// Era returns the number of seeks and turns, for [Cursor.StoreIn].
func (c *Cursor) Era() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.era
}

// Seek stores another position, also a lower one, with nothing completed above
// it, and returns the era that begins with it. Otherwise it is as
// [Cursor.Store].
func (c *Cursor) Seek(to penstock.Offset, sync bool) (era uint64, err error) {
	if r := c.p.Readable(); to > r {
		return 0, fmt.Errorf("seek %d of group %q in partition %d, which ends at %d: %w", to, c.group, c.p.id, r, penstock.ErrOffsetOutOfRange)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usableLocked(); err != nil {
		return 0, err
	}
	c.era++
	c.setLocked(to, nil)
	return c.era, c.flushLocked(c.wanted, sync)
}

// Turn begins another era without another position: what [Cursor.StoreIn] of
// earlier eras brings from now on changes nothing. It waits for what is being
// written, and returns the era and the committed offset with which it begins.
// It fails never: after a failed write the offset is the last one that was
// written, and the next store returns the failure.
func (c *Cursor) Turn() (era uint64, committed penstock.Offset) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.era++
	_ = c.flushLocked(c.wanted, false) // sticky
	return c.era, c.Committed()
}

func (c *Cursor) setLocked(committed penstock.Offset, completed []uint64) {
	c.want.committed = committed
	c.want.completed = append(c.want.completed[:0], completed...)
	c.want.touched = true
	c.stampLocked()
	c.wanted++
}

func (c *Cursor) stampLocked() {
	if c.p.cfg.StampPositions {
		c.want.used = c.p.log.seams.now().UnixNano()
	}
}

// Touch stores the position again as it is, for the time that is noted with it
// (Config.StampPositions). It becomes durable as without sync in
// [Cursor.Store].
func (c *Cursor) Touch() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usableLocked(); err != nil {
		return err
	}
	c.stampLocked()
	c.wanted++
	return c.flushLocked(c.wanted, false)
}

// used returns when the position was stored; the zero time when that is not
// known.
func (c *Cursor) used() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return stampTime(c.want.used)
}

func stampTime(unixNano int64) time.Time {
	if unixNano == 0 {
		return time.Time{}
	}
	return time.Unix(0, unixNano)
}

// StoreIn is [Cursor.Store] by somebody who began in an era: when a seek or a
// turn came in between, it changes nothing.
func (c *Cursor) StoreIn(era uint64, committed penstock.Offset, completed []uint64, sync bool) error {
	completed = trimWords(completed)
	if len(completed) > CompletedMax/64 {
		return &penstock.FieldError{Field: "completed", Reason: fmt.Sprintf("%d words, at most %d", len(completed), CompletedMax/64)}
	}
	if r := c.p.Readable(); committed > r {
		return fmt.Errorf("commit %d of group %q in partition %d, which ends at %d: %w", committed, c.group, c.p.id, r, penstock.ErrOffsetOutOfRange)
	}
	if r := c.p.Readable(); beyondOf(committed, completed) > r {
		completed = trimWords(completedBelow(completed, committed, r))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usableLocked(); err != nil {
		return err
	}
	if era != c.era {
		return nil
	}
	if committed > c.want.committed || committed == c.want.committed && !slices.Equal(completed, c.want.completed) {
		c.setLocked(committed, completed)
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
	c.mu.Lock()
	defer c.mu.Unlock()
	err := error(nil)
	for !c.closed && err == nil && c.wanted > c.synced { // again: others may store meanwhile
		err = c.flushLocked(c.wanted, true)
	}
	if c.closed {
		return nil
	}
	c.closed = true
	if cerr := c.slot.file.Close(); err == nil {
		err = cerr
	}
	return err
}

// last returns the position that was last wanted.
func (c *Cursor) last() stored {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.want
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
