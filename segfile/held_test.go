package segfile

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// TestTrimOfADamagedPartitionKeepsTheDamage: it stored a state.slot that did not
// know of the damage, and the open after it gave the offsets of acknowledged
// events out again. A queue trims at each open.
func TestTrimOfADamagedPartitionKeepsTheDamage(t *testing.T) {
	seg := func(base penstock.Offset) string { return "data/orders/p00000/" + segmentName(base) }
	for _, tt := range []struct {
		name   string
		killed bool
		kept   penstock.Offset // what a trim of everything must leave
		damage func(t *testing.T, m *vfs.Mem)
	}{
		{"the last segment is missing", false, 4, func(t *testing.T, m *vfs.Mem) {
			must(t, errors.Join(m.Remove(seg(6)), m.SyncDir("data/orders/p00000")))
		}},
		{"the last segment was cut", true, 6, func(t *testing.T, m *vfs.Mem) { cutTo(t, m, seg(6), headerSize+80) }},
		{"a bad header", false, 2, func(t *testing.T, m *vfs.Mem) { overwrite(t, m, seg(4), make([]byte, 100), 0) }},
		{"a segment in between is missing", false, 0, func(t *testing.T, m *vfs.Mem) {
			must(t, errors.Join(m.Remove(seg(2)), m.SyncDir("data/orders/p00000")))
		}},
		{"state.slot is lost too", false, 0, func(t *testing.T, m *vfs.Mem) {
			overwrite(t, m, stateFile, make([]byte, 2*slotSize), 0)
			overwrite(t, m, seg(6), make([]byte, 100), 0)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := vfs.NewMem()
			c := small(m, "data")
			c.SegmentEvents = 2
			l := openLog(t, c)
			p := l.Partition(0)
			for i := range 7 {
				mustAppend(t, p, fmt.Sprint(i))
			}
			if tt.killed {
				m.Kill()
			}
			_ = l.Close() // of a dead process
			m = m.Clone()
			c.FS = m
			tt.damage(t, m)
			said := ""
			for round := range 3 {
				l = openLog(t, c)
				p = l.Partition(0)
				wantErr(t, p.Fault(), penstock.ErrCorrupt)
				if round == 0 {
					said = p.Fault().Error()
				} else if p.Fault().Error() != said {
					t.Fatalf("round %d: %v, want %s", round, p.Fault(), said)
				}
				must(t, p.Trim(2))
				must(t, p.Trim(p.Readable()))
				if p.Earliest() != tt.kept {
					t.Fatalf("round %d: the log starts at %d, want %d", round, p.Earliest(), tt.kept)
				}
				if at, err := tryAppend(p, "another"); err == nil {
					t.Fatalf("round %d: offset %d was given out again", round, at)
				}
				must(t, l.Close())
			}
			if bad := findings(mustCheck(t, c, true), penstock.Alarm); len(bad) == 0 {
				t.Error("the check finds nothing")
			}
			oneRepair(t, c, true)
			l = openLog(t, c)
			must(t, l.Partition(0).Fault())
		})
	}
}

// TestTrimOfADamagedPartitionKeepsNumberedAppends: it deleted segments that alone
// told of them, and after a repair their repetitions were appended again.
func TestTrimOfADamagedPartitionKeepsNumberedAppends(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.SegmentEvents = 2
	l := openLog(t, c)
	p := l.Partition(0)
	wantNumbered(t, p, 8, 1, 0, false, "a", "b")
	for i := range 5 {
		wantNumbered(t, p, 7, uint64(1+i), penstock.Offset(2+i), false, fmt.Sprint(i))
	}
	must(t, l.Close())
	m = m.Clone()
	c.FS = m
	overwrite(t, m, "data/orders/p00000/"+producersName, make([]byte, 2*slotSize), 0)
	must(t, errors.Join(m.Remove("data/orders/p00000/"+segmentName(6)), m.SyncDir("data/orders/p00000")))
	l = openLog(t, c)
	p = l.Partition(0)
	wantErr(t, p.Fault(), penstock.ErrCorrupt)
	must(t, p.Trim(p.Readable()))
	must(t, l.Close())
	oneRepair(t, c, true)
	p = openLog(t, c).Partition(0)
	wantNumbered(t, p, 8, 1, 0, true, "a", "b")
	wantNumbered(t, p, 7, 4, 5, true, "3")
}

// TestStateFromBeforeALaterSessionIsNotBelieved: a state.slot that was put back from
// a copy says that the log was closed at an offset where it goes on. An open ended
// the log there and appended over what had been acknowledged since.
func TestStateFromBeforeALaterSessionIsNotBelieved(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	l := openLog(t, c)
	mustAppend(t, l.Partition(0), "0")
	must(t, l.Close())
	old := snapshot(t, m, stateFile)
	l = openLog(t, c)
	mustAppend(t, l.Partition(0), "1")
	mustAppend(t, l.Partition(0), "2")
	must(t, l.Close())
	m = m.Clone()
	c.FS = m
	overwrite(t, m, stateFile, old, 0)
	l = openLog(t, c)
	if r := l.Recovery()[0]; r.Clean || !strings.Contains(fmt.Sprint(r.Notes), "older than the log") {
		t.Errorf("clean %t, notes %q", r.Clean, r.Notes)
	}
	wantRecords(t, l.Partition(0), 0, "0", "1", "2")
	if at := mustAppend(t, l.Partition(0), "3"); at != 3 {
		t.Errorf("appended at %d, want 3", at)
	}
	must(t, l.Close())
	l = openLog(t, c)
	if r := l.Recovery()[0]; !r.Clean {
		t.Errorf("the next open is not clean: %q", r.Notes)
	}
	wantRecords(t, l.Partition(0), 0, "0", "1", "2", "3")
}
