//go:build unix

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

// TestTopicThatWasMovedWritesNothingWhereItWas: another topic was made under its
// old name. Segments of the first were begun, and deleted, among the files of the
// second, and what it acknowledged in them was lost.
func TestTopicThatWasMovedWritesNothingWhereItWas(t *testing.T) {
	for _, level := range []penstock.Durability{penstock.Synced, penstock.Written} {
		t.Run(level.String(), func(t *testing.T) {
			parent := t.TempDir()
			c := small(vfs.OS(), filepath.Join(parent, "data"))
			c.SegmentEvents, c.Durability = 4, level
			first := openLog(t, c)
			p := first.Partition(0)
			var acked []string
			add := func(r string) error {
				at, err := tryAppend(p, r)
				if err == nil && at != penstock.Offset(len(acked)) {
					t.Fatalf("%s is at %d, want %d", r, at, len(acked))
				}
				if err == nil {
					acked = append(acked, r)
				}
				return err
			}
			for i := range 10 {
				must(t, add(fmt.Sprint("first ", i)))
			}
			moved := filepath.Join(parent, "moved")
			must(t, os.Rename(c.Dir, moved))
			second := openLog(t, c)
			other := make([]string, 10)
			for i := range other {
				other[i] = fmt.Sprint("second ", i)
				mustAppend(t, second.Partition(0), other[i])
			}
			before := list(t, filepath.Join(c.Dir, "orders", "p00000"))
			var err error
			for i := 0; err == nil && i < 20; i++ {
				err = add(fmt.Sprint("first, moved ", i))
			}
			wantErr(t, err, vfs.ErrMoved)
			if err := p.Trim(8); !errors.Is(err, vfs.ErrMoved) {
				t.Errorf("a trim: %v", err)
			}
			_, err = first.Cursors("late", StartEarliest)
			wantErr(t, err, vfs.ErrMoved)
			if now := list(t, filepath.Join(c.Dir, "orders", "p00000")); now != before {
				t.Errorf("the second topic has the files %s, and had %s", now, before)
			}
			wantRecords(t, second.Partition(0), 0, other...)
			must(t, second.Close())

			must(t, os.Rename(c.Dir, filepath.Join(parent, "second")))
			must(t, os.Rename(moved, c.Dir)) // it is back, and goes on
			for i := range 10 {
				must(t, add(fmt.Sprint("first, back ", i)))
			}
			must(t, p.Trim(8))
			must(t, first.Close())
			for dir, want := range map[string][]string{c.Dir: acked[8:], filepath.Join(parent, "second"): other} {
				c.Dir = dir
				l := openLog(t, c)
				must(t, l.Partition(0).Fault())
				wantRecords(t, l.Partition(0), l.Partition(0).Earliest(), want...)
				must(t, l.Close())
			}
		})
	}
}

// TestTopicThatWasMovedIsNotReadWhereItWas: segments and positions that were not open
// were opened in the topic that stood in its place, and called damaged.
func TestTopicThatWasMovedIsNotReadWhereItWas(t *testing.T) {
	parent := t.TempDir()
	fill := func(dir, what string) (*Log, []string) {
		c := small(vfs.OS(), dir)
		c.SegmentEvents = 4
		l := openLog(t, c)
		cursors, err := l.Cursors("stored", StartEarliest)
		must(t, err)
		var all []string
		for i := range 10 {
			all = append(all, fmt.Sprint(what, i))
			mustAppend(t, l.Partition(0), all[i])
		}
		must(t, cursors[0].Store(9, nil, true))
		must(t, l.Close())
		return openLog(t, c), all
	}
	data, moved := filepath.Join(parent, "data"), filepath.Join(parent, "moved")
	first, mine := fill(data, "first ")
	must(t, os.Rename(data, moved))
	second, others := fill(data, "second ")
	p := first.Partition(0)

	_, err := readAll(p, 0)
	wantErr(t, err, vfs.ErrMoved)
	_, err = first.Cursors("stored", StartEarliest)
	wantErr(t, err, vfs.ErrMoved)
	wantErr(t, p.Trim(8), vfs.ErrMoved) // makes the stored position durable first
	files := first.Files()
	_, err = files.List(first.dir)
	wantErr(t, err, vfs.ErrMoved)
	_, err = files.Stat(filepath.Join(first.dir, topicName))
	wantErr(t, err, vfs.ErrMoved)
	_, err = files.Lock(filepath.Join(first.dir, "LOCK2"), "")
	wantErr(t, err, vfs.ErrMoved)
	wantRecords(t, second.Partition(0), 0, others...)
	must(t, second.Close())

	must(t, os.Rename(data, filepath.Join(parent, "second")))
	must(t, os.Rename(moved, data)) // it is back
	wantRecords(t, p, 0, mine...)
	cursors, err := first.Cursors("stored", StartEarliest)
	must(t, err)
	if at := cursors[0].Committed(); at != 9 {
		t.Errorf("the position is %d, want 9", at)
	}
	must(t, p.Trim(8))
	wantRecords(t, p, 8, mine[8:]...)
	must(t, first.Close())
}

// list returns the names in a directory, without that of a segment that is being
// prepared.
func list(t *testing.T, dir string) string {
	t.Helper()
	names, err := vfs.OS().List(dir)
	must(t, err)
	return strings.ReplaceAll(fmt.Sprint(names), " "+spareName, "")
}
