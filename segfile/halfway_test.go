package segfile

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// What an operation that failed half-way leaves to the next one.

// failFirst makes the first operation of a kind on a file with an ending fail.
func failFirst(m *vfs.Mem, kind vfs.Kind, ending string, err error) *atomic.Int64 {
	var failed atomic.Int64
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == kind && strings.HasSuffix(op.Name, ending) && failed.CompareAndSwap(0, 1) {
			return vfs.Fault{Err: err}
		}
		return vfs.Fault{}
	})
	return &failed
}

// memLevels runs a test at both levels on a file system in memory.
func memLevels(t *testing.T, fn func(t *testing.T, m *vfs.Mem, c Config)) {
	for _, level := range []penstock.Durability{penstock.Synced, penstock.Written} {
		t.Run(level.String(), func(t *testing.T) {
			m := vfs.NewMem()
			c := small(m, "data")
			c.Durability = level
			fn(t, m, c)
		})
	}
}

// TestGroupThatCannotBeDeletedCanBeDeletedAgain: the group is known until it is
// gone.
func TestGroupThatCannotBeDeletedCanBeDeletedAgain(t *testing.T) {
	for _, kind := range []vfs.Kind{vfs.OpRemove, vfs.OpSyncDir} {
		t.Run(string(kind), func(t *testing.T) {
			memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
				c.Partitions = 2
				l := openLog(t, c)
				mustAppend(t, l.Partition(1), "a", "b")
				cursors, err := l.Cursors("g", StartEarliest)
				must(t, err)
				must(t, cursors[1].Store(1, nil, true))
				ending := filepath.Join("p00001", groupsDir, "g"+slotExt)
				if kind == vfs.OpSyncDir {
					ending = filepath.Dir(ending)
				}
				failed := failFirst(m, kind, ending, syscall.EIO)
				wantErr(t, l.DeleteGroup("g"), syscall.EIO)
				if failed.Load() == 0 {
					t.Fatal("nothing failed")
				}
				if g := l.Partition(1).Groups(); len(g) != 1 || g[0].Committed != 1 {
					t.Fatalf("after half a deletion the groups are %+v, want g at 1", g)
				}
				must(t, l.DeleteGroup("g"))
				wantErr(t, l.DeleteGroup("g"), penstock.ErrNotFound)
				must(t, l.Close())
				if l = openLog(t, c); len(l.Groups()) > 0 {
					t.Errorf("the groups %q came back", l.Groups())
				}
			})
		})
	}
}

// TestFileThatStayedIsNotTakenForItsSuccessor: an empty segment is trimmed, its
// file stays, and the next segment takes its name.
func TestFileThatStayedIsNotTakenForItsSuccessor(t *testing.T) {
	memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
		c.WritePath = WritePwrite
		l := openLog(t, c)
		p := l.Partition(0)
		wide := strings.Repeat("w", 900)
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpWrite && op.Off >= headerSize && p.Stats().Rolls == 2 { // the first frame of the second segment
				return vfs.Fault{Err: syscall.EIO}
			}
			return vfs.Fault{}
		})
		err := error(nil)
		for n := 0; err == nil && n < 100; n++ {
			_, err = tryAppend(p, wide)
		}
		wantErr(t, err, syscall.EIO)
		second := segmentName(p.Stats().Written)
		m.SetFault(nil)
		_ = l.Close() // says what failed
		l = openLog(t, c)
		p = l.Partition(0)
		end := p.Readable()
		if s := p.Stats(); s.Fault != nil || s.Segments != 2 || segmentName(end) != second {
			t.Fatalf("%+v, want an empty segment %s", s, second)
		}
		l.MakeRoom()
		failed := failFirst(m, vfs.OpRemove, second, syscall.EBUSY)
		wantErr(t, p.Trim(end), syscall.EBUSY)
		if failed.Load() == 0 || p.Stats().Segments != 0 {
			t.Fatalf("%d failed, %+v", failed.Load(), p.Stats())
		}
		mustAppend(t, p, "a", "b")
		must(t, p.Trim(end)) // tries again what stayed
		wantRecords(t, p, end, "a", "b")
		used := l.DiskBytes()
		must(t, l.Close())
		l = openLog(t, c)
		wantRecords(t, l.Partition(0), end, "a", "b")
		if files := segmentFiles(t, c); files > used {
			t.Errorf("%v of files, and %v were counted", files, used)
		}
	})
}

// TestNothingIsWrittenUnderACleanMark: whatever the first write of a session is,
// state.slot does not say any more that the log was closed.
func TestNothingIsWrittenUnderACleanMark(t *testing.T) {
	memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
		for name, first := range map[string]func(l *Log, p *Partition) error{
			"append":  func(_ *Log, p *Partition) error { _, err := tryAppend(p, "b"); return err },
			"trim":    func(l *Log, p *Partition) error { l.MakeRoom(); return p.Trim(p.Readable()) },
			"too old": func(_ *Log, p *Partition) error { return p.SealOld(-1 << 40) },
		} {
			c := c
			c.Topic = strings.ReplaceAll(name, " ", "-")
			l := openLog(t, c)
			mustAppend(t, l.Partition(0), "a")
			must(t, l.Close())
			l = openLog(t, c)
			p := l.Partition(0)
			var writes, clean atomic.Int64
			m.SetFault(func(op vfs.Op) vfs.Fault {
				if (op.Kind == vfs.OpWrite || op.Kind == vfs.OpStore) && strings.HasSuffix(op.Name, segmentExt) {
					writes.Add(1)
					slot, err := peekSlot(m.Clone(), filepath.Join(p.dir, stateName), stateMark, p.owner())
					st, derr := decodeState(slot.payload)
					if err != nil || derr != nil || st.clean {
						clean.Add(1)
					}
				}
				return vfs.Fault{}
			})
			must(t, first(l, p))
			m.SetFault(nil)
			if writes.Load() == 0 || clean.Load() > 0 {
				t.Errorf("%s: %d writes, %d of them under a clean mark", name, writes.Load(), clean.Load())
			}
			must(t, l.Close())
		}
	})
}

// TestSyncsOfAPartitionNeverMeet: of two syncs that wait for the same write-back
// the system tells one that it failed, and the other succeeds.
func TestSyncsOfAPartitionNeverMeet(t *testing.T) {
	memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
		for _, fails := range []bool{false, true} {
			c.Topic = fmt.Sprintf("fails-%t", fails)
			synctest.Test(t, func(t *testing.T) {
				l, err := Open(c)
				must(t, err)
				p := l.Partition(0)
				if c.Durability == penstock.Written {
					mustAppend(t, p, "a")
				}
				var under, most, all atomic.Int64
				gate := make(chan struct{})
				m.SetFault(func(op vfs.Op) vfs.Fault {
					if op.Kind != vfs.OpSync || !strings.HasSuffix(op.Name, segmentExt) && !strings.HasSuffix(op.Name, spareName) {
						return vfs.Fault{}
					}
					if p.Stats().Segments == 0 { // of the new file
						return vfs.Fault{}
					}
					if n := under.Add(1); n > most.Load() {
						most.Store(n)
					}
					defer under.Add(-1)
					n := all.Add(1)
					<-gate
					if fails && n == 1 {
						return vfs.Fault{Err: syscall.EIO}
					}
					return vfs.Fault{}
				})
				errs := make([]error, 3)
				var ended sync.WaitGroup
				for i := range errs {
					ended.Go(func() {
						if i == 0 && c.Durability == penstock.Synced {
							_, errs[i] = tryAppend(p, "b")
							return
						}
						errs[i] = p.Sync()
					})
					synctest.Wait()
				}
				close(gate)
				ended.Wait()
				if all.Load() == 0 || most.Load() > 1 {
					t.Errorf("%d syncs, %d at the same time", all.Load(), most.Load())
				}
				for i, err := range errs {
					if fails != errors.Is(err, syscall.EIO) || !fails && err != nil {
						t.Errorf("fails %t: call %d returned %v", fails, i, err)
					}
				}
				m.SetFault(nil)
				if err := l.Close(); fails != (err != nil) {
					t.Errorf("close: %v", err)
				}
			})
		}
	})
}

// TestPositionOnABadSectorIsTheTroubleOfItsGroup: the others go on.
func TestPositionOnABadSectorIsTheTroubleOfItsGroup(t *testing.T) {
	memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
		l := openLog(t, c)
		mustAppend(t, l.Partition(0), "a", "b")
		for _, name := range []string{"bad", "good"} {
			cursors, err := l.Cursors(name, StartEarliest)
			must(t, err)
			must(t, cursors[0].Store(1, nil, true))
		}
		must(t, l.Close())
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpRead && strings.HasSuffix(op.Name, "bad"+slotExt) {
				return vfs.Fault{Err: syscall.EIO}
			}
			return vfs.Fault{}
		})
		l = openLog(t, c)
		p := l.Partition(0)
		good, err := p.Cursor("good", StartEarliest)
		must(t, err)
		if good.Committed() != 1 {
			t.Errorf("the good group stands at %d", good.Committed())
		}
		if notes := l.Recovery()[0].Notes; len(notes) != 1 || !strings.Contains(notes[0], `"bad"`) {
			t.Errorf("the notes are %q", notes)
		}
		if g := p.Groups(); len(g) != 2 || g[0].Committed != p.Earliest() {
			t.Errorf("the groups are %+v: the bad one must hold everything", g)
		}
		_, err = p.Cursor("bad", StartEarliest)
		wantErr(t, err, syscall.EIO)
		m.SetFault(nil)
		bad, err := p.Cursor("bad", StartEarliest)
		must(t, err)
		if bad.Committed() != 1 {
			t.Errorf("the bad group stands at %d when the disk reads again", bad.Committed())
		}
	})
}

// TestCommitsThatMeetACloseAreStoredOrRefused: none is in doubt, and none of
// those that were stored is lost.
func TestCommitsThatMeetACloseAreStoredOrRefused(t *testing.T) {
	memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
		for round := range 20 {
			c.Topic = fmt.Sprint("t", round)
			l := openLog(t, c)
			p := l.Partition(0)
			mustAppend(t, p, make([]string, 900)...)
			cur, err := p.Cursor("g", StartEarliest)
			must(t, err)
			begun := make(chan struct{})
			var stored penstock.Offset
			var ended sync.WaitGroup
			ended.Go(func() {
				for at := penstock.Offset(1); at <= 900; at++ {
					if err = cur.Store(at, nil, at%2 == 0); err != nil {
						break
					}
					if stored = at; at == 3 {
						close(begun)
					}
				}
			})
			<-begun
			must(t, l.Close())
			ended.Wait()
			if err != nil && !errors.Is(err, penstock.ErrClosed) {
				t.Fatalf("a commit beside the close: %v", err)
			}
			l = openLog(t, c)
			if cur, err = l.Partition(0).Cursor("g", StartEarliest); err != nil || cur.Committed() < stored {
				t.Fatalf("%v: it stands at %d, and %d was stored", err, cur.Committed(), stored)
			}
			must(t, l.Close())
		}
	})
}

// TestNumberedAppendWithoutItsTableIsNotInDoubt: nothing was appended.
func TestNumberedAppendWithoutItsTableIsNotInDoubt(t *testing.T) {
	memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
		l := openLog(t, c)
		p := l.Partition(0)
		failFirst(m, vfs.OpRename, producersName+".tmp", syscall.EIO)
		tag, err := penstock.NewProducerTag(1, 1)
		must(t, err)
		for _, want := range []error{syscall.EIO, nil} {
			f := NewFrame(1)
			f.Add([]byte("a"))
			f.SetTag(tag)
			_, err := p.Append(context.Background(), f)
			if !errors.Is(err, want) || errors.Is(err, penstock.ErrUnknownOutcome) {
				t.Fatalf("error %v, want %v, and no doubt", err, want)
			}
		}
	})
}

// cramp leaves a log of 5 records that ends in a torn tail of n times four bytes,
// on a disk without room.
func cramp(t *testing.T, m *vfs.Mem, c Config, n int) {
	t.Helper()
	l := openLog(t, c)
	p := l.Partition(0)
	for i := range 5 {
		mustAppend(t, p, fmt.Sprint(i))
	}
	must(t, p.Sync())
	active, end := p.written.seg.path, p.written.pos
	m.Kill()
	_ = l.Close() // changes nothing any more, and waits for what runs in the background
	f, err := m.Open(active, true)
	must(t, err)
	_, err = f.WriteAt([]byte(strings.Repeat("torn", n)), end)
	must(t, err)
	_ = m.Remove(filepath.Join(p.dir, spareName)) // an open would find room in it
	m.SetSpace(m.Used())
}

// TestCrashOnAFullDiskIsMendedByTrims: there is no room to keep a copy of the torn
// tail, so nothing is cut and nothing appended; what is consumed makes room, and
// the log goes on without another open.
func TestCrashOnAFullDiskIsMendedByTrims(t *testing.T) {
	for _, elsewhere := range []bool{false, true} { // the room comes from another file
		memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
			c.SegmentEvents, c.WritePath = 2, WritePwrite
			cramp(t, m, c, 100)
			l := openLog(t, c)
			p := l.Partition(0)
			wantRecords(t, p, 0, "0", "1", "2", "3", "4")
			for range 2 {
				_, err := tryAppend(p, "x")
				wantErr(t, err, penstock.ErrDiskFull)
				must(t, p.Trim(0)) // nothing to trim, and no room
			}
			if elsewhere {
				m.SetSpace(m.Used() + 1000)
				must(t, p.Trim(0))
			} else {
				must(t, p.Trim(4))
				if p.Earliest() != 4 {
					t.Fatalf("the log begins at %d", p.Earliest())
				}
			}
			if at := mustAppend(t, p, "5"); at != 5 {
				t.Fatalf("appended at %d, want 5", at)
			}
			if names, err := m.List(filepath.Join(p.dir, quarantineDir)); err != nil || len(names) != 1 {
				t.Errorf("in quarantine is %q, %v", names, err)
			}
			must(t, p.Sync())
			m.Kill()
			_ = l.Close() // changes nothing any more, and waits for what runs in the background
			l = openLog(t, c)
			if r := l.Recovery()[0]; r.CutBytes != 0 || r.Damage != nil {
				t.Errorf("%+v", r)
			}
			wantRecords(t, l.Partition(0), 4, "4", "5")
			must(t, l.Close())
		})
	}
}

// TestCloseOfACrampedPartitionIsNoCleanEnd: the torn tail is still there.
func TestCloseOfACrampedPartitionIsNoCleanEnd(t *testing.T) {
	memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
		c.SegmentEvents, c.WritePath = 2, WritePwrite
		cramp(t, m, c, 3000) // more than what the trim gives back
		l := openLog(t, c)
		must(t, l.Partition(0).Trim(4))
		wantErr(t, l.Close(), penstock.ErrDiskFull)
		m.SetSpace(0)
		l = openLog(t, c)
		if r := l.Recovery()[0]; r.CutBytes != 12000 || r.Clean || r.Damage != nil {
			t.Errorf("%+v, want 12000 bytes cut", r)
		}
		mustAppend(t, l.Partition(0), "5")
		wantRecords(t, l.Partition(0), 4, "4", "5")
	})
}
