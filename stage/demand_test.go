package stage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
)

func TestDefaultsAskThousandAndToppedUpBy250_STC1(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		sink := newLockstep[int]("lockstep")
		Connect(g, counter(&w, 1), sink)
		start(t, g)
		synctest.Wait()
		equal(t, "first want", w.all(), []int{1000})
		equal(t, "first batch", sink.all(), [][]int{ints(0, 250)})
		for i := 1; i < 12; i++ {
			sink.step()
			equal(t, fmt.Sprintf("want after step %d", i), w.all(), []int{250})
			equal(t, fmt.Sprintf("batch after step %d", i), sink.all(), [][]int{ints(250*i, 250*i+250)})
		}
	})
}

func TestSixTwoAlternatesWantsAndBatches_STC2(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		sink := newLockstep[int]("lockstep")
		Connect(g, counter(&w, 1), sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		seen, sizes, next := w.all(), []int{}, 0
		for range 12 {
			for _, b := range sink.all() {
				equal(t, "content", b, ints(next, next+len(b)))
				next += len(b)
				sizes = append(sizes, len(b))
			}
			sink.step()
			seen = append(seen, w.all()...)
		}
		equal(t, "batch sizes", sizes, []int{4, 2, 4, 4, 2, 4, 4, 2, 4, 4, 2, 4})
		equal(t, "wants", seen[:8], []int{6, 4, 6, 4, 6, 4, 6, 4})
	})
}

func TestMaxOneIsStopAndWait_STC5(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		sink := newLockstep[int]("lockstep")
		Connect(g, counter(&w, 1), sink, Demand(1, 0))
		start(t, g)
		synctest.Wait()
		for i := range 5 {
			equal(t, "want", w.all(), []int{1})
			equal(t, "batch", sink.all(), [][]int{{i}})
			sink.step()
		}
	})
}

func TestNoAskBeforeTheChunkIsProcessed_STC7(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		sink := newLockstep[int]("lockstep")
		Connect(g, counter(&w, 1), sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		equal(t, "wants while the first batch is held", w.all(), []int{6})
		sink.step()
		equal(t, "wants after the step", w.all(), []int{4})
	})
}

func TestSurplusIsServedBeforeTheNextCall_STC9(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		sink := newLockstep[int]("lockstep")
		Connect(g, counter(&w, 5), sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		equal(t, "first want", w.all(), []int{6})
		next := 0
		sent := func() int { return int(g.Stats()[0].Sent) }
		for second := false; !second; {
			for _, b := range sink.all() {
				if len(b) > 4 {
					t.Errorf("batch of %d, want at most 4", len(b))
				}
				equal(t, "content", b, ints(next, next+len(b)))
				next += len(b)
			}
			before := sent()
			sink.step()
			if seen := w.all(); seen != nil {
				equal(t, "second want", seen, []int{6})
				if before != 30 {
					t.Errorf("second call after %d events were sent, want 30", before)
				}
				second = true
			}
		}
	})
}

func TestInvalidDemandIsRefusedWithBothNumbers_STC15(t *testing.T) {
	for _, d := range [][2]int{{10, 10}, {0, 0}, {5, -1}, {-3, -4}, {6, 6}} {
		g := NewGraph()
		called := false
		src := Pull("source", func(context.Context, int, *Output[int]) error { called = true; return Done })
		Connect(g, src, NewSink("sink", func(context.Context, []int) error { return nil }), Demand(d[0], d[1]))
		err := g.Run(t.Context())
		if !errors.Is(err, ErrInvalidDemand) || !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%v: error %v, want ErrInvalidDemand", d, err)
		}
		for _, n := range d {
			if !strings.Contains(err.Error(), fmt.Sprint(n)) {
				t.Errorf("%v: error %q does not carry %d", d, err, n)
			}
		}
		if called || len(src.out.edges) != 0 {
			t.Errorf("%v: the producer saw a subscriber", d)
		}
	}
	bothWays(t, func(t *testing.T, g *Graph) { // while the graph runs
		var w wants
		var hooks atomic.Int32
		src := counter(&w, 1).OnSubscribers(func(Change) { hooks.Add(1) })
		sink, got := collector[int]("sink")
		if err := g.Add(src, sink); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		for _, d := range [][2]int{{10, 10}, {0, 0}, {5, -1}} {
			for name, sub := range map[string]func(context.Context, Outleter[int], Inleter[int], ...SubOption) (*Subscription, error){"Subscribe": Subscribe[int], "SubscribeWait": SubscribeWait[int]} {
				_, err := sub(t.Context(), src, sink, Demand(d[0], d[1]))
				if !errors.Is(err, ErrInvalidDemand) || !strings.Contains(err.Error(), fmt.Sprint(d[0])) || !strings.Contains(err.Error(), fmt.Sprint(d[1])) {
					t.Errorf("%s with %v: %v, want ErrInvalidDemand with both numbers", name, d, err)
				}
			}
		}
		synctest.Wait()
		equal(t, "subscribers", src.Out().Subscribers(), 0)
		equal(t, "calls of hooks", hooks.Load(), int32(0))
		equal(t, "wants", w.all(), []int(nil))
		equal(t, "batches", got(), [][]int(nil))
	})
}

func TestMaxAloneHasThreeQuartersAsMin_STC16(t *testing.T) {
	for demandMax, demandMin := range map[int]int{1: 0, 3: 2, 4: 3, 10: 7, 1000: 750} {
		s := newSubscription([]SubOption{Max(demandMax)})
		if s.subscription.err != nil || s.window.Max() != demandMax || s.window.Min() != demandMin {
			t.Errorf("Max(%d): %d/%d, %v; want min %d", demandMax, s.window.Max(), s.window.Min(), s.subscription.err, demandMin)
		}
		bothWays(t, func(t *testing.T, g *Graph) { // accepted, and batches of max - min
			var w wants
			sink := newLockstep[int]("sink")
			Connect(g, counter(&w, 1), sink, Max(demandMax))
			start(t, g)
			synctest.Wait()
			equal(t, "first want", w.all(), []int{demandMax})
			equal(t, "first batch", sink.all(), [][]int{ints(0, demandMax-demandMin)})
		})
	}
	if s := newSubscription([]SubOption{Max(0)}); !errors.Is(s.subscription.err, ErrInvalidDemand) {
		t.Errorf("Max(0): %v, want ErrInvalidDemand", s.subscription.err)
	}
}

func TestGateToItselfIsRefused_STC19(t *testing.T) {
	g := NewGraph()
	gate := Map(func(v int) int { return v })
	Connect(g, gate, gate)
	if err := g.Start(t.Context()); !errors.Is(err, ErrSelfSubscription) {
		t.Errorf("Start: %v, want ErrSelfSubscription", err)
	}
	bothWays(t, func(t *testing.T, g *Graph) { // while the graph runs
		var w wants
		gate := Map(func(v int) int { return v })
		sink := newLockstep[int]("sink")
		Connect(g, counter(&w, 1), gate)
		Connect(g, gate, sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		if _, err := Subscribe(t.Context(), gate, gate); !errors.Is(err, ErrSelfSubscription) {
			t.Errorf("Subscribe: %v, want ErrSelfSubscription", err)
		}
		equal(t, "subscribers", gate.Out().Subscribers(), 1)
		equal(t, "batches", sink.all(), [][]int{ints(0, 4)})
	})
}

func TestGatePausesWithItsConsumer_STC65(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		sink := newLockstep[int]("lockstep")
		double := NewGate("double", func(_ context.Context, in []int, out *Output[int]) error {
			for _, v := range in {
				out.Emit(2 * v)
			}
			return nil
		})
		Connect(g, counter(&w, 1), double, Demand(6, 2))
		Connect(g, double, sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		equal(t, "first batch", sink.all(), [][]int{{0, 2, 4, 6}})
		equal(t, "wants", w.all(), []int{6, 4})
		if s := g.Stats()[1]; s.In != 10 || s.Sent != 6 || s.Buffered != 4 {
			t.Errorf("gate: %+v, want the output of one chunk of 4 held (ST-64)", s)
		}
		sink.step()
		equal(t, "want after one step", w.all(), []int{6})
	})
}

func TestEventsGoToTheGreatestDemand_STC77(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("push")
		small, large, late := newLockstep[int]("small"), newLockstep[int]("large"), newLockstep[int]("late")
		Connect(g, src, small, Demand(2, 0))
		Connect(g, src, large, Demand(10, 0))
		Connect(g, src, late, Demand(10, 0))
		start(t, g)
		synctest.Wait()
		emit.Push(ints(0, 5)...) // open 2, 10, 10: all to the first of the two greatest (STC-77)
		synctest.Wait()
		equal(t, "large", large.all(), [][]int{{0, 1, 2, 3, 4}})
		emit.Push(ints(5, 22)...) // open 2, 5, 10, and two more than that
		synctest.Wait()
		equal(t, "late", late.all(), [][]int{ints(5, 15)})
		equal(t, "small", small.all(), [][]int{{20, 21}})
		large.step()
		equal(t, "large", large.all(), [][]int{ints(15, 20)})
	})
}

func TestManySmallBatchesFillTheRingAndWait(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("push")
		sink := newLockstep[int]("lockstep")
		Connect(g, src, sink)
		start(t, g)
		synctest.Wait()
		for i := range 200 {
			emit.Push(i)
			synctest.Wait()
		}
		if n := src.Buffered(); n != 200-maxRing { // backpressure, with 1000 asked for (ST-28)
			t.Errorf("%d events in the buffer, want all that the ring has no slot for", n)
		}
		var got []int
		for len(got) < 200 {
			b := sink.all()
			got = append(got, flat(b)...)
			for range b {
				sink.step()
			}
		}
		equal(t, "events", got, ints(0, 200))
	})
}

func TestGateThatEmitsNothingKeepsAsking_STC68(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		seen := map[int][]int{}
		gate := NewGate("gate", func(_ context.Context, in []int, _ *Output[int]) error {
			seen[in[0]] = slices.Clone(in)
			if in[0] >= 1000 {
				return Done
			}
			return nil
		})
		sink, got := collector[int]("sink")
		Connect(g, counter(&w, 1), gate, Demand(100, 80))
		Connect(g, gate, sink)
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		for _, first := range []int{0, 100, 1000} {
			equal(t, fmt.Sprint("batch from ", first), seen[first], ints(first, first+20))
		}
		equal(t, "output", got(), [][]int(nil))
	})
}

// Demand without an end: sums of it, and of demand and capacity, stay at the
// largest int.
func TestDemandNearTheLargestIntDoesNotWrap(t *testing.T) {
	for _, demandMin := range []int{0, math.MaxInt - 1} {
		bubble(t, func(t *testing.T, g *Graph) {
			var w wants
			n := 0
			src, emit := Hybrid("source", func(_ context.Context, want int, out *Output[struct{}]) error {
				w.add(want)
				if n++; n > 200 {
					return Done
				}
				out.EmitAll(make([]struct{}, 3)...)
				return nil
			}, Buffer(Unbounded-1, KeepFirst), OnDiscard(func(n int) { t.Errorf("%d events dropped", n) }))
			emit.Push(make([]struct{}, 50)...)
			a, _ := collector[struct{}]("a")
			b, _ := collector[struct{}]("b")
			Connect(g, src, a, Demand(math.MaxInt, demandMin))
			Connect(g, src, b, Demand(math.MaxInt, demandMin))
			if err := g.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, want := range w.all() {
				if want < math.MaxInt-650 { // of one consumer alone, while the other's ring is full
					t.Fatalf("want of %d", want)
				}
			}
			if s := g.Stats(); s[1].In+s[2].In != 650 {
				t.Errorf("%d and %d events arrived, want 650 in all", s[1].In, s[2].In)
			}
			checkConservation(t, g)
		})
	}
}

func TestCapacityAndHugeDemandTogetherAreUnbounded(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[struct{}]("push", Buffer(Unbounded-1, KeepFirst), OnDiscard(func(n int) { t.Errorf("%d events dropped", n) }))
		sink, _ := collector[struct{}]("sink")
		Connect(g, src, sink, Demand(math.MaxInt, 0))
		start(t, g)
		synctest.Wait() // the source knows the demand now
		emit.Push(make([]struct{}, 5)...)
		synctest.Wait()
		equal(t, "arrived", g.Stats()[1].In, int64(5))
	})
}
