package vfs

import (
	"errors"
	"fmt"
	"io"
)

var (
	// ErrNoSpace: the file system or the quota has no room for the operation.
	ErrNoSpace = errors.New("no space left on device")
	// ErrFileLimit: the file may not become so large, by a limit of the process
	// or of the file system; there may be room.
	ErrFileLimit = errors.New("the file may not become so large")
	// ErrHeld: another opener holds the lock. See [HeldError].
	ErrHeld = errors.New("lock is held")
	// ErrNotRegular: the name exists and is not a regular file.
	ErrNotRegular = errors.New("not a regular file")
	// ErrRemoved: the file was deleted while it was open.
	ErrRemoved = errors.New("the file was deleted while it was open")
	// ErrMoved: another directory stands under the name of one that is locked, or
	// none does.
	ErrMoved = errors.New("the directory was moved while it was open")
	// ErrFault: memory behind a [Mapping] could not be had. The file was cut
	// under it, its disk failed, or it had no disk space there.
	ErrFault = errors.New("the file behind a mapping cannot be reached")
)

// HeldError reports a lock that another opener holds. It matches [ErrHeld].
type HeldError struct {
	Note string // what the holder wrote about itself; "" when it could not be read
}

func (e *HeldError) Error() string { return fmt.Sprintf("lock is held by %q", e.Note) }

// Is reports whether target is ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Info describes a name.
type Info struct {
	Size int64 // bytes; 0 for a directory
	Dir  bool
}

// Placed is a lock that knows whether its directory still has its name. That of
// the operating system on Unix is one.
type Placed interface {
	// InPlace returns an error that matches [ErrMoved] when the name under which
	// the lock was taken does not lead to the directory that is locked. It may be
	// called until the lock is closed.
	InPlace() error
}

// FS is what the log needs of a file system. Names are paths in the form of
// package path/filepath. It is safe for concurrent use.
type FS interface {
	// Create makes a new regular file with mode 0600 and opens it for reading
	// and writing. The error matches fs.ErrExist when the name is taken. The
	// entry is durable after SyncDir.
	Create(name string) (File, error)
	// Open opens a regular file for reading, and for writing when write is
	// true. The error matches fs.ErrNotExist or ErrNotRegular.
	Open(name string, write bool) (File, error)
	// Mkdir makes a directory with mode 0700. The error matches fs.ErrExist
	// when the name is taken.
	Mkdir(name string) error
	// Rename gives a file of one directory another name in the same directory
	// and replaces a file of that name in one step.
	Rename(from, to string) error
	// Remove deletes a file or an empty directory.
	Remove(name string) error
	// SyncDir makes the entries of a directory durable. It does nothing where
	// the platform has no such operation (Windows).
	SyncDir(name string) error
	// List returns the sorted names in a directory.
	List(name string) ([]string, error)
	// Stat describes a name without following a symbolic link at its end.
	// The error matches fs.ErrNotExist or ErrNotRegular.
	Stat(name string) (Info, error)
	// Lock takes the exclusive lock of the named file, which it makes when it
	// is missing and never removes, and stores a note about the holder in it.
	// A second Lock fails at once with *HeldError, in this process too, and on
	// Unix also when the file was deleted meanwhile: one directory takes one
	// lock there. The lock ends with Close or with the process.
	Lock(name, note string) (io.Closer, error)
	// Type names the file system that holds a directory, as the system calls
	// it: "ext4", "xfs", "tmpfs". "" is one whose name is not known here, and
	// every one of a platform without mappings.
	Type(dir string) (string, error)
}

// File is an open regular file. It is safe for concurrent use.
type File interface {
	io.ReaderAt
	// WriteAt writes all of p at off or returns an error; after an error any
	// part of p may have been written. Writing past the end grows the file.
	io.WriterAt
	// Allocate grows the file to size bytes with disk space behind all of
	// them; the new bytes read as zero. It never shrinks the file. After an
	// error the size is unspecified.
	Allocate(size int64) error
	// Truncate sets the size. Bytes past the old end read as zero and have no
	// disk space behind them.
	Truncate(size int64) error
	// Sync makes the content and the size durable. After an error what was
	// written since the last successful Sync is in doubt, and a later Sync
	// that succeeds does not change that. The error matches ErrRemoved when the
	// file was deleted meanwhile, where the platform tells (Unix).
	Sync() error
	// Size returns the size in bytes.
	Size() (int64, error)
	// Data returns the first range [from, to) at or behind off that may hold
	// anything else than zeros; both are the size when there is none. It costs no
	// read. What was written before the last Sync lies in such a range; of what
	// was written since, by anybody, the file system may not know yet. Where it
	// is not known to tell, the range is all from off on.
	Data(off int64) (from, to int64, err error)
	// Map maps [off, off+n), which must lie within the file, for stores, and
	// has the system get every page of it. The caller has written all of these
	// bytes before: a store into a piece without disk space behind it fails when
	// the disk is full, and at a time when nothing can be done about it. The
	// error matches errors.ErrUnsupported where the platform or the file system
	// has no such thing.
	Map(off, n int64) (Mapping, error)
	// Close closes the file without a sync.
	Close() error
}

// Mapping is a piece of a file that is stored into without a call of the
// system. What was stored is in the page cache: it survives the process, File's
// ReadAt finds it, and Sync makes it durable like a write. It is used by one
// goroutine at a time and works after its file was closed.
type Mapping interface {
	// Store copies p to off, counted from the start of the file; [off,
	// off+len(p)) must lie in the mapping. The error matches ErrFault, any part
	// of p may have been stored then. It never raises a signal that ends the
	// process.
	Store(p []byte, off int64) error
	// Close ends the mapping. What was stored stays.
	Close() error
}
