package queue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// What happens to a parked event while a handler has it.

// An event keeps the attempt that it has when its key is discarded, and is given
// up when that fails.
func TestDiscardGivesUpWhatAHandlerHas(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			bubble(t, func(t *testing.T, s storage) {
				topic := open(t, s, keyed())
				var dead []string
				c := queue.GroupConfig{BatchMax: 1, Workers: workers, Drain: time.Second, Retry: parkPolicy()}
				c.Retry.Attempts = -1
				g, err := topic.Group("g", c, queue.DeadLetter(func(_ context.Context, events ...penstock.Event[string]) error {
					for _, e := range events {
						dead = append(dead, fmt.Sprint(e.Value, " ", e.Attempt))
					}
					return nil
				}))
				if err != nil {
					t.Fatal(err)
				}
				produce(t, topic, "a1", "a2")
				w := handleWords(failUntil(99, "a1"))
				run := startRun(t, g, func(ctx context.Context, b penstock.Batch[string]) error {
					if b.Value(0) == "a1" && b.Attempt(0) == 2 {
						if n, err := g.DiscardParked("a"); n != 2 || err != nil {
							t.Errorf("DiscardParked: %d, %v, want 2", n, err)
						}
						time.Sleep(time.Second) // another worker takes the order up
					}
					return w.handle(ctx, b)
				})
				time.Sleep(time.Hour)
				run.mustStop(t)
				w.want(t, "0s a1", "3s a1 2")
				want(t, dead, "a1 2", "a2 0")
				if n := g.Stats().Discarded; n != 2 {
					t.Errorf("%d events are counted as discarded, want 2", n)
				}
			})
		})
	}
}

// A hard limit that passes the group does not touch what is parked, so what the
// handler does with it counts.
func TestParkedEventThatIsSettledWhileTheGroupIsPassedDoesNotComeAgain(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topic, g := openKeyed(t, passing(keyedOnDisk("data", vfs.NewMem())),
					queue.GroupConfig{BatchMax: 1, Workers: workers, Drain: time.Second, Retry: parkPolicy()})
				defer closeTopic(t, topic)
				produce(t, topic, "a1", "c1")
				w := handleWords(failUntil(2, "a1", "c1"))
				run := startRun(t, g, func(ctx context.Context, b penstock.Batch[string]) error {
					err := w.handle(ctx, b)
					if b.Attempt(0) > 1 {
						time.Sleep(time.Second)
					}
					return err
				})
				time.Sleep(2500 * time.Millisecond) // a1 is in hand
				passBy(t, topic)
				time.Sleep(time.Minute)
				run.mustStop(t)
				for _, v := range []string{"a1", "c1"} {
					n := 0
					for _, call := range w.calls {
						if strings.Contains(call, v) {
							n++
						}
					}
					if n != 2 {
						t.Errorf("%s came %d times, want 2; calls %v", v, n, w.calls)
					}
				}
				if g.Stats().Skipped == 0 {
					t.Error("the group was not passed")
				}
			})
		})
	}
}
