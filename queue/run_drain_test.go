package queue_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

type ctxKey struct{}

func TestRunningHandlerFinishesWhenRunEnds_QC49(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 2})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), ctxKey{}, "value"))
		r := record(func(ctx context.Context, _ penstock.Batch[int]) error {
			time.Sleep(10 * time.Second)
			if ctx.Err() != nil || ctx.Value(ctxKey{}) != "value" {
				t.Errorf("handler context: %v, value %v", ctx.Err(), ctx.Value(ctxKey{}))
			}
			return nil
		})
		produce(t, topic, seq(0, 6)...)
		begin := time.Now()
		time.AfterFunc(5*time.Second, cancel)
		if err := g.Run(ctx, r.handle); err != nil {
			t.Errorf("Run: %v, want nil after a full drain", err)
		}
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("Run took %v, want 10 s: the rest of the running call, and no further one", took)
		}
		r.want(t, handled{0, []int{0, 1}, 1})
		wantCommitted(t, g, 2)
	})
}

func TestDrainDeadlineCancelsHandlersWithACause_FM92(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, BatchMax: 3})
		produce(t, topic, seq(0, 10)...)
		begin := time.Now()
		run := startRun(t, g, func(ctx context.Context, b penstock.Batch[int]) error {
			<-ctx.Done()
			if took := time.Since(begin); took != 26*time.Second {
				t.Errorf("handler was cancelled after %v, want 1 s + 25 s", took)
			}
			wantErr(t, context.Cause(ctx), context.DeadlineExceeded)
			if b.Partition() == 0 {
				return nil // finished after all
			}
			return ctx.Err()
		})
		time.Sleep(time.Second)
		err := run.stop()
		d, ok := errors.AsType[*penstock.DrainError](err)
		if !ok || d.Left != 3 {
			t.Errorf("Run: %v, want a DrainError with 3 left", err)
		}
		wantErr(t, err, context.DeadlineExceeded)
		wantCommitted(t, g, 3, 0)

		r := record(nil)
		run = startRun(t, g, r.handle)
		synctest.Wait()
		run.mustStop(t)
		wantCommitted(t, g, 5, 5)
	})
}

func TestHandlerThatHangsIsLeftBehind_FM57(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{Drain: 2 * time.Second})
		produce(t, topic, 1, 2)
		hang := make(chan struct{})
		run := startRun(t, g, func(context.Context, penstock.Batch[int]) error { <-hang; return nil })
		synctest.Wait()
		begin := time.Now()
		err := run.stop()
		if d, ok := errors.AsType[*penstock.DrainError](err); !ok || d.Left != 2 || time.Since(begin) != 3*time.Second {
			t.Errorf("Run: %v after %v, want a DrainError with 2 left after 3 s", err, time.Since(begin))
		}
		st := g.Stats().Run
		if !st.Running || !st.BusySince.Equal(begin) || st.Unsettled != 2 {
			t.Errorf("stats %+v, want one that is busy since the start", st)
		}
		ok := func(context.Context, penstock.Batch[int]) error { return nil }
		wantErr(t, g.Run(t.Context(), ok), penstock.ErrExists)
		close(hang)
		synctest.Wait()
		if st := g.Stats().Run; st.Running || !st.BusySince.IsZero() {
			t.Errorf("stats %+v after the handler returned", st)
		}
		wantCommitted(t, g, 2) // it returned nil, and nobody had taken its place
		run = startRun(t, g, ok)
		synctest.Wait()
		run.mustStop(t)
	})
}

func TestDrainWaitsForRetriesThatAreDueInTime(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 2, OnFail: queue.Block, Retry: settle.Policy{Backoff: backoff}})
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			if b.Attempt(0) < 3 {
				return errHandler
			}
			return nil
		})
		produce(t, topic, seq(0, 4)...)
		run := startRun(t, g, r.handle)
		synctest.Wait()
		run.mustStop(t)
		both := []int{0, 1}
		r.want(t, handled{0, both, 1}, handled{time.Second, both, 2}, handled{3 * time.Second, both, 3})
		wantCommitted(t, g, 2)
	})
}

func TestDrainDoesNotWaitForARetryBeyondItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{Drain: 5 * time.Second, OnFail: queue.Block, Retry: settle.Policy{Backoff: backoff}})
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			if b.Value(0) == 0 {
				b.Fail(0, errHandler)
			}
			return nil
		})
		produce(t, topic, 0, 1)
		run := startRun(t, g, r.handle)
		synctest.Wait()
		begin := time.Now()
		err := run.stop()
		if d, ok := errors.AsType[*penstock.DrainError](err); !ok || d.Left != 1 || time.Since(begin) != 3*time.Second {
			t.Errorf("Run: %v after %v, want a DrainError with 1 left after 3 s, when the next retry was too late", err, time.Since(begin))
		}
		// The event that was settled beyond the commit does not come again.
		run = startRun(t, g, r.handle)
		synctest.Wait()
		if err := run.stop(); err == nil {
			t.Error("Run: nil with an event left")
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range r.calls[1:] {
			if len(c.Values) != 1 || c.Values[0] != 0 {
				t.Errorf("call %+v, want event 0 alone", c)
			}
		}
	})
}

// One partition waits for a retry, the other for a fuller batch, when Run ends:
// the first is finished, the second is left, and nothing spins in between.
func TestDrainWithALingeringBatchBesideARetry(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2, Router: queue.RouterFunc("parity", func(v, n int) int { return v % n })})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 2, Linger: 100 * time.Millisecond, OnFail: queue.Block, Retry: settle.Policy{Backoff: backoff}})
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			if b.Attempt(0) == 1 {
				return errHandler
			}
			return nil
		})
		run := startRun(t, g, r.handle)
		produce(t, topic, 0, 2)
		synctest.Wait()
		produce(t, topic, 1)
		synctest.Wait()
		run.mustStop(t)
		both := []int{0, 2}
		r.want(t, handled{0, both, 1}, handled{time.Second, both, 2})
		wantCommitted(t, g, 2, 0)
	})
}

// A parked event becomes due during a drain that waits for a retry: it stays
// parked. The loop used to be woken for it without end, and took all of a core
// until the drain was over.
func TestDrainDoesNotSpinBesideAParkedEventThatIsDue(t *testing.T) {
	realLimit(t, 30*time.Second, "the drain spins")
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Key: func(v int) string { return fmt.Sprint(v) }})
		g := group(t, topic, "g", queue.GroupConfig{
			ParkAfter: time.Second,
			Retry:     settle.Policy{Backoff: settle.Backoff{Min: 500 * time.Millisecond, Factor: 4, Jitter: -1}},
		})
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			if b.Value(0) == 1 || b.Attempt(0) == 1 {
				return errHandler
			}
			return nil
		})
		run := startRun(t, g, r.handle)
		produce(t, topic, 1) // fails at 0 and 0.5 s, and is parked until 2.5 s
		time.Sleep(2200 * time.Millisecond)
		produce(t, topic, 2) // fails, and comes again at 2.7 s
		time.Sleep(100 * time.Millisecond)
		if st := g.Stats(); st.Parked.Events != 1 {
			t.Errorf("%d events are parked, want 1", st.Parked.Events)
		}
		run.mustStop(t) // 2.7 s: what is parked is not waited for
		r.want(t, handled{0, []int{1}, 1}, handled{500 * time.Millisecond, []int{1}, 2},
			handled{2200 * time.Millisecond, []int{2}, 1}, handled{2700 * time.Millisecond, []int{2}, 2})
		if st := g.Stats(); st.Parked.Events != 1 || st.Lag != 0 {
			t.Errorf("parked %d, lag %d after the drain, want 1, 0", st.Parked.Events, st.Lag)
		}
	})
}

func TestRunOfAnEndedContextTakesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Run(ctx, func(context.Context, penstock.Batch[int]) error { return nil }); err != nil {
			t.Errorf("Run: %v, want nil: nothing was left", err)
		}
	})
}

func TestGroupIsRunOnceAtATimeAndInOneWay(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		ok := func(context.Context, penstock.Batch[int]) error { return nil }
		g := group(t, topic, "run", queue.GroupConfig{})
		run := startRun(t, g, ok)
		synctest.Wait()
		wantErr(t, g.Run(t.Context(), ok), penstock.ErrExists)
		_, _, err := g.Consumer(0).TryPull(1)
		wantErr(t, err, penstock.ErrExists)
		run.mustStop(t)

		g = group(t, topic, "pull", queue.GroupConfig{})
		pull(t, g.Consumer(0), 1)
		wantErr(t, g.Run(t.Context(), ok), penstock.ErrExists)
	})
}

func TestCloseEndsRun(t *testing.T) {
	for name, end := range map[string]func(*queue.Topic[int], *queue.Group[int]) error{
		"group": func(_ *queue.Topic[int], g *queue.Group[int]) error { return g.Close() },
		"topic": func(t *queue.Topic[int], _ *queue.Group[int]) error { return t.Close() },
	} {
		for _, busy := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T, s storage) {
					topic := open(t, s, queue.Config[int]{Partitions: 2})
					g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, BatchMax: 1})
					returned := 0
					run := startRun(t, g, func(context.Context, penstock.Batch[int]) error {
						time.Sleep(time.Second)
						returned++
						return nil
					})
					if busy {
						produce(t, topic, 1)
					}
					synctest.Wait()
					if err := end(topic, g); err != nil {
						t.Error(err)
					}
					wantErr(t, run.wait(), penstock.ErrClosed)
					if busy != (returned == 1) {
						t.Errorf("%d calls returned before Run did", returned)
					}
					wantErr(t, g.Run(t.Context(), func(context.Context, penstock.Batch[int]) error { return nil }), penstock.ErrClosed)
				})
			})
		}
	}
}

func TestSecondRunGoesOnAtTheCommit(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 2})
		r := record(nil)
		for round := range 3 {
			produce(t, topic, round*2, round*2+1)
			run := startRun(t, g, r.handle)
			synctest.Wait()
			run.mustStop(t)
		}
		r.want(t, handled{0, []int{0, 1}, 1}, handled{0, []int{2, 3}, 1}, handled{0, []int{4, 5}, 1})
	})
}

// A Size that panics in a run stops nobody: the event counts no bytes, and comes.
func TestPanicOfASizeFunctionCountsNoBytes_FM101(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Size: func(v int) penstock.Bytes { panic("size") }})
		g := group(t, topic, "g", queue.GroupConfig{BatchBytes: 10})
		produce(t, topic, 1)
		r := record(nil)
		run := startRun(t, g, r.handle)
		time.Sleep(time.Second)
		run.mustStop(t)
		r.want(t, handled{0, []int{1}, 1})
		wantCommitted(t, g, 1)
	})
}
