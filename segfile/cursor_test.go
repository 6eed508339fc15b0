package segfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

func TestCursorKeepsProgressAndNeverGoesBack(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		l := openLog(t, c)
		mustAppend(t, l.Partition(0), "a", "b", "c", "d", "e")
		cs, err := l.Cursors("g", StartEarliest)
		must(t, err)
		cur := cs[0]
		must(t, cur.Store(2, []uint64{0b100, 0, 0}, true))
		must(t, cur.Store(1, nil, true)) // late: changes nothing
		if cur.Committed() != 2 || !slices.Equal(cur.Completed(), []uint64{0b100}) {
			t.Fatalf("at %d with %b, want 2 with 100", cur.Committed(), cur.Completed())
		}
		wantErr(t, cur.Store(6, nil, true), penstock.ErrOffsetOutOfRange)
		wantErr(t, cur.Store(2, slices.Repeat([]uint64{1}, CompletedMax/64+1), true), penstock.ErrInvalid)
		must(t, cur.Store(2, slices.Repeat([]uint64{3}, CompletedMax/64), false))
		must(t, cur.Store(3, []uint64{0b10}, false))
		must(t, l.Close())
		wantErr(t, cur.Store(4, nil, true), penstock.ErrClosed)
		l = openLog(t, c)
		if g := l.Partition(0).Groups(); len(g) != 1 || g[0] != (GroupInfo{Name: "g", Committed: 3}) {
			t.Fatalf("groups %v before any is opened, want g at 3", g)
		}
		cs, err = l.Cursors("g", StartLatest)
		must(t, err)
		if cs[0].Committed() != 3 || !slices.Equal(cs[0].Completed(), []uint64{0b10}) {
			t.Fatalf("reopened at %d with %b, want 3 with 10", cs[0].Committed(), cs[0].Completed())
		}
		late, err := l.Cursors("late", StartLatest)
		must(t, err)
		if late[0].Committed() != 5 {
			t.Fatalf("a group that starts at the latest stands at %d, want 5", late[0].Committed())
		}
		must(t, l.DeleteGroup("g"))
		wantErr(t, l.DeleteGroup("g"), penstock.ErrNotFound)
		if got := l.Groups(); !slices.Equal(got, []string{"late"}) {
			t.Fatalf("groups %v after a deletion, want late", got)
		}
	})
}

func TestGroupIsMadeInAllPartitionsOrNone_QC53(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.Partitions = 3
	l := openLog(t, c)
	blocker := "data/orders/p00001/groups/g.slot"
	must(t, m.Mkdir(blocker))
	_, err := l.Cursors("g", StartEarliest)
	if err == nil {
		t.Fatal("a position was made over a directory")
	}
	for i := range 3 {
		names, err := m.List(fmt.Sprintf("data/orders/p%05d/groups", i))
		must(t, err)
		if want := i == 1; want != (len(names) > 0) {
			t.Fatalf("partition %d holds %v after the failure", i, names)
		}
	}
	must(t, m.Remove(blocker))
	cs, err := l.Cursors("g", StartEarliest)
	must(t, err)
	if len(cs) != 3 || cs[2].Partition() != 2 || cs[2].Group() != "g" {
		t.Fatalf("%d positions", len(cs))
	}
}

func TestConcurrentStoresShareWrites(t *testing.T) {
	m := vfs.NewMem()
	l := openLog(t, small(m, "data"))
	p := l.Partition(0)
	for range 64 {
		mustAppend(t, p, "x")
	}
	cs, err := l.Cursors("g", StartEarliest)
	must(t, err)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() { // ends with its store
			if err := cs[0].Store(penstock.Offset(i+1), nil, i%2 == 0); err != nil {
				t.Error(err)
			}
			if got := cs[0].Committed(); got < penstock.Offset(i+1) {
				t.Errorf("committed %d after a store of %d", got, i+1)
			}
		})
	}
	all.Wait()
	if cs[0].Committed() != 64 {
		t.Fatalf("committed %d, want 64", cs[0].Committed())
	}
}

// TestStoresBehindARunningOneAreOneWrite_BQ129: who comes while a position is
// written waits for one more write of all; no file is made, renamed or listed.
func TestStoresBehindARunningOneAreOneWrite_BQ129(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		l := openLog(t, small(m, "data"))
		p := l.Partition(0)
		for range 65 {
			mustAppend(t, p, "x")
		}
		cs, err := l.Cursors("g", StartEarliest)
		must(t, err)
		must(t, cs[0].Store(1, nil, true)) // the first one of a session may write what it found
		synctest.Wait()
		ops := map[vfs.Kind]int{}
		release := make(chan struct{})
		var mu sync.Mutex
		m.SetFault(func(op vfs.Op) vfs.Fault {
			mu.Lock()
			ops[op.Kind]++
			first := op.Kind == vfs.OpWrite && ops[vfs.OpWrite] == 1
			mu.Unlock()
			if first {
				<-release
			}
			return vfs.Fault{}
		})
		var all sync.WaitGroup
		store := func(to penstock.Offset) {
			all.Go(func() { // ends with its store
				if err := cs[0].Store(to, nil, true); err != nil {
					t.Error(err)
				}
			})
		}
		store(2)
		synctest.Wait() // its write is held up
		for i := range 62 {
			store(penstock.Offset(3 + i))
			synctest.Wait() // each is a change of its own
		}
		close(release)
		all.Wait()
		m.SetFault(nil)
		if ops[vfs.OpWrite] != 2 || ops[vfs.OpSync] != 2 {
			t.Errorf("%d writes and %d syncs for 63 stores, want two of each", ops[vfs.OpWrite], ops[vfs.OpSync])
		}
		for _, kind := range []vfs.Kind{vfs.OpCreate, vfs.OpRename, vfs.OpOpen, vfs.OpList, vfs.OpSyncDir, vfs.OpRead} {
			if ops[kind] > 0 {
				t.Errorf("%d operations %s for stores", ops[kind], kind)
			}
		}
		if cs[0].Committed() != 64 {
			t.Errorf("committed %d, want 64", cs[0].Committed())
		}
		must(t, l.Close())
	})
}

func TestFailedCommitMovesNothingAndSticks(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	l := openLog(t, c)
	mustAppend(t, l.Partition(0), "a", "b", "c")
	cs, err := l.Cursors("g", StartEarliest)
	must(t, err)
	must(t, cs[0].Store(1, nil, true))
	eio := errors.New("input/output error")
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpSync && strings.HasSuffix(op.Name, ".slot.tmp") {
			return vfs.Fault{Err: eio}
		}
		return vfs.Fault{}
	})
	wantErr(t, cs[0].Store(2, nil, true), penstock.ErrUnknownOutcome)
	m.SetFault(nil)
	wantErr(t, cs[0].Store(3, nil, true), eio)
	if cs[0].Committed() != 1 {
		t.Fatalf("committed %d after a failed commit, want 1", cs[0].Committed())
	}
	mustAppend(t, l.Partition(0), "others go on")
}

// TestPositionsInTheWrongPlace_FM19 is the table of reliability FM-19.
func TestPositionsInTheWrongPlace_FM19(t *testing.T) {
	const slot = "data/orders/p00000/groups/billing%2F%45%55.slot"
	store := func(level penstock.Durability, at penstock.Offset, bits ...uint64) func(t *testing.T, m *vfs.Mem) {
		return func(t *testing.T, m *vfs.Mem) {
			b := snapshot(t, m, slot)
			o := owner{topic: uuid(b[16:32])}
			s := stored{group: penstock.HashKey("billing/EU"), committed: at, synced: level == penstock.Synced, completed: bits}
			overwrite(t, m, slot, encodeSlot(cursorMark, 1000, o, s.encode()), 0)
		}
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, m *vfs.Mem)
		at    penstock.Offset
		err   error
	}{
		"behind":           {store(penstock.Synced, 2), 2, nil},
		"ahead, synced":    {store(penstock.Synced, 500), 0, penstock.ErrCorrupt},
		"ahead, written":   {store(penstock.Written, 500, 1), 16, nil}, // nats-server 6600
		"garbage":          {func(t *testing.T, m *vfs.Mem) { overwrite(t, m, slot, []byte(strings.Repeat("?", 8192)), 0) }, 0, penstock.ErrCorrupt},
		"empty":            {func(t *testing.T, m *vfs.Mem) { f, err := m.Open(slot, true); must(t, err); must(t, f.Truncate(0)) }, 0, penstock.ErrCorrupt},
		"missing":          {func(t *testing.T, m *vfs.Mem) { must(t, m.Remove(slot)) }, 0, nil},
		"of another group": {func(t *testing.T, m *vfs.Mem) { overwriteGroup(t, m, slot) }, 0, penstock.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			m := copyTree(t, golden)
			c.spoil(t, m)
			l := openLog(t, goldenConfig(m, "data"))
			var clamped []string // BQ-105: an open says which positions it set back
			if name == "ahead, written" {
				clamped = []string{"billing/EU"}
			}
			if got := l.Recovery()[0].Clamped; !slices.Equal(got, clamped) {
				t.Errorf("set back %q, want %q", got, clamped)
			}
			mustAppend(t, l.Partition(0), "new") // offset 16 is used again, for another event
			cs, err := l.Cursors("billing/EU", StartEarliest)
			if c.err != nil {
				wantErr(t, err, c.err)
				if _, err := l.Cursors("another", StartEarliest); err != nil {
					t.Fatalf("another group suffers: %v", err)
				}
				return
			}
			must(t, err)
			if cs[0].Committed() != c.at || name == "ahead, written" && cs[0].Completed() != nil {
				t.Fatalf("group at %d with %b, want %d", cs[0].Committed(), cs[0].Completed(), c.at)
			}
		})
	}
}

func overwriteGroup(t *testing.T, m *vfs.Mem, slot string) {
	t.Helper()
	b := snapshot(t, m, slot)
	s := stored{group: penstock.HashKey("someone else"), committed: 3}
	overwrite(t, m, slot, encodeSlot(cursorMark, 1000, owner{topic: uuid(b[16:32])}, s.encode()), 0)
}

func TestCompletionsBehindTheEndAreDropped(t *testing.T) {
	all := []uint64{^uint64(0), ^uint64(0), ^uint64(0)}
	for _, c := range []struct {
		committed, end penstock.Offset
		want           []uint64
	}{
		{10, 10, nil},
		{10, 5, nil},
		{10, 11, []uint64{1}},
		{10, 74, []uint64{^uint64(0)}},
		{10, 75, []uint64{^uint64(0), 1}},
		{10, 1000, all},
	} {
		if got := trimWords(completedBelow(all, c.committed, c.end)); !slices.Equal(got, c.want) {
			t.Errorf("committed %d, end %d: %x, want %x", c.committed, c.end, got, c.want)
		}
	}
}

func TestTrimDeletesWholeSealedSegments(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		c.SegmentEvents = 2
		l := openLog(t, c)
		p := l.Partition(0)
		for i := range 7 {
			mustAppend(t, p, fmt.Sprint(i))
		}
		r, err := p.NewReader(0)
		must(t, err)
		defer r.Close()
		must(t, p.Trim(3))
		if p.Earliest() != 2 || p.Stats().Segments != 3 {
			t.Fatalf("earliest %d, %d segments after a trim below 3, want 2 and 3", p.Earliest(), p.Stats().Segments)
		}
		_, err = r.Next(1)
		wantErr(t, err, penstock.ErrOffsetOutOfRange)
		wantRecords(t, p, 2, "2", "3", "4", "5", "6")
		must(t, p.Trim(100))
		wantRecords(t, p, 6, "6")
		mustAppend(t, p, "7") // fills the segment: sealed
		must(t, p.Trim(8))
		if p.Earliest() != 8 || p.Stats().Segments != 0 {
			t.Fatalf("earliest %d, %d segments, want none", p.Earliest(), p.Stats().Segments)
		}
		must(t, l.Close())
		l = openLog(t, c)
		p = l.Partition(0)
		if o := mustAppend(t, p, "8"); o != 8 {
			t.Fatalf("appended at %d after everything was trimmed, want 8", o)
		}
		wantRecords(t, p, 8, "8")
	})
}

func TestFileThatCannotBeRemovedIsTriedAgain_BQ125(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.SegmentEvents = 2
	l := openLog(t, c)
	p := l.Partition(0)
	for i := range 5 {
		mustAppend(t, p, fmt.Sprint(i))
	}
	busy := errors.New("text file busy")
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpRemove {
			return vfs.Fault{Err: busy}
		}
		return vfs.Fault{}
	})
	wantErr(t, p.Trim(4), busy)
	if p.Earliest() != 4 {
		t.Fatalf("earliest %d, want 4: the trim is valid", p.Earliest())
	}
	m.SetFault(nil)
	must(t, p.Trim(0))
	names, err := m.List("data/orders/p00000")
	must(t, err)
	names = slices.DeleteFunc(names, func(n string) bool { return n == spareName }) // it comes in the background
	if !slices.Equal(names, []string{segmentName(4), groupsDir, stateName}) {
		t.Fatalf("files %v, want one segment", names)
	}
}

// TestOpenRemovesWhatATrimLeftBelowTheStart_BQ124: wherever the power failed in a
// trim, the next open leaves files of the log alone, and nothing else.
func TestOpenRemovesWhatATrimLeftBelowTheStart_BQ124(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.SegmentEvents = 2
	l := openLog(t, c)
	p := l.Partition(0)
	for i := range 9 {
		mustAppend(t, p, fmt.Sprint(i))
	}
	must(t, p.Trim(2))
	from := m.Ops()
	must(t, p.Trim(8))
	m.Kill()
	_ = l.Close() // of a dead process
	images, below := 0, 0
	for img := range m.Images(vfs.Crashes{From: from, Seed: 24}) {
		images++
		c.FS = img.FS
		files := func() (all []string) {
			names, err := img.FS.List("data/orders/p00000")
			must(t, err)
			return slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, segmentExt) })
		}
		before := files()
		l := openLog(t, c)
		p := l.Partition(0)
		must(t, p.Fault())
		if got := files(); len(got) != len(l.parts[0].segs) || got[0] != segmentName(p.Earliest()) {
			t.Fatalf("%s: the log begins at %d, with the files %q, of %q before", img.Desc, p.Earliest(), got, before)
		} else if len(got) < len(before) {
			below++
		}
		must(t, l.Close())
	}
	if images < 10 || below < 3 {
		t.Fatalf("%d images, %d of them with files below the start: too few to mean anything", images, below)
	}
}

func TestCallsAfterCloseAreRefused(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		c.SegmentEvents = 1
		l := openLog(t, c)
		p := l.Partition(0)
		mustAppend(t, p, "a")
		mustAppend(t, p, "b")
		cs, err := l.Cursors("g", StartEarliest)
		must(t, err)
		r, err := p.NewReader(0)
		must(t, err)
		defer r.Close()
		must(t, l.Close())
		_, err = tryAppend(p, "late")
		wantErr(t, err, penstock.ErrClosed)
		wantErr(t, p.Trim(2), penstock.ErrClosed)
		wantErr(t, cs[0].Store(1, nil, true), penstock.ErrClosed)
		wantErr(t, l.DeleteGroup("g"), penstock.ErrClosed)
		_, err = l.Cursors("other", StartEarliest)
		wantErr(t, err, penstock.ErrClosed)
		_, err = r.Next(1)
		wantErr(t, err, penstock.ErrClosed)
		if f := p.Fault(); f != nil {
			t.Fatalf("the partition has a fault after calls that were too late: %v", f)
		}
		must(t, l.Close())
		must(t, openLog(t, c).Close())
	})
}

// A reader that nobody closed keeps no file open once the log is closed: the
// file system can be unmounted, and Windows can delete the directory.
func TestCloseClosesTheFilesOfReaders(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		c.SegmentEvents = 2
		l := openLog(t, c)
		p := l.Partition(0)
		for _, s := range []string{"a", "b", "c", "d", "e"} {
			mustAppend(t, p, s)
		}
		var readers []*Reader
		for i := range 5 { // in a segment to be trimmed, in a sealed one, in the active one
			r, err := p.NewReader(penstock.Offset(i))
			must(t, err)
			if rec, err := r.Next(1); err != nil || rec.N != 1 {
				t.Fatalf("%d records, %v", rec.N, err)
			}
			readers = append(readers, r)
		}
		must(t, p.Trim(2))
		must(t, l.Close())
		for i, r := range readers {
			if r.seg == nil || r.seg.file != nil {
				t.Errorf("reader %d: segment %+v, want one that is not open", i, r.seg)
			}
			rec, err := r.Next(1)
			for range 5 { // what it has read it may give out
				if err == nil && rec.N > 0 {
					rec, err = r.Next(1)
				}
			}
			if !errors.Is(err, penstock.ErrClosed) && !errors.Is(err, penstock.ErrOffsetOutOfRange) {
				t.Errorf("reader %d: %v", i, err)
			}
			must(t, r.Close())
		}
	})
}

// handles counts the open files of a file system by their suffix.
type handles struct {
	vfs.FS
	suffix string
	open   atomic.Int64
}

type handle struct {
	vfs.File
	of *handles
}

func (h *handles) counted(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, h.suffix) {
		return f, err
	}
	h.open.Add(1)
	return &handle{f, h}, nil
}

func (h *handles) Open(name string, write bool) (vfs.File, error) {
	f, err := h.FS.Open(name, write)
	return h.counted(name, f, err)
}

func (h *handle) Close() error {
	h.of.open.Add(-1)
	return h.File.Close()
}

// TestReaderHoldsOneFile_BQ130: wherever it is in the log, and none that was
// deleted meanwhile; those in one segment share its file.
func TestReaderHoldsOneFile_BQ130(t *testing.T) {
	fsys := &handles{FS: vfs.NewMem(), suffix: segmentExt}
	c := small(fsys, "data")
	c.SegmentEvents = 2
	l := openLog(t, c)
	for i := range 40 {
		mustAppend(t, l.Partition(0), fmt.Sprint(i))
	}
	must(t, l.Close())
	l = openLog(t, c)
	p := l.Partition(0)
	own := fsys.open.Load()
	holds := func(what string, want int64) {
		t.Helper()
		if n := fsys.open.Load() - own; n != want {
			t.Fatalf("%s: %d files of segments are open, want %d", what, n, want)
		}
	}
	var readers []*Reader
	for range 3 {
		r, err := p.NewReader(0)
		must(t, err)
		readers = append(readers, r)
	}
	for i := range 36 {
		for _, r := range readers {
			if rec, err := r.Next(1); err != nil || rec.N != 1 || rec.First != penstock.Offset(i) {
				t.Fatalf("%d records at %d, %v", rec.N, rec.First, err)
			}
		}
		holds(fmt.Sprintf("three readers at %d", i), 1)
	}
	must(t, readers[0].Seek(3))
	_, err := readers[0].Next(1)
	must(t, err)
	holds("one of them elsewhere", 2)
	must(t, p.Trim(20))
	_, err = readers[0].Next(1)
	wantErr(t, err, penstock.ErrOffsetOutOfRange)
	holds("after its segment was deleted", 1)
	for _, r := range readers {
		must(t, r.Close())
	}
	holds("after their end", 0)
}

// A seek may go back; who stores in the era before it changes nothing.
func TestCommitOfAnEarlierEraChangesNothing(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		l := openLog(t, c)
		mustAppend(t, l.Partition(0), "a", "b", "c", "d", "e")
		cs, err := l.Cursors("g", StartEarliest)
		must(t, err)
		cur := cs[0]
		before := cur.Era()
		must(t, cur.StoreIn(before, 4, []uint64{1}, true))
		era, err := cur.Seek(2, true)
		must(t, err)
		must(t, cur.StoreIn(before, 5, nil, true)) // late
		if cur.Committed() != 2 || len(cur.Completed()) > 0 {
			t.Fatalf("at %d with %b after a late commit, want 2 alone", cur.Committed(), cur.Completed())
		}
		must(t, cur.StoreIn(era, 3, nil, true))
		_, err = cur.Seek(6, true)
		wantErr(t, err, penstock.ErrOffsetOutOfRange)
		_, err = cur.Seek(1, true)
		must(t, err)
		must(t, l.Close())
		_, err = cur.Seek(2, true)
		wantErr(t, err, penstock.ErrClosed)
		l = openLog(t, c)
		if g := l.Partition(0).Groups(); len(g) != 1 || g[0] != (GroupInfo{Name: "g", Committed: 1}) {
			t.Fatalf("groups %v after reopen, want g at 1", g)
		}
	})
}
