package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// openFile opens a file so that it can be renamed and deleted while it is open,
// as elsewhere: os.OpenFile does not share that.
func openFile(name string, flag int) (*os.File, error) {
	path, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	access, how := uint32(windows.GENERIC_READ), uint32(windows.OPEN_EXISTING)
	if flag&os.O_RDWR != 0 {
		access |= windows.GENERIC_WRITE
	}
	switch flag & (os.O_CREATE | os.O_EXCL) {
	case os.O_CREATE:
		how = windows.OPEN_ALWAYS
	case os.O_CREATE | os.O_EXCL:
		how = windows.CREATE_NEW
	}
	share := uint32(windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE)
	h, err := windows.CreateFile(path, access, share, nil, how, windows.FILE_ATTRIBUTE_NORMAL, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(h), name), nil
}

func isNoSpace(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) ||
		errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}

func isFileLimit(err error) bool { return errors.Is(err, windows.ERROR_FILE_TOO_LARGE) }

// lockFile locks one byte far behind the note: a locked range cannot be read
// by others, and the note must be.
func lockFile(f *os.File) error {
	where := windows.Overlapped{OffsetHigh: 1 << 30}
	err := windows.LockFileEx(windows.Handle(f.Fd()),
		windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &where)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return ErrHeld
	}
	return err
}

// guardDir is not needed: a file that is open for a lock keeps its name.
func guardDir(string) (*os.File, error) { return nil, nil }

// checkLinked has no cheap equivalent here.
func checkLinked(*os.File) error { return nil }

func dataSync(f *os.File) error { return f.Sync() } // FlushFileBuffers

// syncDir: the platform has no flush of a directory; NTFS journals its entries.
func syncDir(string) error { return nil }

// allocate is left to the writing of zeros: setting the length reserves the
// space too, but reading and writing past the valid length is then slow.
func allocate(*os.File, int64, int64) error { return errors.ErrUnsupported }
