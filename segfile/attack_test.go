package segfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

func TestPartitionThatCannotBeReadStopsNoOther(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.Partitions = 2
	l := openLog(t, c)
	for i := range 5 {
		mustAppend(t, l.Partition(0), fmt.Sprint(i))
		mustAppend(t, l.Partition(1), fmt.Sprint(i))
	}
	m.Kill()
	eio := errors.New("input/output error")
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpRead && strings.Contains(op.Name, "p00000") && strings.HasSuffix(op.Name, segmentExt) && op.Off >= headerSize {
			return vfs.Fault{Err: eio}
		}
		return vfs.Fault{}
	})
	l = openLog(t, c)
	bad, good := l.Partition(0), l.Partition(1)
	wantErr(t, bad.Fault(), penstock.ErrCorrupt)
	wantErr(t, bad.Fault(), eio)
	_, err := tryAppend(bad, "x")
	wantErr(t, err, penstock.ErrCorrupt)
	wantRecords(t, good, 0, "0", "1", "2", "3", "4")
	mustAppend(t, good, "5")
	must(t, l.Close())
	m.SetFault(nil)
	l = openLog(t, c) // the disk reads again: nothing was modified
	wantRecords(t, l.Partition(0), 0, "0", "1", "2", "3", "4")
	mustAppend(t, l.Partition(0), "5")
}

func TestCloseReportsThatAPartitionHadStopped(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.Durability = penstock.Written
	l := openLog(t, c)
	mustAppend(t, l.Partition(0), "acknowledged, not synced")
	eio := errors.New("input/output error")
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpSync {
			return vfs.Fault{Err: eio}
		}
		return vfs.Fault{}
	})
	wantErr(t, l.Partition(0).Sync(), eio)
	m.SetFault(nil)
	wantErr(t, l.Close(), eio)
}

// What is deleted under a running log is not acknowledged any more (FM-18).
func TestAppendToADeletedTopicIsNotAcknowledged_FM18(t *testing.T) {
	for _, level := range []penstock.Durability{penstock.Synced, penstock.Written} {
		t.Run(level.String(), func(t *testing.T) {
			c := small(nil, t.TempDir())
			c.Durability = level
			l := openLog(t, c)
			p := l.Partition(0)
			mustAppend(t, p, "a")
			must(t, p.Sync())
			dir := filepath.Join(c.Dir, "orders")
			if err := os.RemoveAll(dir); err != nil {
				t.Skipf("this system does not delete files that are open: %v", err)
			}
			_, err := tryAppend(p, "b")
			if level == penstock.Written { // the next sync finds out
				err = p.Sync()
			}
			wantErr(t, err, vfs.ErrRemoved)
			wantErr(t, err, penstock.ErrUnknownOutcome)
			wantErr(t, p.Fault(), vfs.ErrRemoved)
			wantErr(t, l.Close(), vfs.ErrRemoved)
			if _, err := os.Stat(dir); err == nil {
				t.Error("the directory was made again")
			}
		})
	}
}

func TestLockHoldsWhenItsFileIsDeleted_BQ131(t *testing.T) {
	c := small(nil, t.TempDir())
	l := openLog(t, c)
	mustAppend(t, l.Partition(0), "a")
	if err := os.Remove(filepath.Join(c.Dir, "orders", lockName)); err != nil {
		t.Skipf("this system does not delete a file that is locked: %v", err)
	}
	for range 2 {
		_, err := Open(c)
		wantErr(t, err, penstock.ErrLocked)
	}
	must(t, l.Close())
	wantRecords(t, openLog(t, c).Partition(0), 0, "a")
}

// What someone else left in the directories neither stops a topic nor hangs it.
func TestForeignNamesStopNothing(t *testing.T) {
	plant := func(dir bool, names ...string) func(t *testing.T, topic string) {
		return func(t *testing.T, topic string) {
			for _, name := range names {
				path := filepath.Join(topic, name)
				_ = os.Remove(path) // it may not exist
				if dir {
					must(t, os.Mkdir(path, 0o700))
					path = filepath.Join(path, "inside")
				}
				must(t, os.WriteFile(path, []byte("foreign"), 0o600))
			}
		}
	}
	for name, test := range map[string]struct {
		plant func(t *testing.T, topic string)
		group error // of opening the group afterwards
	}{
		"files":                 {plant: plant(false, "junk", "p00000/junk", "p00000/junk.seg", "p00000/junk.tmp", "p00000/groups/%zz.slot", "p00000/groups/junk", "p00000/quarantine", "../junk")},
		"directories":           {plant: plant(true, "junk", "p00000/junk", "p00000/junk.tmp", "p00000/groups/junk.tmp", "../junk")},
		"a directory as a slot": {plant: plant(true, "p00000/groups/g.slot"), group: penstock.ErrCorrupt},
		"garbage as a slot":     {plant: plant(false, "p00000/groups/g.slot"), group: penstock.ErrCorrupt},
		"garbage as state.slot": {plant: plant(false, "p00000/state.slot")},
	} {
		t.Run(name, func(t *testing.T) {
			c := small(nil, t.TempDir())
			c.SegmentEvents = 2
			l := openLog(t, c)
			for _, s := range []string{"a", "b", "c"} {
				mustAppend(t, l.Partition(0), s)
			}
			cs, err := l.Cursors("g", StartEarliest)
			must(t, err)
			must(t, cs[0].Store(1, nil, true))
			must(t, l.Close())
			test.plant(t, filepath.Join(c.Dir, "orders"))
			l = openLog(t, c)
			wantRecords(t, l.Partition(0), 0, "a", "b", "c")
			mustAppend(t, l.Partition(0), "d")
			if _, err := l.Cursors("g", StartEarliest); !errors.Is(err, test.group) {
				t.Errorf("group: %v, want %v", err, test.group)
			}
			_, err = l.Cursors("other", StartEarliest)
			must(t, err)
			must(t, l.Close())
		})
	}
}
