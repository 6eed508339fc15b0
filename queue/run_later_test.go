package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// What workers leave for a later run, for a drain, or for one worker alone.

// touchy is a log handler that panics at one message when it is told to.
type touchy struct {
	slog.Handler
	message string
	armed   *atomic.Bool
}

func (h touchy) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message && h.armed.Load() {
		panic("the log is broken")
	}
	return nil
}

func (h touchy) Enabled(context.Context, slog.Level) bool { return true }
func (h touchy) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h touchy) WithGroup(string) slog.Handler            { return h }

// A run that ends in the middle of a settlement leaves nothing of that call to
// the next run, whose parked event would be settled as the events of the old
// call.
func TestCallThatWasNotSettledIsForgottenByTheNextRun(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		c := keyedTopic()
		var armed, fails atomic.Bool
		c.Logger = slog.New(touchy{message: "handler failed events", armed: &armed})
		topic := open(t, s, c)
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 2, Retry: settle.Policy{Backoff: settle.Backoff{Min: time.Minute, Max: time.Minute, Jitter: -1}}})
		produce(t, topic, "a 000", "a 001")
		var good recorded[string]
		fails.Store(true)
		handle := func(_ context.Context, b penstock.Batch[string]) error {
			if fails.Load() {
				time.Sleep(time.Millisecond)
				return errHandler
			}
			good.add(b.Values()...)
			return nil
		}
		run := startRun(t, g, handle)
		time.Sleep(2 * time.Second)
		if keys := g.Parked(); len(keys) != 1 || keys[0].Events != 2 {
			t.Fatalf("parked %+v, want a with two events", keys)
		}
		armed.Store(true)
		produce(t, topic, "b 000")
		if _, ok := errors.AsType[*penstock.PanicError](run.wait()); !ok {
			t.Fatalf("Run: %v, want the panic", run.err)
		}
		if st := g.Stats().Run; len(st.Calls) != 0 || st.InHand != 0 {
			t.Errorf("after Run the picture has calls: %+v", st)
		}
		armed.Store(false)
		fails.Store(false)
		time.Sleep(time.Hour)
		run = startRun(t, g, handle)
		time.Sleep(time.Hour)
		run.mustStop(t)
		got := good.take()
		slices.Sort(got)
		if diff := cmp.Diff([]string{"a 000", "a 001", "b 000"}, got); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
		wantCommitted(t, g, 3)
	})
}

// A retry that workers may take as soon as the rate allows is waited for by the
// drain, as with one worker.
func TestDrainOfWorkersWaitsForTheRate(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			bubble(t, func(t *testing.T, s storage) {
				topic := open(t, s, keyedTopic())
				g := group(t, topic, "g", queue.GroupConfig{
					BatchMax: 1, Workers: workers, Rate: 0.2, Burst: 1, OnFail: queue.Block, Drain: time.Minute,
					Retry: settle.Policy{Backoff: settle.Backoff{Min: time.Second, Max: time.Second, Jitter: -1}},
				})
				produce(t, topic, "a 000")
				run := startRun(t, g, func(_ context.Context, b penstock.Batch[string]) error {
					if b.Attempt(0) == 1 {
						return errHandler
					}
					return nil
				})
				time.Sleep(2 * time.Second) // the retry is due, its token comes at 5 s
				run.mustStop(t)
				wantCommitted(t, g, 1)
			})
		})
	}
}

// What workers have handled beyond the commit with AutoCommit is not handled
// again by a later run with one, also when that one is cut short in between.
func TestAutoCommitOfWorkersHoldsForALaterRunWithOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := keyedTopic()
		c.Name, c.Dir, c.Codec = "topic", t.TempDir(), penstock.JSON[string]()
		gc := queue.GroupConfig{BatchMax: 1, Workers: 2, AutoCommit: true, Drain: time.Second}
		var got recorded[string]
		life := func(stopAt string) {
			topic := openDisk(t, c)
			g := group(t, topic, "g", gc)
			if topic.Stats().Produced == 0 {
				produce(t, topic, events(3, "a", "b")...)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			run := make(chan error, 1)
			go func() { // ends with cancel; waited for below
				run <- g.Run(ctx, func(hctx context.Context, b penstock.Batch[string]) error {
					got.add(b.Values()...)
					if slices.Contains(b.Values(), stopAt) {
						<-hctx.Done()
					}
					return nil
				})
			}()
			synctest.Wait()
			cancel()
			if err := <-run; err != nil {
				t.Errorf("Run: %v", err)
			}
			if err := topic.Close(); err != nil {
				t.Fatal(err)
			}
		}
		life("a 000") // in one worker's hands, while the other takes all of b
		gc.Workers = 1
		life("a 001")
		life("")
		if diff := cmp.Diff([]string{"a 000", "b 000", "b 001", "b 002", "a 001", "a 002"}, got.take()); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
	})
}
