package vfs

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// mapped makes a file of the given size, all of it written, and maps a part.
func mapped(t *testing.T, f FS, name string, size, off, n int64) (File, Mapping) {
	t.Helper()
	h := create(t, f, name, "")
	must(t, h.Allocate(size))
	_, err := h.WriteAt(make([]byte, size), 0)
	must(t, err)
	m, err := h.Map(off, n)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("NOT TESTED: stores through a mapping, which this platform or file system does not have")
	}
	must(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return h, m
}

func TestStoresAreReadAndSurviveTheMapping(t *testing.T) {
	both(t, func(t *testing.T, f FS, dir string) {
		h, m := mapped(t, f, filepath.Join(dir, "f"), 20_000, 5_000, 10_000)
		must(t, m.Store([]byte("first"), 5_000))
		must(t, m.Store([]byte("last"), 14_996))
		must(t, m.Store(nil, 6_000))
		for _, at := range []int64{4_999, 14_997, 15_000, -1} {
			if err := m.Store([]byte("four"), at); err == nil {
				t.Errorf("a store at %d, outside of the mapping, is no error", at)
			}
		}
		must(t, h.Sync())
		must(t, m.Close())
		if m.Close() == nil {
			t.Error("a second Close is no error")
		}
		want := strings.Repeat("\x00", 5_000) + "first" + strings.Repeat("\x00", 9_991) + "last" + strings.Repeat("\x00", 5_000)
		if got := contentOf(t, h); got != want {
			t.Errorf("%d bytes, not those that were stored: %.20q at 5000", len(got), got[5_000:])
		}
		for _, piece := range [][2]int64{{0, 20_001}, {-1, 5}, {0, 0}, {20_000, 1}} {
			if m, err := h.Map(piece[0], piece[1]); err == nil {
				_ = m.Close()
				t.Errorf("a mapping of %d bytes at %d of a file of 20000 is no error", piece[1], piece[0])
			}
		}
	})
}

// TestStoreBehindACutIsAnError: somebody else made the file shorter. What is
// behind it raises a signal, and that ends as an error.
func TestStoreBehindACutIsAnError(t *testing.T) {
	both(t, func(t *testing.T, f FS, dir string) {
		const size = 1 << 20 // more than a page of any system
		h, m := mapped(t, f, filepath.Join(dir, "f"), size, 0, size)
		must(t, m.Store([]byte("before"), size/2))
		must(t, h.Truncate(100))
		for range 3 {
			wantErr(t, m.Store([]byte("lost"), size/2), ErrFault)
		}
		must(t, m.Store([]byte("kept"), 0)) // the rest works on
		if got := contentOf(t, h); !strings.HasPrefix(got, "kept") || len(got) != 100 {
			t.Errorf("%d bytes, %.8q", len(got), got)
		}
	})
}

// TestMemFaultsWhereNothingWasWritten: the model has no disk space behind what
// was only made longer, as on a full disk.
func TestMemFaultsWhereNothingWasWritten(t *testing.T) {
	h := create(t, NewMem(), "f", "")
	must(t, h.Truncate(3*pageSize))
	_, err := h.WriteAt(make([]byte, pageSize), pageSize)
	must(t, err)
	m, err := h.Map(0, 3*pageSize)
	must(t, err)
	wantErr(t, m.Store([]byte("x"), 0), ErrFault)
	must(t, m.Store(make([]byte, pageSize), pageSize))
	wantErr(t, m.Store([]byte("0123456789"), 2*pageSize-5), ErrFault)
	if got := contentOf(t, h); got[2*pageSize-5:2*pageSize+5] != "01234\x00\x00\x00\x00\x00" {
		t.Errorf("a store that faulted in its middle left %q", got[2*pageSize-5:2*pageSize+5])
	}
}

// TestStoresAreLostLikeWrites: a power loss keeps or loses a store that no sync
// covers, and keeps one that a sync does.
func TestStoresAreLostLikeWrites(t *testing.T) {
	mem := NewMem()
	h := create(t, mem, "f", "")
	_, err := h.WriteAt(make([]byte, 10), 0)
	must(t, err)
	must(t, mem.SyncDir("."))
	m, err := h.Map(0, 10)
	must(t, err)
	must(t, m.Store([]byte("A"), 0))
	must(t, h.Sync())
	must(t, m.Store([]byte("B"), 1))
	from, seen := mem.Ops(), map[string]bool{}
	for img := range mem.Images(Crashes{From: from, Seed: 1}) {
		f, err := img.FS.Open("f", false)
		must(t, err)
		seen[contentOf(t, f)[:2]] = true
		must(t, f.Close())
	}
	if len(seen) != 2 || !seen["A\x00"] || !seen["AB"] {
		t.Errorf("a power loss leaves %v, want the first store always and the second one or not", seen)
	}
}
