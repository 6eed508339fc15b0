package vfs

import (
	"fmt"
	"path/filepath"
	"testing"
)

// dataOf returns the ranges of a file that may hold data.
func dataOf(t *testing.T, h File) (ranges [][2]int64) {
	t.Helper()
	for at := int64(0); ; {
		from, to, err := h.Data(at)
		must(t, err)
		size, err := h.Size()
		must(t, err)
		switch {
		case from == size && to == size:
			return ranges
		case from < at || to <= from || to > size:
			t.Fatalf("Data(%d) = [%d, %d) of a file of %d bytes", at, from, to, size)
		}
		ranges = append(ranges, [2]int64{from, to})
		at = to
	}
}

// in reports whether a position lies in one of the ranges.
func in(ranges [][2]int64, pos int64) bool {
	for _, r := range ranges {
		if pos >= r[0] && pos < r[1] {
			return true
		}
	}
	return false
}

// TestDataHidesNothingThatWasSynced: whatever was written, in any way, lies in a
// range that Data returns once it was synced.
func TestDataHidesNothingThatWasSynced(t *testing.T) {
	const size = 4 << 20
	both(t, func(t *testing.T, f FS, dir string) {
		for name, prepare := range map[string]func(File) error{
			"allocated": func(h File) error { return h.Allocate(size) },
			"sparse":    func(h File) error { return h.Truncate(size) },
			"read": func(h File) error {
				err := h.Allocate(size)
				if err == nil { // the zeros are in the page cache
					_, err = h.ReadAt(make([]byte, size), 0)
				}
				return err
			},
		} {
			t.Run(name, func(t *testing.T) {
				h := create(t, f, filepath.Join(dir, name), "")
				must(t, prepare(h))
				if got := dataOf(t, h); name != "read" && in(got, 2<<20) && (f != FS(OS()) || tells(t, f, dir)) {
					t.Errorf("ranges %v of a file that nothing was written to", got)
				}
				wrote := []int64{0, 5000, 1 << 20, 1<<20 + 12288, 3<<20 - 1, size - 1}
				for i, at := range wrote {
					_, err := h.WriteAt([]byte{byte(i + 1)}, at)
					must(t, err)
				}
				must(t, h.Sync())
				got := dataOf(t, h)
				for _, at := range wrote {
					if !in(got, at) {
						t.Errorf("the byte at %d lies in none of %v", at, got)
					}
				}
				from, to, err := h.Data(5001) // in the middle of a page
				if err != nil || from != 5001 || to <= from {
					t.Errorf("Data(5001) = [%d, %d), %v", from, to, err)
				}
				for _, off := range []int64{size, size + 1} {
					if from, to, err := h.Data(off); err != nil || from != size || to != size {
						t.Errorf("Data(%d) = [%d, %d), %v, want the size twice", off, from, to, err)
					}
				}
			})
		}
	})
}

// tells reports whether a directory is on a file system that is asked.
func tells(t *testing.T, f FS, dir string) bool {
	name, err := f.Type(dir)
	must(t, err)
	t.Logf("the file system is %q", name)
	return name != ""
}

// TestDataAfterStoresThroughAMapping: a store is data like a write.
func TestDataAfterStoresThroughAMapping(t *testing.T) {
	both(t, func(t *testing.T, f FS, dir string) {
		if name, err := f.Type(dir); err != nil || name == "" {
			t.Logf("no mappings here (%q, %v)", name, err)
			return
		}
		h := create(t, f, filepath.Join(dir, "a"), "")
		must(t, h.Allocate(1<<20))
		_, err := h.WriteAt(make([]byte, 64<<10), 256<<10)
		must(t, err)
		m, err := h.Map(256<<10, 64<<10)
		must(t, err)
		must(t, m.Store([]byte("stored"), 300<<10))
		must(t, m.Close())
		must(t, h.Sync())
		if got := dataOf(t, h); !in(got, 300<<10) {
			t.Errorf("what was stored lies in none of %v", got)
		}
	})
}

// TestMemKnowsNothingOfUnsyncedData: the file system in memory promises no more
// than it must, so that a test finds who relies on more.
func TestMemKnowsNothingOfUnsyncedData(t *testing.T) {
	m := NewMem()
	h := create(t, m, "a", "")
	must(t, h.Allocate(4*pageSize))
	want := func(when, ranges string) {
		t.Helper()
		if got := fmt.Sprint(dataOf(t, h)); got != ranges {
			t.Errorf("%s: %s, want %s", when, got, ranges)
		}
	}
	_, err := h.WriteAt([]byte("x"), pageSize)
	must(t, err)
	want("written", "[]")
	must(t, h.Sync())
	want("synced", "[[4096 8192]]")
	_, err = h.WriteAt([]byte("y"), pageSize+1)
	must(t, err)
	_, err = h.WriteAt([]byte("z"), 3*pageSize)
	must(t, err)
	want("written again", "[[4096 8192]]")
	must(t, h.Sync())
	want("synced again", "[[4096 8192] [12288 16384]]")
	must(t, h.Truncate(0))
	must(t, h.Allocate(4*pageSize))
	_, err = h.WriteAt([]byte("x"), pageSize)
	must(t, err)
	want("cut and written", "[]")
	if got := fmt.Sprint(dataOf(t, create(t, m.Clone(), "b", "text"))); got != "[]" {
		t.Errorf("a new file: %s", got)
	}
}
