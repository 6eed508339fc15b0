package segfile

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

func timeAt(p *Partition, at penstock.Offset) int64 {
	var times [1]int64
	p.TimesAt([]penstock.Offset{at}, times[:])
	return times[0]
}

func TestAppendTimesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		l, err := Open(small(m, "data"))
		must(t, err)
		p := l.Partition(0)
		began := time.Now()
		for range 3 {
			mustAppend(t, p, "a", "b")
			time.Sleep(time.Minute)
		}
		for at, want := range map[penstock.Offset]time.Duration{0: 0, 1: 0, 2: time.Minute, 5: 2 * time.Minute} {
			if got := timeAt(p, at); got != began.Add(want).UnixNano() {
				t.Errorf("offset %d: appended %s after the first, want %s", at, time.Duration(got-began.UnixNano()), want)
			}
		}
		if got := timeAt(p, 6); got != 0 {
			t.Errorf("an event that is not there was appended at %d", got)
		}
		must(t, l.Close())

		// Of an earlier session only the segment is known.
		time.Sleep(time.Hour)
		l, err = Open(small(m, "data"))
		must(t, err)
		defer l.Close()
		p = l.Partition(0)
		mustAppend(t, p, "c")
		if got := timeAt(p, 5); got != began.UnixNano() {
			t.Errorf("offset 5 after a restart: %s after its segment was begun", time.Duration(got-began.UnixNano()))
		}
		if got := timeAt(p, 6); got != time.Now().UnixNano() {
			t.Errorf("offset 6: appended %s ago", time.Duration(time.Now().UnixNano()-got))
		}
	})
}

// TestTableOfTimesIsBounded: a long backlog makes times coarser, and never
// later than the append.
func TestTableOfTimesIsBounded(t *testing.T) {
	const events = 20 * timesMax
	for _, c := range []struct {
		name string
		kept penstock.Offset
		step int64 // of the appends
	}{
		{"all kept", events, timesStep},
		{"the last tenth kept", events / 10, timesStep},
		{"appends far apart", events, 100 * timesStep},
		{"appends close together", events, timesStep / 100},
	} {
		kept, step := c.kept, c.step
		t.Run(c.name, func(t *testing.T) {
			var table timeTable
			for i := range penstock.Offset(events) {
				earliest := penstock.Offset(0)
				if i > kept {
					earliest = i - kept
				}
				table.note(i, int64(i)*step, earliest)
				if len(table.entries) > timesMax {
					t.Fatalf("%d entries", len(table.entries))
				}
			}
			worst := int64(0)
			for i := penstock.Offset(events - kept); i < events; i++ {
				j := table.search(i)
				if j < 0 || table.entries[j].unixNano > int64(i)*step {
					t.Fatalf("event %d has entry %d", i, j)
				}
				worst = max(worst, int64(i)*step-table.entries[j].unixNano)
			}
			if span := int64(kept) * step; worst > max(span/1000, 16*timesStep) {
				t.Errorf("a time is %s early in a backlog of %s", time.Duration(worst), time.Duration(span))
			}
		})
	}
}

// TestAppendTimeOnDiskIsAtMostAMillisecondEarly: appends close together share a
// reading of the clock, in the frames as in what is told of them.
func TestAppendTimeOnDiskIsAtMostAMillisecondEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := Open(small(vfs.NewMem(), "data"))
		must(t, err)
		defer l.Close()
		p := l.Partition(0)
		var at []int64
		for range 500 { // over several segments
			mustAppend(t, p, "an event with so many bytes that the segments are soon full")
			at = append(at, time.Now().UnixNano())
			time.Sleep(300 * time.Microsecond)
		}
		r, err := p.NewReader(0)
		must(t, err)
		defer r.Close()
		shared := 0
		for i, appended := range at {
			rs, err := r.Next(1)
			must(t, err)
			early := time.Duration(appended - rs.Time)
			if early < 0 || early > time.Millisecond {
				t.Fatalf("event %d: its frame says %s before its append", i, early)
			}
			if early > 0 {
				shared++
			}
			if told := time.Duration(appended - timeAt(p, penstock.Offset(i))); told < 0 || told > 2*time.Millisecond {
				t.Fatalf("event %d: told to be appended %s before its append", i, told)
			}
			for _, s := range p.segs {
				if s.hdr.base == penstock.Offset(i) && s.hdr.created > rs.Time {
					t.Fatalf("event %d: its frame is %s older than its segment", i, time.Duration(s.hdr.created-rs.Time))
				}
			}
		}
		if shared == 0 || len(p.segs) < 3 {
			t.Errorf("%d of %d frames have the reading of an earlier one, in %d segments", shared, len(at), len(p.segs))
		}
	})
}
