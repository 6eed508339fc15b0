package queue

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/segfile"
)

// The retry logs of a topic on disk lie in its own directory:
//
//	retry/p00003/<group>/...      the log of the group for partition 3
//	retry-made/p00003.<group>     an empty file: that log has been made
//
// The second is what tells a log that was lost from one that never was. It is
// made after the log and before the first entry, and removed after the log.
const (
	retryDir     = "retry"
	retryMadeDir = "retry-made"

	// retryRoom is how much larger than the largest record of the topic the
	// segments of a retry log are, and half of it is what an entry may say of an
	// event besides the record: at most some 10 KiB.
	retryRoom = 256 * penstock.KiB
)

// retryFiles is where the retry log of one group and partition lies.
//
// mu is held while the log is opened and closed, also during I/O: Close of the
// group must not return while the directory is being taken by its consumer.
type retryFiles struct {
	fs     vfs.FS
	topic  string // the topic's directory
	part   string // p00003
	config segfile.Config

	mu     sync.Mutex
	log    *segfile.Log
	closed bool
}

func partitionDir(partition int) string { return fmt.Sprintf("p%05d", partition) }

// topicDir is the topic's own directory.
func (c *Config[T]) topicDir() string { return filepath.Join(c.Dir, segfile.EscapeName(c.Name)) }

func newRetryFiles[T any](c *Config[T], group string, partition int) *retryFiles {
	f := &retryFiles{fs: c.fs, topic: c.topicDir(), part: partitionDir(partition)}
	record := c.SegmentBytes // no frame of the topic, and so no record, is larger
	if record == 0 || record > 64*penstock.MiB {
		record = 64 * penstock.MiB
	}
	f.config = segfile.Config{
		FS: f.fs, Dir: filepath.Join(f.topic, retryDir, f.part), Topic: group, Codec: retrySchema,
		SegmentBytes: record + retryRoom, MaxFrame: record + retryRoom/2, Durability: c.Durability, SyncEvery: c.SyncEvery, WritePath: c.WritePath,
		Logger: c.Logger.With(slog.String("retry_log_of", c.Name)),
	}
	return f
}

func (f *retryFiles) mark() string {
	return filepath.Join(f.topic, retryMadeDir, f.part+"."+segfile.EscapeName(f.config.Topic))
}

func (f *retryFiles) logDir() string {
	return filepath.Join(f.config.Dir, segfile.EscapeName(f.config.Topic))
}

// open opens the log. Without create it returns nil when there is none; the
// error matches penstock.ErrCorrupt when there was one and it is gone.
func (f *retryFiles) open(create bool) (*segfile.Log, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, penstock.ErrClosed
	}
	if f.log != nil {
		return f.log, nil
	}
	made, err := exists(f.fs, f.mark())
	if err != nil {
		return nil, err
	}
	there, err := exists(f.fs, f.logDir())
	switch {
	case err != nil:
		return nil, err
	case made && !there:
		return nil, fmt.Errorf("%w: %s is missing", penstock.ErrCorrupt, f.logDir())
	case !there && !create:
		return nil, nil
	}
	log, err := f.make(made)
	if err != nil {
		return nil, fullDisk(err)
	}
	f.log = log
	return log, nil
}

// make opens the log, which may not be there yet, and sets its mark.
func (f *retryFiles) make(made bool) (*segfile.Log, error) {
	if err := makeDir(f.fs, filepath.Join(f.topic, retryDir)); err != nil {
		return nil, err
	}
	log, err := segfile.Open(f.config)
	if err != nil || made {
		return log, err
	}
	if err := f.setMark(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return log, nil
}

func (f *retryFiles) setMark() error {
	dir := filepath.Dir(f.mark())
	if err := makeDir(f.fs, dir); err != nil {
		return err
	}
	file, err := f.fs.Create(f.mark())
	switch {
	case errors.Is(err, fs.ErrExist): // a crash came before its sync
	case err != nil:
		return err
	default:
		if err := file.Close(); err != nil {
			return err
		}
	}
	return f.fs.SyncDir(dir)
}

// close closes the log for good.
func (f *retryFiles) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.log == nil {
		return nil
	}
	log := f.log
	f.log = nil
	return log.Close()
}

// forgetRetry removes what a deleted group has left behind, before a new one
// takes its name.
func (e *fileEngine[T]) forgetRetry(group string) error {
	if slices.Contains(e.log.Groups(), group) {
		return nil
	}
	return e.topic.config.removeRetry(group)
}

// removeRetry removes the retry logs of a group that is deleted. What cannot be
// removed is removed when a new group takes the name.
func (e *fileEngine[T]) removeRetry(group string) error {
	if err := e.topic.config.removeRetry(group); err != nil {
		return fmt.Errorf("topic %q: group %q is deleted; its retry log stays on disk: %w", e.topic.config.Name, group, err)
	}
	return nil
}

// removeRetry removes what is left of the retry logs of a group in all
// partitions.
func (c *Config[T]) removeRetry(group string) error {
	if err := c.removeOrders(group); err != nil {
		return err
	}
	files := c.fs
	parts, err := list(files, filepath.Join(c.topicDir(), retryDir))
	if err != nil {
		return err
	}
	name := segfile.EscapeName(group)
	for _, part := range parts {
		dir := filepath.Join(c.topicDir(), retryDir, part)
		if err := removeTree(files, filepath.Join(dir, name)); err != nil {
			return err
		}
		if err := files.SyncDir(dir); err != nil {
			return err
		}
	}
	made := filepath.Join(c.topicDir(), retryMadeDir)
	marks, err := list(files, made)
	if err != nil {
		return err
	}
	marks = slices.DeleteFunc(marks, func(m string) bool {
		_, of, ok := strings.Cut(m, ".")
		return !ok || of != name
	})
	for _, m := range marks {
		if err := files.Remove(filepath.Join(made, m)); err != nil {
			return err
		}
	}
	if len(marks) == 0 {
		return nil
	}
	return files.SyncDir(made)
}

// removeTree removes a directory with everything in it, if it is there.
func removeTree(files vfs.FS, dir string) error {
	names, err := list(files, dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		info, err := files.Stat(path)
		switch {
		case errors.Is(err, vfs.ErrNotRegular):
		case err != nil:
			return err
		case info.Dir:
			if err := removeTree(files, path); err != nil {
				return err
			}
			continue
		}
		if err := files.Remove(path); err != nil {
			return err
		}
	}
	if err := files.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// list returns the names in a directory, none when there is no such directory.
func list(files vfs.FS, dir string) ([]string, error) {
	names, err := files.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

func exists(files vfs.FS, name string) (bool, error) {
	_, err := files.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// makeDir makes a directory durably, if it is not there.
func makeDir(files vfs.FS, dir string) error {
	if err := files.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return files.SyncDir(filepath.Dir(dir))
}

// fullDisk makes an error of the file system match penstock.ErrDiskFull when it
// is one of a full disk.
func fullDisk(err error) error {
	if errors.Is(err, vfs.ErrNoSpace) && !errors.Is(err, penstock.ErrDiskFull) {
		return fmt.Errorf("%w: %w", penstock.ErrDiskFull, err)
	}
	return err
}
