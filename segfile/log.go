package segfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/seglog"
)

const lockName = "LOCK"

// seams are what tests replace to get the same bytes each time.
type seams struct {
	now    func() time.Time
	stamp  func() int64 // the time of appends, Unix nanoseconds; nil: that of now
	random func() uint64
	idle   time.Duration // before a barrier
}

// Log is one topic on disk. It is safe for concurrent use.
//
// Invariant: while it is open, it holds the lock of the topic's directory, and
// nobody else writes there.
type Log struct {
	cfg    Config
	seams  seams
	dir    string // of the topic
	uuid   uuid
	parts  []*Partition
	epochs []atomic.Uint32 // of the writers, for Stats
	report []RecoveryReport
	lock   io.Closer
	named  bool // the names that lead to the topic are known to be durable
	// mapped says that small frames are stored through a mapping, after mapAfter
	// that were not.
	mapped   bool
	mapAfter int
	disk     diskUse
	full     atomic.Bool // some partition found no room since a segment was last begun

	closeOnce sync.Once
	closeErr  error
}

// LockedError says who holds a topic's directory. It matches
// [penstock.ErrLocked]. Fields that the holder did not write are zero.
type LockedError struct {
	Dir   string
	Pid   int
	Host  string
	Since time.Time
}

func (e *LockedError) Error() string {
	if e.Pid == 0 {
		return e.Dir + " is locked by a process that does not say who it is: its file " + lockName + " was removed or emptied"
	}
	return fmt.Sprintf("%s is locked by process %d on host %q since %s", e.Dir, e.Pid, e.Host, e.Since.Format(time.RFC3339))
}

// Is reports whether target is penstock.ErrLocked.
func (e *LockedError) Is(target error) bool { return target == penstock.ErrLocked }

// Open opens the topic's log and makes it when it does not exist. It recovers
// what a crash left: see [Log.Recovery] for what was found; it is logged, too.
// Damage to a partition does not fail Open (ADR 0006): see [Partition.Fault].
//
// Errors: [penstock.ErrInvalid], the configuration is wrong or differs from
// what the topic was made with, both values named; *[LockedError], another
// process or another Log in this one has the topic open;
// [penstock.ErrUnsupported], a later major version wrote it;
// [penstock.ErrCorrupt], topic.json is damaged or missing beside data.
func Open(c Config) (*Log, error) { return OpenContext(context.Background(), c) }

// OpenContext is [Open] that ends with its context. After a crash an open reads
// the end of each partition: some 8 MiB and what was not synced, or a whole
// segment when state.slot is lost. An open that is stopped changes no event; the
// next one begins with the partition that was under way. The error matches
// that of ctx and its cause. How far it is goes to Config.Progress, and every
// five seconds to the log.
func OpenContext(ctx context.Context, c Config) (*Log, error) {
	return openWith(ctx, c, seams{now: time.Now, stamp: seglog.NewClock().UnixNano, random: rand.Uint64, idle: idleBarrier})
}

func open(c Config, s seams) (*Log, error) { return openWith(context.Background(), c, s) }

func openWith(ctx context.Context, c Config, s seams) (*Log, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("open topic %q: %w", c.Topic, err)
	}
	if s.stamp == nil {
		s.stamp = func() int64 { return s.now().UnixNano() }
	}
	l := &Log{cfg: c, seams: s, dir: filepath.Join(c.Dir, EscapeName(c.Topic)), epochs: make([]atomic.Uint32, c.Partitions)}
	if err := l.open(ctx); err != nil {
		l.release()
		return nil, fmt.Errorf("open topic %q: %w", c.Topic, err)
	}
	l.logReports()
	return l, nil
}

func (l *Log) open(ctx context.Context) error {
	if err := l.directories(); err != nil {
		return err
	}
	lock, err := l.cfg.FS.Lock(filepath.Join(l.dir, lockName), lockNote(l.seams.now()))
	if err != nil {
		return l.lockError(err)
	}
	l.lock, l.cfg.FS = lock, inPlace(l.cfg.FS, lock)
	t, err := l.readTopic()
	if errors.Is(err, fs.ErrNotExist) {
		if err = l.syncNames(); err == nil {
			t, err = l.createTopic()
		}
	}
	if err != nil {
		return err
	}
	if err := t.check(&l.cfg); err != nil {
		return err
	}
	l.uuid = t.uuid
	if err := l.chooseWritePath(); err != nil {
		return err
	}
	if err := l.extraPartitions(); err != nil {
		return err
	}
	for id := range l.cfg.Partitions {
		if ctx.Err() != nil {
			return penstock.ContextError(ctx)
		}
		p, report, err := openPartition(ctx, l, id)
		if err != nil {
			return err
		}
		l.epochs[id].Store(p.w.epoch)
		l.parts = append(l.parts, p)
		l.report = append(l.report, report)
	}
	l.countDisk()
	if !l.named {
		return l.syncNames()
	}
	return nil
}

// directories makes the data directory and the topic's, and checks FORMAT.
func (l *Log) directories() error {
	fsys := l.cfg.FS
	for _, dir := range []string{l.cfg.Dir, l.dir} {
		err := fsys.Mkdir(dir)
		if err == nil {
			err = l.syncParent(dir)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) { // see names.go
			return err
		}
		if dir == l.cfg.Dir {
			if err := l.checkFormat(); err != nil {
				return err
			}
		}
	}
	return nil
}

// extraPartitions refuses a topic with more partition directories than its
// topic.json says (BQ-116).
func (l *Log) extraPartitions() error {
	names, err := l.cfg.FS.List(l.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if id, ok := parsePartitionName(name); ok && id >= l.cfg.Partitions {
			return l.corrupt(name, fmt.Errorf("directory of partition %d, and topic.json says %d partitions", id, l.cfg.Partitions))
		}
	}
	return nil
}

func (l *Log) corrupt(file string, cause error) error {
	return &penstock.CorruptError{Topic: l.cfg.Topic, File: file, Cause: cause}
}

func lockNote(now time.Time) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("pid %d\nhost %s\nsince %s\n", os.Getpid(), host, now.UTC().Format(time.RFC3339Nano))
}

func (l *Log) lockError(err error) error {
	var held *vfs.HeldError
	if !errors.As(err, &held) {
		return err
	}
	e := &LockedError{Dir: l.dir}
	for line := range strings.Lines(held.Note) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key { // a note that cannot be read leaves the field zero
		case "pid":
			e.Pid, _ = strconv.Atoi(value)
		case "host":
			e.Host = value
		case "since":
			e.Since, _ = time.Parse(time.RFC3339Nano, value)
		}
	}
	return e
}

// Partitions returns the number of partitions.
func (l *Log) Partitions() int { return len(l.parts) }

// Partition returns partition i, in [0, Partitions).
func (l *Log) Partition(i int) *Partition { return l.parts[i] }

// Recovery returns what Open found, one report per partition.
func (l *Log) Recovery() []RecoveryReport { return slices.Clone(l.report) }

func (l *Log) logReports() {
	for _, r := range l.report {
		log := l.cfg.Logger.With("topic", l.cfg.Topic, "partition", r.Partition)
		for _, n := range r.Notes {
			log.Warn("found at open", "note", n)
		}
		if len(r.Clamped) > 0 {
			log.Warn("positions were ahead of the log after a power loss and were set back to its end", "groups", r.Clamped, "end", uint64(r.End))
		}
		switch {
		case r.Damage != nil:
			log.Error("partition is damaged: it takes no appends, what lies before the damage is served", "err", r.Damage)
		case r.CutBytes > 0:
			log.Warn("a torn tail was cut", "bytes", int64(r.CutBytes), "frames", r.CutFrames, "copy", r.Quarantine, "end", uint64(r.End), "epoch", r.Epoch)
		case !r.Clean:
			log.Info("recovered after an unclean end", "scanned", int64(r.Scanned), "end", uint64(r.End), "epoch", r.Epoch)
		}
	}
}

// Cursors opens the positions of a group in all partitions, in order of their
// number, and makes those that are missing; made positions are durable on
// return. When one cannot be made, those made by this call are
// removed again.
//
// A position that is missing while another partition's was already stored
// again after its creation was lost: the group then begins at the earliest
// event in that partition, whatever start says, and a warning is logged.
func (l *Log) Cursors(group string, start Start) ([]*Cursor, error) {
	return l.CursorsAt(group, start.offset)
}

// CursorsAt is Cursors for a group that begins where at says in a partition
// that has no position of it; an offset outside what is readable is moved to
// the nearest that is not.
func (l *Log) CursorsAt(group string, at func(*Partition) penstock.Offset) ([]*Cursor, error) {
	if l.lostPosition(group) {
		at = StartEarliest.offset
	}
	var all, made []*Cursor
	for _, p := range l.parts {
		c, isNew, err := p.cursor(group, at(p))
		if err != nil {
			for _, m := range made {
				if rerr := m.p.deleteGroup(group); rerr != nil {
					err = errors.Join(err, rerr)
				}
			}
			return nil, err
		}
		if isNew {
			made = append(made, c)
		}
		all = append(all, c)
	}
	return all, nil
}

// lostPosition reports whether the group has worked before and has no position
// in some partition.
func (l *Log) lostPosition(group string) bool {
	missing, worked := -1, false
	for _, p := range l.parts {
		p.mu.Lock()
		s, ok := p.groups[group]
		p.mu.Unlock()
		worked = worked || s.touched
		if !ok {
			missing = p.id
		}
	}
	if missing < 0 || !worked {
		return false
	}
	l.cfg.Logger.Warn("the stored position of a group is missing; it begins at the earliest event there",
		"topic", l.cfg.Topic, "group", group, "partition", missing)
	return true
}

// Groups returns the names of all groups with a stored position, sorted.
func (l *Log) Groups() []string {
	var all []string
	for _, p := range l.parts {
		for _, g := range p.Groups() {
			all = append(all, g.Name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// DeleteGroup removes the group's positions in all partitions, durably.
// Cursors of the group that are open take no more progress. The
// error matches [penstock.ErrNotFound] when no partition knows the group, and
// [penstock.ErrClosed] after Close.
func (l *Log) DeleteGroup(group string) error {
	if !slices.Contains(l.Groups(), group) {
		return fmt.Errorf("group %q: %w", group, penstock.ErrNotFound)
	}
	var errs []error
	for _, p := range l.parts {
		errs = append(errs, p.deleteGroup(group))
	}
	return errors.Join(errs...)
}

// Close writes what waits, syncs, stores the clean-shutdown mark, and frees
// the lock. Appends that wait for room fail with [penstock.ErrClosed]. It
// returns the first error of a partition; a partition that had stopped keeps
// no clean mark, and the next open scans it. A second call waits for the first
// and returns its result. No file stays open: a reader that its owner has not
// closed returns [penstock.ErrClosed] once it has given out what it had read.
func (l *Log) Close() error {
	l.closeOnce.Do(func() {
		errs := make([]error, len(l.parts))
		var all sync.WaitGroup
		for i, p := range l.parts {
			// Closes one partition and ends; waited for below.
			all.Go(func() { errs[i] = p.close() })
		}
		all.Wait()
		errs = append(errs, l.lock.Close())
		l.closeErr = errors.Join(errs...)
	})
	return l.closeErr
}

// release undoes an Open that failed.
func (l *Log) release() {
	for _, p := range l.parts {
		p.abandon()
	}
	if l.lock != nil {
		_ = l.lock.Close() // nothing was changed under it that needs it
	}
}
