package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// both runs a test over the real file system and the one in memory.
func both(t *testing.T, fn func(t *testing.T, f FS, dir string)) {
	t.Run("os", func(t *testing.T) { fn(t, OS(), t.TempDir()) })
	t.Run("mem", func(t *testing.T) {
		m := NewMem()
		must(t, m.Mkdir("/data"))
		fn(t, m, "/data")
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want one that matches %v", err, want)
	}
}

func create(t *testing.T, f FS, name, text string) File {
	t.Helper()
	h, err := f.Create(name)
	must(t, err)
	t.Cleanup(func() { _ = h.Close() })
	if text != "" {
		_, err = h.WriteAt([]byte(text), 0)
		must(t, err)
	}
	return h
}

func contentOf(t *testing.T, h File) string {
	t.Helper()
	n, err := h.Size()
	must(t, err)
	b, err := io.ReadAll(io.NewSectionReader(h, 0, n))
	must(t, err)
	return string(b)
}

func TestCreateIsExclusiveAndOpenNeedsAFile(t *testing.T) {
	both(t, func(t *testing.T, f FS, dir string) {
		name := filepath.Join(dir, "a")
		_, err := f.Open(name, false)
		wantErr(t, err, fs.ErrNotExist)
		create(t, f, name, "x")
		_, err = f.Create(name)
		wantErr(t, err, fs.ErrExist)
		wantErr(t, f.Mkdir(name), fs.ErrExist)
		_, err = f.Create(filepath.Join(dir, "missing", "a"))
		wantErr(t, err, fs.ErrNotExist)
		must(t, f.Mkdir(filepath.Join(dir, "d")))
		wantErr(t, f.Mkdir(filepath.Join(dir, "d")), fs.ErrExist)
		_, err = f.Open(filepath.Join(dir, "d"), false)
		wantErr(t, err, ErrNotRegular)
	})
}

func TestReadsAndWritesAtPositions(t *testing.T) {
	both(t, func(t *testing.T, f FS, dir string) {
		h := create(t, f, filepath.Join(dir, "a"), "hello")
		_, err := h.WriteAt([]byte("world"), 10_000)
		must(t, err)
		_, err = h.WriteAt([]byte("J"), 0)
		must(t, err)
		want := "Jello" + string(make([]byte, 9_995)) + "world"
		if got := contentOf(t, h); got != want {
			t.Fatalf("content has %d bytes, want %d or differs", len(got), len(want))
		}
		buf := make([]byte, 10)
		n, err := h.ReadAt(buf, 10_000)
		if n != 5 || err != io.EOF {
			t.Fatalf("read at the end: %d, %v, want 5, EOF", n, err)
		}
		if n, err = h.ReadAt(buf, 20_000); n != 0 || err != io.EOF {
			t.Fatalf("read past the end: %d, %v, want 0, EOF", n, err)
		}
		ro, err := f.Open(filepath.Join(dir, "a"), false)
		must(t, err)
		defer ro.Close()
		if _, err := ro.WriteAt([]byte("x"), 0); err == nil {
			t.Fatal("a handle for reading let a write pass")
		}
		must(t, h.Sync())
		must(t, h.Close())
		if _, err := h.WriteAt([]byte("x"), 0); !errors.Is(err, fs.ErrClosed) {
			t.Fatalf("write after close: %v, want fs.ErrClosed", err)
		}
	})
}

func TestAllocateGrowsWithZerosAndNeverShrinks(t *testing.T) {
	both(t, func(t *testing.T, f FS, dir string) {
		h := create(t, f, filepath.Join(dir, "a"), "abc")
		must(t, h.Allocate(10_000))
		if got := contentOf(t, h); got != "abc"+string(make([]byte, 9_997)) {
			t.Fatal("allocated bytes are not zero")
		}
		must(t, h.Allocate(5))
		if n, _ := h.Size(); n != 10_000 {
			t.Fatalf("size %d after a smaller allocation, want 10000", n)
		}
		must(t, h.Truncate(2))
		must(t, h.Truncate(6))
		if got := contentOf(t, h); got != "ab\x00\x00\x00\x00" {
			t.Fatalf("after truncate and regrow: %q", got)
		}
	})
}

func TestEntriesRenameRemoveListStat(t *testing.T) {
	both(t, func(t *testing.T, f FS, dir string) {
		j := func(n ...string) string { return filepath.Join(append([]string{dir}, n...)...) }
		create(t, f, j("b"), "bb")
		create(t, f, j("a"), "a")
		must(t, f.Mkdir(j("d")))
		create(t, f, j("d", "x"), "")
		must(t, f.Rename(j("a"), j("b")))
		must(t, f.Rename(j("b"), j("b")))
		must(t, f.SyncDir(dir))
		names, err := f.List(dir)
		must(t, err)
		if !slices.Equal(names, []string{"b", "d"}) {
			t.Fatalf("names %v, want b d", names)
		}
		st, err := f.Stat(j("b"))
		must(t, err)
		if st != (Info{Size: 1}) {
			t.Fatalf("stat %+v, want the renamed file of 1 byte", st)
		}
		if st, err = f.Stat(j("d")); err != nil || !st.Dir {
			t.Fatalf("stat of a directory: %+v, %v", st, err)
		}
		_, err = f.Stat(j("nothing"))
		wantErr(t, err, fs.ErrNotExist)
		wantErr(t, f.Rename(j("nothing"), j("b")), fs.ErrNotExist)
		wantErr(t, f.Rename(j("b"), j("d", "b")), fs.ErrInvalid)
		if err := f.Remove(j("d")); err == nil {
			t.Fatal("a directory with entries was removed")
		}
		must(t, f.Remove(j("d", "x")))
		must(t, f.Remove(j("d")))
		wantErr(t, f.Remove(j("d")), fs.ErrNotExist)
		_, err = f.List(j("d"))
		wantErr(t, err, fs.ErrNotExist)
		wantErr(t, f.SyncDir(j("d")), fs.ErrNotExist)
	})
}

func TestLockIsExclusiveAndNamesTheHolder(t *testing.T) {
	both(t, func(t *testing.T, f FS, dir string) {
		name := filepath.Join(dir, "LOCK")
		l, err := f.Lock(name, "pid 7")
		must(t, err)
		_, err = f.Lock(name, "pid 8")
		wantErr(t, err, ErrHeld)
		var held *HeldError
		if !errors.As(err, &held) || held.Note != "pid 7" {
			t.Fatalf("error %v, want a HeldError with the holder's note", err)
		}
		must(t, l.Close())
		l, err = f.Lock(name, "9")
		must(t, err)
		defer l.Close()
		if _, err = f.Lock(name, ""); !errors.As(err, &held) || held.Note != "9" {
			t.Fatalf("note %v, want only that of the new holder", err)
		}
	})
}

func TestOSRefusesWhatIsNoRegularFile(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "real"), []byte("x"), 0o600))
	link := filepath.Join(dir, "link")
	if err := os.Symlink("real", link); err != nil {
		t.Skipf("NOT TESTED: what is no regular file is refused: this system makes no symbolic link: %v", err)
	}
	_, err := OS().Open(link, true)
	wantErr(t, err, ErrNotRegular)
	_, err = OS().Stat(link)
	wantErr(t, err, ErrNotRegular)
	if _, err := OS().Lock(link, ""); err == nil {
		t.Fatal("a symbolic link was locked")
	}
	if _, err := OS().Create(link); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("create over a link: %v, want fs.ErrExist", err)
	}
}

func TestZerosAreWrittenWhereAllocationIsUnsupported(t *testing.T) {
	h, err := os.Create(filepath.Join(t.TempDir(), "a"))
	must(t, err)
	defer h.Close()
	_, err = h.WriteAt([]byte("abc"), 0)
	must(t, err)
	must(t, writeZeros(h, 3, 3<<20))
	got, err := os.ReadFile(h.Name())
	must(t, err)
	if len(got) != 3<<20 || !bytes.Equal(got[:3], []byte("abc")) || len(bytes.Trim(got[3:], "\x00")) != 0 {
		t.Fatalf("%d bytes, want %d with zeros behind the content", len(got), 3<<20)
	}
}

// TestLockReplacesTheNoteOfTheHolderBefore: also by a shorter one.
func TestLockReplacesTheNoteOfTheHolderBefore(t *testing.T) {
	both(t, func(t *testing.T, f FS, dir string) {
		name := filepath.Join(dir, "LOCK")
		for _, note := range []string{"short", "a long one", "short", "x"} {
			l, err := f.Lock(name, note)
			must(t, err)
			h, err := f.Open(name, false)
			must(t, err)
			if got := contentOf(t, h); got != note {
				t.Errorf("the note is %q, want %q", got, note)
			}
			must(t, h.Close())
			must(t, l.Close())
		}
	})
}
