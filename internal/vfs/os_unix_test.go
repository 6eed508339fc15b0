//go:build unix

package vfs

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestOSModesAndPipes(t *testing.T) {
	dir := t.TempDir()
	must(t, OS().Mkdir(filepath.Join(dir, "d")))
	create(t, OS(), filepath.Join(dir, "d", "f"), "x")
	for name, want := range map[string]os.FileMode{"d": 0o700 | os.ModeDir, "d/f": 0o600} {
		st, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if st.Mode() != want {
			t.Errorf("%s has mode %v, want %v", name, st.Mode(), want)
		}
	}
	pipe := filepath.Join(dir, "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	_, err := OS().Open(pipe, false)
	wantErr(t, err, ErrNotRegular)
	_, err = OS().Lock(pipe, "")
	wantErr(t, err, ErrNotRegular)
}

func TestNoSpaceHasOneName(t *testing.T) {
	for e, name := range map[error]error{syscall.ENOSPC: ErrNoSpace, syscall.EDQUOT: ErrNoSpace, syscall.EFBIG: ErrFileLimit} {
		err := mapError(&os.PathError{Op: "write", Path: "f", Err: e})
		wantErr(t, err, name)
		wantErr(t, err, e)
	}
	if err := mapError(syscall.EFBIG); errors.Is(err, ErrNoSpace) {
		t.Error("a file that may not grow is called a full disk")
	}
	if err := mapError(syscall.EIO); err != syscall.EIO {
		t.Fatalf("EIO became %v", err)
	}
}
