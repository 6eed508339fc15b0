package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// taken is one pulled batch: how long after the last one, what, and why.
type taken struct {
	After  time.Duration
	Events []int
	Why    penstock.FlushReason
}

// takes pulls and commits until so many batches have come.
func takes(t *testing.T, c *queue.Consumer[int], batches int) (all []taken) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
	defer cancel()
	for range batches {
		begin := time.Now()
		b, err := c.Pull(ctx)
		if err != nil {
			t.Fatalf("after %v: %v", all, err)
		}
		all = append(all, taken{time.Since(begin), slices.Clone(b.Values()), b.Reason()})
		if err := b.Commit(); err != nil && !errors.Is(err, queue.ErrAutoCommit) {
			t.Fatal(err)
		}
	}
	return all
}

// later produces one event after another, each after its time; the test waits
// for it.
func later(t *testing.T, topic *queue.Topic[int], times ...time.Duration) {
	done := make(chan struct{})
	go func() { // ends after the last event; waited for by the test's end
		defer close(done)
		for i, d := range times {
			time.Sleep(d)
			if err := topic.Produce(t.Context(), i); err != nil {
				t.Error(err)
			}
		}
	}()
	t.Cleanup(func() { <-done })
}

func TestPullWaitsUntilItsBatchIsFullOrLingerIsOver(t *testing.T) {
	realLimit(t, time.Minute, "pulls that linger do not come to an end")
	for _, auto := range []bool{false, true} {
		inBubble(t, func(t *testing.T, s storage) {
			topic := open(t, s, queue.Config[int]{})
			c := group(t, topic, "g", queue.GroupConfig{BatchMax: 3, Linger: time.Second, AutoCommit: auto}).Consumer(0)
			ms := time.Millisecond
			later(t, topic, 500*ms, 900*ms, 0, 0, 0, 0, 0, 5*time.Second, 1001*ms)
			want := []taken{
				{1400 * ms, []int{0, 1, 2}, penstock.FlushCount}, // the third event came 900 ms after the first
				{0, []int{3, 4, 5}, penstock.FlushCount},
				{time.Second, []int{6}, penstock.FlushLinger},
				{5 * time.Second, []int{7}, penstock.FlushLinger}, // 4 s for the first, and 1 s for more
				{1001 * ms, []int{8}, penstock.FlushLinger},
			}
			if diff := cmp.Diff(want, takes(t, c, len(want))); diff != "" {
				t.Errorf("auto %t: %s", auto, diff)
			}
		})
	}
}

func TestPullTakesWhatIsThereWhenBatchMinIs(t *testing.T) {
	realLimit(t, time.Minute, "pulls that linger do not come to an end")
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		c := group(t, topic, "g", queue.GroupConfig{BatchMax: 10, BatchMin: 3, Linger: time.Minute}).Consumer(0)
		produce(t, topic, seq(0, 24)...)
		later(t, topic, time.Second, time.Second, time.Second)
		want := []taken{
			{0, seq(0, 10), penstock.FlushCount}, {0, seq(10, 20), penstock.FlushCount}, {0, seq(20, 24), penstock.FlushLinger},
			{3 * time.Second, seq(0, 3), penstock.FlushLinger},
		}
		if diff := cmp.Diff(want, takes(t, c, len(want))); diff != "" {
			t.Error(diff)
		}
	})
}

// TestRunTakesWhatIsThereWhenBatchMinIs is the same for Run, with one worker
// and with several.
func TestRunTakesWhatIsThereWhenBatchMinIs(t *testing.T) {
	for _, workers := range []int{1, 2} {
		bubble(t, func(t *testing.T, s storage) {
			topic := open(t, s, queue.Config[int]{})
			g := group(t, topic, "g", queue.GroupConfig{BatchMax: 10, BatchMin: 3, Linger: time.Minute, Workers: workers})
			var mu sync.Mutex
			var got []taken
			begin := time.Now()
			run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, taken{time.Since(begin), slices.Clone(b.Values()), b.Reason()})
				return nil
			})
			for _, events := range [][]int{{0}, {1}, {2}, {3}} {
				synctest.Wait()
				produce(t, topic, events...)
				time.Sleep(time.Second)
			}
			time.Sleep(time.Hour)
			run.mustStop(t)
			want := []taken{{2 * time.Second, seq(0, 3), penstock.FlushLinger}, {63 * time.Second, []int{3}, penstock.FlushLinger}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%d workers: %s", workers, diff)
			}
		})
	}
}

func TestPullIsCutToBytes(t *testing.T) {
	realLimit(t, time.Minute, "pulls that linger do not come to an end")
	size := func(v int) penstock.Bytes { return penstock.Bytes(v) }
	for _, linger := range []time.Duration{0, time.Second} {
		inBubble(t, func(t *testing.T, s storage) {
			topic := open(t, s, queue.Config[int]{Size: size})
			c := group(t, topic, "g", queue.GroupConfig{BatchMax: 3, BatchBytes: 100, Linger: linger}).Consumer(0)
			produce(t, topic, 50, 49, 2, 1, 1, 500, -7, 100, 10, 20)
			want := []taken{
				{0, []int{50, 49}, penstock.FlushBytes}, {0, []int{2, 1, 1}, penstock.FlushCount},
				{0, []int{500}, penstock.FlushBytes}, {0, []int{-7, 100}, penstock.FlushBytes}, // exactly full
				{linger, []int{10, 20}, penstock.FlushLinger},
			}
			if diff := cmp.Diff(want, takes(t, c, len(want))); diff != "" {
				t.Errorf("linger %v: %s", linger, diff)
			}
			produce(t, topic, 60, 60)
			b, ok, err := c.TryPull(10) // never waits
			if !ok || err != nil || !slices.Equal(b.Values(), []int{60}) || b.Reason() != penstock.FlushBytes {
				t.Errorf("TryPull: %v, %t, %v, because of %v", b.Values(), ok, err, b.Reason())
			}
			commit(t, c)
			b, ok, err = c.TryPull(10)
			if !ok || err != nil || !slices.Equal(b.Values(), []int{60}) || b.Reason() != penstock.FlushLinger {
				t.Errorf("TryPull: %v, %t, %v, because of %v", b.Values(), ok, err, b.Reason())
			}
		})
	}
}

// TestPullTellsWhyWithoutLinger: also on the short way, and after it.
func TestPullTellsWhyWithoutLinger(t *testing.T) {
	for _, auto := range []bool{false, true} {
		forEachStorage(t, func(t *testing.T, s storage) {
			topic := open(t, s, queue.Config[int]{})
			c := group(t, topic, "g", queue.GroupConfig{AutoCommit: auto}).Consumer(0)
			for range 3 {
				produce(t, topic, seq(0, 11)...)
				var got []string
				for {
					b, ok, err := c.TryPull(3)
					if err != nil {
						t.Fatal(err)
					}
					if !ok {
						break
					}
					got = append(got, fmt.Sprint(b.Len(), " ", b.Reason()))
					if !auto {
						commit(t, c)
					}
				}
				if want := []string{"3 count", "3 count", "3 count", "2 linger"}; !slices.Equal(got, want) {
					t.Errorf("auto %t: %v, want %v", auto, got, want)
				}
			}
		})
	}
}

func TestPanicOfASizeFunctionTakesNothing_FM101(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		bad := false
		topic := open(t, s, queue.Config[int]{Size: func(v int) penstock.Bytes {
			if bad && v == 2 {
				panic("size")
			}
			return 1
		}})
		c := group(t, topic, "g", queue.GroupConfig{BatchBytes: 2, Linger: time.Hour}).Consumer(0)
		produce(t, topic, 0, 1, 2, 3)
		bad = true
		if diff := cmp.Diff([]int{0, 1}, pull(t, c, 9)); diff != "" {
			t.Error(diff)
		}
		commit(t, c)
		for range 2 {
			_, _, err := c.TryPull(9)
			_, waited := c.Pull(t.Context())
			for _, err := range []error{err, waited} {
				if p, ok := errors.AsType[*penstock.PanicError](err); !ok || p.Value != "size" {
					t.Errorf("error %v, want a PanicError", err)
				}
			}
		}
		bad = false
		if diff := cmp.Diff([]int{2, 3}, pull(t, c, 9)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestLingeringPullEndsByEachCause: what is there is not lost, and comes with
// the next pull.
func TestLingeringPullEndsByEachCause(t *testing.T) {
	realLimit(t, time.Minute, "pulls that linger do not come to an end")
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 5, Linger: time.Hour})
		c := g.Consumer(0)
		produce(t, topic, 0, 1, 2)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errEnded)
		defer cancel()
		_, err := c.Pull(ctx)
		wantErr(t, err, context.DeadlineExceeded, errEnded)
		wantCommitted(t, g, 0, 0)
		begin := time.Now()
		b, err := c.Pull(t.Context()) // the hour of its first event, which was seen a minute ago
		if d := time.Since(begin); err != nil || d != 59*time.Minute || b.Len() != 2 {
			t.Errorf("%d events, %v, after %v", b.Len(), err, d)
		}
		begin = time.Now()
		if b, err = c.Pull(t.Context()); err != nil || b.Len() != 1 || time.Since(begin) != 0 {
			t.Errorf("the other partition: %d events, %v, after %v", b.Len(), err, time.Since(begin))
		}
		commit(t, c)
		begin = time.Now()
		b, err = c.Pull(t.Context()) // not committed: it comes again, at once
		if d := time.Since(begin); err != nil || d != 0 || !slices.Equal(b.Values(), []int{0, 2}) {
			t.Errorf("again: %v, %v, after %v", b.Values(), err, d)
		}
		commit(t, c)
		produce(t, topic, 3)
		for i, end := range []func() error{g.Close, topic.Close} {
			waiting := start(t, func() error { _, err := c.Pull(t.Context()); return err })
			if i == 0 {
				waiting.blocked()
			}
			if err := end(); err != nil {
				t.Error(err)
			}
			wantErr(t, waiting.wait(), penstock.ErrClosed)
		}
	})
}

// TestLingeringPullIsPausedAndSought: a pause holds what waits for more back, a
// seek begins anew.
func TestLingeringPullIsPausedAndSought(t *testing.T) {
	realLimit(t, time.Minute, "pulls that linger do not come to an end")
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 5, Linger: 10 * time.Second})
		group(t, topic, "keeper", queue.GroupConfig{})
		c := g.Consumer(0)
		produce(t, topic, 0, 1, 2)
		begin := time.Now()
		var got []int
		waiting := start(t, func() error {
			b, err := c.Pull(t.Context())
			got = slices.Clone(b.Values())
			return err
		})
		waiting.blocked()
		g.Pause()
		time.Sleep(time.Minute)
		waiting.blocked()
		g.Resume()
		if err := waiting.wait(); err != nil || time.Since(begin) != time.Minute || !slices.Equal(got, []int{0, 1, 2}) {
			t.Errorf("%v, %v, after %v", got, err, time.Since(begin))
		}
		commit(t, c)
		waiting = start(t, func() error {
			b, err := c.Pull(t.Context())
			got = slices.Clone(b.Values())
			return err
		})
		waiting.blocked()
		if err := g.SeekOffset(t.Context(), 0, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Second - 1)
		waiting.blocked()
		time.Sleep(time.Nanosecond)
		if err := waiting.wait(); err != nil || !slices.Equal(got, []int{1, 2}) {
			t.Errorf("after a seek: %v, %v", got, err)
		}
	})
}

func TestLingeringPullKeepsToTheRate(t *testing.T) {
	realLimit(t, time.Minute, "pulls that linger do not come to an end")
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		c := group(t, topic, "g", queue.GroupConfig{BatchMax: 4, Linger: time.Second, Rate: 2, Burst: 4}).Consumer(0)
		produce(t, topic, seq(0, 40)...)
		begin := time.Now()
		n := 0
		for _, b := range takes(t, c, 10) {
			n += len(b.Events)
		}
		if d := time.Since(begin); n != 40 || d != 18*time.Second { // 4 at once, 36 at 2 a second
			t.Errorf("%d events in %v, want 40 in 18s", n, d)
		}
	})
}

// TestLingeringPullsLoseNothingAndHoldNothingLonger: singles and batches come
// at random times to several partitions, some at the very instant at which a
// wait is over.
func TestLingeringPullsLoseNothingAndHoldNothingLonger(t *testing.T) {
	realLimit(t, 2*time.Minute, "pulls that linger do not come to an end")
	inBubble(t, func(t *testing.T, s storage) {
		const events, linger = 400, 7 * time.Millisecond
		rnd, begin := rand.New(rand.NewPCG(1, 2)), time.Now()
		topic := open(t, s, queue.Config[int]{Partitions: 5})
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, BatchMax: 6, BatchMin: 4, Linger: linger})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var left atomic.Int64
		left.Store(events)
		var consumers sync.WaitGroup
		for i := range 2 {
			consumers.Go(func() { // ends with ctx; waited for below
				next := map[int]penstock.Offset{}
				for b, err := range g.Consumer(i).Batches(ctx) {
					if err != nil {
						return
					}
					if b.Offset(0) != next[b.Partition()] {
						t.Errorf("partition %d: offset %d, want %d", b.Partition(), b.Offset(0), next[b.Partition()])
					}
					next[b.Partition()] += penstock.Offset(b.Len())
					waited := time.Since(begin) - time.Duration(b.Value(0))*time.Millisecond
					if full := b.Len() >= 4; waited > linger || !full && waited < linger || b.Reason() == penstock.FlushCount != (b.Len() == 6) {
						t.Errorf("%d events because of %v after %v", b.Len(), b.Reason(), waited)
					}
					if err := b.Commit(); err != nil {
						t.Error(err)
					}
					if left.Add(-int64(b.Len())) == 0 {
						cancel()
					}
				}
			})
		}
		for n := 0; n < events; {
			time.Sleep(time.Duration(rnd.IntN(5)) * time.Millisecond)
			k := min(events-n, 1+rnd.IntN(8)*rnd.IntN(2))
			if err := topic.Produce(t.Context(), slices.Repeat([]int{int(time.Since(begin).Milliseconds())}, k)...); err != nil {
				t.Error(err)
			}
			n += k
		}
		consumers.Wait()
		if n := left.Load(); n != 0 {
			t.Errorf("%d events have not come", n)
		}
	})
}

func TestBatchMinNeedsLinger(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{})
	for _, c := range []queue.GroupConfig{{BatchMin: 1}, {BatchMin: -1, Linger: 1}, {BatchMin: 101, Linger: 1}, {BatchMax: 5, BatchMin: 6, Linger: 1}} {
		_, err := topic.Group("g", c)
		if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != "BatchMin" {
			t.Errorf("%+v: error %v, want one that names BatchMin", c, err)
		}
	}
}

// TestCopyOfAPullStaysAsItIs: whatever becomes of the batch, and of the memory
// that it lay in.
func TestCopyOfAPullStaysAsItIs(t *testing.T) {
	for _, auto := range []bool{false, true} {
		forEachStorage(t, func(t *testing.T, s storage) {
			topic := open(t, s, queue.Config[int]{SegmentSize: 4})
			g := group(t, topic, "g", queue.GroupConfig{AutoCommit: auto})
			c := g.Consumer(0)
			_, err := c.PullInto(t.Context(), nil)
			if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != "dst" {
				t.Errorf("error %v, want one that names dst", err)
			}
			_, err = c.PullInto(ended(t), make([]int, 1))
			wantErr(t, err, errEnded)
			produce(t, topic, seq(0, 6)...)
			dst := make([]int, 5, 8)
			if !auto {
				if _, err := c.PullInto(t.Context(), dst); err != nil { // not committed: it comes again
					t.Fatal(err)
				}
				clear(dst)
			}
			b, err := c.PullInto(t.Context(), dst)
			if err != nil || b.Len() != 5 || &b.Values()[0] != &dst[0] || b.Offset(4) != 4 || b.Reason() != penstock.FlushCount {
				t.Fatalf("%v, %v", b, err)
			}
			if !auto {
				wantCommitted(t, g, 0)
				if err := b.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			wantCommitted(t, g, 5)
			for i := range 100 {
				produce(t, topic, seq(100*i, 100*i+7)...)
				for pull(t, c, 3) != nil {
					if !auto {
						commit(t, c)
					}
				}
			}
			if diff := cmp.Diff(seq(0, 5), dst); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPullIntoWaitsAndAllocatesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		dst := make([]int, 10)
		waiting := start(t, func() error { _, err := c.PullInto(t.Context(), dst); return err })
		waiting.blocked()
		produce(t, topic, 7)
		if err := waiting.wait(); err != nil || dst[0] != 7 {
			t.Errorf("%v, %v", dst, err)
		}
	})
	topic := open(t, storages[0], queue.Config[int]{})
	c := group(t, topic, "g", queue.GroupConfig{BatchMax: 64, Linger: time.Hour}).Consumer(0)
	ctx, batch, dst := t.Context(), seq(0, 512), make([]int, 64)
	round := func() {
		if topic.Produce(ctx, batch...) != nil {
			t.Fatal("Produce failed")
		}
		for range 4 {
			b, err := c.PullInto(ctx, dst)
			if err != nil || b.Len() != 64 || b.Commit() != nil {
				t.Fatal(b.Len(), err)
			}
			if b, err = c.Pull(ctx); err != nil || b.Len() != 64 || b.Commit() != nil { // full, so it waits for nothing
				t.Fatal(b.Len(), err)
			}
		}
	}
	for range 300 {
		round()
	}
	if n := testing.AllocsPerRun(500, round); n > 0 {
		t.Errorf("%v allocations per 512 events, want 0", n)
	}
}
