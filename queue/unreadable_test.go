package queue_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// A partition that cannot be read for a while is tried again, counted and shown;
// others go on, and Run with them.
func TestReadErrorsThatPassAreTriedAgain_BQ89(t *testing.T) {
	for _, workers := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			m := vfs.NewMem()
			errDisk := errors.New("input/output error")
			var broken atomic.Bool
			dir := filepath.Join("topic", "p00000")
			m.SetFault(func(op vfs.Op) vfs.Fault {
				if broken.Load() && op.Kind == vfs.OpRead && strings.Contains(op.Name, dir) {
					return vfs.Fault{Err: errDisk}
				}
				return vfs.Fault{}
			})
			c := keyedOnDisk("data", m)
			c.Partitions, c.Key = 2, nil
			topic, g := openKeyed(t, c, queue.GroupConfig{Workers: workers, BatchMax: 2})
			defer closeTopic(t, topic)
			var got recorded[string]
			run := startRun(t, g, func(_ context.Context, b penstock.Batch[string]) error {
				got.add(b.Values()...)
				return nil
			})
			synctest.Wait()
			broken.Store(true)
			produce(t, topic, "a0", "b0", "a1", "b1", "a2", "b2")
			time.Sleep(time.Minute)
			wantCommitted(t, g, 0, 3)
			st := g.Stats()
			if u := st.Run.Unreadable; len(u) != 1 || u[0].Partition != 0 || u[0].Offset != 0 || u[0].Next.IsZero() || u[0].Attempts < 5 || u[0].Attempts > 20 ||
				st.State != queue.Unreadable || st.ReadErrors != uint64(u[0].Attempts) || !strings.Contains(u[0].Reason, errDisk.Error()) {
				t.Errorf("unreadable %+v, %d read errors, %s: %s", u, st.ReadErrors, st.State, st.Why)
			}
			broken.Store(false)
			time.Sleep(time.Minute)
			wantCommitted(t, g, 3, 3)
			if u := g.Stats().Run.Unreadable; len(u) != 0 {
				t.Errorf("afterwards unreadable: %+v", u)
			}
			run.mustStop(t)
			var a []string
			for _, v := range got.take() {
				if v[0] == 'a' {
					a = append(a, v)
				}
			}
			if diff := cmp.Diff([]string{"a0", "a1", "a2"}, a); diff != "" && workers == 1 {
				t.Errorf("handled (-want +got):\n%s", diff)
			}
		})
	}
}

// The drain of a run does not wait for a partition that cannot be read.
func TestDrainDoesNotWaitForWhatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		var broken atomic.Bool
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if broken.Load() && op.Kind == vfs.OpRead {
				return vfs.Fault{Err: errors.New("input/output error")}
			}
			return vfs.Fault{}
		})
		topic, g := openKeyed(t, keyedOnDisk("data", m), queue.GroupConfig{})
		defer closeTopic(t, topic)
		run := startRun(t, g, func(context.Context, penstock.Batch[string]) error { return nil })
		synctest.Wait()
		broken.Store(true)
		produce(t, topic, "a")
		time.Sleep(time.Second)
		begun := time.Now()
		run.mustStop(t)
		if waited := time.Since(begun); waited > 0 {
			t.Errorf("the drain took %v", waited)
		}
		broken.Store(false)
		run = startRun(t, g, func(context.Context, penstock.Batch[string]) error { return nil })
		time.Sleep(time.Second)
		run.mustStop(t)
		wantCommitted(t, g, 1)
	})
}

// Damage stops the partition that has it; the run ends with it and not by it.
func TestDamageStopsItsPartitionAlone_BQ89(t *testing.T) {
	for _, workers := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			c := queue.Config[string]{Name: "topic", Dir: t.TempDir(), Codec: penstock.String(), Partitions: 2}
			topic := openDisk(t, c)
			for _, v := range []string{"first", "b0", "second", "b1", "third", "b2"} {
				produce(t, topic, v)
			}
			group(t, topic, "g", queue.GroupConfig{})
			if err := topic.Close(); err != nil {
				t.Fatal(err)
			}
			damage(t, c.Dir, "second")
			topic = openDisk(t, c)
			g := group(t, topic, "g", queue.GroupConfig{Workers: workers})
			run := startRun(t, g, func(context.Context, penstock.Batch[string]) error { return nil })
			time.Sleep(time.Minute)
			wantCommitted(t, g, 1, 3)
			if st := g.Stats(); st.State != queue.Faulted || len(st.Run.Unreadable) != 1 {
				t.Errorf("%s: %s, unreadable %+v", st.State, st.Why, st.Run.Unreadable)
			}
			produce(t, topic, "b3", "b4") // in turn; both go where they can, or say that they cannot
			wantErr(t, run.stop(), penstock.ErrCorrupt)
		})
	}
}
