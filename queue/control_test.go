package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func TestPausedPullWaitsForResume(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1})
		c := g.Consumer(0)
		produce(t, topic, seq(0, 6)...)
		if pull(t, c, 1) == nil {
			t.Fatal("nothing to pull")
		}
		g.Pause()
		g.Pause()
		if got := pull(t, c, 1); got != nil {
			t.Errorf("a paused group pulled %v", got)
		}
		var got penstock.Batch[int]
		wait := start(t, func() error { b, err := c.Pull(t.Context()); got = b.Batch; return err })
		wait.blocked()
		produce(t, topic, 6, 7) // a new event does not wake it for good
		wait.blocked()
		if st := g.Stats(); !st.Paused || st.State != queue.Paused {
			t.Errorf("Stats: paused %t, state %v", st.Paused, st.State)
		}
		mustDo(t, g.PausePartition(0))
		g.Resume()
		g.Resume()
		if err := wait.wait(); err != nil || got.Partition() != 1 {
			t.Fatalf("after Resume: %v of partition %d, want 1", err, got.Partition())
		}
		commit(t, c)
		for range 3 {
			if b, ok, err := c.TryPull(1); !ok || err != nil || b.Partition() != 1 {
				t.Fatalf("%t, %v, partition %d; want 1 alone", ok, err, b.Partition())
			}
			commit(t, c)
		}
		wait = start(t, func() error { b, err := c.Pull(t.Context()); got = b.Batch; return err })
		wait.blocked()
		if st := g.Stats(); st.Paused || !cmp.Equal(st.PausedPartitions, []int{0}) {
			t.Errorf("Stats: %t, %v", st.Paused, st.PausedPartitions)
		}
		mustDo(t, g.ResumePartition(0))
		if err := wait.wait(); err != nil || got.Partition() != 0 {
			t.Errorf("after ResumePartition: %v of partition %d, want 0", err, got.Partition())
		}
		for _, i := range []int{-1, 2} {
			wantErr(t, g.PausePartition(i), penstock.ErrInvalid)
			wantErr(t, g.ResumePartition(i), penstock.ErrInvalid)
		}
	})
}

// A commit of what was in hand goes on, and so does the capacity it gives back.
func TestPausedGroupCommits(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 2})
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, 1, 2)
		pull(t, g.Consumer(0), 2)
		g.Pause()
		commit(t, g.Consumer(0))
		produce(t, topic, 3, 4)
		wantCommitted(t, g, 2)
	})
}

func TestPausedRunFinishesWhatIsInHand(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Retry: settle.Policy{Backoff: backoff}})
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			time.Sleep(time.Second)
			if b.Value(0) == 2 && b.Attempt(0) == 1 {
				return errHandler
			}
			return nil
		})
		produce(t, topic, 1, 2, 3)
		run := startRun(t, g, r.handle)
		time.Sleep(500 * time.Millisecond)
		g.Pause()
		time.Sleep(9500 * time.Millisecond)
		wantCommitted(t, g, 1)
		g.Resume()
		time.Sleep(1500 * time.Millisecond)
		g.Pause() // the retry of 2 is due at 12 s
		time.Sleep(8500 * time.Millisecond)
		g.Resume()
		time.Sleep(time.Minute)
		run.mustStop(t)
		r.want(t, handled{0, []int{1}, 1}, handled{10 * time.Second, []int{2}, 1},
			handled{20 * time.Second, []int{2}, 2}, handled{21 * time.Second, []int{3}, 1})
		wantCommitted(t, g, 3)
	})
}

func TestPausedPartitionOfRunWaitsAlone(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		g := group(t, topic, "g", queue.GroupConfig{})
		mustDo(t, g.PausePartition(1))
		produce(t, topic, 0, 1, 2, 3)
		run := startRun(t, g, record(nil).handle)
		time.Sleep(time.Second)
		wantCommitted(t, g, 2, 0)
		mustDo(t, g.ResumePartition(1))
		time.Sleep(time.Second)
		wantCommitted(t, g, 2, 2)
		run.mustStop(t)
	})
}

// A run that ends while its group is paused does not wait for what is held.
func TestRunEndsWhilePaused(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{Retry: settle.Policy{Backoff: backoff}})
		run := startRun(t, g, func(context.Context, penstock.Batch[int]) error { return errHandler })
		produce(t, topic, 1)
		synctest.Wait()
		g.Pause()
		begin := time.Now()
		err := run.stop()
		if d, ok := errors.AsType[*penstock.DrainError](err); !ok || d.Left != 1 {
			t.Errorf("Run: %v, want a DrainError with 1 left", err)
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("the drain took %v", d)
		}
	})
}

func TestRateConfigurationNamesTheBadField(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{})
	for field, all := range map[string][]queue.GroupConfig{
		"Rate":  {{Rate: -1}, {Rate: math.NaN()}, {Rate: math.Inf(1)}},
		"Burst": {{Rate: 1, Burst: -1}, {Burst: 5}, {Rate: 1, Burst: 1<<30 + 1}},
	} {
		for _, c := range all {
			_, err := topic.Group("g", c)
			if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != field {
				t.Errorf("%+v: %v, want one of %s", c, err, field)
			}
		}
	}
}

func TestRateOfRunIsExact(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 4, Rate: 2, Burst: 3})
		produce(t, topic, seq(0, 10)...)
		r := record(nil)
		run := startRun(t, g, r.handle)
		time.Sleep(time.Second)
		if st := g.Stats(); !st.RateLimited || st.Rate != 2 {
			t.Errorf("Stats: %t, %v", st.RateLimited, st.Rate)
		}
		time.Sleep(time.Minute)
		// Batches of at most Burst; each waits for all of its tokens.
		r.want(t, handled{0, seq(0, 3), 1}, handled{1500 * time.Millisecond, seq(3, 6), 1},
			handled{3 * time.Second, seq(6, 9), 1}, handled{3500 * time.Millisecond, seq(9, 10), 1})
		r.calls, r.begin = nil, time.Now() // the bucket is full again, and no more than full
		produce(t, topic, seq(10, 14)...)
		time.Sleep(time.Minute)
		run.mustStop(t)
		r.want(t, handled{0, seq(10, 13), 1}, handled{500 * time.Millisecond, seq(13, 14), 1})
		if st := g.Stats(); st.RateLimited {
			t.Error("the group is said to be limited when it has nothing to do")
		}
	})
}

func TestRateOfPullIsExact(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		groups := map[bool]*queue.Group[int]{}
		for _, auto := range []bool{false, true} {
			groups[auto] = group(t, topic, fmt.Sprintf("auto %t", auto), queue.GroupConfig{BatchMax: 2, Rate: 2, AutoCommit: auto})
		}
		produce(t, topic, seq(0, 8)...)
		for auto, g := range groups {
			c, begin := g.Consumer(0), time.Now()
			for i, at := range []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second} {
				b, err := c.Pull(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if d := time.Since(begin); d != at || b.Len() != 2 {
					t.Errorf("batch %d: %d events after %v, want 2 after %v", i, b.Len(), d, at)
				}
				if !auto {
					commit(t, c)
				}
			}
		}
	})
}

// Whatever consumers and batches do, no stretch of time has more events than
// the burst and what the rate gives in it, and in the long run none is lost.
func TestRateHoldsForAllConsumersTogether(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		const rate, burst, events = 10, 7, 500
		topic := open(t, s, queue.Config[int]{Partitions: 3})
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 3, BatchMax: 20, Rate: rate, Burst: burst, Retry: settle.Policy{Backoff: backoff}})
		begin := time.Now()
		rng := rand.New(rand.NewPCG(1, 2))
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			if b.Value(0)%50 == 7 && b.Attempt(0) == 1 {
				b.Fail(0, errHandler)
			}
			return nil
		})
		run := startRun(t, g, r.handle)
		for n := 0; n < events; n += 10 {
			produce(t, topic, seq(n, n+10)...)
			time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
		}
		time.Sleep(2 * time.Minute)
		run.mustStop(t)
		total, free := 0, float64(burst)
		last := begin
		for i, call := range r.calls {
			at := begin.Add(call.At)
			free = min(burst, free+rate*at.Sub(last).Seconds()) - float64(len(call.Values))
			last = at
			if free < -1e-6 {
				t.Fatalf("%v after the begin, %v events too many were delivered: %+v", call.At, -free, r.calls[max(0, i-8):i+1])
			}
			total += len(call.Values)
		}
		if st := g.Stats(); st.Lag != 0 || total < events {
			t.Errorf("%d deliveries of %d events, lag %d", total, events, st.Lag)
		}
	})
}

// Pausing what waits for the rate, and closing it, ends the wait.
func TestPauseAndCloseWhileTheRateHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Rate: 0.001})
		produce(t, topic, seq(0, 6)...)
		pull(t, g.Consumer(0), 1)
		commit(t, g.Consumer(0))
		wait := start(t, func() error { _, err := g.Consumer(0).Pull(t.Context()); return err })
		wait.blocked()
		mustDo(t, g.PausePartition(0))
		mustDo(t, g.PausePartition(1))
		time.Sleep(time.Hour) // the tokens are there; the test hangs if that makes the pull spin
		wait.blocked()
		g.Resume()
		mustDo(t, g.Close())
		wantErr(t, wait.wait(), penstock.ErrClosed)
	})
}
