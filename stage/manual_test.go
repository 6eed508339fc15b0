package stage

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
)

func TestAskOfNothingIsAnError_STC11(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		sink, got := collector[int]("sink")
		sub := Connect(g, counter(&w, 1), sink, Manual())
		start(t, g)
		for _, n := range []int{0, -3} {
			if err := sub.Ask(n); !errors.Is(err, penstock.ErrInvalid) {
				t.Errorf("Ask(%d): %v, want an error", n, err)
			}
		}
		synctest.Wait()
		equal(t, "wants", w.all(), []int(nil))
		if err := sub.Ask(2); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		equal(t, "batches", got(), [][]int{{0, 1}})
	})
}

func TestAskInsideACallbackDoesNotRecurse_STC13(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		const events = 10_000
		depth, deepest, seen := 0, 0, 0
		var stack []int
		sink := NewSink("sink", func(ctx context.Context, in []int) error {
			depth++
			deepest = max(deepest, depth)
			seen += len(in)
			if err := Origin(ctx).Ask(1); err != nil {
				t.Error(err)
			}
			if seen%1000 == 1 {
				stack = append(stack, runtime.Stack(make([]byte, 1<<16), false))
			}
			depth--
			if seen == events {
				return Done
			}
			return nil
		})
		sub := Connect(g, counter(&w, 1), sink, Manual())
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		sub.Ask(1)
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		if deepest != 1 || seen != events {
			t.Errorf("depth %d after %d events, want 1 after %d", deepest, seen, events)
		}
		if last := stack[len(stack)-1]; last > stack[0]+200 { // the texts of the frames differ by a few digits
			t.Errorf("the stack's text has grown from %d to %d bytes", stack[0], last)
		}
	})
}

func TestAskOnAnAutomaticSubscriptionIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		sub := Connect(g, counter(&w, 1), newLockstep[int]("sink"), Demand(6, 2))
		start(t, g)
		synctest.Wait()
		if err := sub.Ask(5); !errors.Is(err, ErrAutomatic) || !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("Ask: %v, want ErrAutomatic", err)
		}
		synctest.Wait()
		equal(t, "wants", w.all(), []int{6})
	})
}

func TestManualSubscriptionGetsWhatItAsksFor_STC44(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		sink, got := collector[int]("sink")
		sub := Connect(g, counter(&w, 1), sink, Manual())
		start(t, g)
		synctest.Wait()
		equal(t, "wants before the first ask", w.all(), []int(nil))
		sub.Ask(4)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{{0, 1, 2, 3}})
		sub.Ask(2)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{{4, 5}})
		equal(t, "wants", w.all(), []int{4, 2})
	})
}

func TestManualDeliveryIsOneBatch_STC45(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		sink, got := collector[int]("sink")
		sub := Connect(g, counter(&w, 1), sink, Demand(6, 2), Manual())
		start(t, g)
		sub.Ask(50)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{ints(0, 50)})
	})
}

func TestManualSinkAsksInItsCallback_STC46(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		var got [][]int
		sink := NewSink("sink", func(ctx context.Context, in []int) error {
			if got = append(got, slices.Clone(in)); len(got) == 5 {
				return Done
			}
			return Origin(ctx).Ask(2)
		})
		sub := Connect(g, counter(&w, 1), sink, Manual())
		start(t, g)
		sub.Ask(2)
		if err := sink.Wait(); err != nil {
			t.Error(err)
		}
		equal(t, "batches", got, [][]int{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}})
	})
}

func TestAskingWithoutAnEndDoesNotWrap(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		calls := 0
		src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
			w.add(want)
			if calls++; calls == 3 {
				return Done
			}
			out.Emit(1)
			return nil
		})
		sink, got := collector[int]("sink")
		sub := Connect(g, src, sink, Manual())
		for range 3 {
			if err := sub.Ask(math.MaxInt); err != nil {
				t.Error(err)
			}
		}
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		equal(t, "events", flat(got()), []int{1, 1})
		equal(t, "wants", w.all(), []int{math.MaxInt, math.MaxInt - 1, math.MaxInt - 2})
	})
}

func TestAccumulatedDemandWaitsForForward_STC47(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		n := 0
		src := Pull("counter", func(_ context.Context, want int, out *Output[int]) error {
			w.add(want)
			for range want {
				out.Emit(n)
				n++
			}
			return nil
		}, AccumulateDemand())
		sink := newLockstep[int]("sink")
		Connect(g, src, sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		equal(t, "wants while it holds back", w.all(), []int(nil))
		src.ForwardDemand()
		synctest.Wait()
		equal(t, "wants", w.all(), []int{6})
		equal(t, "batches", sink.all(), [][]int{ints(0, 4)})
		src.ForwardDemand()
		synctest.Wait()
		equal(t, "wants after the second", w.all(), []int(nil))
	})
}

func TestAccumulateAgainKeepsWhatIsPushed(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var dropped int
		src, emit := Push[int]("push", Buffer(4, KeepFirst), OnDiscard(func(n int) { dropped += n }))
		early, gotEarly := collector[int]("early")
		late, gotLate := collector[int]("late")
		sub := Connect(g, src, early, Manual(), CancelMode(Temporary))
		if err := g.Add(late); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		synctest.Wait()
		src.AccumulateDemand()
		sub.Ask(10)
		emit.Push(ints(0, 5)...) // one more than the buffer holds: what is held back is not asked for
		synctest.Wait()
		equal(t, "dropped", dropped, 1)
		sub.Cancel() // its ask is dropped with it
		synctest.Wait()
		subscribe(t, src, late, Manual()).Ask(3)
		equal(t, "events while it holds back", append(gotEarly(), gotLate()...), [][]int(nil))
		src.ForwardDemand()
		synctest.Wait()
		equal(t, "events of who is there then", gotLate(), [][]int{{0, 1, 2}})
		equal(t, "events of who has left", gotEarly(), [][]int(nil))
		src.AccumulateDemand()
		emit.Finish()
		synctest.Wait()
		if isOver(src.Done()) {
			t.Error("the source has ended while it holds back")
		}
		if err := g.Stop(t.Context()); err == nil { // one event has no demand
			checkConservation(t, g)
		}
	})
}

func TestForwardWithoutAccumulateChangesNothing_STC50(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		src, sink := counter(&w, 1), newLockstep[int]("sink")
		Connect(g, src, sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		src.ForwardDemand()
		synctest.Wait()
		equal(t, "wants", w.all(), []int{6})
		equal(t, "batches", sink.all(), [][]int{ints(0, 4)})
	})
	gate := Map(func(v int) int { return v })
	if _, ok := any(gate).(interface{ ForwardDemand() }); ok {
		t.Error("a gate has ForwardDemand: it has to be ignored there, and tested")
	}
	g := NewGraph()
	Connect(g, finite("source", 1, false), NewSink("sink", func(context.Context, []int) error { return nil }, AccumulateDemand()))
	if err := g.Run(t.Context()); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("AccumulateDemand on a sink: %v", err)
	}
}

// All declared subscriptions are there before the first event goes out.
func TestDeclaredConsumersOfABroadcastBeginTogether(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("push")
		src.Broadcast()
		emit.Push(ints(0, 20)...)
		emit.Finish()
		var all []func() [][]int
		for _, name := range []string{"a", "b", "c"} {
			sink, got := collector[int](name)
			pass := Map(func(v int) int { return v })
			Connect(g, src, pass, Demand(6, 2))
			Connect(g, pass, sink)
			all = append(all, got)
		}
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		for _, got := range all {
			equal(t, "events", flat(got()), ints(0, 20))
		}
		checkConservation(t, g)
	})
}

// A gate's inlet and outlet, both manual.
func TestManualOnBothSidesOfAGate_STC73(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		factor := 2
		gate := NewGate("times", func(_ context.Context, in []int, out *Output[int]) error {
			for _, v := range in {
				out.Emit(v * factor)
			}
			return nil
		})
		n := 0
		src := Pull("from 0", func(_ context.Context, want int, out *Output[int]) error {
			w.add(want)
			for range want {
				out.Emit(n)
				n++
			}
			return nil
		})
		sink, got := collector[int]("sink")
		up := Connect(g, src, gate, Manual())
		down := Connect(g, gate, sink, Manual())
		start(t, g)
		up.Ask(2)
		down.Ask(2)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{{0, 2}})
		if !gate.in.post(func() { factor = 10 }) {
			t.Error("the gate has ended")
		}
		synctest.Wait()
		up.Ask(2)
		down.Ask(2)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{{20, 30}})
		equal(t, "wants", w.all(), []int{2, 2})
	})
}
