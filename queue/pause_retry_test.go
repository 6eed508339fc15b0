package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// A loop that is woken while its group is paused, after a retry has become due,
// leaves it where it is: by a new event, by a change of the pauses, by a Resize.
func TestRetryThatIsDueWaitsForResume(t *testing.T) {
	for name, workers := range map[string]int{"one worker": 1, "several": 2} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s storage) {
				topic := open(t, s, spread(2))
				g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: workers, OnFail: queue.Block, Retry: settle.Policy{Backoff: backoff}})
				r := record(func(_ context.Context, b penstock.Batch[int]) error {
					if b.Value(0) == 0 && b.Attempt(0) == 1 {
						return errHandler // comes again at 1 s
					}
					return nil
				})
				produce(t, topic, 0)
				run := startRun(t, g, r.handle)
				time.Sleep(500 * time.Millisecond)
				g.Pause()
				time.Sleep(time.Second)
				produce(t, topic, 2)
				time.Sleep(time.Second)
				mustDo(t, g.PausePartition(0))
				g.Resume()
				time.Sleep(time.Second)
				produce(t, topic, 1) // of the partition that goes on
				time.Sleep(time.Second)
				resize(t, g, 2)
				time.Sleep(500 * time.Millisecond)
				mustDo(t, g.ResumePartition(0))
				time.Sleep(time.Minute)
				run.mustStop(t)
				if workers > 1 { // both at 5 s, and at the same time
					r.sort()
				}
				r.want(t, handled{0, []int{0}, 1}, handled{3500 * time.Millisecond, []int{1}, 1},
					handled{5 * time.Second, []int{0}, 2}, handled{5 * time.Second, []int{2}, 1})
			})
		})
	}
}
