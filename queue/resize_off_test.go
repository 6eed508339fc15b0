package queue

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
)

// TestLoopsGoOnAfterAResizeThatIsGivenUp: a loop may still see that it is to
// make room, and a moment later that it is not. It took that for the end of the
// run.
func TestLoopsGoOnAfterAResizeThatIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic, err := Open(Config[int]{Name: "topic", Partitions: 2, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer topic.Close()
		g, err := topic.Group("g", GroupConfig{Consumers: 2})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		var handled atomic.Int64
		go func() { // ends with ctx
			done <- g.Run(ctx, func(_ context.Context, b penstock.Batch[int]) error {
				handled.Add(int64(b.Len()))
				return nil
			})
		}()
		synctest.Wait()
		r, pushers := g.push.run, g.pushers()
		for range 2000 { // what resizeTo does in between the two steps is waiting
			for range 50 {
				for _, p := range pushers {
					p.consumer.waker.Ring()
				}
				r.step.Store(yields)
				r.step.Store(delivering)
			}
			runtime.Gosched()
		}
		if err := topic.Produce(t.Context(), 1, 2); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := handled.Load(); n != 2 || r.left.Load() != 2 {
			t.Errorf("%d of 2 events are handled, by %d of 2 loops", n, r.left.Load())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
