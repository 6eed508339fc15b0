//go:build unix

package queue_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// filesBelow returns what the files of a directory hold, by name.
func filesBelow(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		all[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func wantMoved(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, vfs.ErrMoved) {
		t.Errorf("%s: %v, want an error that says that the directory was moved", what, err)
	}
}

// TestTopicThatWasMovedTouchesNoRetryLogWhereItWas: another topic was made under
// its old name. A group that the first one did not know deleted what that of the
// second had parked, and what the first one parked lay among the files of the
// second.
func TestTopicThatWasMovedTouchesNoRetryLogWhereItWas(t *testing.T) {
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent := t.TempDir()
				c := keyedOnDisk(filepath.Join(parent, "data"), nil)
				c.Durability = level
				gc := queue.GroupConfig{BatchMax: 1, Drain: time.Second, Retry: parkPolicy()}
				first, g := openKeyed(t, c, gc)
				defer closeTopic(t, first)
				late, err := first.Group("late", gc)
				if err != nil {
					t.Fatal(err)
				}
				old, err := first.Group("old", gc)
				if err == nil {
					err = old.Close()
				}
				if err != nil {
					t.Fatal(err)
				}
				lateRun := startRun(t, late, handleWords(failUntil(2, "c1")).handle)
				produce(t, first, "a1", "b1", "a2")
				w := handleWords(failUntil(2, "a1"))
				run := startRun(t, g, w.handle)
				time.Sleep(time.Second)
				run.mustStop(t)

				moved := filepath.Join(parent, "moved")
				rename(t, c.Dir, moved)
				fillOther(t, c, gc)
				before := filesBelow(t, c.Dir)
				_, err = first.Group("other", gc)
				wantMoved(t, "a group", err)
				_, err = g.RetryParked("a")
				wantMoved(t, "an order", err)
				wantMoved(t, "deleting a group", first.DeleteGroup("old"))
				produce(t, first, "c1")
				time.Sleep(10 * time.Second)
				if keys := late.Parked(); len(keys) != 1 {
					t.Errorf("parked %v, want the key of c1", keys)
				}
				wantCommitted(t, late, 3)
				if after := filesBelow(t, c.Dir); !maps.Equal(before, after) {
					t.Errorf("the other topic had the files %v, and has %v", before, after)
				}

				rename(t, c.Dir, filepath.Join(parent, "other"))
				rename(t, moved, c.Dir) // it is back, and goes on
				run = startRun(t, g, w.handle)
				time.Sleep(10 * time.Second)
				run.mustStop(t)
				lateRun.mustStop(t)
				slices.Sort(w.calls) // a2 and c1 come in any order
				w.want(t, "0s a1", "0s b1", "12s a1 2", "12s a2", "12s c1")
				nothingIsParked(t, g)
				nothingIsParked(t, late)
				wantCommitted(t, late, 4)
				if err := first.DeleteGroup("old"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// fillOther makes a topic in whose group an event is parked, and ordered to come.
func fillOther(t *testing.T, c queue.Config[string], gc queue.GroupConfig) {
	t.Helper()
	other, err := queue.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer closeTopic(t, other)
	g, err := other.Group("other", gc)
	if err != nil {
		t.Fatal(err)
	}
	produce(t, other, "a1", "b1")
	run := startRun(t, g, handleWords(failUntil(2, "a1")).handle)
	time.Sleep(time.Second)
	run.mustStop(t)
	if _, err := g.RetryParked("a"); err != nil {
		t.Error(err)
	}
}
