package queue_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// seeker is an error that does something when its text is asked for: while its
// event is about to be parked.
type seeker struct {
	once *sync.Once
	do   func()
}

func (s seeker) Error() string {
	s.once.Do(s.do)
	return "database is down"
}

// A key that is parked while a seek looks whether anything is belongs to what
// the seek abandons: it comes where the seek says, once, or not at all.
func TestSeekThatMeetsAParkingAbandonsIt(t *testing.T) {
	for _, start := range []queue.Start{queue.Earliest, queue.Latest} {
		bubble(t, func(t *testing.T, s storage) {
			topic := open(t, s, keyed())
			g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()})
			produce(t, topic, "a1", "a2")
			fails := seeker{&sync.Once{}, func() {
				if err := g.Seek(context.Background(), start); err != nil {
					t.Errorf("Seek: %v", err)
				}
			}}
			w := handleWords(nil)
			failed := false
			run := startRun(t, g, func(ctx context.Context, b penstock.Batch[string]) error {
				if !failed {
					failed = true
					b.Fail(0, fails)
					return nil
				}
				return w.handle(ctx, b)
			})
			time.Sleep(time.Hour)
			nothingIsParked(t, g)
			run.mustStop(t)
			if start == queue.Latest {
				w.want(t)
			} else {
				w.want(t, "0s a1", "0s a2")
			}
			wantCommitted(t, g, 2)
			run = startRun(t, g, w.handle) // nor is anything left in the retry log
			time.Sleep(time.Hour)
			run.mustStop(t)
			if start == queue.Latest {
				w.want(t)
			}
		})
	}
}

// What an earlier process has parked is known to a seek before the first Run.
func TestSeekOfAReopenedGroupIsRefusedWhileKeysAreParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := keyedOnDisk("data", vfs.NewMem())
		gc := queue.GroupConfig{BatchMax: 1, Retry: parkPolicy(), Drain: time.Second}
		topic, g := openKeyed(t, c, gc)
		produce(t, topic, "a1", "b1")
		run := startRun(t, g, handleWords(failUntil(9, "a1")).handle)
		time.Sleep(time.Second)
		run.mustStop(t)
		closeTopic(t, topic)

		topic, g = openKeyed(t, c, gc)
		defer closeTopic(t, topic)
		wantErr(t, g.Seek(t.Context(), queue.Earliest), penstock.ErrExists)
		w := handleWords(nil)
		run = startRun(t, g, w.handle)
		time.Sleep(time.Minute)
		run.mustStop(t)
		w.want(t, "1s a1 2")
		if err := g.Seek(t.Context(), queue.Earliest); err != nil {
			t.Errorf("Seek with nothing parked: %v", err)
		}
	})
}
