package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

var errHandler = errors.New("database is down")

// backoff has no jitter: failures at 0 come again at 1 s, 3 s, 7 s, 15 s, ...
var backoff = settle.Backoff{Min: time.Second, Max: 8 * time.Second, Factor: 2, Jitter: -1}

// running is a Run in a goroutine of its own.
type running struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func startRun[T any](t testing.TB, g *queue.Group[T], h penstock.Handler[T]) *running {
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{cancel: cancel, done: make(chan struct{})}
	go func() { // ends with cancel or with the group; stop and wait wait for it
		defer close(r.done)
		r.err = g.Run(ctx, h)
	}()
	return r
}

func (r *running) wait() error {
	<-r.done
	return r.err
}

func (r *running) stop() error {
	r.cancel()
	return r.wait()
}

func (r *running) mustStop(t testing.TB) {
	t.Helper()
	if err := r.stop(); err != nil {
		t.Errorf("Run: %v, want nil after a full drain", err)
	}
}

// bubble runs a test on every storage inside a synctest bubble.
func bubble(t *testing.T, test func(t *testing.T, s storage)) {
	t.Helper()
	forEachStorage(t, func(t *testing.T, s storage) {
		synctest.Test(t, func(t *testing.T) { test(t, s) })
	})
}

// handled is one call of a recording handler.
type handled struct {
	At      time.Duration
	Values  []int
	Attempt int
}

// recorder is a handler that notes its calls and does what fail says.
type recorder struct {
	begin time.Time
	fail  func(ctx context.Context, b penstock.Batch[int]) error
	mu    sync.Mutex
	calls []handled
}

func record(fail func(context.Context, penstock.Batch[int]) error) *recorder {
	return &recorder{begin: time.Now(), fail: fail}
}

func (r *recorder) handle(ctx context.Context, b penstock.Batch[int]) error {
	r.mu.Lock()
	r.calls = append(r.calls, handled{time.Since(r.begin), slices.Clone(b.Values()), b.Attempt(0)})
	r.mu.Unlock()
	if r.fail == nil {
		return nil
	}
	return r.fail(ctx, b)
}

func (r *recorder) want(t testing.TB, want ...handled) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff(want, r.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func committed[T any](g *queue.Group[T]) (all []penstock.Offset) {
	for _, p := range g.Stats().Partitions {
		all = append(all, p.Committed)
	}
	return all
}

func wantCommitted[T any](t testing.TB, g *queue.Group[T], want ...penstock.Offset) {
	t.Helper()
	if got := committed(g); !slices.Equal(got, want) {
		t.Errorf("committed %v, want %v", got, want)
	}
}

func TestRunDeliversWhatIsThereInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 4})
		produce(t, topic, seq(0, 10)...)
		r := record(nil)
		run := startRun(t, g, r.handle)
		synctest.Wait()
		time.Sleep(time.Hour)
		produce(t, topic, 10)
		synctest.Wait()
		if e := topic.Stats().Partitions[0].Earliest; s.name == "memory" && e != 11 {
			t.Errorf("memory below %d was given back while idle, want all below 11", e)
		}
		run.mustStop(t)
		r.want(t, handled{0, []int{0, 1, 2, 3}, 1}, handled{0, []int{4, 5, 6, 7}, 1}, handled{0, []int{8, 9}, 1}, handled{time.Hour, []int{10}, 1})
		wantCommitted(t, g, 11)
		st := g.Stats().Run
		if st.Delivered != 11 || st.FlushedByCount != 2 || st.FlushedByLinger != 2 || st.Running || st.Unsettled != 0 || st.Failed != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestFailedBatchComesAgainAfterExactBackoff_FM55(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{OnFail: queue.Block, Retry: settle.Policy{Backoff: backoff}})
		produce(t, topic, 1, 2)
		var r *recorder
		r = record(func(context.Context, penstock.Batch[int]) error {
			if time.Since(r.begin) < 30*time.Second {
				return errHandler
			}
			return nil
		})
		run := startRun(t, g, r.handle)
		time.Sleep(20 * time.Second)
		wantCommitted(t, g, 0)
		st := g.Stats().Run
		want := "offset 0 waits for attempt 6: database is down; it is retried without end because the group has no DeadLetter"
		if len(st.Blocked) != 1 || st.Blocked[0].Reason != want || !st.Blocked[0].Due.Equal(r.begin.Add(23*time.Second)) || st.Unsettled != 2 {
			t.Errorf("stats %+v, want blocked: %s", st, want)
		}
		produce(t, topic, 3) // waits behind the failed ones
		time.Sleep(time.Minute)
		run.mustStop(t)
		both := []int{1, 2}
		r.want(t, handled{0, both, 1}, handled{time.Second, both, 2}, handled{3 * time.Second, both, 3}, handled{7 * time.Second, both, 4},
			handled{15 * time.Second, both, 5}, handled{23 * time.Second, both, 6}, handled{31 * time.Second, both, 7}, handled{31 * time.Second, []int{3}, 1})
		wantCommitted(t, g, 3)
		if st := g.Stats().Run; st.Blocked != nil || st.Failed != 12 || st.Retries != 6 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestOneFailedEventComesAgainAlone(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 5, OnFail: queue.Block, Retry: settle.Policy{Backoff: backoff}})
		produce(t, topic, seq(0, 8)...)
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			for i, v := range b.Values() {
				if (v == 1 || v == 3) && b.Attempt(i) == 1 {
					b.Fail(i, errHandler)
				}
			}
			return nil
		})
		run := startRun(t, g, r.handle)
		time.Sleep(200 * time.Millisecond) // on disk the commit is stored every 100 ms
		wantCommitted(t, g, 1)
		time.Sleep(time.Minute)
		run.mustStop(t)
		r.want(t, handled{0, seq(0, 5), 1}, handled{time.Second, []int{1}, 2}, handled{time.Second, []int{3}, 2}, handled{time.Second, seq(5, 8), 1})
		wantCommitted(t, g, 8)
	})
}

func TestOtherPartitionsGoOnDuringARetry(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2, Router: queue.RouterFunc("parity", func(v, n int) int { return v % n })})
		g := group(t, topic, "g", queue.GroupConfig{OnFail: queue.Block, Retry: settle.Policy{Backoff: backoff}})
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			if b.Value(0) == 0 && b.Attempt(0) == 1 {
				return errHandler
			}
			return nil
		})
		produce(t, topic, 0)
		run := startRun(t, g, r.handle)
		synctest.Wait()
		time.Sleep(500 * time.Millisecond)
		produce(t, topic, 1, 2, 3)
		time.Sleep(200 * time.Millisecond) // on disk the commit is stored every 100 ms
		wantCommitted(t, g, 0, 2)
		time.Sleep(time.Minute)
		run.mustStop(t)
		r.want(t, handled{0, []int{0}, 1}, handled{500 * time.Millisecond, []int{1, 3}, 1}, handled{time.Second, []int{0}, 2}, handled{time.Second, []int{2}, 1})
	})
}

func TestHandlerThatPanicsFailsItsBatchAndIsCalledAgain_FM56(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    func()
		cause string
	}{
		{"value", func() { panic("boom") }, "group g: panic: boom"},
		{"error", func() { panic(errHandler) }, "group g: panic: database is down"},
		{"runtime error", func() { _ = seq(0, 0)[len(seq(0, 3))] }, "group g: panic: runtime error: index out of range [3] with length 0"},
		{"nil", func() { panic(nil) }, "group g: panic: " + (&runtime.PanicNilError{}).Error()},
		{"Goexit", func() { runtime.Goexit() }, "group g: runtime.Goexit called"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s storage) {
				topic := open(t, s, queue.Config[int]{})
				var dead []penstock.Event[int]
				g, err := topic.Group("g", queue.GroupConfig{BatchMax: 2, OnFail: queue.Block, Retry: settle.Policy{Attempts: 2, Backoff: backoff}},
					queue.DeadLetter(func(_ context.Context, events ...penstock.Event[int]) error {
						dead = append(dead, events...)
						return nil
					}))
				if err != nil {
					t.Fatal(err)
				}
				r := record(func(_ context.Context, b penstock.Batch[int]) error {
					if b.Value(0) == 0 {
						c.do()
					}
					return nil
				})
				produce(t, topic, seq(0, 4)...)
				run := startRun(t, g, r.handle)
				time.Sleep(time.Minute)
				produce(t, topic, 4)
				synctest.Wait()
				run.mustStop(t)
				r.want(t, handled{0, []int{0, 1}, 1}, handled{time.Second, []int{0, 1}, 2}, handled{time.Second, []int{2, 3}, 1}, handled{time.Minute, []int{4}, 1})
				if len(dead) != 2 || dead[0].Origin.Cause != c.cause {
					t.Errorf("dead letters %+v, want two because of %q", dead, c.cause)
				}
				wantCommitted(t, g, 5)
			})
		})
	}
}

func TestDeadLetterCarriesWhereItComesFrom(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Name: "orders"})
		dead := open(t, s, queue.Config[int]{Name: "dead"})
		g, err := topic.Group("billing", queue.GroupConfig{BatchMax: 3, OnFail: queue.Block, Retry: settle.Policy{Attempts: 3, Backoff: backoff}},
			queue.DeadLetter(dead.ProduceEvents))
		if err != nil {
			t.Fatal(err)
		}
		long := fmt.Errorf("%w: %s", errHandler, strings.Repeat("x", 100_000))
		if err := topic.ProduceEvents(t.Context(), penstock.Event[int]{Meta: penstock.Meta{ID: "a"}, Value: 1},
			penstock.Event[int]{Meta: penstock.Meta{ID: "b", Key: "k", Header: penstock.Header{{Name: "h", Value: "v"}}}, Value: 2},
			penstock.Event[int]{Value: 3}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
			for i, v := range b.Values() {
				if v == 2 {
					b.Fail(i, long)
				}
			}
			return nil
		})
		time.Sleep(time.Minute)
		run.mustStop(t)
		b, ok, err := group(t, dead, "look", queue.GroupConfig{}).Consumer(0).TryPull(10)
		if err != nil || !ok || b.Len() != 1 {
			t.Fatalf("dead letters: %v, %v, %v", b.Values(), ok, err)
		}
		e := b.Event(0)
		want := penstock.Event[int]{Meta: penstock.Meta{ID: "b", Key: "k", Header: penstock.Header{{Name: "h", Value: "v"}},
			Time: e.Time, Attempt: 3, Origin: &penstock.Origin{Topic: "orders", Offset: 1, Group: "billing",
				Cause: long.Error()[:4096], Time: begin.Add(3 * time.Second).UTC()}}, Value: 2}
		if diff := cmp.Diff(want, e); diff != "" {
			t.Errorf("dead letter (-want +got):\n%s", diff)
		}
		if e.Time.IsZero() {
			t.Error("the time of the event was lost")
		}
		wantCommitted(t, g, 3)
		if st := g.Stats().Run; st.DeadLettered != 1 || st.Failed != 3 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestDeadLetterThatIsNotTakenStaysUnsettled(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		var g *queue.Group[int]
		var asked []time.Duration
		begin := time.Now()
		g, err := topic.Group("g", queue.GroupConfig{OnFail: queue.Block, Retry: settle.Policy{Attempts: 1, Backoff: backoff}},
			queue.DeadLetter(func(_ context.Context, events ...penstock.Event[int]) error {
				asked = append(asked, time.Since(begin))
				if got := committed(g); got[0] != 0 {
					t.Errorf("committed %v before the dead letter was taken", got)
				}
				switch len(asked) {
				case 1:
					return errors.New("dead letter topic is full")
				case 2:
					panic("hook")
				case 3:
					runtime.Goexit()
				}
				return nil
			}))
		if err != nil {
			t.Fatal(err)
		}
		produce(t, topic, 1)
		run := startRun(t, g, func(context.Context, penstock.Batch[int]) error { return errHandler })
		time.Sleep(500 * time.Millisecond)
		want := "offset 0 is given up after 1 attempts and waits to be handed over as a dead letter: dead letter topic is full"
		if b := g.Stats().Run.Blocked; len(b) != 1 || b[0].Reason != want {
			t.Errorf("blocked %+v, want %q", b, want)
		}
		time.Sleep(time.Minute)
		run.mustStop(t)
		if want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}; !slices.Equal(asked, want) {
			t.Errorf("handed over at %v, want %v", asked, want)
		}
		wantCommitted(t, g, 1)
		if st := g.Stats().Run; st.DeadLettered != 1 || st.Failed != 1 || st.Delivered != 1 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestAutoCommitCommitsBeforeTheHandler_BQ86(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 2, AutoCommit: true})
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			if got, want := committed(g)[0], b.Offset(b.Len()-1)+1; got != want {
				t.Errorf("committed %d during the call, want %d", got, want)
			}
			if b.Value(0) == 2 {
				b.Fail(0, errHandler)
				return nil
			}
			return errHandler
		})
		produce(t, topic, seq(0, 5)...)
		run := startRun(t, g, r.handle)
		time.Sleep(time.Hour)
		run.mustStop(t)
		r.want(t, handled{0, []int{0, 1}, 1}, handled{0, []int{2, 3}, 1}, handled{0, []int{4}, 1})
		if st := g.Stats().Run; st.Failed != 4 || st.Retries != 0 || st.Unsettled != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestBatchWaitsForMoreUntilItIsFullOrLingerIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 3, Linger: time.Second})
		r := record(nil)
		run := startRun(t, g, r.handle)
		for i := range 5 { // at 0, 0.3, 0.6, 0.9, 1.2 s
			produce(t, topic, i)
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(time.Hour)
		produce(t, topic, seq(5, 12)...)
		time.Sleep(time.Hour)
		run.mustStop(t)
		at := 1500*time.Millisecond + time.Hour
		r.want(t, handled{600 * time.Millisecond, []int{0, 1, 2}, 1}, handled{1900 * time.Millisecond, []int{3, 4}, 1},
			handled{at, []int{5, 6, 7}, 1}, handled{at, []int{8, 9, 10}, 1}, handled{at + time.Second, []int{11}, 1})
		if st := g.Stats().Run; st.FlushedByCount != 3 || st.FlushedByLinger != 2 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestBatchIsCutByBytes(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Size: func(v int) penstock.Bytes { return penstock.Bytes(v) }})
		g := group(t, topic, "g", queue.GroupConfig{BatchBytes: 100, Linger: time.Second, BatchMax: 5})
		r := record(nil)
		run := startRun(t, g, r.handle)
		produce(t, topic, 60, 30)
		time.Sleep(100 * time.Millisecond)
		produce(t, topic, 20, 500, 1, 99, 40, 1, 1, 1, 1)
		time.Sleep(time.Hour)
		run.mustStop(t)
		early := 100 * time.Millisecond
		r.want(t, handled{early, []int{60, 30}, 1}, handled{early, []int{20}, 1}, handled{early, []int{500}, 1}, handled{early, []int{1, 99}, 1},
			handled{early, []int{40, 1, 1, 1, 1}, 1})
		if st := g.Stats().Run; st.FlushedByBytes != 4 || st.FlushedByCount != 1 || st.FlushedByLinger != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestLingerAndARetryTogetherDoNotSpin(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 10, Linger: 100 * time.Millisecond, OnFail: queue.Block, Retry: settle.Policy{Backoff: backoff}})
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			if b.Value(0) == 0 && b.Attempt(0) == 1 {
				return errHandler
			}
			return nil
		})
		produce(t, topic, 0)
		run := startRun(t, g, r.handle)
		time.Sleep(200 * time.Millisecond)
		produce(t, topic, 1)
		time.Sleep(time.Hour)
		produce(t, topic, 2) // lingers when Run ends
		synctest.Wait()
		run.mustStop(t)
		r.want(t, handled{100 * time.Millisecond, []int{0}, 1}, handled{1100 * time.Millisecond, []int{0}, 2}, handled{1200 * time.Millisecond, []int{1}, 1})
		wantCommitted(t, g, 2)
	})
}

func TestCommitOfRunLetsAWaitingProducerIn(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 2})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 2})
		r := record(nil)
		run := startRun(t, g, r.handle)
		for v := range 20 {
			produce(t, topic, v)
		}
		synctest.Wait()
		run.mustStop(t)
		wantCommitted(t, g, 20)
	})
}

func TestCommitsOnDiskAreStoredEvery100ms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := open(t, storage{"file"}, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1})
		run := startRun(t, g, record(nil).handle)
		produce(t, topic, 0)
		time.Sleep(50 * time.Millisecond)
		produce(t, topic, 1)
		time.Sleep(49 * time.Millisecond)
		wantCommitted(t, g, 0)
		time.Sleep(2 * time.Millisecond)
		wantCommitted(t, g, 2)
		produce(t, topic, 2)
		synctest.Wait()
		wantCommitted(t, g, 2)
		run.mustStop(t)
		wantCommitted(t, g, 3)
	})
}

// What was settled beyond the commit is stored beside it: after a restart only
// the event that failed comes again.
func TestRestartDoesNotRepeatWhatIsCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := queue.Config[int]{Name: "topic", Dir: t.TempDir(), Codec: penstock.JSON[int]()}
		topic, err := queue.Open(c)
		if err != nil {
			t.Fatal(err)
		}
		g := group(t, topic, "g", queue.GroupConfig{Drain: time.Second, BatchMax: 20, OnFail: queue.Block, Retry: settle.Policy{Backoff: settle.Backoff{Min: time.Hour, Max: time.Hour}}})
		r := record(func(_ context.Context, b penstock.Batch[int]) error {
			for i, v := range b.Values() {
				if v == 3 || v == 15 {
					b.Fail(i, errHandler)
				}
			}
			return nil
		})
		produce(t, topic, seq(0, 20)...)
		run := startRun(t, g, r.handle)
		synctest.Wait()
		if d, ok := errors.AsType[*penstock.DrainError](run.stop()); !ok || d.Left != 2 {
			t.Errorf("Run: %v, want a DrainError with 2 left", d)
		}
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		topic = open(t, storage{}, c)
		g = group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, 20)
		r = record(nil)
		run = startRun(t, g, r.handle)
		synctest.Wait()
		run.mustStop(t)
		r.want(t, handled{0, []int{3}, 1}, handled{0, []int{15}, 1}, handled{0, []int{20}, 1})
		wantCommitted(t, g, 21)
	})
}

// FM-102: user code calls back into what calls it.
func TestHandlerMayProduceIntoItsOwnTopic_FM102(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 10})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1})
		r := record(func(ctx context.Context, b penstock.Batch[int]) error {
			if v := b.Value(0); v < 50 {
				return topic.Produce(ctx, v+1)
			}
			return nil
		})
		produce(t, topic, 0)
		run := startRun(t, g, r.handle)
		synctest.Wait()
		run.mustStop(t)
		wantCommitted(t, g, 51)
	})
}

func TestBatchMaxAboveTheWindowIsTheWindow(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 10_000, Linger: time.Minute})
		r := record(nil)
		produce(t, topic, seq(0, 5000)...)
		run := startRun(t, g, r.handle)
		time.Sleep(time.Hour)
		run.mustStop(t)
		r.want(t, handled{0, seq(0, 4096), 1}, handled{time.Minute, seq(4096, 5000), 1})
	})
}

func TestRunConfigurationNamesTheBadField(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{})
	backoff := func(b settle.Backoff) queue.GroupConfig {
		return queue.GroupConfig{Retry: settle.Policy{Backoff: b}}
	}
	for field, bad := range map[string][]queue.GroupConfig{
		"BatchBytes":           {{BatchBytes: -1}},
		"Workers":              {{Workers: -1}, {Workers: settle.WindowMax + 1}},
		"Linger":               {{Linger: -1}},
		"Drain":                {{Drain: -1}},
		"OnFail":               {{OnFail: 2}},
		"ParkAfter":            {{ParkAfter: -1}, {ParkAfter: 1, OnFail: queue.Block}},
		"Rate":                 {{Rate: -1}, {Rate: math.NaN()}, {Rate: math.Inf(1)}, {Rate: math.Inf(-1)}},
		"Burst":                {{Burst: 1}, {Burst: -1}, {Rate: 1, Burst: -1}, {Rate: 1, Burst: math.MaxInt32}},
		"Retry.Backoff.Min":    {backoff(settle.Backoff{Min: -1})},
		"Retry.Backoff.Max":    {backoff(settle.Backoff{Max: -1}), backoff(settle.Backoff{Min: 2, Max: 1})},
		"Retry.Backoff.Factor": {backoff(settle.Backoff{Factor: 0.1}), backoff(settle.Backoff{Factor: math.NaN()}), backoff(settle.Backoff{Factor: math.Inf(1)})},
		"Retry.Backoff.Jitter": {backoff(settle.Backoff{Jitter: 1.1}), backoff(settle.Backoff{Jitter: math.NaN()})},
	} {
		for _, c := range bad {
			_, err := topic.Group("g", c)
			f, ok := errors.AsType[*penstock.FieldError](err)
			if !errors.Is(err, penstock.ErrInvalid) || !ok || f.Field != field {
				t.Errorf("%+v: %v, want ErrInvalid of %s", c, err, field)
			}
		}
	}
	_, err := topic.Group("g", queue.GroupConfig{BatchBytes: 1})
	if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != "BatchBytes" {
		t.Errorf("BatchBytes without Config.Size: %v", err)
	}
	wantErr(t, group(t, topic, "g", queue.GroupConfig{}).Run(t.Context(), nil), penstock.ErrInvalid)
}

// Every event is settled exactly once, dead or handled, whatever fails; order
// of first deliveries per partition is that of the offsets.
func TestRunUnderRandomFailures(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		const producers = 4
		events := 20_000
		if s.name == "file" {
			events = 4500 // each is flushed; every kind of failure still happens
		}
		topic := open(t, s, queue.Config[int]{Partitions: 4, Capacity: 1000})
		var dead, asked atomic.Int64
		g, err := topic.Group("g", queue.GroupConfig{
			Consumers: 2, BatchMax: 64, OnFail: queue.Block, Retry: settle.Policy{Attempts: 3, Backoff: settle.Backoff{Min: time.Microsecond, Max: 20 * time.Microsecond}},
		}, queue.DeadLetter(func(_ context.Context, events ...penstock.Event[int]) error {
			if asked.Add(1)%5 == 0 {
				return errHandler
			}
			dead.Add(int64(len(events)))
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		var good atomic.Int64
		var high [4]atomic.Int64
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
			p := b.Partition()
			if end := int64(b.Offset(b.Len()-1)) + 1; b.Attempt(0) == 1 {
				if first := int64(b.Offset(0)); first != high[p].Load() {
					t.Errorf("partition %d: first delivery of %d after %d", p, first, high[p].Load())
				}
				high[p].Store(end)
			}
			switch v := b.Value(0); {
			case v%997 == 0:
				return errHandler
			case v%1009 == 0:
				panic(v)
			case v%2003 == 0:
				runtime.Goexit()
			}
			n := b.Len()
			for i, v := range b.Values() {
				if v%501 == 0 {
					b.Fail(i, errHandler)
					n--
				}
			}
			good.Add(int64(n))
			return nil
		})
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("a producer was left waiting"))
		defer cancel()
		var wg sync.WaitGroup
		for p := range producers {
			wg.Go(func() {
				for v := p; v < events; v += producers {
					if err := topic.Produce(ctx, v); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		eventually(t, "events are left that no handler got", func() bool { return g.Stats().Lag == 0 })
		run.mustStop(t)
		if got := good.Load() + dead.Load(); got != int64(events) || dead.Load() == 0 {
			t.Errorf("%d handled and %d dead, want %d together", good.Load(), dead.Load(), events)
		}
	})
}
