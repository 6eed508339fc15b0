package vfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// typeOf names the file systems that are asked for by name; "" is any other.
func typeOf(dir string) (string, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		break
	}
	return nameOf(&st), nil
}

func nameOf(st *unix.Statfs_t) string {
	switch uint32(st.Type) { // an int32 on some, and one of these is negative there
	case unix.EXT4_SUPER_MAGIC: // of ext2 and ext3, too, which are the same code
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	}
	return ""
}

// osMapping is a mapping of the operating system. It begins at a multiple of
// the page size, at or before what was asked for.
type osMapping struct {
	name string
	data []byte
	off  int64 // of data[0]
	from int64 // what was asked for begins here
}

func (o *osFile) Map(off, n int64) (Mapping, error) {
	size, err := o.Size()
	if err != nil {
		return nil, err
	}
	if off < 0 || n <= 0 || off+n > size {
		return nil, &os.PathError{Op: "mmap", Path: o.f.Name(), Err: os.ErrInvalid}
	}
	from := off &^ int64(os.Getpagesize()-1)
	m := &osMapping{name: o.f.Name(), off: from, from: off}
	err = withFd(o.f, func(fd int) (err error) {
		m.data, err = unix.Mmap(fd, from, int(off+n-from), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		return err
	})
	if err != nil {
		return nil, mapError(mapUnsupported(&os.PathError{Op: "mmap", Path: o.f.Name(), Err: err}))
	}
	for {
		err = unix.Madvise(m.data, unix.MADV_POPULATE_WRITE)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	if err != nil { // EFAULT is what would have been SIGBUS
		_ = m.Close() // nothing was stored
		return nil, mapError(mapUnsupported(&os.PathError{Op: "madvise", Path: o.f.Name(), Err: err}))
	}
	return m, nil
}

// mapUnsupported gives what a kernel or a file system without it says the name
// that callers look for.
func mapUnsupported(err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}

func (m *osMapping) Store(p []byte, off int64) error {
	at := off - m.off
	if off < m.from || at+int64(len(p)) > int64(len(m.data)) {
		return &os.PathError{Op: "store", Path: m.name, Err: os.ErrInvalid}
	}
	if len(p) == 0 {
		return nil
	}
	return m.copy(m.data[at:at+int64(len(p))], p)
}

// copy copies under a guard: a page that cannot be had makes SIGBUS, which the
// runtime turns into a panic of this goroutine, and that into an error. The
// guard is the goroutine's own, so none is started here.
func (m *osMapping) copy(to, from []byte) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			if !within(r, m.data) {
				panic(r)
			}
			err = &os.PathError{Op: "store", Path: m.name, Err: ErrFault}
		}
	}()
	copy(to, from)
	return nil
}

// within reports whether a panic is a fault at an address in data.
func within(r any, data []byte) bool {
	fault, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		return false
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
	return fault.Addr() >= first && fault.Addr()-first < uintptr(len(data))
}

func (m *osMapping) Close() error {
	if m.data == nil {
		return &os.PathError{Op: "munmap", Path: m.name, Err: os.ErrClosed}
	}
	data := m.data
	m.data = nil
	if err := unix.Munmap(data); err != nil {
		return &os.PathError{Op: "munmap", Path: m.name, Err: err}
	}
	return nil
}
