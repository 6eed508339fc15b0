//go:build unix

package vfs

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openFlags: never follow a link at the end of the name, never wait for the
// other end of a pipe.
const openFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

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
