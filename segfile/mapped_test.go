package segfile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// canMap ends a test where there is nothing to map.
func canMap(t *testing.T, dir string) {
	t.Helper()
	if name, err := vfs.OS().Type(dir); err != nil || !slices.Contains(keepers, name) {
		t.Skipf("NOT TESTED: stores through a mapping: %s is on no ext4, xfs or tmpfs of Linux (%q, %v)", dir, name, err)
	}
}

// otherType is a file system of another name.
type otherType struct {
	vfs.FS
	name string
}

func (o otherType) Type(string) (string, error) { return o.name, nil }

func TestWritePathIsChosenByTheNameOfTheFileSystem(t *testing.T) {
	for _, tt := range []struct {
		fs    string
		level penstock.Durability
		path  WritePath
		off   string
		want  string // "" is a refused open
	}{
		{"ext4", penstock.Written, WriteAuto, "", "mapping"},
		{"xfs", penstock.Written, WriteAuto, "", "mapping"},
		{"tmpfs", penstock.Written, WriteAuto, "", "mapping"},
		{"ext4", penstock.Written, WriteMapping, "", "mapping"},
		{"ext4", penstock.Written, WritePwrite, "", "pwrite"},
		{"ext4", penstock.Written, WriteAuto, "off", "pwrite"},
		{"ext4", penstock.Written, WriteMapping, "off", "pwrite"},
		{"ext4", penstock.Written, WriteAuto, "on", "mapping"},
		{"ext4", penstock.Synced, WriteAuto, "", "pwrite"},
		{"ext4", penstock.Synced, WritePwrite, "", "pwrite"},
		{"", penstock.Written, WriteAuto, "", "pwrite"},
		{"btrfs", penstock.Written, WriteAuto, "", "pwrite"},
		{"", penstock.Written, WriteMapping, "", ""},
		{"btrfs", penstock.Written, WriteMapping, "", ""},
	} {
		t.Run(fmt.Sprintf("%q %v %v %q", tt.fs, tt.level, tt.path, tt.off), func(t *testing.T) {
			t.Setenv(mmapSwitch, tt.off)
			c := small(otherType{vfs.NewMem(), tt.fs}, "data")
			c.Durability, c.WritePath = tt.level, tt.path
			l, err := Open(c)
			if tt.want == "" {
				wantErr(t, err, penstock.ErrUnsupported)
				return
			}
			must(t, err)
			defer l.Close()
			mustAppend(t, l.Partition(0), "one")
			if got := l.Partition(0).Stats().WritePath; got != tt.want {
				t.Errorf("the write path is %q, want %q", got, tt.want)
			}
		})
	}
	for _, c := range []Config{{WritePath: WriteMapping}, {WritePath: WriteMapping + 1, Durability: penstock.Written}} {
		c.Dir, c.Topic, c.FS = "data", "orders", vfs.NewMem()
		var field *penstock.FieldError
		if _, err := Open(c); !errors.As(err, &field) || field.Field != "WritePath" {
			t.Errorf("%v at level %v: %v, want a FieldError of WritePath", c.WritePath, c.Durability, err)
		}
	}
}

// countStores counts the stores and the writes of frames.
func countStores(m *vfs.Mem) (stores, writes *atomic.Int64) {
	stores, writes = new(atomic.Int64), new(atomic.Int64)
	m.SetFault(func(op vfs.Op) vfs.Fault {
		switch {
		case op.Kind == vfs.OpStore:
			stores.Add(1)
		case op.Kind == vfs.OpWrite && strings.HasSuffix(op.Name, segmentExt) || op.Kind == vfs.OpWrite && strings.HasSuffix(op.Name, spareName):
			writes.Add(1)
		}
		return vfs.Fault{}
	})
	return stores, writes
}

// TestAutoStoresOnlySmallFramesInARow: a large frame and a lone small one are
// written.
func TestAutoStoresOnlySmallFramesInARow(t *testing.T) {
	m := vfs.NewMem()
	stores, _ := countStores(m)
	c := small(otherType{m, "ext4"}, "data")
	c.Durability, c.SegmentBytes = penstock.Written, penstock.MiB
	l := openLog(t, c)
	p := l.Partition(0)
	step := func(what string, record string, n int, want int64) {
		t.Helper()
		before := stores.Load()
		for range n {
			mustAppend(t, p, record)
		}
		if got := stores.Load() - before; got != want {
			t.Errorf("%s: %d stores, want %d", what, got, want)
		}
	}
	big := strings.Repeat("b", pieceBytes)
	step("a first small run", "s", smallRun+5, 5)
	step("one that is written where the piece lies", big[:storeMost], 1, 0)
	step("and goes on there", "s", 3, 3)
	step("one that goes beyond the piece", big, 1, 0)
	step("which begins a new run", "s", smallRun, 0)
	step("that is stored at last", strings.Repeat("s", 7000), 50, 50) // more than a piece
	if got := p.Stats().WritePath; got != "mapping" {
		t.Errorf("the write path is %q", got)
	}
}

// TestBothPathsWriteTheSameBytes: a topic can be opened with either.
func TestBothPathsWriteTheSameBytes(t *testing.T) {
	var logs [2]map[string][]byte
	for i, path := range []WritePath{WritePwrite, WriteMapping} {
		m := vfs.NewMem()
		stores, _ := countStores(m)
		c := small(m, "data")
		c.Durability, c.WritePath = penstock.Written, path
		l, err := open(c, fixed(3))
		must(t, err)
		rnd := rand.New(rand.NewPCG(5, 6))
		for n := range 60 {
			mustAppend(t, l.Partition(0), fmt.Sprint(n), strings.Repeat("r", rnd.IntN(900)))
		}
		must(t, l.Close())
		if got := stores.Load(); (got > 0) != (path == WriteMapping) {
			t.Errorf("%v: %d stores", path, got)
		}
		m.SetFault(nil)
		logs[i] = segmentsOf(t, m)
	}
	if len(logs[0]) < 3 || len(logs[0]) != len(logs[1]) {
		t.Fatalf("%d and %d segments", len(logs[0]), len(logs[1]))
	}
	for name, b := range logs[0] {
		if !bytes.Equal(b, logs[1][name]) {
			t.Errorf("%s differs", name)
		}
	}
}

// segmentsOf returns the contents of the segments of the partition.
func segmentsOf(t *testing.T, m *vfs.Mem) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	names, err := m.List("data/orders/p00000")
	must(t, err)
	for _, name := range names {
		if !strings.HasSuffix(name, segmentExt) {
			continue
		}
		f, err := m.Open("data/orders/p00000/"+name, false)
		must(t, err)
		size, err := f.Size()
		must(t, err)
		b := make([]byte, size)
		_, err = f.ReadAt(b, 0)
		must(t, err)
		must(t, f.Close())
		out[name] = b
	}
	return out
}

// TestFailedStoreStopsThePartition: what was acknowledged stays, what was being
// stored is in doubt, and nothing is appended behind it.
func TestFailedStoreStopsThePartition(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.Durability, c.WritePath = penstock.Written, WriteMapping
	l := openLog(t, c)
	p := l.Partition(0)
	mustAppend(t, p, "safe")
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpStore {
			return vfs.Fault{Err: vfs.ErrFault, Keep: 30}
		}
		return vfs.Fault{}
	})
	_, err := tryAppend(p, "in doubt")
	wantErr(t, err, penstock.ErrUnknownOutcome)
	wantErr(t, err, vfs.ErrFault)
	_, err = tryAppend(p, "refused")
	wantErr(t, err, vfs.ErrFault)
	wantErr(t, p.Fault(), vfs.ErrFault)
	wantRecords(t, p, 0, "safe")
	_ = l.Close() // says the same
	m.SetFault(nil)
	l = openLog(t, c)
	wantRecords(t, l.Partition(0), 0, "safe")
	mustAppend(t, l.Partition(0), "on it goes")
}

// TestNoMappingFallsBackToPwrite: a system that maps nothing loses nothing.
func TestNoMappingFallsBackToPwrite(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.Durability, c.WritePath = penstock.Written, WriteMapping
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpMap {
			return vfs.Fault{Err: errors.ErrUnsupported}
		}
		return vfs.Fault{}
	})
	l := openLog(t, c)
	p := l.Partition(0)
	var want []string
	for n := range 30 {
		want = append(want, fmt.Sprint(n, strings.Repeat("w", 500)))
		mustAppend(t, p, want[n])
	}
	wantRecords(t, p, 0, want...)
	if got := p.Stats().WritePath; got != "pwrite" {
		t.Errorf("the write path is %q", got)
	}
}

// TestFileCutWhileItIsMapped: somebody shortens the active segment. The process
// goes on, nothing more is acknowledged, and a reader is told of the damage.
func TestFileCutWhileItIsMapped(t *testing.T) {
	for _, size := range []int64{0, 100, headerSize, headerSize + 300, 8 * headerSize} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			dir := t.TempDir()
			canMap(t, dir)
			c := small(nil, dir)
			c.Durability, c.WritePath, c.SegmentBytes = penstock.Written, WriteMapping, penstock.MiB
			l := openLog(t, c)
			p := l.Partition(0)
			for n := range 20 * headerSize / 512 {
				mustAppend(t, p, fmt.Sprintf("%03d%s", n, strings.Repeat("c", 400)))
			}
			must(t, os.Truncate(filepath.Join(dir, "orders", "p00000", segmentName(0)), size))
			var err error
			for n := 0; err == nil && n < 200_000; n++ { // through the page of the cut at most, when a sync is slow
				_, err = tryAppend(p, "lost")
			}
			wantErr(t, err, penstock.ErrUnknownOutcome)
			if err := p.Fault(); err == nil {
				t.Error("the partition takes appends")
			}
			if got, err := readAll(p, 0); err == nil {
				t.Errorf("%d records were read of a file of %d bytes, and no error", len(got), size)
			}
		})
	}
}

// TestCutInThePageOfTheEndIsNoticedBySync: a store into that page succeeds.
func TestCutInThePageOfTheEndIsNoticedBySync(t *testing.T) {
	dir := t.TempDir()
	canMap(t, dir)
	c := small(nil, dir)
	c.Durability, c.WritePath, c.SyncEvery.Interval = penstock.Written, WriteMapping, 1<<40
	l := openLog(t, c)
	p := l.Partition(0)
	mustAppend(t, p, "before")
	must(t, os.Truncate(filepath.Join(dir, "orders", "p00000", segmentName(0)), headerSize+100))
	mustAppend(t, p, "nobody can know yet")
	wantErr(t, p.Sync(), errCut)
	wantErr(t, p.Fault(), penstock.ErrUnknownOutcome)
	_, err := tryAppend(p, "refused")
	wantErr(t, err, errCut)
}
