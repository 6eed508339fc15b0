package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// openKeyed opens the keyed topic of a directory and its group.
func openKeyed(t testing.TB, c queue.Config[string], gc queue.GroupConfig, options ...queue.GroupOption[string]) (*queue.Topic[string], *queue.Group[string]) {
	t.Helper()
	topic, err := queue.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	g, err := topic.Group("g", gc, options...)
	if err != nil {
		t.Fatal(err)
	}
	return topic, g
}

func keyedOnDisk(dir string, fs vfs.FS) queue.Config[string] {
	c := keyed()
	c.Name, c.Dir, c.Codec, c.SegmentBytes = "topic", dir, penstock.String(), 64*penstock.KiB
	c.Logger = slog.New(slog.DiscardHandler)
	return queue.WithFS(c, fs)
}

func closeTopic[T any](t testing.TB, topic *queue.Topic[T]) {
	t.Helper()
	if err := topic.Close(); err != nil {
		t.Error(err)
	}
}

// recorded is what a handler notes for a test that looks while it runs.
type recorded[T any] struct {
	mu     sync.Mutex
	values []T
}

func (r *recorded[T]) add(values ...T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values = append(r.values, values...)
}

// take returns what was noted since the last call.
func (r *recorded[T]) take() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	values := r.values
	r.values = nil
	return values
}

func TestFullRetryLogBlocksAndSaysSo_PC6(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1000, Retry: parkPolicy()})
		var all []string
		for i := range settle.ParkedEventsMax {
			all = append(all, fmt.Sprintf("a%d", i))
		}
		all = append(all, "b0", "a-one-too-many", "b1")
		produce(t, topic, "a0") // alone in its batch, so that all others are followers
		var down atomic.Bool
		down.Store(true)
		var got recorded[string]
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[string]) error {
			if down.Load() && b.Value(0)[0] == 'a' {
				return errHandler
			}
			got.add(b.Values()...)
			return nil
		})
		synctest.Wait()
		for chunk := range slices.Chunk(all[1:], 1000) {
			produce(t, topic, chunk...)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"b0"}, got.take()); diff != "" {
			t.Errorf("delivered while the log is full (-want +got):\n%s", diff)
		}
		want := fmt.Sprintf("offset %d comes behind offset 0, which has its key and is parked, and the retry log has no room for it", settle.ParkedEventsMax+1)
		if st := g.Stats(); len(st.Run.Blocked) != 1 || st.Run.Blocked[0].Reason != want || st.Parked.Events != settle.ParkedEventsMax {
			t.Errorf("blocked %+v, parked %+v, want: %s", st.Run.Blocked, st.Parked, want)
		}
		down.Store(false)
		time.Sleep(time.Hour)
		run.mustStop(t)
		nothingIsParked(t, g)
		var a, b []string
		for _, v := range got.take() {
			if v[0] == 'a' {
				a = append(a, v)
			} else {
				b = append(b, v)
			}
		}
		wantA := append(slices.Clone(all[:settle.ParkedEventsMax]), "a-one-too-many")
		if !slices.Equal(a, wantA) || !slices.Equal(b, []string{"b1"}) {
			t.Errorf("%d events of a, %v of b: lost, doubled or out of order", len(a), b)
		}
		if b := g.Stats().Run.Blocked; len(b) > 0 {
			t.Errorf("still blocked: %+v", b)
		}
	})
}

func TestRoomInTheRetryLogWakesOtherPartitions_PC7(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		c := keyed()
		c.Partitions = 2
		var a, b string // keys of partition 0 and 1
		for k := 'a'; a == "" || b == ""; k++ {
			if penstock.HashKey(string(k))%2 == 0 {
				a = string(k)
			} else {
				b = string(k)
			}
		}
		topic := open(t, s, c)
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, BatchMax: 1000, Retry: parkPolicy()})
		var downA, downB atomic.Bool
		downA.Store(true)
		downB.Store(true)
		run := startRun(t, g, func(_ context.Context, batch penstock.Batch[string]) error {
			if k := batch.Value(0)[:1]; k == a && downA.Load() || k == b && downB.Load() {
				return errHandler
			}
			return nil
		})
		produce(t, topic, b+"0")
		synctest.Wait()
		produce(t, topic, a+"0")
		synctest.Wait()
		var more []string
		for range settle.ParkedEventsMax - 2 {
			more = append(more, a+"x")
		}
		for chunk := range slices.Chunk(more, 1000) {
			produce(t, topic, chunk...)
		}
		synctest.Wait()
		produce(t, topic, b+"1")
		synctest.Wait()
		if st := g.Stats(); len(st.Run.Blocked) != 1 || !strings.Contains(st.Run.Blocked[0].Reason, "no room") || st.Parked.Events != settle.ParkedEventsMax {
			t.Fatalf("blocked %+v, parked %+v, want the second partition without room", st.Run.Blocked, st.Parked)
		}
		downA.Store(false)
		time.Sleep(2 * time.Second) // the first key drains; the second stays down
		synctest.Wait()
		if st := g.Stats(); len(st.Run.Blocked) != 0 || st.Parked.Events != 2 {
			t.Errorf("blocked %+v, parked %+v, want two parked events of the second key", st.Run.Blocked, st.Parked)
		}
		downB.Store(false)
		time.Sleep(time.Hour)
		run.mustStop(t)
		nothingIsParked(t, g)
	})
}

func TestFullDiskHoldsTheCommitAtTheParkedEvent_PC8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		var full atomic.Bool
		full.Store(true)
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if full.Load() && strings.Contains(op.Name, filepath.Join("topic", "retry")) && (op.Kind == vfs.OpAllocate || op.Kind == vfs.OpCreate || op.Kind == vfs.OpWrite) {
				return vfs.Fault{Err: vfs.ErrNoSpace}
			}
			return vfs.Fault{}
		})
		topic, g := openKeyed(t, keyedOnDisk("data", m), queue.GroupConfig{BatchMax: 100, Retry: parkPolicy()})
		defer closeTopic(t, topic)
		events := []string{"a"}
		for i := range 6000 {
			events = append(events, fmt.Sprintf("b%d", i))
		}
		produce(t, topic, events...)
		var mu sync.Mutex
		seen := map[string]int{}
		handled := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(seen)
		}
		var down atomic.Bool
		down.Store(true)
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[string]) error {
			mu.Lock()
			defer mu.Unlock()
			for i, v := range b.All() {
				if v == "a" && down.Load() {
					b.Fail(i, errHandler)
				} else {
					seen[v]++
				}
			}
			return nil
		})
		time.Sleep(500 * time.Millisecond)
		wantCommitted(t, g, 0)
		if n := handled(); n != settle.WindowMax-1 {
			t.Errorf("%d events were delivered above the parked one, want %d", n, settle.WindowMax-1)
		}
		if b := g.Stats().Run.Blocked; len(b) != 1 || !strings.Contains(b[0].Reason, "offset 0 is parked and not stored in the retry log yet") {
			t.Errorf("blocked %+v", b)
		}
		full.Store(false)
		time.Sleep(5 * time.Second)
		wantCommitted(t, g, 6001)
		down.Store(false)
		time.Sleep(time.Minute)
		run.mustStop(t)
		if n := handled(); n != 6001 {
			t.Errorf("%d events were handled, want 6001", n)
		}
		for v, n := range seen {
			if n != 1 {
				t.Errorf("%s was handled %d times", v, n)
			}
		}
	})
}

func TestParkedKeySurvivesRestart_PC9(t *testing.T) {
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := keyedOnDisk("data", vfs.NewMem())
				c.Durability = level
				gc := queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()}
				topic, g := openKeyed(t, c, gc)
				if err := topic.ProduceEvents(t.Context(), penstock.Event[string]{Value: "a1", Meta: penstock.Meta{ID: "id-1", Header: penstock.Header{{Name: "h", Value: "v"}}}}); err != nil {
					t.Fatal(err)
				}
				produce(t, topic, "b1", "a2")
				w := handleWords(failUntil(2, "a1"))
				run := startRun(t, g, w.handle)
				time.Sleep(time.Second)
				run.mustStop(t)
				closeTopic(t, topic)

				topic, g = openKeyed(t, c, gc)
				defer closeTopic(t, topic)
				produce(t, topic, "a3")
				run = startRun(t, g, func(ctx context.Context, b penstock.Batch[string]) error {
					if b.Value(0) == "a1" && (b.ID(0) != "id-1" || b.Meta(0).Header.Get("h") != "v" || b.Offset(0) != 0 || !b.Time(0).Equal(w.begin)) {
						t.Errorf("event %+v at %d, want it as it was produced", b.Event(0), b.Offset(0))
					}
					return w.handle(ctx, b)
				})
				synctest.Wait()
				if keys := g.Parked(); len(keys) != 1 || keys[0].Events != 3 || keys[0].Attempts != 1 || !keys[0].Since.Equal(w.begin) || keys[0].Cause != errHandler.Error() {
					t.Errorf("parked after the restart: %+v", keys)
				}
				time.Sleep(10 * time.Second)
				nothingIsParked(t, g)
				run.mustStop(t)
				w.want(t, "0s a1", "0s b1", "2s a1 2", "2s a2", "2s a3")
				wantCommitted(t, g, 4)
			})
		})
	}
}

func TestDamagedOrLostRetryLogStopsItsGroup_PC11(t *testing.T) {
	damage := map[string]func(t *testing.T, dir string){
		"bit": func(t *testing.T, dir string) {
			files, err := filepath.Glob(filepath.Join(dir, "topic", "retry", "p00000", "g", "p00000", "*.seg"))
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			b, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			b[4096+100] ^= 4 // inside the first frame
			if err := os.WriteFile(files[0], b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"missing": func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, "topic", "retry", "p00000", "g")); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, hurt := range damage {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				c := keyedOnDisk(dir, nil)
				gc := queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()}
				topic, g := openKeyed(t, c, gc)
				group(t, topic, "other", queue.GroupConfig{}) // keeps the events
				produce(t, topic, "a1", "b1", "a2")
				run := startRun(t, g, handleWords(failUntil(9, "a1")).handle)
				time.Sleep(3 * time.Second)
				run.mustStop(t)
				closeTopic(t, topic)
				hurt(t, dir)

				topic, g = openKeyed(t, c, gc)
				defer closeTopic(t, topic)
				err := g.Run(t.Context(), func(context.Context, penstock.Batch[string]) error {
					t.Error("the handler was called")
					return nil
				})
				wantErr(t, err, penstock.ErrCorrupt)
				file := map[string]string{"bit": "00000000000000000000.seg", "missing": filepath.Join("retry", "p00000", "g")}[name]
				if err == nil || !strings.Contains(err.Error(), "retry") || !strings.Contains(err.Error(), file) {
					t.Errorf("error %v does not say that it is the retry log, and its file %s", err, file)
				}
				other := group(t, topic, "other", queue.GroupConfig{})
				want(t, pull(t, other.Consumer(0), 10), "a1", "b1", "a2")
				if err := g.Close(); err != nil {
					t.Error(err)
				}
				if err := topic.DeleteGroup("g"); err != nil {
					t.Fatal(err)
				}
				for _, left := range []string{"retry/p00000/g", "retry-made/p00000.g"} {
					if _, err := os.Stat(filepath.Join(dir, "topic", left)); !errors.Is(err, os.ErrNotExist) {
						t.Errorf("%s: %v, want it gone", left, err)
					}
				}
			})
		})
	}
}

func TestNewGroupOfADeletedNameStartsEmpty_PC12(t *testing.T) {
	for _, leftover := range []bool{false, true} {
		t.Run(fmt.Sprintf("leftover=%v", leftover), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := vfs.NewMem()
				c := keyedOnDisk("data", m)
				gc := queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()}
				topic, g := openKeyed(t, c, gc)
				defer closeTopic(t, topic)
				group(t, topic, "other", queue.GroupConfig{}) // keeps the events
				produce(t, topic, "a1", "b1", "a2")
				run := startRun(t, g, handleWords(failUntil(9, "a1")).handle)
				time.Sleep(time.Second)
				run.mustStop(t)
				if err := g.Close(); err != nil {
					t.Fatal(err)
				}
				if leftover { // as a crash after the positions are gone leaves it
					m.SetFault(func(op vfs.Op) vfs.Fault {
						if op.Kind == vfs.OpRemove && strings.Contains(op.Name, "retry") {
							return vfs.Fault{Err: errors.New("cannot remove")}
						}
						return vfs.Fault{}
					})
				}
				if err := topic.DeleteGroup("g"); (err != nil) != leftover {
					t.Fatal(err)
				}
				m.SetFault(nil)
				g = group(t, topic, "g", gc)
				w := handleWords(nil)
				run = startRun(t, g, w.handle)
				time.Sleep(time.Hour) // as long as nothing comes twice
				run.mustStop(t)
				w.want(t, "0s a1", "0s b1", "0s a2")
			})
		})
	}
}

func TestParkedEventIsDeadLetteredAfterItsLastAttempt_PC13(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		var dead []penstock.Event[string]
		refused := 0
		hook := queue.DeadLetter(func(_ context.Context, events ...penstock.Event[string]) error {
			if refused++; refused == 1 {
				return errors.New("not now")
			}
			dead = append(dead, events...)
			return nil
		})
		policy := parkPolicy()
		policy.Attempts = 2
		g, err := topic.Group("g", queue.GroupConfig{BatchMax: 1, Retry: policy}, hook)
		if err != nil {
			t.Fatal(err)
		}
		meta := penstock.Meta{ID: "1", Key: "a", Header: penstock.Header{{Name: "h", Value: "v"}}}
		if err := topic.ProduceEvents(t.Context(), penstock.Event[string]{Meta: meta, Value: "a1"}); err != nil {
			t.Fatal(err)
		}
		produce(t, topic, "b1", "a2")
		w := handleWords(failUntil(9, "a1"))
		run := startRun(t, g, w.handle)
		time.Sleep(3 * time.Second) // refused at 2 s, and a2 waits
		w.want(t, "0s a1", "0s b1", "2s a1 2")
		if keys := g.Parked(); len(keys) != 1 || !keys[0].DeadLetter || keys[0].Events != 2 {
			t.Errorf("parked %+v, want a dead letter and a follower", keys)
		}
		time.Sleep(time.Minute)
		run.mustStop(t)
		nothingIsParked(t, g)
		w.want(t, "0s a1", "0s b1", "2s a1 2", "4s a2")
		if len(dead) != 1 {
			t.Fatalf("%d dead letters", len(dead))
		}
		e := dead[0]
		o := *e.Origin
		if e.Value != "a1" || e.Attempt != 2 || e.ID != "1" || e.Key != "a" || e.Header.Get("h") != "v" || !e.Time.Equal(w.begin) ||
			o.Topic != "topic" || o.Offset != 0 || o.Group != "g" || o.Cause != errHandler.Error() || o.Time.IsZero() {
			t.Errorf("dead letter %+v from %+v", e, o)
		}
		if st := g.Stats().Run; st.DeadLettered != 1 || st.Failed != 2 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestRetryParkedDeliversAtOnce_PC14(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()})
		produce(t, topic, "a1", "b1", "a2", "c1", "a3")
		w := handleWords(failUntil(2, "a1"))
		run := startRun(t, g, w.handle)
		time.Sleep(time.Second)
		if n, err := g.RetryParked("a"); n != 3 || err != nil {
			t.Errorf("RetryParked = %d, %v, want 3", n, err)
		}
		synctest.Wait()
		nothingIsParked(t, g)
		_, err := g.RetryParked("a")
		wantErr(t, err, penstock.ErrNotFound)
		run.mustStop(t)
		w.want(t, "0s a1", "0s b1", "0s c1", "1s a1 2", "1s a2", "1s a3")
	})
}

// What is ordered between two runs happens in the next one.
func TestRetryParkedBetweenRuns(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()})
		produce(t, topic, "a1", "-1", "a2")
		w := handleWords(failUntil(2, "a1", "-1"))
		run := startRun(t, g, w.handle)
		synctest.Wait()
		run.mustStop(t)
		if n, err := g.RetryParked(""); n != 1 || err != nil {
			t.Errorf("RetryParked = %d, %v, want 1", n, err)
		}
		time.Sleep(time.Second)
		run = startRun(t, g, w.handle)
		time.Sleep(10 * time.Second)
		run.mustStop(t)
		w.want(t, "0s a1", "0s -1", "1s -1 2", "2s a1 2", "2s a2")
	})
}

func TestDiscardParkedHandsOverOrDrops_PC15(t *testing.T) {
	for _, hooked := range []bool{true, false} {
		bubble(t, func(t *testing.T, s storage) {
			topic := open(t, s, keyed())
			var dead []string
			var options []queue.GroupOption[string]
			if hooked {
				options = append(options, queue.DeadLetter(func(_ context.Context, events ...penstock.Event[string]) error {
					for _, e := range events {
						dead = append(dead, fmt.Sprintf("%s %d %s", e.Value, e.Attempt, e.Origin.Cause))
					}
					return nil
				}))
			}
			g, err := topic.Group("g", queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()}, options...)
			if err != nil {
				t.Fatal(err)
			}
			produce(t, topic, "a1", "b1", "a2", "c1", "a3")
			w := handleWords(failUntil(9, "a1"))
			run := startRun(t, g, w.handle)
			time.Sleep(time.Second)
			if n, err := g.DiscardParked("a"); n != 3 || err != nil {
				t.Errorf("DiscardParked = %d, %v, want 3", n, err)
			}
			synctest.Wait()
			nothingIsParked(t, g)
			produce(t, topic, "a4") // the key is as good as new
			synctest.Wait()
			run.mustStop(t)
			w.want(t, "0s a1", "0s b1", "0s c1", "1s a4")
			if st := g.Stats(); st.Discarded != 3 {
				t.Errorf("%d discarded, want 3", st.Discarded)
			}
			if !hooked {
				return
			}
			const why = "discarded by DiscardParked"
			if diff := cmp.Diff([]string{"a1 1 " + why + "; the last failure was: database is down", "a2 0 " + why, "a3 0 " + why}, dead); diff != "" {
				t.Errorf("dead letters (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCompletedRangesSurviveRestart_PC17(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := keyedOnDisk("data", vfs.NewMem())
		gc := queue.GroupConfig{BatchMax: 10, OnFail: queue.Block, Drain: time.Second, Retry: parkPolicy()}
		topic, g := openKeyed(t, c, gc)
		produce(t, topic, "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
		w := handleWords(failUntil(2, "2", "5"))
		run := startRun(t, g, w.handle)
		synctest.Wait()
		var drain *penstock.DrainError
		if err := run.stop(); !errors.As(err, &drain) || drain.Left != 2 {
			t.Errorf("Run = %v, want 2 events left", err)
		}
		closeTopic(t, topic)
		w.calls, w.fail = nil, nil
		topic, g = openKeyed(t, c, gc)
		defer closeTopic(t, topic)
		w.begin = time.Now()
		run = startRun(t, g, w.handle)
		synctest.Wait()
		run.mustStop(t)
		w.want(t, "0s 2", "0s 5")
		wantCommitted(t, g, 10)
	})
}

func TestWindowBoundsWhatIsCompletedAboveAStuckEvent_PC18(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		c := queue.Config[int]{Name: "topic"}
		if s.name == "file" {
			c.Dir, c.Codec = t.TempDir(), penstock.JSON[int]()
		}
		topic := openDisk(t, c)
		policy := settle.Policy{Backoff: settle.Backoff{Min: time.Hour, Max: time.Hour, Jitter: -1}}
		gc := queue.GroupConfig{BatchMax: 8192, OnFail: queue.Block, Drain: time.Second, Retry: policy}
		g := group(t, topic, "g", gc)
		produce(t, topic, seq(0, 10_000)...)
		var got recorded[int]
		var stuck atomic.Bool
		stuck.Store(true)
		handler := func(_ context.Context, b penstock.Batch[int]) error {
			for i, v := range b.All() {
				if v == 0 && stuck.Load() {
					b.Fail(i, errHandler)
				}
				got.add(v)
			}
			return nil
		}
		run := startRun(t, g, handler)
		time.Sleep(time.Minute)
		if got := got.take(); !slices.Equal(got, seq(0, settle.WindowMax)) {
			t.Errorf("%d events were delivered, want %d", len(got), settle.WindowMax)
		}
		wantCommitted(t, g, 0)
		stuck.Store(false)
		if s.name == "file" {
			_ = run.stop() // the drain leaves one event
			closeTopic(t, topic)
			topic = openDisk(t, c)
			g = group(t, topic, "g", gc)
			run = startRun(t, g, handler)
		}
		time.Sleep(2 * time.Hour)
		run.mustStop(t)
		if got, want := got.take(), append([]int{0}, seq(settle.WindowMax, 10_000)...); !slices.Equal(got, want) {
			t.Errorf("%d events came, want %d: the stuck one, then the rest", len(got), len(want))
		}
		wantCommitted(t, g, 10_000)
	})
}
