package vfs

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestMappingOfASparseFileOnAFullDiskIsAnError: the pages of a hole cannot be
// had when the disk is full. Without the call that gets them before the first
// store, that store would raise a signal.
func TestMappingOfASparseFileOnAFullDiskIsAnError(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: a mapping on a full disk. Mounting a small file system needs root; run this test as root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_NODEV|syscall.MS_NOSUID, "size=1m,mode=0700"); err != nil {
		t.Skipf("NOT TESTED: a mapping on a full disk: cannot mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if name, err := OS().Type(dir); err != nil || name != "tmpfs" {
		t.Fatalf("the file system is called %q, %v", name, err)
	}
	h := create(t, OS(), filepath.Join(dir, "sparse"), "")
	must(t, h.Truncate(4<<20))
	if m, err := h.Map(0, 4<<20); err == nil {
		_ = m.Close()
		t.Fatal("4 MiB were mapped for stores on a disk of 1 MiB")
	}
	wantErr(t, create(t, OS(), filepath.Join(dir, "f"), "").Allocate(4<<20), ErrNoSpace)
}

func TestUnknownFileSystemHasNoName(t *testing.T) {
	if name, err := OS().Type("/proc"); err != nil || name != "" {
		t.Errorf("/proc is called %q, %v", name, err)
	}
	if _, err := OS().Type(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a directory that is not there is no error")
	}
}
