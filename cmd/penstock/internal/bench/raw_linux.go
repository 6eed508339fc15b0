package bench

import (
	"os"
	"syscall"
)

// preallocate gives f its blocks.
func preallocate(f *os.File, size int64) error {
	err := syscall.Fallocate(int(f.Fd()), 0, 0, size)
	if err == syscall.EOPNOTSUPP || err == syscall.ENOSYS {
		return f.Truncate(size)
	}
	return err
}

// datasync flushes f's data, and of its metadata what reading them needs.
func datasync(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }
