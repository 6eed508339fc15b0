package vfs

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// dataSync flushes the content and the part of the metadata that is needed to
// read it back, the size among it.
func dataSync(f *os.File) error {
	return os.NewSyscallError("fdatasync", withFd(f, unix.Fdatasync))
}

func allocate(f *os.File, from, to int64) error {
	err := withFd(f, func(fd int) error { return unix.Fallocate(fd, 0, from, to-from) })
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return errors.ErrUnsupported
	}
	return os.NewSyscallError("fallocate", err)
}
