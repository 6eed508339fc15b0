package queue_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	compare "github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// sort orders calls of several consumers that began at the same time.
func (r *recorder) sort() {
	slices.SortStableFunc(r.calls, func(a, b handled) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Values[0], b.Values[0])) })
}

// A running group gets more consumers, and fewer, between two calls of its
// handler; Run does not return, and the counts go on.
func TestResizeOfARunningGroup(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, spread(6))
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1})
		produce(t, topic, seq(0, 60)...)
		var now atomic.Int32 // calls at a time
		run := startRun(t, g, func(context.Context, penstock.Batch[int]) error {
			now.Add(1)
			defer now.Add(-1)
			time.Sleep(time.Second)
			return nil
		})
		time.Sleep(500 * time.Millisecond)
		for i, n := range []int{3, 6, 2, 5, 1} {
			wait := start(t, func() error { return g.Resize(t.Context(), n) })
			wait.blocked() // for the calls that run
			if at := g.Stats().ResizingTo; at != n {
				t.Errorf("Stats: a Resize to %d waits, want %d", at, n)
			}
			time.Sleep(500 * time.Millisecond)
			if err := wait.wait(); err != nil {
				t.Fatalf("Resize(%d): %v", n, err)
			}
			time.Sleep(500 * time.Millisecond)
			if now := now.Load(); now != int32(n) {
				t.Errorf("%d calls at a time, want %d", now, n)
			}
			sum := 0
			for c := range n {
				from, to := g.Consumer(c).Partitions()
				sum += to - from
			}
			if st := g.Stats(); sum != 6 || st.Consumers != n || st.Resized != uint64(i+1) {
				t.Errorf("%d consumers of %d partitions after %d, want %d of 6", st.Consumers, sum, st.Resized, n)
			}
		}
		time.Sleep(time.Minute)
		run.mustStop(t)
		wantCommitted(t, g, 10, 10, 10, 10, 10, 10)
		st := g.Stats()
		if st.Run.Delivered != 60 || st.Run.Batches != 60 || st.Resized != 5 || st.ResizingTo != 0 || st.Run.HandlerTime < 59*time.Second {
			t.Errorf("stats %+v", st)
		}
	})
}

// A retry keeps its attempts and its time, whoever has its partition, and so
// does what is completed beyond it; Run returns nothing of it.
func TestResizeKeepsRetries(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, spread(3))
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 2, OnFail: queue.Block, Retry: settle.Policy{Backoff: backoff}})
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			if b.Value(0) == 2 && b.Attempt(0) < 3 {
				b.Fail(0, errHandler)
			}
			return nil
		})
		produce(t, topic, 2, 5, 8)
		run := startRun(t, g, r.handle)
		synctest.Wait()
		resize(t, g, 3)
		time.Sleep(1500 * time.Millisecond)
		resize(t, g, 2)
		synctest.Wait()
		if st := g.Stats().Run; st.Waiting != 1 || len(st.Blocked) != 1 || st.Failed != 2 {
			t.Errorf("stats %+v", st)
		}
		time.Sleep(time.Minute)
		run.mustStop(t)
		r.want(t, handled{0, []int{2, 5}, 1}, handled{time.Second, []int{2}, 2}, handled{3 * time.Second, []int{2}, 3},
			handled{3 * time.Second, []int{8}, 1})
		wantCommitted(t, g, 0, 0, 3)
	})
}

// What is parked stays parked, comes when it is due, and its key keeps its
// order.
func TestResizeKeepsParkedKeys(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		c := spread(2)
		c.Router, c.Key = nil, func(v int) string { return fmt.Sprint(v % 10) }
		topic := open(t, s, c)
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, ParkAfter: time.Millisecond, Retry: settle.Policy{Backoff: backoff}})
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			if b.Value(0) == 1 && b.Attempt(0) < 3 {
				return errHandler
			}
			return nil
		})
		produce(t, topic, 1, 11)
		run := startRun(t, g, r.handle)
		synctest.Wait()
		resize(t, g, 2)
		if k := g.Parked(); len(k) != 1 || k[0].Events != 2 || k[0].Attempts != 1 {
			t.Fatalf("parked %+v", k)
		}
		time.Sleep(2 * time.Second)
		resize(t, g, 1)
		produce(t, topic, 21)
		time.Sleep(time.Minute)
		run.mustStop(t)
		r.want(t, handled{0, []int{1}, 1}, handled{time.Second, []int{1}, 2}, handled{3 * time.Second, []int{1}, 3},
			handled{3 * time.Second, []int{11}, 1}, handled{3 * time.Second, []int{21}, 1})
		nothingIsParked(t, g)
	})
}

// An order to retry a parked key, and the confirmation of the retry log, reach
// the new consumer of its partition.
func TestParkedKeyIsWokenAfterResize(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2, Key: func(int) string { return "k" }})
		g := group(t, topic, "g", queue.GroupConfig{ParkAfter: time.Millisecond, Retry: settle.Policy{Backoff: settle.Backoff{Min: time.Hour, Max: time.Hour}}})
		var down atomic.Bool
		down.Store(true)
		run := startRun(t, g, func(context.Context, penstock.Batch[int]) error {
			if down.Load() {
				return errHandler
			}
			return nil
		})
		produce(t, topic, 1)
		synctest.Wait()
		for _, n := range []int{2, 1, 2} {
			resize(t, g, n)
			if _, err := g.RetryParked("k"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if k := g.Parked(); len(k) != 1 {
				t.Fatalf("parked %+v", k)
			}
		}
		if n := g.Stats().Run.Failed; n != 4 {
			t.Errorf("%d deliveries failed, want 4", n)
		}
		down.Store(false)
		if _, err := g.RetryParked("k"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		nothingIsParked(t, g)
		run.mustStop(t)
	})
}

// Resize waits for a long call no longer than its context lasts, and then
// nothing has changed and nobody waits any more. Meanwhile the group stands and
// says why.
func TestResizeWaitsForALongCall(t *testing.T) {
	realLimit(t, time.Minute, "a loop that waits for its workers spins")
	for _, workers := range []int{1, 3} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			bubble(t, func(t *testing.T, s storage) {
				topic := open(t, s, spread(2))
				g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, BatchMax: 1, Workers: workers})
				r := record(func(_ context.Context, b penstock.Batch[int]) error {
					if b.Value(0) == 0 {
						time.Sleep(10 * time.Second)
					}
					return nil
				})
				produce(t, topic, 0)
				run := startRun(t, g, r.handle)
				time.Sleep(time.Second)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				begin := time.Now()
				wait := start(t, func() error { return g.Resize(ctx, 1) })
				produce(t, topic, 2, 1)
				wait.blocked()
				st := g.Stats()
				if st.ResizingTo != 1 || st.State != queue.Busy {
					t.Errorf("stats %+v", st)
				}
				if want := "handler has been running for 1s on partition 0 offset 0; 3 events wait, the oldest for 1s; " +
					"so does all of the group, because Resize to 1 consumer waits for it"; st.Why != want {
					t.Errorf("why: %s\nwant %s", st.Why, want)
				}
				time.Sleep(2 * time.Second)
				err := wait.wait()
				wantErr(t, err, context.DeadlineExceeded)
				if d := time.Since(begin); d != 2*time.Second {
					t.Errorf("Resize took %v, its context 2 s", d)
				}
				wantAssigned(t, g, 1, 1)
				resizeLater := start(t, func() error { return g.Resize(t.Context(), 1) })
				resizeLater.blocked()
				time.Sleep(7 * time.Second)
				if err := resizeLater.wait(); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				run.mustStop(t)
				at := 3 * time.Second // when the first Resize gave up
				want := []handled{{0, []int{0}, 1}, {at, []int{1}, 1}, {10 * time.Second, []int{2}, 1}}
				if workers > 1 { // another worker of the same consumer is free
					want = []handled{{0, []int{0}, 1}, {at, []int{1}, 1}, {at, []int{2}, 1}}
				}
				r.sort()
				r.want(t, want...)
				wantCommitted(t, g, 2, 1)
			})
		})
	}
}

// A Stop, and the end of the context of Run, come before a Resize that waits.
func TestResizeWhileRunEnds(t *testing.T) {
	for _, stop := range []bool{false, true} {
		t.Run(fmt.Sprintf("stop %t", stop), func(t *testing.T) {
			bubble(t, func(t *testing.T, s storage) {
				topic := open(t, s, spread(2))
				g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, BatchMax: 1, Retry: settle.Policy{Backoff: backoff}})
				r := record(func(_ context.Context, b penstock.Batch[int]) error {
					if b.Value(0) == 0 {
						time.Sleep(10 * time.Second)
					}
					if b.Value(0) == 1 && b.Attempt(0) == 1 {
						time.Sleep(time.Second)
						return errHandler // comes again at 2 s
					}
					return nil
				})
				produce(t, topic, 0, 1)
				run := startRun(t, g, r.handle)
				time.Sleep(500 * time.Millisecond)
				wait := start(t, func() error { return g.Resize(t.Context(), 1) })
				wait.blocked()
				time.Sleep(time.Second) // the loop of partition 1 has ended for Resize
				begin := time.Now()
				var err error
				if stop {
					_, err = g.Stop(t.Context())
				} else {
					err = run.stop()
				}
				if err != nil || time.Since(begin) != 8500*time.Millisecond {
					t.Errorf("%v after %v, want nil after 8.5 s", err, time.Since(begin))
				}
				r.sort()
				r.want(t, handled{0, []int{0}, 1}, handled{0, []int{1}, 1}, handled{2 * time.Second, []int{1}, 2})
				if stop {
					wantErr(t, wait.wait(), penstock.ErrClosed)
					wantErr(t, g.Resize(t.Context(), 1), penstock.ErrClosed)
					wantAssigned(t, g, 1, 1)
					run.mustStop(t)
					return
				}
				mustDo(t, wait.wait())
				wantAssigned(t, g, 2)
				produce(t, topic, 3, 2)
				run = startRun(t, g, r.handle) // with the new number
				time.Sleep(time.Second)
				run.mustStop(t)
				wantCommitted(t, g, 2, 2)
			})
		})
	}
}

func TestResizeAfterTheRunHasFailedAndAfterClose(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, spread(2))
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1})
		hold := make(chan struct{})
		run := startRun(t, g, func(context.Context, penstock.Batch[int]) error { <-hold; return nil })
		produce(t, topic, 0)
		synctest.Wait()
		wait := start(t, func() error { return g.Resize(t.Context(), 2) })
		wait.blocked()
		mustDo(t, g.Close())
		synctest.Wait()
		close(hold)
		wantErr(t, run.wait(), penstock.ErrClosed)
		wantErr(t, wait.wait(), penstock.ErrClosed)
	})
}

// A handler that hangs and was left behind holds its partitions: Resize waits
// for it as long as its context lasts.
func TestResizeWaitsForAHandlerThatWasLeftBehind(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, spread(2))
		g := group(t, topic, "g", queue.GroupConfig{Drain: time.Second})
		hold := make(chan struct{})
		run := startRun(t, g, func(context.Context, penstock.Batch[int]) error { <-hold; return nil })
		produce(t, topic, 0)
		synctest.Wait()
		if err := run.stop(); !errors.As(err, new(*penstock.DrainError)) {
			t.Errorf("Run: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		wantErr(t, g.Resize(ctx, 2), context.DeadlineExceeded)
		wait := start(t, func() error { return g.Resize(t.Context(), 2) })
		wait.blocked()
		close(hold)
		mustDo(t, wait.wait())
		wantAssigned(t, g, 1, 1)
	})
}

func TestResizesAtTheSameTime(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, spread(4))
		g := group(t, topic, "g", queue.GroupConfig{})
		hold := make(chan struct{})
		run := startRun(t, g, func(context.Context, penstock.Batch[int]) error { <-hold; return nil })
		produce(t, topic, 0)
		synctest.Wait()
		first := start(t, func() error { return g.Resize(t.Context(), 4) })
		ctx, cancel := context.WithCancel(t.Context())
		second := start(t, func() error { return g.Resize(ctx, 3) })
		third := start(t, func() error { return g.Resize(t.Context(), 2) })
		for _, c := range []call{first, second, third} {
			c.blocked()
		}
		cancel()
		wantErr(t, second.wait(), context.Canceled)
		close(hold)
		mustDo(t, first.wait())
		mustDo(t, third.wait())
		wantAssigned(t, g, 2, 2)
		if n := g.Stats().Resized; n != 2 {
			t.Errorf("resized %d times, want 2", n)
		}
		run.mustStop(t)
	})
}

// A paused group, and one that is held to a rate, has nothing in hand to wait
// for, and stays so.
func TestResizeOfAPausedGroup(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, spread(2))
		g := group(t, topic, "g", queue.GroupConfig{Rate: 1, Burst: 1})
		r := record(nil)
		g.Pause()
		produce(t, topic, 0, 1, 2, 3)
		run := startRun(t, g, r.handle)
		synctest.Wait()
		resize(t, g, 2)
		time.Sleep(time.Minute)
		r.want(t)
		g.Resume()
		time.Sleep(500 * time.Millisecond) // one came, and both wait for the rate
		resize(t, g, 1)
		resize(t, g, 2)
		time.Sleep(time.Hour)
		run.mustStop(t)
		for i, c := range r.calls {
			if at := time.Minute + time.Duration(i)*time.Second; len(c.Values) != 1 || c.At < at {
				t.Errorf("call %d: %+v, want one event, not before %v", i, c, at)
			}
		}
		wantCommitted(t, g, 2, 2)
		if st := g.Stats(); st.RateLimited {
			t.Error("nobody waits for the rate any more")
		}
	})
}

// The handler's own return would be waited for.
func TestResizeInsideAHandlerIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, spread(2))
		g := group(t, topic, "g", queue.GroupConfig{})
		other := group(t, topic, "other", queue.GroupConfig{})
		run := startRun(t, g, func(ctx context.Context, _ penstock.Batch[int]) error {
			err := g.Resize(ctx, 2)
			if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != "ctx" {
				t.Errorf("Resize: %v, want one of ctx", err)
			}
			mustDo(t, other.Resize(ctx, 2))
			return nil
		})
		produce(t, topic, 0)
		synctest.Wait()
		resize(t, g, 2)
		run.mustStop(t)
		wantCommitted(t, g, 1, 0)
	})
}

// A handler that ends its goroutine while a Resize waits for it ends neither
// the run nor the Resize.
func TestResizeAndAHandlerThatEndsItsGoroutine(t *testing.T) {
	for _, workers := range []int{1, 2} {
		bubble(t, func(t *testing.T, s storage) {
			topic := open(t, s, spread(2))
			g := group(t, topic, "g", queue.GroupConfig{Workers: workers, BatchMax: 1, Retry: settle.Policy{Backoff: backoff}})
			run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
				time.Sleep(time.Second)
				if b.Attempt(0) == 1 {
					runtime.Goexit()
				}
				return nil
			})
			produce(t, topic, 0, 1)
			time.Sleep(500 * time.Millisecond)
			wait := start(t, func() error { return g.Resize(t.Context(), 2) })
			wait.blocked()
			time.Sleep(time.Second)
			mustDo(t, wait.wait())
			time.Sleep(time.Minute)
			run.mustStop(t)
			wantCommitted(t, g, 1, 1)
		})
	}
}

// What is settled and not stored yet is stored while a Resize waits for another
// worker: a producer waits for its capacity.
func TestResizeThatWaitsKeepsStoringCommits(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2, Capacity: 8, Router: queue.RouterFunc("mod/1", func(v, n int) int { return v % n })})
		g := group(t, topic, "g", queue.GroupConfig{Workers: 4, BatchMax: 1})
		hold := make(chan struct{})
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
			if b.Value(0) == 0 {
				<-hold
			} else {
				time.Sleep(time.Second)
			}
			return nil
		})
		produce(t, topic, 0, 1, 3)
		synctest.Wait()
		wait := start(t, func() error { return g.Resize(t.Context(), 2) })
		wait.blocked()
		time.Sleep(2 * time.Second)
		wantCommitted(t, g, 0, 2)
		close(hold)
		mustDo(t, wait.wait())
		run.mustStop(t)
	})
}

// With AutoCommit nothing comes twice, and nothing is passed over.
func TestResizeOfAutoCommit(t *testing.T) {
	for _, workers := range []int{1, 3} {
		bubble(t, func(t *testing.T, s storage) {
			topic := open(t, s, spread(4))
			g := group(t, topic, "g", queue.GroupConfig{AutoCommit: true, BatchMax: 2, Workers: workers})
			var mu sync.Mutex
			got := map[int]int{}
			run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
				time.Sleep(7 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				for _, v := range b.Values() {
					got[v]++
				}
				return errHandler // dropped
			})
			for i := range 40 {
				produce(t, topic, seq(i*10, i*10+10)...)
				time.Sleep(3 * time.Millisecond)
				resize(t, g, 1+i%4)
			}
			time.Sleep(time.Minute)
			run.mustStop(t)
			for v := range 400 {
				if got[v] != 1 {
					t.Errorf("event %d came %d times", v, got[v])
				}
			}
			wantCommitted(t, g, 100, 100, 100, 100)
		})
	}
}

// Keys keep their order, and each event is settled once, while the group is
// resized at random.
func TestResizeUnderRandomFailures(t *testing.T) {
	realLimit(t, 5*time.Minute, "a loop spins")
	for _, workers := range []int{1, 3} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("%d workers, seed %d", workers, seed), func(t *testing.T) {
				bubble(t, func(t *testing.T, s storage) { resizeUnderRandomFailures(t, s, workers, seed) })
			})
		}
	}
}

func resizeUnderRandomFailures(t *testing.T, s storage, workers int, seed uint64) {
	const events, keys = 400, 7
	rng := rand.New(rand.NewPCG(seed, uint64(workers)))
	key := func(v int) string { return fmt.Sprint(v % keys) }
	topic := open(t, s, queue.Config[int]{Partitions: 5, Capacity: 100, Key: key})
	g := group(t, topic, "g", queue.GroupConfig{
		BatchMax: 1 + rng.IntN(4), Workers: workers, ParkAfter: 50 * time.Millisecond,
		Retry: settle.Policy{Backoff: settle.Backoff{Min: 20 * time.Millisecond, Max: time.Second, Factor: 2}},
	})
	var mu sync.Mutex
	settled := map[int]int{}
	last := map[string]int{}
	rnd := rand.New(rand.NewPCG(seed, 99)) // of the handlers; guarded by mu
	run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
		mu.Lock()
		wait := time.Duration(rnd.IntN(30)) * time.Millisecond
		mu.Unlock()
		time.Sleep(wait)
		mu.Lock()
		defer mu.Unlock()
		failed := map[string]bool{}
		for i, v := range b.Values() {
			if before, ok := last[key(v)]; ok && v != before+keys && !failed[key(v)] {
				t.Errorf("%d comes after %d", v, before)
			}
			if failed[key(v)] || rnd.IntN(6) == 0 {
				failed[key(v)] = true
				b.Fail(i, errHandler)
				continue
			}
			settled[v]++
			last[key(v)] = v
		}
		return nil
	})
	produced := start(t, func() error {
		for v := range events {
			if err := topic.Produce(t.Context(), v); err != nil {
				return err
			}
		}
		return nil
	})
	for range 60 {
		time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(40))*time.Millisecond)
		n := 1 + rng.IntN(5)
		switch err := g.Resize(ctx, n); {
		case err == nil && g.Stats().Consumers != n:
			t.Errorf("%d consumers, want %d", g.Stats().Consumers, n)
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			t.Errorf("Resize: %v", err)
		}
		cancel()
	}
	time.Sleep(10 * time.Minute)
	mustDo(t, produced.wait())
	run.mustStop(t)
	want := map[int]int{}
	for v := range events {
		want[v] = 1
	}
	if diff := compare.Diff(want, settled); diff != "" {
		t.Errorf("settled (-want +got): %s", diff)
	}
	if st := g.Stats(); st.Lag != 0 || st.Parked.Events != 0 || st.Run.Unsettled != 0 {
		t.Errorf("left: %+v", st)
	}
}
