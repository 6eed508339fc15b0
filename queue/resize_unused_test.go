package queue_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// A consumer that was there before the partitions of an unused group moved, and
// pulls only after they have moved again, once ended what it never had: the
// batch in another consumer's hands was overwritten, on disk its file was gone.
func TestConsumerThatNeverPulledGivesBackNothingOfOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[string]{Partitions: 2, Router: queue.RouterFunc("length/1", func(v string, n int) int { return len(v) % n })})
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, BatchMax: 4})
		keeper, late := g.Consumer(0), g.Consumer(1)
		resize(t, g, 1)
		produce(t, topic, "aa", "1")
		first, ok, err := keeper.TryPull(1)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		mustDo(t, first.Commit())
		held, ok, err := keeper.TryPull(1) // of the partition that moves
		if !ok || err != nil || held.Value(0) != "1" {
			t.Fatal(ok, err, held)
		}
		resize(t, g, 2)
		_, _, err = late.TryPull(1)
		wantErr(t, err, queue.ErrReassigned)
		other := g.Consumer(1)
		for range 300 { // more than a segment
			produce(t, topic, "2")
			if b, ok, err := other.TryPull(4); !ok || err != nil {
				t.Fatal(ok, err)
			} else {
				mustDo(t, b.Commit())
			}
		}
		if v := held.Value(0); v != "1" {
			t.Errorf("the batch in hand became %q", v)
		}
		wantErr(t, held.Commit(), queue.ErrReassigned)
	})
}

// A call of a consumer whose group is run says so, and looks at nothing that Run
// has: the race detector sees it, and a wake-up that it took was lost.
func TestPullBesideRunLooksAtNothing(t *testing.T) {
	for _, linger := range []time.Duration{0, time.Millisecond} {
		inBubble(t, func(t *testing.T, s storage) {
			topic := open(t, s, queue.Config[int]{Partitions: 2})
			g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, Linger: linger})
			idle := g.Consumer(1)
			r := startRun(t, g, func(context.Context, penstock.Batch[int]) error { return nil })
			time.Sleep(time.Second)
			var calls sync.WaitGroup
			calls.Go(func() { // ends after its calls; waited for below
				for range 100 {
					_, _, err := idle.TryPull(1)
					wantErr(t, err, penstock.ErrExists)
					_, err = idle.Pull(t.Context())
					wantErr(t, err, penstock.ErrExists)
				}
			})
			for i := range 100 {
				produce(t, topic, i)
			}
			calls.Wait()
			time.Sleep(time.Second)
			resize(t, g, 1) // a consumer less
			_, _, err := idle.TryPull(1)
			wantErr(t, err, penstock.ErrExists)
			wantCommitted(t, g, 50, 50)
			r.mustStop(t)
		})
	}
}
