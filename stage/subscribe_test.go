package stage

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// bothWays runs f with helpers fused and with helpers on their own.
func bothWays(t *testing.T, f func(t *testing.T, g *Graph), opts ...GraphOption) {
	t.Helper()
	for name, fuse := range map[string]bool{"fused": true, "unfused": false} {
		t.Run(name, func(t *testing.T) { bubble(t, f, append(opts[:len(opts):len(opts)], Fuse(fuse))...) })
	}
}

// subscribe is Subscribe that must succeed.
func subscribe[T any](t *testing.T, from Outleter[T], to Inleter[T], opts ...SubOption) *Subscription {
	t.Helper()
	s, err := Subscribe(context.Background(), from, to, opts...)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return s
}

// ended reports whether a stage, or a subscription, has ended.
func isOver(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// idle is a source that never emits and keeps its graph alive.
func idle() *Source[int] {
	s, _ := Push[int]("idle")
	return s
}

func TestSecondSubscriptionOfAPairIsRefused_STC17(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		src, sink := counter(&w, 1), newLockstep[int]("lockstep")
		Connect(g, src, sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		for _, sub := range []func(context.Context, Outleter[int], Inleter[int], ...SubOption) (*Subscription, error){Subscribe[int], SubscribeWait[int]} {
			if _, err := sub(t.Context(), src, sink); !errors.Is(err, ErrAlreadySubscribed) {
				t.Errorf("second subscription: %v, want ErrAlreadySubscribed", err)
			}
		}
		equal(t, "subscribers", src.Out().Subscribers(), 1)
		equal(t, "batch", sink.all(), [][]int{ints(0, 4)})
		sink.step()
		equal(t, "batch after the refusal", sink.all(), [][]int{ints(4, 6)})
	})
	g := NewGraph() // declared
	var w wants
	src, sink := counter(&w, 1), newLockstep[int]("lockstep")
	Connect(g, src, sink)
	if s := Connect(g, src, sink, Demand(6, 2)); !errors.Is(s.Err(), ErrAlreadySubscribed) || !isOver(s.Done()) {
		t.Errorf("the refused subscription: %v", s.Err())
	}
	if err := g.Start(t.Context()); !errors.Is(err, ErrAlreadySubscribed) {
		t.Errorf("Start: %v, want ErrAlreadySubscribed", err)
	}
}

func TestSubscribingToWhatDoesNotRunIsRefused_STC20(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		live, stopped := counter(&w, 1), finite("stopped", 0, false)
		sink, dead := newLockstep[int]("sink"), newLockstep[int]("dead")
		if _, err := Subscribe(t.Context(), live, sink); !errors.Is(err, ErrProducerNotAlive) {
			t.Errorf("before the start: %v, want ErrProducerNotAlive", err)
		}
		if err := g.Add(live, sink, stopped, dead); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		stopped.Stop()
		dead.Stop()
		synctest.Wait()
		if _, err := Subscribe(t.Context(), stopped, sink); !errors.Is(err, ErrProducerNotAlive) || !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("stopped producer: %v, want ErrProducerNotAlive", err)
		}
		if _, err := Subscribe(t.Context(), live, dead); !errors.Is(err, ErrConsumerNotAlive) {
			t.Errorf("stopped consumer: %v, want ErrConsumerNotAlive", err)
		}
		if _, err := SubscribeWait(t.Context(), stopped, sink); !errors.Is(err, ErrProducerNotAlive) {
			t.Errorf("stopped producer, waiting: %v, want ErrProducerNotAlive", err)
		}
		if _, err := Subscribe(t.Context(), live, sink, Demand(6, 6)); !errors.Is(err, ErrInvalidDemand) {
			t.Errorf("demand: %v", err)
		}
		equal(t, "wants", w.all(), []int(nil))
	})
}

// blocked is a source whose callback blocks until release is closed, in its
// first call.
func blocked(release chan struct{}, w *wants) *Source[int] {
	n := 0
	return Pull("blocked", func(_ context.Context, want int, out *Output[int]) error {
		<-release
		w.add(want)
		for range want {
			out.Emit(n)
			n++
		}
		return nil
	})
}

func TestWithdrawnSubscriptionNeverComesToLife_STC22(t *testing.T) {
	for name, how := range map[string]func(src *Source[int], sink Inleter[int]) error{
		"cancelled": func(src *Source[int], sink Inleter[int]) error {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(50*time.Millisecond, cancel)
			_, err := SubscribeWait(ctx, src, sink)
			if !errors.Is(err, context.Canceled) {
				return errors.Join(errors.New("want context.Canceled"), err)
			}
			return nil
		},
		"deadline": func(src *Source[int], sink Inleter[int]) error {
			_, err := SubscribeWait(context.Background(), src, sink, Timeout(50*time.Millisecond))
			if !errors.Is(err, ErrSubscribeTimeout) || !errors.Is(err, context.DeadlineExceeded) {
				return errors.Join(errors.New("want ErrSubscribeTimeout"), err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				var w wants
				release := make(chan struct{})
				var hooks atomic.Int32
				src := blocked(release, &w).OnSubscribers(func(c Change) { hooks.Add(1) })
				first, _ := collector[int]("first")
				Connect(g, src, first, Demand(3, 0))
				sink := newLockstep[int]("sink")
				sink.OnSubscribed(func(*Subscription) { hooks.Add(100) })
				if err := g.Add(sink); err != nil {
					t.Fatal(err)
				}
				start(t, g)
				synctest.Wait()
				begin := time.Now()
				if err := how(src, sink); err != nil {
					t.Fatal(err)
				}
				equal(t, "time", time.Since(begin), 50*time.Millisecond)
				first.Stop()
				close(release) // now it answers
				synctest.Wait()
				equal(t, "wants", w.all(), []int{3})
				equal(t, "subscribers", src.Out().Subscribers(), 0)
				equal(t, "calls of hooks: the first has arrived and left", hooks.Load(), int32(2))
				if _, err := SubscribeWait(context.Background(), src, sink, Demand(2, 0)); err != nil {
					t.Errorf("a second Subscribe: %v", err)
				}
				synctest.Wait()
				equal(t, "batches", len(sink.all()), 1)
			})
		})
	}
}

// Random webs have found this: a producer that ended normally, a moment after
// Subscribe had seen it alive, failed the consumer.
func TestSubscriptionSharesTheEndThatCameFirst(t *testing.T) {
	boom := errors.New("boom")
	for name, end := range map[string]error{"normal": Done, "failure": boom} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				release := make(chan struct{})
				src := Pull("source", func(context.Context, int, *Output[int]) error {
					<-release
					return end
				})
				sink := newLockstep[int]("sink")
				Connect(g, src, newLockstep[int]("first"))
				if err := g.Add(sink, idle(), newLockstep[int]("other")); err != nil {
					t.Fatal(err)
				}
				start(t, g)
				synctest.Wait()
				sub := subscribe(t, src, sink, CancelMode(Transient))
				close(release)
				synctest.Wait()
				if !isOver(sub.Done()) {
					t.Fatal("the subscription goes on")
				}
				if end == boom {
					if !errors.Is(sub.Err(), boom) || !errors.Is(sink.Wait(), boom) {
						t.Errorf("the subscription ended with %v, want boom", sub.Err())
					}
					return
				}
				if sub.Err() != nil || isOver(sink.Done()) {
					t.Errorf("the subscription ended with %v, the sink over: %v", sub.Err(), isOver(sink.Done()))
				}
			})
		})
	}
}

func TestSubscribeWithAnEndedContextChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		src, sink := counter(&w, 1), newLockstep[int]("sink")
		if err := g.Add(src, sink); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(why)
		if _, err := Subscribe(ctx, src, sink); !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
			t.Errorf("Subscribe: %v", err)
		}
		synctest.Wait()
		equal(t, "wants", w.all(), []int(nil))
	})
}

func TestCancelProcessesWhatWasSentAndTheConsumerGoesOn_STC26(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		src, sink := counter(&w, 1), newLockstep[int]("lockstep")
		sub := Connect(g, src, sink, Demand(6, 2), CancelMode(Temporary))
		start(t, g)
		synctest.Wait()
		equal(t, "wants", w.all(), []int{6})
		sub.Cancel()
		synctest.Wait()
		equal(t, "subscribers", src.Out().Subscribers(), 0)
		if isOver(sub.Done()) {
			t.Error("the subscription is over before its events are processed")
		}
		sink.step()
		sink.step()
		equal(t, "batches", sink.all(), [][]int{ints(0, 4), ints(4, 6)})
		equal(t, "wants after the cancel", w.all(), []int(nil))
		if !isOver(sub.Done()) || sub.Err() != nil || isOver(sink.Done()) || isOver(src.Done()) {
			t.Error("want the subscription over, and both stages alive")
		}
		subscribe(t, src, sink, Demand(6, 2)) // the same pair, at once
		equal(t, "batches of the new subscription", sink.all(), [][]int{ints(6, 10)})
		equal(t, "wants of the new subscription", w.all(), []int{6})
	})
}

func TestCancelEndsAPermanentConsumerNormally_STC27(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		src, sink := counter(&w, 1), newLockstep[int]("lockstep")
		sub := Connect(g, src, sink, Demand(6, 2))
		Connect(g, src, newLockstep[int]("other"), Demand(6, 2))
		start(t, g)
		synctest.Wait()
		sub.Cancel()
		sink.step()
		sink.step()
		if err := sink.Wait(); err != nil {
			t.Errorf("Wait of the sink: %v", err)
		}
		synctest.Wait()
		if isOver(src.Done()) {
			t.Error("the source has ended")
		}
	})
}

func TestManyCancelsAreOne_STC29(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		src, sink := counter(&w, 1), newLockstep[int]("lockstep")
		var calls atomic.Int32
		sink.OnCancelled(func(_ *Subscription, reason error) error {
			if reason != nil {
				t.Errorf("reason: %v, want a normal one", reason)
			}
			calls.Add(1)
			return nil
		})
		sub := Connect(g, src, sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		var all sync.WaitGroup
		for range 100 {
			all.Go(sub.Cancel)
		}
		all.Wait()
		sink.step()
		sink.step()
		equal(t, "calls of OnCancelled", calls.Load(), int32(1))
		sub.Cancel()
		synctest.Wait()
		equal(t, "calls of OnCancelled", calls.Load(), int32(1))
	})
}

// The producer blocks in its callback: the subscription ends all the same.
func TestCancelDoesNotWaitForABlockedProducer(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		release := make(chan struct{})
		defer close(release)
		src, sink := blocked(release, &w), newLockstep[int]("sink")
		sub := Connect(g, src, sink, CancelMode(Transient))
		start(t, g)
		synctest.Wait()
		sub.Cancel()
		synctest.Wait()
		if !isOver(sub.Done()) {
			t.Error("the subscription waits for the producer")
		}
	})
}

func TestAskAfterCancelChangesNothing_STC31(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		src, sink := counter(&w, 1), newLockstep[int]("sink")
		sub := Connect(g, src, sink, Manual(), CancelMode(Temporary))
		start(t, g)
		synctest.Wait()
		sub.Cancel()
		if err := sub.Ask(5); err != nil {
			t.Errorf("Ask right after Cancel: %v", err)
		}
		synctest.Wait()
		if err := sub.Ask(5); err != nil {
			t.Errorf("Ask after the end: %v", err)
		}
		synctest.Wait()
		equal(t, "wants", w.all(), []int(nil))
		equal(t, "batches", sink.all(), [][]int(nil))
	})
}

// failing is a source that fails when it is asked.
func failing(err error) *Source[int] {
	return Pull("failing", func(context.Context, int, *Output[int]) error { return err })
}

func TestFailureOfAProducerNamesIt_STC33(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		boom := errors.New("boom")
		sink := newLockstep[int]("sink")
		sub := Connect(g, failing(boom), sink)
		start(t, g)
		if err := sink.Wait(); !errors.Is(err, boom) || !strings.Contains(err.Error(), `"failing"`) {
			t.Errorf("Wait: %v, want boom and the source's name", err)
		}
		if !errors.Is(sub.Err(), boom) {
			t.Errorf("Err of the subscription: %v", sub.Err())
		}
	})
}

func TestModeDecidesAfterAFailure_STC34(t *testing.T) {
	boom := errors.New("boom")
	for _, mode := range []Mode{Transient, Temporary} {
		bothWays(t, func(t *testing.T, g *Graph) {
			var w wants
			second, sink := counter(&w, 1), newLockstep[int]("sink")
			Connect(g, failing(boom), sink, CancelMode(mode))
			if err := g.Add(second, sink); err != nil {
				t.Fatal(err)
			}
			start(t, g)
			synctest.Wait()
			if mode == Transient {
				if err := sink.Wait(); !errors.Is(err, boom) {
					t.Errorf("Wait: %v, want boom", err)
				}
				return
			}
			subscribe(t, second, sink, Demand(6, 2))
			equal(t, "batch of the second source", sink.all(), [][]int{ints(0, 4)})
		})
	}
}

func TestNormalEndLeavesATransientConsumer_STC35(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		second := counter(&w, 1)
		sink, got := collector[int]("sink")
		double := Map(func(v int) int { return 2 * v })
		Connect(g, finite("first", 4, false), double, CancelMode(Transient))
		Connect(g, double, sink)
		if err := g.Add(second, double); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		synctest.Wait()
		equal(t, "events", flat(got()), []int{0, 2, 4, 6})
		if isOver(double.Done()) || isOver(sink.Done()) {
			t.Fatal("want both alive")
		}
		sub := subscribe(t, second, double, Manual(), CancelMode(Transient))
		if err := sub.Ask(2); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		equal(t, "events of the second", flat(got()), []int{0, 2})
		second.Stop()
		synctest.Wait()
		if isOver(double.Done()) {
			t.Error("the gate does not wait for another producer")
		}
		if err := g.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	bothWays(t, func(t *testing.T, g *Graph) { // a sink
		var w wants
		second := counter(&w, 1)
		sink, got := collector[int]("sink")
		sub := Connect(g, finite("first", 4, false), sink, CancelMode(Transient))
		if err := g.Add(second, sink); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{ints(0, 4)})
		if !isOver(sub.Done()) || sub.Err() != nil || isOver(sink.Done()) {
			t.Fatalf("subscription over %v with %v, sink over %v", isOver(sub.Done()), sub.Err(), isOver(sink.Done()))
		}
		if err := subscribe(t, second, sink, Manual(), CancelMode(Transient)).Ask(3); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		equal(t, "batches of the second", got(), [][]int{ints(0, 3)})
	})
}

func TestShutdownOfAProducerIsANormalEnd_STC36(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		other := NewGraph()
		src, second := counter(&w, 1), counter(&w, 1)
		sink, got := collector[int]("sink")
		ctx, cancel := context.WithCancel(context.Background())
		for g, stages := range map[*Graph][]Stage{g: {sink, second}, other: {src}} {
			if err := g.Add(stages...); err != nil {
				t.Fatal(err)
			}
		}
		start(t, g)
		if err := other.Start(ctx); err != nil {
			t.Fatal(err)
		}
		sub := subscribe(t, src, sink, Manual(), CancelMode(Transient))
		sub.Ask(2)
		synctest.Wait()
		cancel()
		if err := other.Wait(); err != nil {
			t.Errorf("the producer's graph: %v", err)
		}
		synctest.Wait()
		equal(t, "events", flat(got()), []int{0, 1})
		if !isOver(sub.Done()) || sub.Err() != nil || isOver(sink.Done()) {
			t.Errorf("subscription over %v with %v, sink over %v", isOver(sub.Done()), sub.Err(), isOver(sink.Done()))
		}
		subscribe(t, second, sink, Manual()).Ask(1)
		synctest.Wait()
		equal(t, "events of the second", flat(got()), []int{0})
	})
}

// The consumer's graph drains while a producer of another graph goes on.
func TestDrainCutsProducersOfOtherGraphsOff(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		other := NewGraph()
		src, sink := counter(&w, 1), newLockstep[int]("sink")
		if err := errors.Join(g.Add(sink), other.Add(src)); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		start(t, other)
		subscribe(t, src, sink, Demand(6, 2))
		done := make(chan error)
		go func() { done <- g.Stop(context.Background()) }() // ends with the drain; the receive below waits
		synctest.Wait()
		sink.step()
		sink.step()
		if err := <-done; err != nil {
			t.Errorf("Stop: %v", err)
		}
		equal(t, "batches", sink.all(), [][]int{ints(0, 4), ints(4, 6)})
		if isOver(src.Done()) {
			t.Error("the other graph's source has ended")
		}
	})
}

func TestOnCancelledDecidesInPlaceOfTheMode_STC38(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		answer error
		alive  bool
		want   error
	}{"continue": {nil, true, nil}, "stop": {Done, false, nil}, "fail": {boom, false, boom}} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				sink := newLockstep[int]("sink")
				calls := 0
				sink.OnCancelled(func(s *Subscription, reason error) error {
					if calls++; reason != nil || s.Producer() != "source" {
						t.Errorf("hook got %v of %q", reason, s.Producer())
					}
					return c.answer
				})
				Connect(g, finite("source", 0, false), sink)
				if err := g.Add(idle()); err != nil {
					t.Fatal(err)
				}
				start(t, g)
				synctest.Wait()
				equal(t, "calls", calls, 1)
				if isOver(sink.Done()) == c.alive {
					t.Errorf("sink over: %v", !c.alive)
				}
				if !c.alive {
					if err := sink.Wait(); !errors.Is(err, c.want) {
						t.Errorf("Wait: %v", err)
					}
				}
			})
		})
	}
}

func TestManualSinkAsksWhenItIsSubscribed_STC40(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		sink, got := collector[int]("sink")
		sink.OnSubscribed(func(s *Subscription) { s.Ask(2) })
		Connect(g, counter(&w, 1), sink, Manual())
		start(t, g)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{{0, 1}})
	})
}

func TestHookThatCrashesFailsItsStage(t *testing.T) {
	for name, crash := range crashes {
		for _, where := range []string{"subscribed", "cancelled", "subscribers", "where", "partition"} {
			t.Run(name+" in "+where, func(t *testing.T) {
				bubble(t, func(t *testing.T, g *Graph) {
					src, emit := Push[int]("source")
					sink, _ := collector[int]("sink")
					var out Outleter[int] = src
					switch where {
					case "subscribed":
						sink.OnSubscribed(func(*Subscription) { crash() })
					case "cancelled":
						sink.OnCancelled(func(*Subscription, error) error { crash(); return nil })
					case "subscribers":
						src.OnSubscribers(func(Change) { crash() })
					case "where":
						out = src.Broadcast().Out().Where(func(int) bool { crash(); return true })
					case "partition":
						n := 0
						src.Dispatch(Partition(2, func(v int) int {
							if n++; n > 2 {
								crash()
							}
							return v
						}))
						out = src.Out().Partition(0)
					}
					Connect(g, out, sink)
					emit.Push(ints(0, 5)...)
					emit.Finish()
					err := g.Run(context.Background())
					var p *penstock.PanicError
					if !errors.As(err, &p) {
						t.Errorf("Run: %v, want the crash", err)
					}
					checkConservation(t, g)
				})
			})
		}
	}
}

func TestOriginTellsProducersApart(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		a, emitA := Push[int]("a")
		b, emitB := Push[int]("b")
		var from []string
		sink := NewSink("sink", func(ctx context.Context, in []int) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			s := Origin(ctx)
			from = append(from, s.Producer()+" to "+s.Consumer())
			if in[0] == 3 {
				s.Cancel()
			}
			return nil
		})
		Connect(g, a, sink, CancelMode(Temporary))
		Connect(g, b, sink, CancelMode(Temporary))
		start(t, g)
		for i, e := range []*Emitter[int]{emitA, emitB, emitA, emitB, emitA} {
			e.Push(i)
			synctest.Wait()
		}
		equal(t, "origins", from, []string{"a to sink", "b to sink", "a to sink", "b to sink", "a to sink"})
		emitB.Push(5) // which was cancelled
		synctest.Wait()
		equal(t, "batches", len(from), 5)
		equal(t, "events kept for others", b.Buffered(), 1)
		if Origin(t.Context()) != nil {
			t.Error("Origin of another context")
		}
	})
}

func TestStagesMayBeAddedWhileTheGraphRuns(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		if err := g.Add(idle()); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		var w wants
		src := counter(&w, 1)
		sink, got := collector[int]("sink")
		double := Map(func(v int) int { return 2 * v })
		if err := g.Add(src, double, sink); err != nil {
			t.Fatal(err)
		}
		if err := g.Add(src); err != nil {
			t.Errorf("again: %v", err)
		}
		if err := g.Add(finite("sink", 0, false)); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("a name that is taken: %v", err)
		}
		if err := NewGraph().Add(src); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("to another graph: %v", err)
		}
		subscribe(t, double, sink, Demand(6, 2))
		subscribe(t, src, double, Manual()).Ask(3)
		synctest.Wait()
		equal(t, "events", flat(got()), []int{0, 2, 4})
		if _, err := Subscribe(t.Context(), double, double); !errors.Is(err, ErrSelfSubscription) {
			t.Errorf("to itself: %v", err)
		}
		if err := g.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if err := g.Add(finite("late", 0, false)); !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
		checkConservation(t, g)
	})
}

// A panic may carry the batch: nobody else writes to it afterwards.
func TestBatchOfAPanicIsNotUsedAgain_STC131(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		n := 0
		src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
			for range min(want, 6) {
				n++
				out.Emit(n)
			}
			return nil
		})
		gate := NewGate("gate", func(_ context.Context, in []int, _ *Output[int]) error { panic(in) })
		sink, _ := collector[int]("sink")
		other := newLockstep[int]("other")
		Connect(g, src, gate, Demand(12, 6))
		Connect(g, gate, sink)
		Connect(g, src, other, Demand(6, 2))
		start(t, g)
		err := gate.Wait()
		var p *penstock.PanicError
		if !errors.As(err, &p) || !strings.Contains(p.Where, `"gate"`) || len(p.Stack) == 0 {
			t.Fatalf("Wait: %v, want a PanicError with the stage and a stack", err)
		}
		held := p.Value.([]int)
		first := held[0]
		synctest.Wait()
		for range 20 {
			other.step()
		}
		if held[0] != first || first == 0 {
			t.Errorf("the batch begins with %d now, with %d before", held[0], first)
		}
		if isOver(src.Done()) {
			t.Error("the source has ended")
		}
	})
}

// What waits behind an errand whose hook leaves the goroutine is done at once: it
// used to wait for another one, or for the end of the stage.
func TestRequestBehindAHookThatLeavesIsAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		entered, release := make(chan struct{}), make(chan struct{})
		src, emit := Push[int]("source")
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
			out.EmitAll(in...)
			close(entered)
			<-release
			return nil
		})
		seen := 0
		gate.OnSubscribed(func(*Subscription) {
			if seen++; seen == 2 {
				runtime.Goexit()
			}
		})
		Connect(g, src, gate)
		Connect(g, gate, Discard[int](), Manual()) // so the gate holds its output, and ends only after a time
		another, _ := Push[int]("another")
		must(t, g.Add(another))
		late := Discard[int](Named("late"))
		must(t, g.Add(late))
		start(t, g)
		must(t, emit.Push(1))
		<-entered
		if _, err := Subscribe(t.Context(), another, gate); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		answer := make(chan error, 1)
		go func() {
			_, err := SubscribeWait(t.Context(), gate, late)
			answer <- err
		}()
		synctest.Wait()
		close(release)
		if err := <-answer; !errors.Is(err, ErrProducerNotAlive) {
			t.Error(err)
		}
		equal(t, "waited", time.Since(began), time.Duration(0))
	})
}
