package queue_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// With two workers x2 was handed out when x1 is parked, and there is no room for
// it. It is parked as soon as another partition makes room.
func TestRoomInTheRetryLogWakesAFollowerThatWasHandedOut_PC7(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			bubble(t, func(t *testing.T, s storage) {
				topic := open(t, s, queue.Config[string]{Partitions: 2, Router: queue.RouterFunc("letter/1", func(v string, _ int) int { return int(v[0]-'a') % 2 })})
				put := func(values ...string) {
					var events []penstock.Event[string]
					for _, v := range values {
						events = append(events, penstock.Event[string]{Value: v, Meta: penstock.Meta{Key: v[:1]}})
					}
					if err := topic.ProduceEvents(t.Context(), events...); err != nil {
						t.Fatal(err)
					}
				}
				g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, Workers: workers, Drain: time.Second,
					Retry: settle.Policy{Backoff: settle.Backoff{Min: time.Hour, Max: time.Hour, Jitter: -1}}})
				queue.LimitParked(g, 2)
				run := startRun(t, g, func(_ context.Context, b penstock.Batch[string]) error {
					if v := b.Value(0); v == "a1" && b.Attempt(0) == 1 || v[0] == 'x' {
						return errHandler
					}
					return nil
				})
				put("a1")
				time.Sleep(time.Second)
				if workers == 1 { // x1 alone in its batch
					put("x1")
					synctest.Wait()
					put("x2")
				} else {
					put("x1", "x2")
				}
				time.Sleep(time.Second)
				wantCommitted(t, g, 1, 1)
				if _, err := g.RetryParked("a"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if st := g.Stats(); st.Parked.Events != 2 || len(st.Run.Blocked) > 0 {
					t.Errorf("%d events are parked, want 2; %s %q", st.Parked.Events, st.State, st.Why)
				}
				wantCommitted(t, g, 1, 2)
				run.mustStop(t)
			})
		})
	}
}
