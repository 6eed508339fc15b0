package segfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

const (
	stateFile = "data/orders/p00000/" + stateName
	groupSlot = "data/orders/p00000/groups/g.slot"
)

// consumed makes a log of six events in three segments that a group has read
// and a trim has deleted.
func consumed(t *testing.T, group, numbered bool) (*vfs.Mem, Config) {
	t.Helper()
	m := vfs.NewMem()
	c := small(m, "data")
	c.SegmentEvents = 2
	l := openLog(t, c)
	p := l.Partition(0)
	for i := range 6 {
		if numbered {
			wantNumbered(t, p, 7, uint64(i+1), penstock.Offset(i), false, fmt.Sprint(i))
		} else {
			mustAppend(t, p, fmt.Sprint(i))
		}
	}
	if group {
		cs, err := l.Cursors("g", StartEarliest)
		must(t, err)
		must(t, cs[0].Store(6, nil, true))
	}
	must(t, p.Trim(6))
	must(t, l.Close())
	m = m.Clone() // all of it durable
	c.FS = m
	return m, c
}

// goesOn demands that a log that was consumed whole uses no offset again.
func goesOn(c Config, group bool) error {
	l, err := Open(c)
	if err != nil {
		return err
	}
	defer l.Close()
	p := l.Partition(0)
	at, err := tryAppend(p, "new")
	if err != nil || at != 6 {
		return fmt.Errorf("appended at %d, %v, want 6", at, err)
	}
	if !group {
		return nil
	}
	cs, err := l.Cursors("g", StartEarliest)
	if err != nil {
		return err
	}
	if got, err := readAll(p, cs[0].Committed()); err != nil || !slices.Equal(got, []string{"new"}) {
		return fmt.Errorf("the group reads %q, %v, want what is new", got, err)
	}
	return nil
}

// TestLostStateWithoutSegmentsUsesNoOffsetAgain: who had committed 6 would pass by
// the first six new events.
func TestLostStateWithoutSegmentsUsesNoOffsetAgain(t *testing.T) {
	for name, lose := range map[string]func(m *vfs.Mem) error{
		"removed": func(m *vfs.Mem) error { return m.Remove(stateFile) },
		"damaged": func(m *vfs.Mem) error { overwrite(t, m, stateFile, make([]byte, 2*slotSize), 0); return nil },
	} {
		for _, who := range []string{"group", "producer"} {
			t.Run(name+"/"+who, func(t *testing.T) {
				m, c := consumed(t, who == "group", who == "producer")
				must(t, lose(m))
				m = m.Clone()
				c.FS = m
				if bad := findings(mustCheck(t, c, true), penstock.Alarm); len(bad) > 0 {
					t.Errorf("a check says %q", bad)
				}
				must(t, goesOn(c, who == "group"))
				images := 0
				for img := range m.Images(vfs.Crashes{Seed: 9}) { // of the open, too
					images++
					again := c
					again.FS = img.FS
					l, err := Open(again)
					must(t, err)
					if p := l.Partition(0); p.Fault() != nil || p.Readable() < 6 {
						t.Fatalf("%s: the log ends at %d, %v", img.Desc, p.Readable(), p.Fault())
					}
					must(t, l.Close())
				}
				if images < 20 {
					t.Fatalf("%d images are too few to mean anything", images)
				}
			})
		}
	}
}

func TestUnreadablePositionBesideALostStateStopsTheOpen(t *testing.T) {
	m, c := consumed(t, true, false)
	must(t, m.Remove(stateFile))
	eio := errors.New("input/output error")
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpRead && op.Name == groupSlot {
			return vfs.Fault{Err: eio}
		}
		return vfs.Fault{}
	})
	_, err := Open(c)
	wantErr(t, err, eio)
	m.SetFault(nil)
	must(t, goesOn(c, true))
}

// TestStateThatIsLostStaysLostUntilItIsKnown: an open that made an empty
// state.slot and was killed left a log that began at offset 0, behind which its
// first segment was missing.
func TestStateThatIsLostStaysLostUntilItIsKnown(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.SegmentEvents = 2
	l := openLog(t, c)
	for i := range 5 {
		mustAppend(t, l.Partition(0), fmt.Sprint(i))
	}
	must(t, l.Partition(0).Trim(3))
	must(t, l.Close())
	must(t, m.Remove(stateFile))
	m = m.Clone()
	c.FS = m
	l = openLog(t, c)
	wantRecords(t, l.Partition(0), 2, "2", "3", "4")
	images := 0
	for img := range m.Images(vfs.Crashes{Seed: 4}) {
		images++
		c.FS = img.FS
		l := openLog(t, c)
		must(t, l.Partition(0).Fault())
		wantRecords(t, l.Partition(0), 2, "2", "3", "4")
		must(t, l.Close())
	}
	if images < 5 {
		t.Fatalf("%d images are too few to mean anything", images)
	}
}

func TestPositionTellsOfEventsBehindTheEndOfACrashedLog(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, m *vfs.Mem, pos int64){
		"frames became zeros": func(t *testing.T, m *vfs.Mem, pos int64) {
			overwrite(t, m, firstSegment, make([]byte, int64(len(snapshot(t, m, firstSegment)))-pos), pos)
		},
		"file was cut": func(t *testing.T, m *vfs.Mem, pos int64) { cutTo(t, m, firstSegment, pos) },
		"state is lost, too": func(t *testing.T, m *vfs.Mem, pos int64) {
			cutTo(t, m, firstSegment, pos)
			loseState(t, m)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			c := small(m, "data")
			l, err := open(c, fixed(2))
			must(t, err)
			p := l.Partition(0)
			mustAppend(t, p, "a", "b", "c")
			pos := writtenPos(p)
			mustAppend(t, p, "d", "e")
			cs, err := l.Cursors("g", StartEarliest)
			must(t, err)
			must(t, cs[0].Store(4, []uint64{1}, true))
			m.Kill()
			_ = l.Close() // of a dead process
			lose(t, m, pos)
			for _, deep := range []bool{false, true} {
				if bad := findings(mustCheck(t, c, deep), penstock.Alarm); len(bad) != 1 || !strings.Contains(bad[0], "[3,4]") {
					t.Errorf("deep %t: %q, want that 3 and 4 are gone", deep, bad)
				}
			}
			for range 2 { // it stays so
				l = openLog(t, c)
				p = l.Partition(0)
				var ce *penstock.CorruptError
				if !errors.As(p.Fault(), &ce) || ce.First != 3 || ce.Last != 4 {
					t.Fatalf("fault %v, want damage from 3 to 4", p.Fault())
				}
				if _, err := tryAppend(p, "x"); !errors.Is(err, penstock.ErrCorrupt) {
					t.Errorf("an append: %v", err)
				}
				must(t, l.Close())
			}
			if r := oneRepair(t, c, true); r.Keep != 3 || r.End != 5 || r.Readable != 0 || len(r.Groups) != 1 || r.Groups[0].To != 3 {
				t.Errorf("%+v", r)
			}
			l = openLog(t, c)
			must(t, l.Partition(0).Fault())
			cs, err = l.Cursors("g", StartEarliest)
			must(t, err)
			if at := mustAppend(t, l.Partition(0), "x"); at != 3 || cs[0].Committed() != 3 {
				t.Errorf("appended at %d, the group stands at %d, want 3", at, cs[0].Committed())
			}
		})
	}
}

// TestPositionAheadOfTheLogStaysRefused: the log grows, and what then stands
// before the position was never seen by the group.
func TestPositionAheadOfTheLogStaysRefused(t *testing.T) {
	const slot = "data/orders/p00000/groups/billing%2F%45%55.slot"
	m := copyTree(t, golden)
	b := snapshot(t, m, slot)
	s := stored{group: penstock.HashKey("billing/EU"), committed: 20, synced: true}
	overwrite(t, m, slot, encodeSlot(cursorMark, 1000, owner{topic: uuid(b[16:32])}, s.encode()), 0)
	c := goldenConfig(m, "data")
	for range 3 {
		l := openLog(t, c)
		for range 3 {
			mustAppend(t, l.Partition(0), "new")
		}
		_, err := l.Cursors("billing/EU", StartEarliest)
		wantErr(t, err, penstock.ErrCorrupt)
		if g := l.Partition(0).Groups(); len(g) != 1 || g[0].Committed != 16 { // it keeps what it has not seen
			t.Errorf("groups %v, want one at 16", g)
		}
		must(t, l.Close())
		if bad := findings(mustCheck(t, c, true), penstock.Alarm); len(bad) != 1 || !strings.Contains(bad[0], "[16,19]") {
			t.Errorf("a check says %q", bad)
		}
	}
	if r := oneRepair(t, c, true); r.Damage != nil || len(r.Groups) != 1 || r.Groups[0].From != 20 || r.Groups[0].To != 16 {
		t.Errorf("%+v", r)
	}
	l := openLog(t, c)
	cs, err := l.Cursors("billing/EU", StartLatest)
	must(t, err)
	if cs[0].Committed() != 16 || l.Partition(0).Readable() != 25 {
		t.Errorf("the group stands at %d of %d, want 16 of 25", cs[0].Committed(), l.Partition(0).Readable())
	}
}

func TestStoredPositionBeyond(t *testing.T) {
	for _, c := range []struct {
		s    stored
		want penstock.Offset
	}{
		{stored{committed: 4}, 4},
		{stored{committed: 4, completed: []uint64{0}}, 4},
		{stored{committed: 4, completed: []uint64{0b10}}, 6},
		{stored{committed: 4, completed: []uint64{1, 1 << 63}}, 132},
	} {
		if got := c.s.beyond(); got != c.want {
			t.Errorf("%+v knows of events below %d, want %d", c.s, got, c.want)
		}
		c.s.ahead = 999
		if d, err := decodeStored(c.s.encode()); err != nil || d.ahead != 999 || d.committed != c.s.committed || !slices.Equal(d.completed, c.s.completed) {
			t.Errorf("%+v was read as %+v, %v", c.s, d, err)
		}
	}
}
