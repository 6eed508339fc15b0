//go:build unix

package vfs

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openFile opens a file, with mode 0600 when flag makes it. It never follows a
// link at the end of the name, and never waits for the other end of a pipe.
func openFile(name string, flag int) (*os.File, error) {
	return os.OpenFile(name, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func isFileLimit(err error) bool { return errors.Is(err, syscall.EFBIG) }

// withFd calls fn with the descriptor of f, again while it is interrupted.
func withFd(f *os.File, fn func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = conn.Control(func(fd uintptr) {
		for {
			if result = fn(int(fd)); !errors.Is(result, syscall.EINTR) {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	return result
}

// lockFile takes the lock of the open file description, so that a second Open
// in the same process is refused too.
func lockFile(f *os.File) error {
	err := withFd(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrHeld
	}
	return err
}

// guardDir locks the directory itself as well: that lock holds when someone
// deletes the lock file and makes another (BQ-131). File systems that cannot
// lock a directory are left to the file's lock. The caller closes the result,
// which is nil then.
func guardDir(name string) (*os.File, error) {
	d, err := os.Open(name)
	if err != nil {
		return nil, mapError(err)
	}
	if err := lockFile(d); err != nil {
		_ = d.Close() // nothing was locked
		if errors.Is(err, ErrHeld) {
			return nil, err
		}
		return nil, nil
	}
	return d, nil
}

// checkLinked fails when the file has no name any more: what is synced to it
// nobody will find again.
func checkLinked(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Nlink == 0 {
		return &os.PathError{Op: "sync", Path: f.Name(), Err: ErrRemoved}
	}
	return nil
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}
