package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
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

// An event of these tests is "key number"; the part before the blank is its
// key, "" for none.
func workKey(v string) string {
	key, _, _ := strings.Cut(v, " ")
	return key
}

// watch is a handler for several workers that sees that no key is in two hands
// and that its events come in order.
type watch struct {
	t       testing.TB
	do      func(ctx context.Context, b penstock.Batch[string]) error
	mu      sync.Mutex
	begin   time.Time
	running int
	most    int               // calls at a time
	held    map[string]bool   // keys in hands
	last    map[string]string // the last event of each key that succeeded
	good    []string          // in the order of success
	done    map[place]bool
}

type place struct {
	partition int
	offset    penstock.Offset
}

func newWatch(t testing.TB, do func(context.Context, penstock.Batch[string]) error) *watch {
	return &watch{t: t, do: do, begin: time.Now(), held: map[string]bool{}, last: map[string]string{}, done: map[place]bool{}}
}

func (w *watch) handle(ctx context.Context, b penstock.Batch[string]) (err error) {
	w.mu.Lock()
	w.running++
	w.most = max(w.most, w.running)
	mine := map[string]bool{}
	for i, v := range b.Values() {
		if i > 0 && b.Offset(i) <= b.Offset(i-1) {
			w.t.Errorf("offsets %d and %d of a batch do not rise", b.Offset(i-1), b.Offset(i))
		}
		if key := workKey(v); key != "" {
			if w.held[key] {
				w.t.Errorf("key %s is in two hands", key)
			}
			mine[key] = true
		}
	}
	for key := range mine {
		w.held[key] = true
	}
	w.mu.Unlock()
	failed := map[int]bool{}
	ended := false
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.running--
		for key := range mine {
			delete(w.held, key)
		}
		if !ended || err != nil {
			return
		}
		for i, v := range b.Values() {
			if failed[i] {
				continue
			}
			key := workKey(v)
			if key != "" && v <= w.last[key] {
				w.t.Errorf("%q succeeded after %q", v, w.last[key])
			}
			w.last[key] = v
			w.good = append(w.good, v)
			at := place{b.Partition(), b.Offset(i)}
			if w.done[at] {
				w.t.Errorf("%v succeeded twice", at)
			}
			w.done[at] = true
		}
	}()
	if w.do != nil {
		err = w.do(context.WithValue(ctx, failedKey{}, failed), b)
	}
	ended = true
	return err
}

type failedKey struct{}

// markFailed fails event i of a batch of watch.
func markFailed(ctx context.Context, b penstock.Batch[string], i int) {
	ctx.Value(failedKey{}).(map[int]bool)[i] = true
	b.Fail(i, errHandler)
}

func (w *watch) want(good ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if diff := cmp.Diff(good, w.good); diff != "" {
		w.t.Errorf("handled (-want +got):\n%s", diff)
	}
}

// events returns n events for each key, the keys in turn.
func events(n int, keys ...string) (all []string) {
	for i := range n {
		for _, k := range keys {
			all = append(all, fmt.Sprintf("%s %03d", k, i))
		}
	}
	return all
}

func keyedTopic() queue.Config[string] { return queue.Config[string]{Key: workKey} }

// Eight keys with ten events of 10 ms each on four workers take 200 ms.
func TestDifferentKeysRunAtTheSameTime(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyedTopic())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 4})
		produce(t, topic, events(10, "a", "b", "c", "d", "e", "f", "g", "h")...)
		var took time.Duration
		var w *watch
		w = newWatch(t, func(context.Context, penstock.Batch[string]) error {
			time.Sleep(10 * time.Millisecond)
			w.mu.Lock()
			defer w.mu.Unlock()
			took = max(took, time.Since(w.begin))
			return nil
		})
		run := startRun(t, g, w.handle)
		time.Sleep(time.Second)
		run.mustStop(t)
		if took != 200*time.Millisecond || w.most != 4 {
			t.Errorf("took %v with %d calls at a time, want 200ms and 4", took, w.most)
		}
		if len(w.good) != 80 {
			t.Errorf("%d events handled, want 80", len(w.good))
		}
		wantCommitted(t, g, 80)
		if st := g.Stats().Run; st.Delivered != 80 || st.FlushedByCount != 80 || st.HandlerTime < 500*time.Millisecond {
			t.Errorf("stats %+v", st)
		}
	})
}

// Without keys there is no order, and what is there is shared by the workers.
func TestEventsWithoutKeyAreSharedByTheWorkers(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 100, Workers: 4})
		produce(t, topic, seq(0, 100)...)
		var sizes []int
		var mu sync.Mutex
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
			mu.Lock()
			sizes = append(sizes, b.Len())
			mu.Unlock()
			if int(b.Offset(0)) != b.Value(0) || int(b.Offset(b.Len()-1)) != b.Value(b.Len()-1) {
				t.Errorf("offsets from %d to %d for values from %d to %d", b.Offset(0), b.Offset(b.Len()-1), b.Value(0), b.Value(b.Len()-1))
			}
			time.Sleep(time.Second)
			return nil
		})
		time.Sleep(500 * time.Millisecond)
		if calls := g.Stats().Run.Calls; len(calls) != 4 || calls[0].Events != 25 {
			t.Errorf("calls %+v, want four of 25 events", calls)
		}
		time.Sleep(time.Minute)
		run.mustStop(t)
		if want := []int{25, 25, 25, 25}; !slices.Equal(sizes, want) {
			t.Errorf("batches of %v, want %v", sizes, want)
		}
		wantCommitted(t, g, 100)
	})
}

// A key that takes for ever keeps its own later events back and no others, and
// the commit does not pass it.
func TestSlowKeyHoldsNobodyElseUp(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyedTopic())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 2})
		produce(t, topic, events(5, "slow", "a", "b")...)
		w := newWatch(t, func(_ context.Context, b penstock.Batch[string]) error {
			if workKey(b.Value(0)) == "slow" {
				time.Sleep(time.Hour)
			}
			return nil
		})
		run := startRun(t, g, w.handle)
		time.Sleep(time.Minute)
		w.want(slices.DeleteFunc(events(5, "slow", "a", "b"), func(v string) bool { return workKey(v) == "slow" })...)
		wantCommitted(t, g, 0)
		time.Sleep(24 * time.Hour)
		run.mustStop(t)
		wantCommitted(t, g, 15)
	})
}

// The window is the bound: 4,096 offsets above an event that is not settled are
// handled, and no more.
func TestWindowBoundsWhatWorkersDoBeyondAStuckEvent(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 50, Workers: 3})
		free := make(chan struct{})
		var handled atomic.Int64
		produce(t, topic, seq(0, 6000)...)
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
			if b.Value(0) == 0 {
				<-free
			}
			handled.Add(int64(b.Len()))
			return nil
		})
		synctest.Wait()
		if n := handled.Load(); n != settle.WindowMax-50 {
			t.Errorf("%d handled beside a batch of 50 that hangs, want %d", n, settle.WindowMax-50)
		}
		wantCommitted(t, g, 0)
		close(free)
		synctest.Wait()
		run.mustStop(t)
		wantCommitted(t, g, 6000)
	})
}

// The batch of a worker need not be contiguous: offset, time, metadata and Fail
// are those of each event.
func TestBatchOfAWorkerKnowsEachEvent(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[string]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 3, Workers: 2, Retry: settle.Policy{Backoff: backoff}})
		start := time.Now()
		for i, key := range []string{"a", "a", "b", "a", "", "a"} {
			e := penstock.Event[string]{Meta: penstock.Meta{Key: key, ID: strconv.Itoa(i)}, Value: "v" + strconv.Itoa(i)}
			if i == 4 {
				e.Meta = penstock.Meta{}
			}
			if err := topic.ProduceEvents(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		type seen struct {
			Offset  penstock.Offset
			Value   string
			ID      string
			Key     string
			Minute  int
			Attempt int
		}
		var mu sync.Mutex
		var got [][]seen
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[string]) error {
			var all []seen
			for i, v := range b.All() {
				all = append(all, seen{b.Offset(i), v, b.ID(i), b.Meta(i).Key, int(b.Event(i).Time.Sub(start).Minutes()), b.Attempt(i)})
				if tok := b.Token(i); tok != (penstock.Token{Lo: uint64(b.Offset(i))}) {
					t.Errorf("token %v of offset %d", tok, b.Offset(i))
				}
				if v == "v3" && b.Attempt(i) == 1 {
					b.Fail(i, errHandler)
				}
			}
			mu.Lock()
			got = append(got, all)
			mu.Unlock()
			time.Sleep(time.Duration(len(all)) * 100 * time.Millisecond)
			return nil
		})
		time.Sleep(time.Minute)
		run.mustStop(t)
		slices.SortFunc(got, func(a, b []seen) int {
			return int(a[0].Attempt)*100 + int(a[0].Offset) - int(b[0].Attempt)*100 - int(b[0].Offset)
		})
		want := [][]seen{
			{{0, "v0", "0", "a", 0, 1}, {1, "v1", "1", "a", 1, 1}, {3, "v3", "3", "a", 3, 1}},
			{{2, "v2", "2", "b", 2, 1}, {4, "v4", "", "", 4, 1}},
			{{5, "v5", "5", "a", 5, 1}},
			{{3, "v3", "3", "a", 3, 2}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
		wantCommitted(t, g, 6)
	})
}

// A failed event comes again before later ones of its key; others go on.
func TestRetryOfAKeyStaysBeforeItsLaterEvents(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyedTopic())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 2, OnFail: queue.Block, Retry: settle.Policy{Backoff: backoff}})
		produce(t, topic, events(3, "a", "b")...)
		w := newWatch(t, func(ctx context.Context, b penstock.Batch[string]) error {
			if b.Value(0) == "a 000" && b.Attempt(0) < 3 {
				return errHandler
			}
			return nil
		})
		run := startRun(t, g, w.handle)
		time.Sleep(500 * time.Millisecond)
		w.want("b 000", "b 001", "b 002")
		wantCommitted(t, g, 0)
		if b := g.Stats().Run; len(b.Blocked) != 1 || b.Blocked[0].Offset != 0 || b.Unsettled != 1 {
			t.Errorf("stats %+v, want offset 0 in the way", b)
		}
		time.Sleep(time.Minute)
		run.mustStop(t)
		w.want("b 000", "b 001", "b 002", "a 000", "a 001", "a 002")
		wantCommitted(t, g, 6)
		if st := g.Stats().Run; st.Retries != 2 || st.Failed != 2 || len(st.Blocked) != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestPartOfAWorkersBatchFails(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyedTopic())
		var dead []string
		var mu sync.Mutex
		g, err := topic.Group("g", queue.GroupConfig{BatchMax: 4, Workers: 2, Retry: settle.Policy{Attempts: 2, Backoff: backoff}},
			queue.DeadLetter(func(_ context.Context, events ...penstock.Event[string]) error {
				mu.Lock() // workers call it at the same time
				defer mu.Unlock()
				for _, e := range events {
					dead = append(dead, fmt.Sprint(e.Value, " ", e.Origin.Offset, " ", e.Attempt, " ", e.Origin.Cause))
				}
				return nil
			}))
		if err != nil {
			t.Fatal(err)
		}
		produce(t, topic, events(4, "a", "b")...)
		w := newWatch(t, func(ctx context.Context, b penstock.Batch[string]) error {
			for i, v := range b.All() {
				if v == "a 001" || v == "b 003" {
					markFailed(ctx, b, i)
				}
			}
			return nil
		})
		run := startRun(t, g, w.handle)
		time.Sleep(time.Minute)
		run.mustStop(t)
		slices.Sort(dead)
		if diff := cmp.Diff([]string{"a 001 2 2 database is down", "b 003 7 2 database is down"}, dead); diff != "" {
			t.Errorf("dead letters (-want +got):\n%s", diff)
		}
		if len(w.good) != 6 {
			t.Errorf("handled %v, want all but two", w.good)
		}
		wantCommitted(t, g, 8)
	})
}

func TestHandlerThatPanicsOnAWorkerFailsItsBatch_FM56(t *testing.T) {
	for name, do := range map[string]func(){
		"panic":  func() { panic("boom") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s storage) {
				topic := open(t, s, keyedTopic())
				g := group(t, topic, "g", queue.GroupConfig{BatchMax: 2, Workers: 3, Retry: settle.Policy{Backoff: backoff}})
				produce(t, topic, events(3, "a", "b", "c", "d")...)
				w := newWatch(t, func(_ context.Context, b penstock.Batch[string]) error {
					if workKey(b.Value(0)) < "d" && b.Attempt(0) < 3 {
						do()
					}
					return nil
				})
				run := startRun(t, g, w.handle)
				time.Sleep(time.Minute)
				run.mustStop(t)
				if len(w.good) != 12 {
					t.Errorf("handled %v, want all 12", w.good)
				}
				wantCommitted(t, g, 12)
			})
		})
	}
}

// What was taken to look for free keys and did not start is left, and comes in
// the next run; what runs is waited for.
func TestDrainOfWorkersFinishesWhatRuns_QC49(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyedTopic())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 2})
		produce(t, topic, events(3, "a", "b")...)
		w := newWatch(t, func(context.Context, penstock.Batch[string]) error { time.Sleep(time.Second); return nil })
		run := startRun(t, g, w.handle)
		time.Sleep(500 * time.Millisecond)
		begin := time.Now()
		run.mustStop(t)
		if took := time.Since(begin); took != 500*time.Millisecond {
			t.Errorf("the drain took %v, want the rest of the two calls", took)
		}
		if len(w.good) != 2 {
			t.Errorf("handled %v, want two", w.good)
		}
		wantCommitted(t, g, 2)
		run = startRun(t, g, w.handle)
		time.Sleep(time.Minute)
		run.mustStop(t)
		if len(w.good) != 6 {
			t.Errorf("handled %v, want all", w.good)
		}
	})
}

func TestWorkersThatHangAreLeftBehind_FM57(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyedTopic())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 3, Drain: 2 * time.Second})
		produce(t, topic, events(2, "a", "b", "c")...)
		hang := make(chan struct{})
		w := newWatch(t, func(ctx context.Context, b penstock.Batch[string]) error {
			switch workKey(b.Value(0)) {
			case "a":
				<-hang
			case "b":
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		run := startRun(t, g, w.handle)
		synctest.Wait()
		begin := time.Now()
		err := run.stop()
		if d, ok := errors.AsType[*penstock.DrainError](err); !ok || d.Left != 2 || time.Since(begin) != 3*time.Second {
			t.Errorf("Run: %v after %v, want a DrainError with 2 left after 3 s", err, time.Since(begin))
		}
		if st := g.Stats().Run; !st.Running || len(st.Calls) != 1 || st.Calls[0].Offset != 0 {
			t.Errorf("stats %+v, want one call that runs", st)
		}
		wantErr(t, g.Run(t.Context(), w.handle), penstock.ErrExists)
		close(hang)
		synctest.Wait()
		if st := g.Stats().Run; st.Running || len(st.Calls) != 0 {
			t.Errorf("stats %+v after the handler returned", st)
		}
		wantCommitted(t, g, 1)
	})
}

func TestCloseEndsRunWithWorkers(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyedTopic())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 2})
		produce(t, topic, events(3, "a", "b")...)
		var returned atomic.Int64
		run := startRun(t, g, func(context.Context, penstock.Batch[string]) error {
			time.Sleep(time.Second)
			returned.Add(1)
			return nil
		})
		time.Sleep(100 * time.Millisecond)
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		wantErr(t, run.wait(), penstock.ErrClosed)
		if n := returned.Load(); n != 2 {
			t.Errorf("%d calls had returned when Run did, want both that ran", n)
		}
	})
}

// With AutoCommit an event is committed, as a bit beyond the commit if need be,
// before its handler is called, and comes once.
func TestAutoCommitWithWorkers_BQ86(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyedTopic())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 2, AutoCommit: true})
		produce(t, topic, events(3, "a", "b")...)
		var mu sync.Mutex
		var got []string
		handle := func(_ context.Context, b penstock.Batch[string]) error {
			mu.Lock()
			got = append(got, b.Value(0))
			mu.Unlock()
			if workKey(b.Value(0)) == "a" {
				time.Sleep(time.Hour)
				return errHandler
			}
			return nil
		}
		run := startRun(t, g, handle)
		time.Sleep(time.Minute)
		wantCommitted(t, g, 2) // 0 runs; 2 waits for its key; 1, 3 and 5 are done
		go run.cancel()
		time.Sleep(time.Hour)
		wantErr(t, run.wait(), context.DeadlineExceeded)
		time.Sleep(time.Hour)
		if st := g.Stats().Run; st.Running || st.Failed != 1 || st.Dropped != 1 {
			t.Errorf("stats %+v, want one dropped", st)
		}
		run = startRun(t, g, handle)
		time.Sleep(3 * time.Hour)
		run.mustStop(t)
		if diff := cmp.Diff([]string{"a 000", "b 000", "b 001", "b 002", "a 001", "a 002"}, got); diff != "" {
			t.Errorf("delivered (-want +got):\n%s", diff)
		}
		wantCommitted(t, g, 6)
	})
}

// A key function that panics on an event loses neither the event nor the queue.
func TestKeyFunctionThatPanicsOnAWorker_FM101(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		var bad atomic.Bool
		c := keyedTopic()
		c.Key = func(v string) string {
			if bad.Load() && workKey(v) == "b" {
				panic("no key")
			}
			return workKey(v)
		}
		var lines bytes.Buffer
		c.Logger = textLogger(&lines)
		topic := open(t, s, c)
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 2, Workers: 2})
		produce(t, topic, events(3, "a", "b", "c")...)
		bad.Store(true)
		var handled atomic.Int64
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[string]) error {
			handled.Add(int64(b.Len()))
			return nil
		})
		time.Sleep(time.Second)
		run.mustStop(t)
		if handled.Load() != 9 {
			t.Errorf("%d handled, want 9", handled.Load())
		}
		wantCommitted(t, g, 9)
		if st := topic.Stats(); st.KeyPanics < 3 || !strings.Contains(st.Why, "Config.Key has panicked") {
			t.Errorf("%d panics counted, at least 3 befell; why: %s", st.KeyPanics, st.Why)
		}
		if n := strings.Count(lines.String(), "Config.Key panicked"); n != 1 {
			t.Errorf("%d lines of the log tell of the panics, want one", n)
		}
	})
}

func TestWorkersLingerForAFullBatch(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Size: func(v int) penstock.Bytes { return penstock.Bytes(v) }})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 4, BatchBytes: 100, Linger: time.Second, Workers: 2})
		var mu sync.Mutex
		var got []string
		begin := time.Now()
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
			mu.Lock()
			got = append(got, fmt.Sprint(time.Since(begin), b.Values(), b.Reason()))
			mu.Unlock()
			return nil
		})
		produce(t, topic, 1, 2, 3)
		time.Sleep(500 * time.Millisecond)
		produce(t, topic, 4, 5)
		time.Sleep(10 * time.Second)
		produce(t, topic, 60, 50)
		time.Sleep(10 * time.Second)
		run.mustStop(t)
		want := []string{"500ms [1 2 3 4] count", "1.5s [5] linger", "10.5s [60] bytes", "11.5s [50] linger"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// What workers settled beyond the commit is stored beside it: a restart brings
// only the rest.
func TestRestartDoesNotRepeatWhatWorkersCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := keyedTopic()
		c.Name, c.Dir, c.Codec = "topic", t.TempDir(), penstock.JSON[string]()
		topic := openDisk(t, c)
		gc := queue.GroupConfig{BatchMax: 1, Workers: 3, Drain: time.Second}
		g := group(t, topic, "g", gc)
		produce(t, topic, events(3, "a", "b", "c")...)
		w := newWatch(t, func(ctx context.Context, b penstock.Batch[string]) error {
			if workKey(b.Value(0)) == "b" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		run := startRun(t, g, w.handle)
		synctest.Wait()
		wantErr(t, run.stop(), context.DeadlineExceeded)
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		topic = openDisk(t, c)
		g = group(t, topic, "g", gc)
		w = newWatch(t, nil)
		run = startRun(t, g, w.handle)
		synctest.Wait()
		run.mustStop(t)
		w.want("b 000", "b 001", "b 002")
		wantCommitted(t, g, 9)
	})
}

// Every event is settled exactly once, whatever fails, with real goroutines.
func TestWorkersUnderRandomFailures(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		total := 8000
		if s.name == "file" {
			total = 3000
		}
		c := keyedTopic()
		c.Partitions, c.Capacity = 3, 1000
		topic := open(t, s, c)
		g := group(t, topic, "g", queue.GroupConfig{
			Consumers: 2, Workers: 4, BatchMax: 16, Retry: settle.Policy{Backoff: settle.Backoff{Min: time.Microsecond, Max: 50 * time.Microsecond}},
		})
		var tries sync.Map
		w := newWatch(t, func(ctx context.Context, b penstock.Batch[string]) error {
			first := func(v string) bool { _, seen := tries.LoadOrStore(v, true); return !seen }
			for i, v := range b.All() {
				switch n, _ := strconv.Atoi(v[len(v)-3:]); {
				case n%97 == 1 && first(v):
					return errHandler
				case n%89 == 2 && first(v):
					panic(v)
				case n%83 == 3 && first(v):
					runtime.Goexit()
				case n%31 == 4 && first(v):
					for j := i; j < b.Len(); j++ { // and its followers, to keep the order
						if workKey(b.Value(j)) == workKey(v) {
							markFailed(ctx, b, j)
						}
					}
				}
			}
			runtime.Gosched()
			return nil
		})
		run := startRun(t, g, w.handle)
		var keys []string
		for k := range 20 {
			keys = append(keys, "k"+strconv.Itoa(k))
		}
		all := events(total/20, keys...)
		for _, v := range all {
			if err := topic.Produce(t.Context(), v); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "all is settled", func() bool { return g.Stats().Lag == 0 })
		run.mustStop(t)
		slices.Sort(w.good)
		slices.Sort(all)
		if diff := cmp.Diff(all, w.good); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
	})
}

// Every worker waits for room that only their own returns can make: each is
// told, and the queue goes on.
func TestWorkersThatWaitForThemselvesAreTold_FM102(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 4})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 2})
		produce(t, topic, seq(0, 4)...)
		var told, handled atomic.Int64
		run := startRun(t, g, func(ctx context.Context, b penstock.Batch[int]) error {
			defer handled.Add(1)
			if v := b.Value(0); v < 2 {
				err := topic.Produce(ctx, 10+v)
				if errors.Is(err, queue.ErrWaitsForItself) {
					told.Add(1)
				} else if err != nil {
					t.Errorf("Produce in a handler: %v", err)
				}
			}
			return nil
		})
		time.Sleep(time.Minute)
		run.mustStop(t)
		if told.Load() == 0 || handled.Load() != 4+2-told.Load() {
			t.Errorf("%d told, %d handled", told.Load(), handled.Load())
		}
		wantCommitted(t, g, penstock.Offset(handled.Load()))
	})
}

// A key that fails for long leaves with what comes behind it, also with what was
// taken and had not started; other keys go on, the commit passes, and its order
// is kept.
func TestKeyIsParkedBesideWorkers_FM55(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyedTopic())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 3, Retry: settle.Policy{Backoff: settle.Backoff{Min: time.Minute, Max: time.Minute, Jitter: -1}}})
		produce(t, topic, events(4, "a", "b", "c")...)
		w := newWatch(t, func(ctx context.Context, b penstock.Batch[string]) error {
			if b.Value(0) == "a 000" && b.Attempt(0) < 3 {
				time.Sleep(time.Second)
				return errHandler
			}
			return nil
		})
		run := startRun(t, g, w.handle)
		time.Sleep(10 * time.Second)
		wantCommitted(t, g, 12)
		if keys := g.Parked(); len(keys) != 1 || keys[0].Key != "a" || keys[0].Events != 4 {
			t.Errorf("parked %+v, want the four events of a", keys)
		}
		if len(w.good) != 8 {
			t.Errorf("handled %v, want all of b and c", w.good)
		}
		produce(t, topic, events(1, "a2", "b2")...)
		produce(t, topic, "a 004", "b 004")
		time.Sleep(time.Hour)
		run.mustStop(t)
		w.mu.Lock()
		var of []string
		for _, v := range w.good {
			if workKey(v) == "a" {
				of = append(of, v)
			}
		}
		w.mu.Unlock()
		if diff := cmp.Diff([]string{"a 000", "a 001", "a 002", "a 003", "a 004"}, of); diff != "" {
			t.Errorf("order of the parked key (-want +got):\n%s", diff)
		}
		wantCommitted(t, g, 16)
	})
}
