package stream

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// Store is a directory that holds what a node must remember of its streams:
// the subscriptions, the attempts of what is not settled and, for queues that do
// not keep one themselves, the checkpoints. Files are small and written as a whole: a new file is flushed,
// takes the place of the old one in one step, and the directory is flushed;
// only then is a change acknowledged. [FileAttempts] are another matter. One process opens a directory at a time.
// A Store is safe for concurrent use.
type Store struct {
	fs       vfs.FS
	dir      string
	lock     io.Closer
	registry *FileRegistry
	marks    *FileCheckpoints
	attempts *FileAttempts
	closed   atomic.Bool
}

const storeLock = "lock"

// OpenStore opens the store in the directory dir, which is made when it does
// not exist; its parent must. The error matches penstock.ErrLocked when another
// opener has it, penstock.ErrCorrupt when the stored subscriptions are damaged
// and penstock.ErrUnsupported when a later version wrote them.
func OpenStore(dir string) (*Store, error) {
	if dir == "" {
		return nil, fmt.Errorf("stream: open store: %w", &penstock.FieldError{Field: "dir", Reason: "is empty"})
	}
	return openStore(vfs.OS(), filepath.Clean(dir))
}

func openStore(files vfs.FS, dir string) (*Store, error) {
	s := &Store{fs: files, dir: dir}
	err := s.open()
	if err != nil {
		if s.lock != nil {
			err = errors.Join(err, s.lock.Close())
		}
		return nil, fmt.Errorf("stream: open store %q: %w", dir, err)
	}
	return s, nil
}

func (s *Store) open() error {
	if err := s.fs.Mkdir(s.dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Also when it exists: whoever made it may not have come to this.
	if err := s.fs.SyncDir(filepath.Dir(s.dir)); err != nil {
		return err
	}
	var err error
	s.lock, err = s.fs.Lock(filepath.Join(s.dir, storeLock), "penstock stream store, process "+strconv.Itoa(os.Getpid()))
	if err != nil {
		var held *vfs.HeldError
		if errors.As(err, &held) {
			return fmt.Errorf("%w: %w", penstock.ErrLocked, err)
		}
		return err
	}
	s.marks = &FileCheckpoints{store: s, known: map[checkpointKey]*fileCheckpoint{}}
	s.attempts = &FileAttempts{store: s, known: map[checkpointKey]*attemptFile{}}
	s.registry, err = openFileRegistry(s)
	return err
}

// Registry returns the subscriptions; always the same registry.
func (s *Store) Registry() *FileRegistry { return s.registry }

// Checkpoints returns the checkpoints; always the same ones.
func (s *Store) Checkpoints() *FileCheckpoints { return s.marks }

// Attempts returns the attempts, for Config.Attempts; always the same ones.
func (s *Store) Attempts() *FileAttempts { return s.attempts }

// Close ends changes and gives the directory free. Providers over it must have
// been closed. What was acknowledged is stored; Close has nothing to flush.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.registry.quiesce()
	s.marks.quiesce()
	return errors.Join(s.attempts.quiesce(), s.lock.Close())
}

// maxStoreFile is the largest size of one file of a store, in bytes.
const maxStoreFile = 64 << 20

var storeCRC = crc32.MakeTable(crc32.Castagnoli)

// replace makes data, with a checksum behind it, the content of the named
// file. An error that matches penstock.ErrUnknownOutcome says that the file may
// hold either; otherwise it holds what it did.
func (s *Store) replace(name string, data []byte) error {
	if s.closed.Load() {
		return fmt.Errorf("store %q: %w", s.dir, penstock.ErrClosed)
	}
	if len(data)+4 > maxStoreFile {
		return fmt.Errorf("file %s would have %d bytes, at most %d: %w", name, len(data)+4, maxStoreFile, penstock.ErrTooLarge)
	}
	sum := crc32.Checksum(data, storeCRC)
	data = append(data, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
	path, fresh := filepath.Join(s.dir, name), filepath.Join(s.dir, name+".new")
	if err := s.writeNew(fresh, data); err != nil {
		_ = s.fs.Remove(fresh) // the next change removes it otherwise
		if errors.Is(err, vfs.ErrNoSpace) {
			err = fmt.Errorf("%w: %w", penstock.ErrDiskFull, err)
		}
		return fmt.Errorf("store %q: %w", s.dir, err)
	}
	err := s.fs.Rename(fresh, path)
	if err == nil {
		err = s.fs.SyncDir(s.dir)
	}
	if err != nil {
		return fmt.Errorf("store %q: %s: %w: %w", s.dir, name, penstock.ErrUnknownOutcome, err)
	}
	return nil
}

func (s *Store) writeNew(path string, data []byte) error {
	if err := s.fs.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := s.fs.Create(path)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// load returns the content of the named file without its checksum, and nil
// when there is no such file.
func (s *Store) load(name string) ([]byte, error) {
	f, err := s.fs.Open(filepath.Join(s.dir, name), false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("store %q: %w", s.dir, err)
	}
	data, err := readAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("store %q: %s: %w", s.dir, name, err)
	}
	n := len(data) - 4
	if n < 0 {
		return nil, fmt.Errorf("store %q: %s: %d bytes: %w", s.dir, name, len(data), penstock.ErrCorrupt)
	}
	sum := uint32(data[n]) | uint32(data[n+1])<<8 | uint32(data[n+2])<<16 | uint32(data[n+3])<<24
	if crc32.Checksum(data[:n], storeCRC) != sum {
		return nil, fmt.Errorf("store %q: %s: checksum does not match: %w", s.dir, name, penstock.ErrCorrupt)
	}
	return data[:n:n], nil
}

func readAll(f vfs.File) ([]byte, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxStoreFile {
		return nil, fmt.Errorf("%d bytes, at most %d: %w", size, maxStoreFile, penstock.ErrCorrupt)
	}
	data := make([]byte, size)
	if _, err := f.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return data, nil
}
