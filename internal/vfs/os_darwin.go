package vfs

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// dataSync uses F_FULLFSYNC, which is what Sync does on this platform: fsync
// alone leaves the data in the drive's cache.
func dataSync(f *os.File) error { return f.Sync() }

// allocate asks for all of the space or nothing, checks what was given, and
// sets the size only then.
func allocate(f *os.File, from, to int64) error {
	store := unix.Fstore_t{
		Flags:   unix.F_ALLOCATEALL,
		Posmode: unix.F_PEOFPOSMODE,
		Length:  to - from,
	}
	err := withFd(f, func(fd int) error { return unix.FcntlFstore(uintptr(fd), unix.F_PREALLOCATE, &store) })
	switch {
	case errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.EOPNOTSUPP):
		return errors.ErrUnsupported
	case err != nil:
		return os.NewSyscallError("fcntl F_PREALLOCATE", err)
	case store.Bytesalloc < to-from:
		return fmt.Errorf("allocated %d of %d bytes: %w", store.Bytesalloc, to-from, syscall.ENOSPC)
	}
	return f.Truncate(to)
}
