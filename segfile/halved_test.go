package segfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// What a random damage of directories, of one or two files at once, has found.

// badSlot damages the slot with the higher sequence of a slot file.
func badSlot(t *testing.T, m *vfs.Mem, file, mark string, how func(t *testing.T, m *vfs.Mem, at int64)) {
	t.Helper()
	b := []byte(snapshot(t, m, file))
	o := owner{topic: uuid(b[16:32])}
	_, newest, payload, err := newestSlot(b, mark, o)
	if payload == nil {
		t.Fatal(err)
	}
	how(t, m, int64(newest)*slotSize)
}

// TestStateFromBeforeTheLastSessionIsNotBelieved: what is left when the newest
// slot of state.slot is gone is the clean end of the session before, and the
// events of the last one lie behind it.
func TestStateFromBeforeTheLastSessionIsNotBelieved(t *testing.T) {
	for name, how := range map[string]func(t *testing.T, m *vfs.Mem, at int64){
		"a bit":   func(t *testing.T, m *vfs.Mem, at int64) { overwrite(t, m, stateFile, []byte{0xa5}, at+100) },
		"zeros":   func(t *testing.T, m *vfs.Mem, at int64) { overwrite(t, m, stateFile, make([]byte, slotSize), at) },
		"was cut": func(t *testing.T, m *vfs.Mem, at int64) { cutTo(t, m, stateFile, max(at, 50)) },
	} {
		for _, level := range []penstock.Durability{penstock.Synced, penstock.Written} {
			t.Run(name+"/"+level.String(), func(t *testing.T) {
				m := vfs.NewMem()
				c := small(m, "data")
				c.Durability = level
				var want []string
				session := func(n int) *Log {
					l := openLog(t, c)
					for range n {
						want = append(want, fmt.Sprint(len(want)))
						mustAppend(t, l.Partition(0), want[len(want)-1])
					}
					return l
				}
				must(t, session(3).Close())
				must(t, session(2).Close())
				l := session(4)
				m.Kill()
				_ = l.Close() // of a dead process
				m = m.Clone()
				c.FS = m
				badSlot(t, m, stateFile, stateMark, how)
				k := mustCheck(t, c, false)
				if bad := findings(k, penstock.Alarm); k.Events != uint64(len(want)) || len(bad) > 0 {
					t.Errorf("a check counts %d events, %q, want %d and no alarm", k.Events, bad, len(want))
				}
				l = openLog(t, c)
				wantRecords(t, l.Partition(0), 0, want...)
				if at := mustAppend(t, l.Partition(0), "new"); at != penstock.Offset(len(want)) {
					t.Errorf("appended at %d, want %d", at, len(want))
				}
			})
		}
	}
}

// TestSealedSegmentThatWasCutIsDamage: at every place, also where a frame begins,
// and before the first.
func TestSealedSegmentThatWasCutIsDamage(t *testing.T) {
	file, first, end := goldenSegment(1), penstock.Offset(6), penstock.Offset(12)
	whole := snapshot(t, copyTree(t, golden), file)
	for size := int64(headerUsed); size < int64(len(whole)); size++ {
		if size < headerSize && size%509 > 0 {
			continue
		}
		m := copyTree(t, golden)
		c := goldenConfig(m, "data")
		cutTo(t, m, file, size)
		l := openLog(t, c)
		_, lost := readAll(l.Partition(0), 0)
		must(t, l.Close())
		var ce, shown *penstock.CorruptError
		_, _, err := inspect(t, c).Dump(t.Context(), DumpConfig{Skip: func(e *penstock.CorruptError) error {
			shown = e
			return nil
		}}, func(Records) error { return nil })
		must(t, err)
		for _, deep := range []bool{false, true} {
			bad := findings(mustCheck(t, c, deep), penstock.Alarm)
			switch {
			case !errors.As(lost, &ce): // the seal alone is gone
				if shown != nil {
					t.Fatalf("cut to %d: everything is read, and a dump says %v", size, shown)
				}
			case len(bad) == 0:
				t.Fatalf("cut to %d, deep %t: a reader says %v, the check no alarm", size, deep, lost)
			case shown == nil || shown.File != filepath.Base(file) || shown.First < first || shown.Last != end-1:
				t.Fatalf("cut to %d: a dump says %v, want events up to %d of %s", size, shown, end-1, file)
			}
		}
	}
}

// TestPartitionsThatChangedNamesUseNoOffsetAgain: with every event consumed
// nothing but state.slot tells whose directory it is.
func TestPartitionsThatChangedNamesUseNoOffsetAgain(t *testing.T) {
	c := small(vfs.OS(), t.TempDir())
	c.Partitions, c.SegmentEvents = 2, 2
	l := openLog(t, c)
	cs, err := l.Cursors("g", StartEarliest)
	must(t, err)
	for i, n := range []int{4, 6} {
		for j := range n {
			mustAppend(t, l.Partition(i), fmt.Sprint(j))
		}
		must(t, cs[i].Store(penstock.Offset(n), nil, true))
		must(t, l.Partition(i).Trim(penstock.Offset(n)))
	}
	must(t, l.Close())
	exchange := func() {
		a, b := filepath.Join(c.Dir, "orders", "p00000"), filepath.Join(c.Dir, "orders", "p00001")
		must(t, errors.Join(os.Rename(a, a+"x"), os.Rename(b, a), os.Rename(a+"x", b)))
	}
	exchange()
	if bad := findings(mustCheck(t, c, false), penstock.Alarm); !strings.Contains(fmt.Sprint(bad), errExchanged.Error()) {
		t.Errorf("the check says %q", bad)
	}
	_, err = CutTail(t.Context(), repairOf(c, true))
	wantErr(t, err, errExchanged)
	l = openLog(t, c)
	for i := range 2 {
		wantErr(t, l.Partition(i).Fault(), errExchanged)
		_, err := tryAppend(l.Partition(i), "x")
		wantErr(t, err, penstock.ErrCorrupt)
	}
	must(t, l.Close())
	exchange()
	l = openLog(t, c)
	for i, n := range []penstock.Offset{4, 6} {
		if at := mustAppend(t, l.Partition(i), "new"); at != n {
			t.Errorf("partition %d: appended at %d, want %d", i, at, n)
		}
	}
}

// TestGroupsBeginAtTheFirstEventWhenARepairMadeTheirDirectory: also one that has
// never moved anywhere, and begins at the end where it is new.
func TestGroupsBeginAtTheFirstEventWhenARepairMadeTheirDirectory(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.Partitions = 2
	l := openLog(t, c)
	_, err := l.Cursors("g", StartEarliest)
	must(t, err)
	for i := range 2 {
		mustAppend(t, l.Partition(i), "a")
	}
	must(t, l.Close())
	m = m.Clone()
	c.FS = m
	must(t, errors.Join(m.Remove("data/orders/p00001/groups/g.slot"), m.Remove("data/orders/p00001/groups")))
	r := oneRepair(t, c, true)
	if want := []GroupRepair{{Name: "g", Err: os.ErrNotExist}}; fmt.Sprint(r.Groups) != fmt.Sprint(want) {
		t.Errorf("the repair says %v, want %v", r.Groups, want)
	}
	c.FS = m.Clone() // what is durable
	l = openLog(t, c)
	cs, err := l.Cursors("g", StartLatest)
	must(t, err)
	if cs[1].Committed() != 0 {
		t.Errorf("the group begins at %d and passes an event", cs[1].Committed())
	}
}

// TestLastSegmentThatIsGoneWithoutEventsIsRepaired: an open refuses appends then.
func TestLastSegmentThatIsGoneWithoutEventsIsRepaired(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.SegmentEvents = 2
	l := openLog(t, c)
	p := l.Partition(0)
	for i := range 3 {
		mustAppend(t, p, fmt.Sprint(i))
	}
	st := state{start: 0, end: 2, segment: 2, position: headerSize, epoch: 1, whole: true} // as before its first event
	m.Kill()
	_ = l.Close() // of a dead process
	m = m.Clone()
	c.FS = m
	in := inspect(t, c)
	slot, _, err := openSlot(m, stateFile, stateMark, in.owner(0))
	must(t, err)
	must(t, errors.Join(slot.write(st.encode(), true), slot.write(st.encode(), true), slot.file.Close()))
	must(t, m.Remove("data/orders/p00000/"+segmentName(2)))
	m = m.Clone()
	c.FS = m
	l = openLog(t, c)
	wantErr(t, l.Partition(0).Fault(), errMissing)
	must(t, l.Close())
	if r := oneRepair(t, c, true); r.Keep != 2 || r.End != 2 || r.Damage == nil {
		t.Errorf("%+v, want a repair that keeps 2 events of 2", r)
	}
	if bad := findings(mustCheck(t, c, true), penstock.Alarm); len(bad) > 0 {
		t.Errorf("the check says %q after the repair", bad)
	}
	l = openLog(t, c)
	wantRecords(t, l.Partition(0), 0, "0", "1")
	if at := mustAppend(t, l.Partition(0), "2"); at != 2 {
		t.Errorf("appended at %d, want 2", at)
	}
}

// TestPositionThatFellBackIsTold: events come again, or are below the start.
func TestPositionThatFellBackIsTold(t *testing.T) {
	for _, trimmed := range []bool{false, true} {
		t.Run(fmt.Sprintf("trimmed %t", trimmed), func(t *testing.T) {
			m := vfs.NewMem()
			c := small(m, "data")
			c.SegmentEvents = 2
			l := openLog(t, c)
			p := l.Partition(0)
			for i := range 6 {
				mustAppend(t, p, fmt.Sprint(i))
			}
			cs, err := l.Cursors("g", StartEarliest)
			must(t, err)
			must(t, errors.Join(cs[0].Store(1, nil, true), cs[0].Store(5, nil, true)))
			if trimmed {
				must(t, p.Trim(5))
			}
			must(t, l.Close())
			m = m.Clone()
			c.FS = m
			badSlot(t, m, groupSlot, cursorMark, func(t *testing.T, m *vfs.Mem, at int64) { overwrite(t, m, groupSlot, []byte{0xa5}, at+100) })
			m = m.Clone()
			c.FS = m
			bad := findings(mustCheck(t, c, false), penstock.Alarm)
			l = openLog(t, c)
			notes := fmt.Sprint(l.Recovery()[0].Notes)
			_, err = l.Cursors("g", StartEarliest)
			must(t, l.Close())
			if !strings.Contains(notes, "come again") || errors.Is(err, penstock.ErrOffsetOutOfRange) != trimmed || (len(bad) > 0) != trimmed {
				t.Errorf("the open says %s, the group %v, the check %q", notes, err, bad)
			}
			if !trimmed {
				return
			}
			if r := oneRepair(t, c, true); !slices.Equal(r.Groups, []GroupRepair{{Name: "g", From: 1, To: 4}}) {
				t.Errorf("the repair says %+v", r.Groups)
			}
			cs, err = openLog(t, c).Cursors("g", StartEarliest)
			must(t, err)
			if cs[0].Committed() != 4 {
				t.Errorf("the group stands at %d, want 4", cs[0].Committed())
			}
		})
	}
}

// TestCheckKnowsWhatAnOpenRefuses: directories that have the names of files.
func TestCheckKnowsWhatAnOpenRefuses(t *testing.T) {
	for _, name := range []string{spareName, stateName, producersName} {
		t.Run(name, func(t *testing.T) {
			c := small(vfs.OS(), t.TempDir())
			l := openLog(t, c)
			mustAppend(t, l.Partition(0), "a")
			must(t, l.Close())
			path := filepath.Join(c.Dir, "orders", "p00000", name)
			must(t, os.RemoveAll(path))
			must(t, os.MkdirAll(filepath.Join(path, "inside"), 0o700))
			if _, err := Open(c); err == nil {
				t.Fatal("the topic was opened")
			}
			if bad := findings(mustCheck(t, c, false), penstock.Alarm); len(bad) != 1 || !strings.Contains(bad[0], name) {
				t.Errorf("the check says %q, want an alarm that names the file", bad)
			}
			must(t, os.RemoveAll(path))
			wantRecords(t, openLog(t, c).Partition(0), 0, "a")
		})
	}
}
