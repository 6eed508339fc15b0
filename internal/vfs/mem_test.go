package vfs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// afterAll returns what a file may hold after a power loss at the end of the
// run; "-" when it may be gone.
func afterAll(t *testing.T, m *Mem, name string) []string {
	t.Helper()
	seen := map[string]bool{}
	for img := range m.Images(Crashes{From: m.Ops(), Seed: 1}) {
		h, err := img.FS.Open(name, false)
		if err != nil {
			seen["-"] = true
			continue
		}
		seen[contentOf(t, h)] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

func wantStates(t *testing.T, m *Mem, name string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := afterAll(t, m, name); !slices.Equal(got, want) {
		t.Fatalf("after power loss %s is one of %q, want %q", name, got, want)
	}
}

func TestUnsyncedWritesAreKeptLostAndReordered(t *testing.T) {
	m := NewMem()
	h := create(t, m, "f", "")
	must(t, m.SyncDir("/"))
	must(t, h.Sync())
	for i, s := range []string{"a", "b"} {
		_, err := h.WriteAt([]byte(s), int64(i))
		must(t, err)
	}
	wantStates(t, m, "f", "", "a", "ab", "\x00b")
	must(t, h.Sync())
	wantStates(t, m, "f", "ab")
}

func TestWritesAreTornAtSectors(t *testing.T) {
	m := NewMem()
	h := create(t, m, "f", strings.Repeat("-", 1024))
	must(t, h.Sync())
	must(t, m.SyncDir("/"))
	_, err := h.WriteAt([]byte(strings.Repeat("x", 600)), 400) // [400, 1000): sectors 0 and 1
	must(t, err)
	old, torn1, torn2, full := strings.Repeat("-", 1024), strings.Repeat("-", 400)+strings.Repeat("x", 112)+strings.Repeat("-", 512),
		strings.Repeat("-", 512)+strings.Repeat("x", 488)+strings.Repeat("-", 24), strings.Repeat("-", 400)+strings.Repeat("x", 600)+strings.Repeat("-", 24)
	wantStates(t, m, "f", old, torn1, torn2, full)
}

func TestEntriesNeedASyncOfTheirDirectory(t *testing.T) {
	m := NewMem()
	must(t, m.Mkdir("d"))
	h := create(t, m, "d/f.tmp", "x")
	must(t, h.Sync())
	must(t, m.Rename("d/f.tmp", "d/f"))
	wantStates(t, m, "d/f", "-", "x")
	must(t, m.SyncDir("d"))
	wantStates(t, m, "d/f", "-", "x") // d itself may be gone
	must(t, m.SyncDir("/"))
	wantStates(t, m, "d/f", "x")
	must(t, m.Remove("d/f"))
	wantStates(t, m, "d/f", "-", "x")
	must(t, m.SyncDir("d"))
	wantStates(t, m, "d/f", "-")
}

func TestFailedSyncLeavesWritesInDoubt(t *testing.T) {
	m := NewMem()
	h := create(t, m, "f", "..")
	must(t, h.Sync())
	must(t, m.SyncDir("/"))
	_, err := h.WriteAt([]byte("a"), 0)
	must(t, err)
	eio := errors.New("input/output error")
	m.SetFault(func(op Op) Fault {
		if op.Kind == OpSync {
			return Fault{Err: eio}
		}
		return Fault{}
	})
	wantErr(t, h.Sync(), eio)
	m.SetFault(nil)
	_, err = h.WriteAt([]byte("b"), 1)
	must(t, err)
	must(t, h.Sync()) // succeeds, and yet:
	wantStates(t, m, "f", ".b", "ab")
}

func TestFaultsFailTheOperationTheyAreGiven(t *testing.T) {
	m := NewMem()
	h := create(t, m, "f", "")
	boom := errors.New("boom")
	m.SetFault(func(op Op) Fault {
		switch op.N {
		case 2:
			return Fault{Err: boom, Keep: 3}
		case 4:
			return Fault{Err: boom}
		}
		return Fault{}
	})
	_, err := h.WriteAt([]byte("11"), 0)
	must(t, err)
	n, err := h.WriteAt([]byte("22222"), 2)
	if n != 3 {
		t.Fatalf("short write kept %d bytes, want 3", n)
	}
	wantErr(t, err, boom)
	_, err = m.Stat("f")
	must(t, err)
	wantErr(t, m.Remove("f"), boom)
	m.SetFault(nil)
	if got := contentOf(t, h); got != "11222" {
		t.Fatalf("content %q, want 11222", got)
	}
}

func TestSpaceRunsOutAndComesBack(t *testing.T) {
	m := NewMem()
	h := create(t, m, "f", "0123456789")
	m.SetSpace(15)
	wantErr(t, h.Allocate(100), ErrNoSpace)
	if n, _ := h.Size(); n != 15 {
		t.Fatalf("size %d after a failed allocation, want 15 as on ext4", n)
	}
	_, err := h.WriteAt([]byte("xx"), 3)
	must(t, err) // overwriting needs no room
	n, err := h.WriteAt([]byte("abc"), 14)
	wantErr(t, err, ErrNoSpace)
	if n != 1 {
		t.Fatalf("wrote %d bytes, want the 1 that fits", n)
	}
	must(t, h.Truncate(0))
	must(t, h.Allocate(15))
	if m.Used() != 15 {
		t.Fatalf("used %d, want 15", m.Used())
	}
}

func TestKillFreesLocksAndKeepsUnsyncedWritesInDoubt(t *testing.T) {
	m := NewMem()
	h := create(t, m, "f", "x")
	must(t, m.SyncDir("/"))
	l, err := m.Lock("LOCK", "old")
	must(t, err)
	m.Kill()
	if _, err := h.WriteAt([]byte("y"), 0); err == nil {
		t.Fatal("a handle outlived the process")
	}
	l2, err := m.Lock("LOCK", "new")
	must(t, err)
	must(t, l.Close())
	_, err = m.Lock("LOCK", "third")
	wantErr(t, err, ErrHeld) // the old holder's Close does not free the new lock
	must(t, l2.Close())
	wantStates(t, m, "f", "", "x") // the page cache survived, the power loss decides
}

func TestImagesGoOnFromWhatTheyHold(t *testing.T) {
	m := NewMem()
	h := create(t, m, "f", "")
	must(t, m.SyncDir("/"))
	for i := range 9 {
		_, err := h.WriteAt([]byte(fmt.Sprint(i)), int64(i))
		must(t, err)
	}
	images, both := 0, 0
	for img := range m.Images(Crashes{Seed: 3}) {
		images++
		g, err := img.FS.Open("f", true)
		if err != nil {
			continue
		}
		before := contentOf(t, g)
		_, err = g.WriteAt([]byte("!"), 0)
		must(t, err)
		if states := afterAll(t, img.FS, "f"); len(states) != 2 || !slices.Contains(states, before) {
			t.Fatalf("second power loss after %q gives %q", before, states)
		}
		both++
	}
	if images < 500 || both < 500 {
		t.Fatalf("%d images, %d with the file: too few to mean anything", images, both)
	}
	if h2, _ := m.Open("f", false); contentOf(t, h2) != "012345678" {
		t.Fatal("building images changed the file system")
	}
}
