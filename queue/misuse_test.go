package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// ownKey is a key that user code may put values of its own under.
type ownKey struct{}

// Producing from a handler into its own full topic is an error that says so,
// not a deadlock; what the handler then returns decides about its batch.
func TestHandlerThatWaitsForItselfIsTold(t *testing.T) {
	for name, c := range map[string]queue.Config[string]{
		"events": {Capacity: 2, Partitions: 2},
		"bytes":  {CapacityBytes: 2, Partitions: 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s storage) {
				topic := openTexts(t, s, c)
				g := group(t, topic, "g", queue.GroupConfig{})
				produce(t, topic, "a", "b")
				begin := time.Now()
				var failed []error
				run := startRun(t, g, func(ctx context.Context, b penstock.Batch[string]) error {
					if b.Value(0) != "a" {
						return nil
					}
					_, err := topic.TryProduce(context.WithValue(ctx, ownKey{}, "value"), "c")
					failed = append(failed, topic.Produce(ctx, "d"), err, topic.Produce(ctx, "e", "f", "g"))
					if time.Since(begin) > time.Second {
						t.Errorf("told after %v", time.Since(begin))
					}
					return nil
				})
				time.Sleep(time.Minute)
				run.mustStop(t)
				for _, err := range failed {
					wantErr(t, err, queue.ErrWaitsForItself, penstock.ErrFull)
				}
				if len(failed) != 3 {
					t.Fatalf("%d calls returned, want 3", len(failed))
				}
				wantCommitted(t, g, 1, 1)
				produce(t, topic, "h", "i") // the capacity is whole
			})
		})
	}
}

// As long as somebody else can make room, a handler waits like everybody.
func TestHandlerThatOthersMakeRoomForWaits(t *testing.T) {
	slowly := func(context.Context, penstock.Batch[int]) error { time.Sleep(time.Second); return nil }
	t.Run("another group", func(t *testing.T) {
		bubble(t, func(t *testing.T, s storage) {
			topic := open(t, s, queue.Config[int]{Capacity: 2})
			slow, g := group(t, topic, "slow", queue.GroupConfig{BatchMax: 1}), group(t, topic, "g", queue.GroupConfig{BatchMax: 1})
			produce(t, topic, 1, 2)
			slowRun := startRun(t, slow, slowly)
			r := record(func(ctx context.Context, b penstock.Batch[int]) error {
				if b.Value(0) == 2 {
					return topic.Produce(ctx, 3)
				}
				return nil
			})
			run := startRun(t, g, r.handle)
			time.Sleep(time.Minute)
			run.mustStop(t)
			slowRun.mustStop(t)
			wantCommitted(t, g, 3)
			wantCommitted(t, slow, 3)
		})
	})
	t.Run("another consumer", func(t *testing.T) {
		bubble(t, func(t *testing.T, s storage) {
			topic := open(t, s, queue.Config[int]{Capacity: 2, Partitions: 2})
			g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Consumers: 2})
			produce(t, topic, 0, 1)
			run := startRun(t, g, func(ctx context.Context, b penstock.Batch[int]) error {
				if b.Value(0) == 0 {
					return topic.Produce(ctx, 2)
				}
				return slowly(ctx, b)
			})
			time.Sleep(time.Minute)
			run.mustStop(t)
			wantCommitted(t, g, 2, 1)
		})
	})
	t.Run("its own group, later", func(t *testing.T) {
		bubble(t, func(t *testing.T, s storage) { // the call that the context was made for has returned
			topic := open(t, s, queue.Config[int]{Capacity: 1})
			g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1})
			produce(t, topic, 0)
			late := make(chan error, 1)
			run := startRun(t, g, func(ctx context.Context, b penstock.Batch[int]) error {
				if b.Value(0) == 0 && b.Attempt(0) == 1 {
					go func() { late <- topic.Produce(ctx, 1) }() // ends when the event is settled; received below
					return errHandler                             // the retry comes after a backoff
				}
				return nil
			})
			if err := <-late; err != nil {
				t.Errorf("Produce: %v", err)
			}
			synctest.Wait()
			run.mustStop(t)
			wantCommitted(t, g, 2)
		})
	})
}

// Two handlers of two groups that wait for each other are told too.
func TestHandlersThatWaitForEachOtherAreTold(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 1})
		produceOnce := func(ctx context.Context, b penstock.Batch[int]) error {
			if b.Value(0) == 0 {
				wantErr(t, topic.Produce(ctx, 1), queue.ErrWaitsForItself)
			}
			return nil
		}
		var runs []*running
		groups := []*queue.Group[int]{group(t, topic, "a", queue.GroupConfig{}), group(t, topic, "b", queue.GroupConfig{})}
		produce(t, topic, 0)
		for _, g := range groups {
			runs = append(runs, startRun(t, g, produceOnce))
		}
		time.Sleep(time.Minute)
		for i, run := range runs {
			run.mustStop(t)
			wantCommitted(t, groups[i], 1)
		}
	})
}

// codecOf panics on 13 and fails on 14, when it encodes or when it decodes.
type codecOf struct {
	penstock.Codec[int]
	decode bool
}

func (c codecOf) Append(dst []byte, v int) ([]byte, error) {
	if !c.decode {
		if v == 13 {
			panic("codec")
		} else if v == 14 {
			return append(dst, "half"...), errDisk
		}
	}
	return c.Codec.Append(dst, v)
}

// Whatever user code of a topic does with one request, the next goes to the
// next partition and all of the capacity is there.
func TestUserCodeThatFailsLeavesTheTopicWorking(t *testing.T) {
	fails := map[string]struct {
		disk bool
		c    queue.Config[int]
		want error // besides PanicError
	}{
		"key panics":    {c: queue.Config[int]{Key: func(v int) string { return word(v) }}},
		"router panics": {c: queue.Config[int]{Router: queue.RouterFunc("r", func(v, _ int) int { _ = word(v); return v % 4 })}},
		"router out of range": {c: queue.Config[int]{Router: queue.RouterFunc("r", func(v, _ int) int {
			if v == 13 || v == 14 {
				return 4
			}
			return v % 4
		})}, want: penstock.ErrInvalid},
		"key is not a number": {c: queue.Config[int]{Router: queue.NumericRouter(func(v int) float64 {
			switch v {
			case 13:
				return math.NaN()
			case 14:
				return math.Inf(-1)
			}
			return float64(v)
		})}, want: penstock.ErrInvalid},
		"size panics":  {c: queue.Config[int]{CapacityBytes: 4, Size: func(v int) penstock.Bytes { _ = word(v); return 1 }}},
		"codec panics": {disk: true, c: queue.Config[int]{Codec: codecOf{Codec: penstock.JSON[int]()}}},
	}
	for name, f := range fails {
		t.Run(name, func(t *testing.T) {
			forEachStorage(t, func(t *testing.T, s storage) {
				if f.disk && s.name == "memory" || f.c.Size != nil && s.name == "file" {
					return // that code is not called there
				}
				c := f.c
				c.Partitions, c.Capacity, c.WhenFull = 4, 4, queue.Fail
				topic := open(t, s, c)
				g := group(t, topic, "g", queue.GroupConfig{Consumers: 4})
				for _, request := range [][]int{{13}, {14}, {1, 13, 2}, {3, 2, 14}} {
					err := topic.Produce(t.Context(), request...)
					_, panicked := errors.AsType[*penstock.PanicError](err)
					if !panicked && !errors.Is(err, errDisk) && (f.want == nil || !errors.Is(err, f.want)) {
						t.Errorf("%v: error %v", request, err)
					}
				}
				if st := topic.Stats(); st.Produced != 0 || st.UsedBytes != 0 {
					t.Errorf("%d events were appended", st.Produced)
				}
				produce(t, topic, 0, 1, 2, 3)
				if ok, err := topic.TryProduce(t.Context(), 4); ok || err != nil {
					t.Errorf("a fifth event: %t, %v", ok, err)
				}
				var got [][]int
				for i := range 4 {
					got = append(got, pull(t, g.Consumer(i), 10))
				}
				if c.Key == nil && c.Router == nil {
					if diff := cmp.Diff([][]int{{0}, {1}, {2}, {3}}, got); diff != "" {
						t.Errorf("a failed request has moved the turns: %s", diff)
					}
				} else if all := slices.Sorted(slices.Values(slices.Concat(got...))); !slices.Equal(all, seq(0, 4)) {
					t.Errorf("pulled %v", got)
				}
			})
		})
	}
}

func word(v int) string {
	if v == 13 || v == 14 {
		panic("user code")
	}
	return fmt.Sprint(v)
}

// A dead-letter hook that panics does not lose the event: it is called again.
func TestDeadLetterHookThatPanicsIsCalledAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 1})
		calls := 0
		policy := queue.GroupConfig{}
		policy.Retry.Attempts, policy.Retry.Backoff = 1, backoff
		g, err := topic.Group("g", policy, queue.DeadLetter(func(context.Context, ...penstock.Event[int]) error {
			if calls++; calls < 3 {
				panic("hook")
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		produce(t, topic, 1)
		run := startRun(t, g, func(context.Context, penstock.Batch[int]) error { panic("handler") })
		time.Sleep(time.Hour)
		run.mustStop(t)
		wantCommitted(t, g, 1)
		if st := g.Stats().Run; calls != 3 || st.DeadLettered != 1 {
			t.Errorf("%d calls, %d dead letters; want 3 and 1", calls, st.DeadLettered)
		}
		produce(t, topic, 2)
	})
}

// closing is a state in which a topic or group is closed. It returns what must
// end by that.
type closing func(t *testing.T, topic *queue.Topic[int], g *queue.Group[int]) []call

func closingStates() map[string]closing {
	run := func(t *testing.T, g *queue.Group[int], h penstock.Handler[int]) call {
		return start(t, func() error { return g.Run(t.Context(), h) })
	}
	nothing := func(context.Context, penstock.Batch[int]) error { return nil }
	return map[string]closing{
		"idle":      func(*testing.T, *queue.Topic[int], *queue.Group[int]) []call { return nil },
		"run waits": func(t *testing.T, _ *queue.Topic[int], g *queue.Group[int]) []call { return []call{run(t, g, nothing)} },
		"pull waits": func(t *testing.T, _ *queue.Topic[int], g *queue.Group[int]) []call {
			return []call{start(t, func() error { _, err := g.Consumer(0).Pull(t.Context()); return err })}
		},
		"handler runs": func(t *testing.T, topic *queue.Topic[int], g *queue.Group[int]) []call {
			produce(t, topic, 1)
			return []call{run(t, g, func(context.Context, penstock.Batch[int]) error { time.Sleep(time.Second); return nil })}
		},
		"handler produces into the full topic": func(t *testing.T, topic *queue.Topic[int], g *queue.Group[int]) []call {
			produce(t, topic, 1, 2)
			return []call{run(t, g, func(ctx context.Context, _ penstock.Batch[int]) error { return topic.Produce(ctx, 3) })}
		},
		"batch lingers": func(t *testing.T, topic *queue.Topic[int], g *queue.Group[int]) []call {
			produce(t, topic, 100)
			return []call{run(t, g, nothing)}
		},
		"retry waits": func(t *testing.T, topic *queue.Topic[int], g *queue.Group[int]) []call {
			produce(t, topic, 1)
			return []call{run(t, g, func(context.Context, penstock.Batch[int]) error { return errHandler })}
		},
	}
}

func TestCloseInEveryStateReturns(t *testing.T) {
	for state, enter := range closingStates() {
		for _, closeTopic := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, topic %t", state, closeTopic), func(t *testing.T) {
				bubble(t, func(t *testing.T, s storage) {
					topic := open(t, s, queue.Config[int]{Capacity: 2})
					c := queue.GroupConfig{BatchMax: 1}
					if state == "batch lingers" {
						c.BatchMax, c.Linger = 10, time.Hour
					}
					c.Retry.Backoff.Min, c.Retry.Backoff.Max = time.Hour, time.Hour
					g := group(t, topic, "g", c)
					waiting := enter(t, topic, g)
					begin := time.Now()
					end := g.Close
					if closeTopic {
						end = topic.Close
					}
					closed := []call{start(t, end), start(t, end)}
					for _, c := range closed {
						if err := c.wait(); err != nil {
							t.Errorf("Close: %v", err)
						}
					}
					time.Sleep(2 * time.Second) // a handler has that long
					for _, w := range waiting {
						wantErr(t, w.wait(), penstock.ErrClosed)
					}
					if d := time.Since(begin); d > 3*time.Second {
						t.Errorf("it took %v", d)
					}
					_, err := g.Consumer(0).Pull(t.Context())
					wantErr(t, err, penstock.ErrClosed)
					wantErr(t, g.Run(t.Context(), func(context.Context, penstock.Batch[int]) error { return nil }), penstock.ErrClosed)
				})
			})
		}
	}
}

// A producer in line is told when the topic closes, and goes on waiting when a
// group of several does.
func TestCloseWhileAProducerWaits(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 1})
		g := group(t, topic, "g", queue.GroupConfig{})
		other := group(t, topic, "other", queue.GroupConfig{})
		produce(t, topic, 1)
		waiting := start(t, func() error { return topic.Produce(t.Context(), 2) })
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		waiting.blocked()
		_ = other
		closed := start(t, topic.Close)
		if err := closed.wait(); err != nil {
			t.Error(err)
		}
		wantErr(t, waiting.wait(), penstock.ErrClosed)
		synctest.Wait()
	})
}

// A second Close does not return while the first is still syncing.
func TestSecondCloseWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic, stall := stallable(t)
		release := stall("")
		if _, err := topic.ProduceAsync(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		first := start(t, topic.Close)
		first.blocked()
		second := start(t, topic.Close)
		second.blocked()
		release()
		for _, c := range []call{first, second} {
			if err := c.wait(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Two goroutines of one call of a handler that produce side by side are one call
// that waits: another worker may still make room. They used to count as two, and
// were told that they wait for themselves.
func TestTwoGoroutinesOfOneHandlerCallAreNotTwoCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 3, Key: func(v int) string {
			if v < 2 {
				return "slow"
			}
			return "other"
		}})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: 2})
		produce(t, topic, 0, 1, 2)
		var mu sync.Mutex
		var told error
		run := startRun(t, g, func(ctx context.Context, b penstock.Batch[int]) error {
			switch v := b.Value(0); {
			case v < 2:
				time.Sleep(10 * time.Second)
			case v == 2:
				var both sync.WaitGroup
				for i := range 2 {
					both.Go(func() {
						err := topic.Produce(ctx, 10+i)
						mu.Lock()
						defer mu.Unlock()
						told = errors.Join(told, err)
					})
				}
				both.Wait()
			}
			return nil
		})
		time.Sleep(time.Minute)
		run.mustStop(t)
		mu.Lock()
		defer mu.Unlock()
		if told != nil {
			t.Error(told)
		}
	})
}
