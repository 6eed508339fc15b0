package segfile

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// TestWhatAKilledProcessLeftUnsyncedIsSyncedBeforeItIsBuiltOn: a process is
// killed at every operation, so the system has all that it did and the disk
// perhaps not. The next process opens the log, acknowledges an append and a
// commit, and then the power is lost: what it served, what it appended and what
// it committed are there, whichever files and names of the first were never
// synced.
func TestWhatAKilledProcessLeftUnsyncedIsSyncedBeforeItIsBuiltOn(t *testing.T) {
	errDead := errors.New("the process is dead")
	images := 0
	for killed, step := 0, 1; ; killed += step {
		m := vfs.NewMem()
		c := small(m, "data")
		c.Durability = penstock.Synced
		var ops atomic.Int64
		m.SetFault(func(op vfs.Op) (f vfs.Fault) {
			if ops.Add(1) <= int64(killed) {
				return f
			}
			m.Kill()
			if op.Kind != vfs.OpSync { // a dead handle syncs nothing, which is not a sync that has failed
				f.Err = errDead
			}
			return f
		})
		err := faultWorkload(c, func([]string, error) {})
		m.Kill()
		m.SetFault(nil)
		if killed > 60 { // the life of a log after its making is more of the same
			step = 7
		}
		l, openErr := Open(c)
		must(t, openErr)
		p := l.Partition(0)
		before, readErr := readAll(p, p.Earliest())
		must(t, readErr)
		first := p.Earliest()
		mustAppend(t, p, "acknowledged")
		cs, cursorErr := l.Cursors("g", StartEarliest)
		must(t, cursorErr)
		must(t, cs[0].Store(p.Readable(), nil, true))
		at := cs[0].Committed()
		end := m.Ops()
		m.Kill()
		_ = l.Close() // every operation of the dead process fails
		for img := range m.Images(vfs.Crashes{From: end, Seed: uint64(killed)}) {
			if images++; img.After > end {
				break
			}
			c := c
			c.FS = img.FS
			l, err := Open(c)
			if err != nil {
				t.Fatalf("killed after %d operations, %s: %v", killed, img.Desc, err)
			}
			got, err := readAll(l.Partition(0), first)
			if want := append(before, "acknowledged"); err != nil || strings.Join(got, "|") != strings.Join(want, "|") {
				t.Fatalf("killed after %d operations, %s: %d records, %v, want %d", killed, img.Desc, len(got), err, len(want))
			}
			cs, err := l.Cursors("g", StartEarliest)
			if err != nil || cs[0].Committed() != at {
				t.Fatalf("killed after %d operations, %s: %v, want the commit of %d", killed, img.Desc, err, at)
			}
			must(t, l.Close())
		}
		if err == nil {
			t.Logf("%d operations, %d images", killed, images)
			if killed < 100 {
				t.Errorf("%d operations are too few to mean anything", killed)
			}
			return
		}
	}
}

// TestTableOfProducersOfAKilledProcessIsSyncedBeforeItIsBuiltOn: a process is
// killed while it makes producers.slot. The next one finds it, acknowledges a
// numbered append, and the power is lost: a repetition is still recognised.
func TestTableOfProducersOfAKilledProcessIsSyncedBeforeItIsBuiltOn(t *testing.T) {
	tag, err := penstock.NewProducerTag(7, 1)
	must(t, err)
	numbered := func(l *Log) (Receipt, error) {
		f := NewFrame(1)
		f.Add([]byte("numbered"))
		f.SetTag(tag)
		r, err := l.Partition(0).Append(t.Context(), f)
		if err == nil {
			_, err = r.Wait(t.Context())
		}
		return r, err
	}
	for killed := 0; ; killed++ {
		m := vfs.NewMem()
		c := small(m, "data")
		c.Durability = penstock.Synced
		l := openLog(t, c)
		mustAppend(t, l.Partition(0), "first") // else a new segment has the directory synced
		var ops atomic.Int64
		m.SetFault(func(op vfs.Op) (f vfs.Fault) {
			if ops.Add(1) > int64(killed) {
				m.Kill()
				f.Err = errors.New("the process is dead")
			}
			return f
		})
		_, firstErr := numbered(l)
		m.SetFault(nil)
		m.Kill()
		l, err := Open(c)
		must(t, err)
		_, err = numbered(l)
		must(t, err)
		end := m.Ops()
		m.Kill()
		for img := range m.Images(vfs.Crashes{From: end, Seed: uint64(killed)}) {
			if img.After > end {
				break
			}
			c := c
			c.FS = img.FS
			l := openLog(t, c)
			r, err := numbered(l)
			if n := l.Partition(0).Readable(); err != nil || !r.Repeats() || n != 2 {
				t.Fatalf("killed after %d operations, %s: repeats %t, %v, %d records", killed, img.Desc, r.Repeats(), err, n)
			}
			must(t, l.Close())
		}
		if firstErr == nil {
			if killed < 7 {
				t.Errorf("%d operations are too few to mean anything", killed)
			}
			return
		}
	}
}
