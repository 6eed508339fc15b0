package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// brokenRetry panics in the middle of a decision, once.
type brokenRetry[T any] struct {
	retryLog[T]
	once sync.Once
}

func (r *brokenRetry[T]) size(o penstock.Offset, v *view[T]) (penstock.Bytes, error) {
	r.once.Do(func() { panic("in the middle of a decision") })
	return r.retryLog.size(o, v)
}

// A loop that panics while something is decided ends Run, and commits nothing of
// what may be decided in part: the next Run delivers it.
func TestPanicInADecisionCommitsNothing(t *testing.T) {
	for _, disk := range []bool{false, true} {
		for _, workers := range []int{1, 3} {
			t.Run(fmt.Sprintf("disk %v, %d workers", disk, workers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					topic := quiet(t, Config[int]{}, disk)
					c := GroupConfig{BatchMax: 1, Workers: workers, ParkAfter: time.Millisecond}
					c.Retry.Attempts = -1
					c.Retry.Backoff = settle.Backoff{Min: 10 * time.Millisecond, Max: time.Second}
					g, err := topic.Group("g", c)
					if err != nil {
						t.Fatal(err)
					}
					fill(t, topic, 10)
					lane := g.parking.lanes[0]
					lane.log = &brokenRetry[int]{retryLog: lane.log}
					var mu sync.Mutex
					var got []int
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					handle := func(_ context.Context, b penstock.Batch[int]) error {
						mu.Lock()
						defer mu.Unlock()
						if b.Value(0) == 4 && b.Attempt(0) < 3 {
							return errors.New("not yet")
						}
						got = append(got, b.Values()...)
						return nil
					}
					if err, ok := errors.AsType[*penstock.PanicError](g.Run(ctx, handle)); !ok {
						t.Errorf("Run returned %v, want a PanicError", err)
					}
					if err := g.Run(ctx, handle); err != nil {
						t.Error(err)
					}
					for i := range 10 {
						if !slices.Contains(got, i) {
							t.Errorf("%d never came: %v", i, got)
						}
					}
				})
			})
		}
	}
}
