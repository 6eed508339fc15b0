package queue_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

func TestStopWaitsForTheRunningHandlerAndNoneStartsAfterIt_QC49(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 2})
		produce(t, topic, seq(0, 6)...)
		r := record(func(ctx context.Context, _ penstock.Batch[int]) error {
			time.Sleep(10 * time.Second)
			return ctx.Err()
		})
		run := startRun(t, g, r.handle)
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		report, err := g.Stop(ctx)
		if err != nil {
			t.Errorf("Stop: %v, want nil after a full drain", err)
		}
		want := penstock.DrainReport{Partitions: []penstock.DrainedPartition{{Settled: 2}}, Duration: 9 * time.Second}
		if diff := cmp.Diff(want, report); diff != "" {
			t.Errorf("report (-want +got):\n%s", diff)
		}
		if err := run.wait(); err != nil {
			t.Errorf("Run: %v, want nil", err)
		}
		produce(t, topic, seq(6, 9)...)
		wantErr(t, g.Run(t.Context(), r.handle), penstock.ErrClosed)
		time.Sleep(time.Hour)
		r.want(t, handled{0, []int{0, 1}, 1})
		wantCommitted(t, g, 2)
		if again, err := g.Stop(t.Context()); err != nil || cmp.Diff(report, again) != "" {
			t.Errorf("second Stop: %+v, %v, want what the first returned", again, err)
		}
	})
}

func TestStopCancelsHandlersAtItsDeadline_QC49(t *testing.T) {
	for name, workers := range map[string]int{"one worker": 1, "several": 2} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s storage) {
				topic := open(t, s, queue.Config[int]{Partitions: 2, Router: queue.RouterFunc("parity", func(v, n int) int { return v % n })})
				g := group(t, topic, "g", queue.GroupConfig{BatchMax: 3, Consumers: 2, Workers: workers})
				produce(t, topic, 0, 2, 4, 1)
				begin := time.Now()
				run := startRun(t, g, func(ctx context.Context, b penstock.Batch[int]) error {
					if b.Partition() == 1 {
						time.Sleep(2 * time.Second)
						return nil
					}
					<-ctx.Done()
					wantErr(t, context.Cause(ctx), context.DeadlineExceeded)
					if at := time.Since(begin); at != 4*time.Second {
						t.Errorf("cancelled after %v, want 1 s and the deadline of 3 s", at)
					}
					return ctx.Err()
				})
				time.Sleep(time.Second)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				report, err := g.Stop(ctx)
				d, ok := errors.AsType[*penstock.DrainError](err)
				if !ok || d.Left != 3 || d.Report == nil || cmp.Diff(report, *d.Report) != "" {
					t.Errorf("Stop: %v, want a DrainError with 3 left and the report", err)
				}
				want := []penstock.DrainedPartition{{Partition: 0, Left: 3}, {Partition: 1, Settled: 1}}
				if diff := cmp.Diff(want, report.Partitions); diff != "" || report.Duration != 3*time.Second {
					t.Errorf("report of %v (-want +got):\n%s", report.Duration, diff)
				}
				if report.Left() != 3 || report.Settled() != 1 || report.Parked() != 0 {
					t.Errorf("sums %d, %d, %d", report.Left(), report.Settled(), report.Parked())
				}
				wantErr(t, run.wait(), context.DeadlineExceeded)
			})
		})
	}
}

func TestStopLeavesAHandlerThatHangsBehind_FM57(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{Drain: time.Hour})
		produce(t, topic, 1, 2)
		hang := make(chan struct{})
		run := startRun(t, g, func(context.Context, penstock.Batch[int]) error { <-hang; return nil })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		report, err := g.Stop(ctx)
		if took := time.Since(begin); took != 2*time.Second || report.Left() != 2 || err == nil {
			t.Errorf("Stop: %+v, %v after %v, want 2 left after 2 s", report, err, took)
		}
		wantErr(t, run.wait(), context.DeadlineExceeded)
		close(hang)
	})
}

func TestStopBeforeRun(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, 1)
		report, err := g.Stop(t.Context())
		if err != nil || len(report.Partitions) != 0 {
			t.Errorf("Stop: %+v, %v, want an empty report", report, err)
		}
		wantErr(t, g.Run(t.Context(), func(context.Context, penstock.Batch[int]) error {
			t.Error("a handler started after Stop")
			return nil
		}), penstock.ErrClosed)
	})
}

// Several calls at once get the same answer, at the earliest deadline.
func TestStopsAtTheSameTime(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, 1)
		run := startRun(t, g, func(ctx context.Context, _ penstock.Batch[int]) error { <-ctx.Done(); return ctx.Err() })
		synctest.Wait()
		begin := time.Now()
		var answered atomic.Int64
		for i := range 4 {
			go func() { // ends with the run, which ends after 5 s; answered counts it
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20-5*i)*time.Second)
				defer cancel()
				report, err := g.Stop(ctx)
				wantErr(t, err, context.DeadlineExceeded)
				if took := time.Since(begin); took != 5*time.Second || report.Left() != 1 {
					t.Errorf("Stop: %+v after %v, want 1 left after 5 s", report, took)
				}
				answered.Add(1)
			}()
		}
		time.Sleep(time.Minute)
		if answered.Load() != 4 {
			t.Errorf("%d of 4 calls returned", answered.Load())
		}
		wantErr(t, run.wait(), context.DeadlineExceeded)
	})
}

func TestStopDuringADrainAndDuringClose(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		handle := func(ctx context.Context, _ penstock.Batch[int]) error {
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Second):
			}
			return ctx.Err()
		}
		produce(t, topic, 1)
		g := group(t, topic, "drains", queue.GroupConfig{})
		closed := group(t, topic, "closed", queue.GroupConfig{})
		produce(t, topic, 2)
		run := startRun(t, g, handle)
		synctest.Wait()
		run.cancel()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		begin := time.Now()
		if report, err := g.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 2*time.Second || report.Left() != 2 {
			t.Errorf("Stop during a drain: %+v, %v after %v", report, err, time.Since(begin))
		}
		wantErr(t, run.wait(), context.DeadlineExceeded)

		run = startRun(t, closed, handle)
		synctest.Wait()
		if err := closed.Close(); err != nil {
			t.Error(err)
		}
		_, err := closed.Stop(t.Context())
		wantErr(t, err, penstock.ErrClosed)
		wantErr(t, run.wait(), penstock.ErrClosed)
		_, err = closed.Stop(t.Context())
		wantErr(t, err, penstock.ErrClosed)
	})
}

// What is parked stays where it is, and the report says so.
func TestStopReportsWhatIsParked(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyedTopic())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Retry: settle.Policy{Backoff: settle.Backoff{Min: time.Hour, Max: time.Hour}}})
		produce(t, topic, events(2, "a", "b")...)
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[string]) error {
			if workKey(b.Value(0)) == "a" {
				return errHandler
			}
			return nil
		})
		time.Sleep(time.Second)
		report, err := g.Stop(t.Context())
		if err != nil || report.Parked() != 2 || report.Left() != 0 {
			t.Errorf("Stop: %+v, %v, want two parked and none left", report, err)
		}
		if err := run.wait(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}
