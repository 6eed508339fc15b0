package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Data implements [File]. Only file systems that are known to tell the truth
// are asked: one that says hole where there are bytes hides them.
func (o *osFile) Data(off int64) (from, to int64, err error) {
	size, err := o.Size()
	if err != nil || off >= size {
		return size, size, err
	}
	var st unix.Statfs_t
	err = withFd(o.f, func(fd int) error { return unix.Fstatfs(fd, &st) })
	if err != nil {
		return off, size, os.NewSyscallError("fstatfs", err)
	}
	if nameOf(&st) == "" {
		return off, size, nil
	}
	err = withFd(o.f, func(fd int) (err error) {
		if from, err = unix.Seek(fd, off, unix.SEEK_DATA); err == nil {
			to, err = unix.Seek(fd, from, unix.SEEK_HOLE)
		}
		return err
	})
	switch {
	case errors.Is(err, unix.ENXIO): // nothing but zeros follows
		return size, size, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return off, size, nil
	case err != nil:
		return off, size, os.NewSyscallError("lseek", err)
	}
	return max(from, off), to, nil
}
