package segfile

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// What is said of what is missing says what to do about it.
var (
	errNoPartition = errors.New("the directory of the partition is missing: put it back from a copy; " +
		"without one, a salvage copies the other partitions into another data directory")
	errNoGroups = errors.New("the directory with the positions of the groups is missing: put it back from a copy, " +
		"or let a repair make it, after which groups that other partitions know begin at the first event kept")
	errBlocked = errors.New("a directory stands where the log makes its next segment, and the topic cannot be opened: " +
		"move it away")
	errExchanged = errors.New("all files are of another partition or topic: if directories were exchanged, " +
		"give them their own names back; a state.slot that alone is foreign can be removed")
	errNoFormat = errors.New("it is not the format file of a data directory: when this is one, move the file away, " +
		"and the next open makes it anew")
)

// refused reports whether the system did not let us look, which says nothing of
// what is stored: a right is missing, or the process has too many open files.
func refused(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// writeError turns the error by which a write or a sync failed into the one that
// callers test for.
func writeError(err error) error {
	switch {
	case errors.Is(err, vfs.ErrNoSpace):
		return fmt.Errorf("%w: %w", penstock.ErrDiskFull, err)
	case errors.Is(err, vfs.ErrFileLimit):
		return err // nothing was written, and there may be room
	}
	return fmt.Errorf("%w: %w", penstock.ErrUnknownOutcome, err)
}

// unwritten is writeError of what failed before the first byte of what was to be
// written: nothing is unknown about that.
func unwritten(err error) error {
	if errors.Is(err, vfs.ErrNoSpace) {
		return fmt.Errorf("%w: %w", penstock.ErrDiskFull, err)
	}
	return err
}

// at adds where an error comes from: the topic, the partition and a file of it.
func (p *Partition) at(file string, err error) error {
	return fmt.Errorf("topic %q partition %d file %s: %w", p.cfg.Topic, p.id, file, err)
}

// corrupt returns damage to something of the partition that is no segment.
func (p *Partition) corrupt(file string, cause error) error {
	return &penstock.CorruptError{
		Topic: p.cfg.Topic, Partition: p.id, File: file, First: p.Earliest(), Last: p.Earliest(), Cause: cause,
	}
}
