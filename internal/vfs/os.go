package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// maxNote bounds what is read of a holder's note.
const maxNote = 1024

// OS returns the file system of the operating system.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) Create(name string) (File, error) {
	f, err := openFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, mapError(err)
	}
	return &osFile{f: f}, nil
}

func (osFS) Open(name string, write bool) (File, error) {
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	f, err := openRegular(name, flag)
	if err != nil {
		return nil, err
	}
	return &osFile{f: f}, nil
}

// openRegular looks at the name before it opens it, so that a pipe or a device
// is not touched, and at the file afterwards, so that a swap between the two
// is noticed.
func openRegular(name string, flag int) (*os.File, error) {
	before, err := os.Lstat(name)
	if err != nil {
		return nil, mapError(err)
	}
	if !before.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	}
	f, err := openFile(name, flag)
	if err != nil {
		return nil, mapError(err)
	}
	after, err := f.Stat()
	if err == nil && (!after.Mode().IsRegular() || !os.SameFile(before, after)) {
		err = &fs.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	}
	if err != nil {
		_ = f.Close() // nothing was written through it
		return nil, err
	}
	return f, nil
}

func (osFS) Mkdir(name string) error { return mapError(os.Mkdir(name, 0o700)) }

func (osFS) Rename(from, to string) error {
	if filepath.Dir(from) != filepath.Dir(to) {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrInvalid}
	}
	return mapError(os.Rename(from, to))
}

func (osFS) Remove(name string) error { return mapError(os.Remove(name)) }

func (osFS) SyncDir(name string) error { return mapError(syncDir(name)) }

func (osFS) List(name string) ([]string, error) {
	d, err := os.Open(name)
	if err != nil {
		return nil, mapError(err)
	}
	names, err := d.Readdirnames(-1)
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	slices.Sort(names)
	return names, mapError(err)
}

func (osFS) Stat(name string) (Info, error) {
	st, err := os.Lstat(name)
	switch {
	case err != nil:
		return Info{}, mapError(err)
	case st.IsDir():
		return Info{Dir: true}, nil
	case !st.Mode().IsRegular():
		return Info{}, &fs.PathError{Op: "stat", Path: name, Err: ErrNotRegular}
	}
	return Info{Size: st.Size()}, nil
}

func (osFS) Type(dir string) (string, error) { return typeOf(dir) }

func (osFS) Lock(name, note string) (io.Closer, error) {
	f, err := openFile(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, mapError(err)
	}
	dir, err := lockAndNote(f, note)
	if err != nil {
		_ = f.Close() // the lock was not taken or goes with the handle
		return nil, err
	}
	return &osLock{file: f, dir: dir}, nil
}

// osLock is the lock of a file and of its directory.
type osLock struct{ file, dir *os.File }

func (l *osLock) Close() error {
	err := l.file.Close()
	if l.dir != nil {
		err = errors.Join(err, l.dir.Close())
	}
	return err
}

// InPlace implements [Placed].
func (l *osLock) InPlace() error {
	if l.dir == nil {
		return nil // a directory that cannot be locked is not known here
	}
	was, err := l.dir.Stat()
	if err != nil {
		return mapError(err)
	}
	if now, err := os.Stat(l.dir.Name()); err == nil && os.SameFile(was, now) {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return mapError(err)
	}
	return &fs.PathError{Op: "find", Path: l.dir.Name(), Err: ErrMoved}
}

// lockAndNote locks the file and its directory, then writes the note.
func lockAndNote(f *os.File, note string) (*os.File, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, mapError(err)
	}
	if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "lock", Path: f.Name(), Err: ErrNotRegular}
	}
	if err := lockFile(f); err != nil {
		return nil, lockError(f, err)
	}
	dir, err := guardDir(filepath.Dir(f.Name()))
	if err != nil {
		return nil, lockError(f, err)
	}
	// In place: to give a block back and get another takes longer than the rest.
	_, err = f.WriteAt([]byte(note), 0)
	if err == nil && st.Size() > int64(len(note)) {
		err = f.Truncate(int64(len(note)))
	}
	if err != nil && isNoSpace(err) {
		err = nil // a full disk has no room for the note; the lock needs none
	}
	if err != nil && dir != nil {
		_ = dir.Close() // the lock goes with it
	}
	return dir, mapError(err)
}

// lockError adds the holder's note to a lock that is held.
func lockError(f *os.File, err error) error {
	if !errors.Is(err, ErrHeld) {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	holder, rerr := io.ReadAll(io.NewSectionReader(f, 0, maxNote))
	if rerr != nil {
		holder = nil // the note is a help, not a condition
	}
	return &HeldError{Note: string(holder)}
}

type osFile struct{ f *os.File }

func (o *osFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := o.f.ReadAt(p, off)
	if err == io.EOF {
		return n, io.EOF
	}
	return n, mapError(err)
}

func (o *osFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := o.f.WriteAt(p, off)
	return n, mapError(err)
}

func (o *osFile) Truncate(size int64) error { return mapError(o.f.Truncate(size)) }
func (o *osFile) Close() error              { return mapError(o.f.Close()) }

func (o *osFile) Sync() error {
	err := dataSync(o.f)
	if err == nil {
		err = checkLinked(o.f)
	}
	return mapError(err)
}

func (o *osFile) Size() (int64, error) {
	st, err := o.f.Stat()
	if err != nil {
		return 0, mapError(err)
	}
	return st.Size(), nil
}

func (o *osFile) Allocate(size int64) error {
	old, err := o.Size()
	if err != nil || size <= old {
		return err
	}
	err = allocate(o.f, old, size)
	if errors.Is(err, errors.ErrUnsupported) {
		err = writeZeros(o.f, old, size)
	}
	return mapError(err)
}

// writeZeros backs [from, to) with disk space where the file system cannot be
// asked for it.
func writeZeros(f *os.File, from, to int64) error {
	zeros := make([]byte, min(to-from, 1<<20))
	for from < to {
		n, err := f.WriteAt(zeros[:min(to-from, int64(len(zeros)))], from)
		if err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

// namedError gives an error of the system a second name.
type namedError struct{ err, name error }

func (e *namedError) Error() string        { return e.err.Error() }
func (e *namedError) Unwrap() error        { return e.err }
func (e *namedError) Is(target error) bool { return target == e.name }

func mapError(err error) error {
	switch {
	case err == nil:
	case isNoSpace(err):
		return &namedError{err, ErrNoSpace}
	case isFileLimit(err):
		return &namedError{err, ErrFileLimit}
	}
	return err
}
