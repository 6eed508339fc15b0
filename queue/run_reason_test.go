package queue_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

func TestHandlerSeesWhyItsBatchIsAsLargeAsItIs(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Size: func(v int) penstock.Bytes { return penstock.Bytes(v) }})
		g := group(t, topic, "g", queue.GroupConfig{
			BatchMax: 3, BatchBytes: 100, Linger: time.Second, Retry: settle.Policy{Backoff: backoff},
		})
		var got []string
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
			got = append(got, b.Reason().String())
			if b.Value(0) == 7 && b.Attempt(0) == 1 {
				return errHandler
			}
			return nil
		})
		produce(t, topic, 1, 1, 1, 200, 7)
		time.Sleep(time.Hour)
		synctest.Wait()
		run.mustStop(t)
		if want := []string{"count", "bytes", "linger", "retry"}; !slices.Equal(got, want) {
			t.Errorf("reasons %v, want %v", got, want)
		}
		st := g.Stats().Run
		if st.FlushedByCount != 1 || st.FlushedByBytes != 1 || st.FlushedByLinger != 1 || st.Retries != 1 {
			t.Errorf("stats %+v, want one of each", st)
		}
		if s := penstock.FlushReason(99).String(); s != "unknown" {
			t.Errorf("a reason that does not exist is %q", s)
		}
	})
}
