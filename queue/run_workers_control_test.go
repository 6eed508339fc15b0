package queue_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// A seek while workers have events: their results do not count any more, and
// the partition begins again when the last of them has returned.
func TestSeekBesideWorkersBeginsAgainWhenNoneHasEvents(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyedTopic())
		keep := group(t, topic, "keep", queue.GroupConfig{}) // keeps what the other one goes back to
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 2})
		all := events(2, "a", "b", "c")
		produce(t, topic, all...)
		var mu sync.Mutex
		var got []string
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[string]) error {
			mu.Lock()
			got = append(got, b.Value(0))
			mu.Unlock()
			time.Sleep(time.Second)
			return nil
		})
		time.Sleep(1500 * time.Millisecond) // two are settled, two run
		if err := g.SeekOffset(t.Context(), 0, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		run.mustStop(t)
		again := slices.Clone(got[4:])
		slices.Sort(again)
		want := slices.Clone(all)
		slices.Sort(want)
		if !slices.Equal(again, want) {
			t.Errorf("after the seek %v came, want all six once", again)
		}
		wantCommitted(t, g, 6)
		wantCommitted(t, keep, 0)
	})
}

func TestPauseAndRateHoldWorkersBack(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 4, Rate: 10, Burst: 1})
		produce(t, topic, seq(0, 30)...)
		var mu sync.Mutex
		n := 0
		run := startRun(t, g, func(context.Context, penstock.Batch[int]) error {
			mu.Lock()
			defer mu.Unlock()
			n++
			return nil
		})
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return n
		}
		time.Sleep(950 * time.Millisecond)
		if got := count(); got != 10 {
			t.Errorf("%d events in 950 ms at 10 per second, want 10", got)
		}
		g.Pause()
		synctest.Wait()
		before := count()
		time.Sleep(time.Minute)
		if got := count(); got != before {
			t.Errorf("%d events during the pause", got-before)
		}
		g.Resume()
		time.Sleep(time.Minute)
		run.mustStop(t)
		if got := count(); got != 30 {
			t.Errorf("%d events, want 30", got)
		}
		wantCommitted(t, g, 30)
	})
}
