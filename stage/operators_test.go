package stage

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// through runs events through a gate and returns what comes out.
func through[In, Out any](t *testing.T, g *Graph, events []In, gate *Gate[In, Out], opts ...SubOption) []Out {
	t.Helper()
	sink, got := collector[Out]("sink")
	Connect(g, FromSlice("source", events), gate)
	Connect(g, gate, sink, opts...)
	if err := g.Run(context.Background()); err != nil {
		t.Error(err)
	}
	checkConservation(t, g)
	return slices.Concat(got()...)
}

func stat(t *testing.T, g *Graph, at int) Stats {
	t.Helper()
	return g.Stats()[at]
}

func TestHelpersSayWhatTheyPass(t *testing.T) {
	small := func(v *int) bool { return *v < 4 }
	for name, c := range map[string]struct {
		gate func() *Gate[int, int]
		want []int
	}{
		"take":             {func() *Gate[int, int] { return Take[int](3) }, ints(0, 3)},
		"take more":        {func() *Gate[int, int] { return Take[int](30) }, ints(0, 10)},
		"take none":        {func() *Gate[int, int] { return Take[int](0) }, nil},
		"takewhile":        {func() *Gate[int, int] { return TakeWhile(small) }, ints(0, 4)},
		"drop":             {func() *Gate[int, int] { return Drop[int](7) }, ints(7, 10)},
		"drop none":        {func() *Gate[int, int] { return Drop[int](0) }, ints(0, 10)},
		"dropwhile":        {func() *Gate[int, int] { return DropWhile(small) }, ints(4, 10)},
		"dropwhile begins": {func() *Gate[int, int] { return DropWhile(func(v *int) bool { return *v%4 != 1 }) }, ints(1, 10)},
		"filtermap":        {func() *Gate[int, int] { return FilterMap(func(v int) (int, bool) { return v * 10, v%3 == 0 }) }, []int{0, 30, 60, 90}},
		"scan":             {func() *Gate[int, int] { return Scan(100, func(s, v int) int { return s + v }) }, []int{100, 101, 103, 106, 110, 115, 121, 128, 136, 145}},
		"dedupe":           {func() *Gate[int, int] { return DedupeAdjacentFunc(func(a, b *int) bool { return *a/3 == *b/3 }) }, []int{0, 3, 6, 9}},
		"tap":              {func() *Gate[int, int] { return Tap(func(v *int) { *v++ }) }, ints(1, 11)},
		"pass":             {func() *Gate[int, int] { return Pass[int]("pass") }, ints(0, 10)},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				equal(t, "out", through(t, g, ints(0, 10), c.gate(), Demand(3, 1)), c.want)
				s := stat(t, g, 1)
				if s.In != s.Emitted+s.Filtered || s.Held != 0 {
					t.Errorf("%+v: what came in was neither emitted nor filtered", s)
				}
			})
		})
	}
}

func TestDedupeAdjacentLetsRepeatsGo(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		in := []string{"", "", "a", "a", "b", "a", "a", "a", "c"}
		equal(t, "out", through(t, g, in, DedupeAdjacent[string](), Demand(2, 1)), []string{"", "a", "b", "a", "c"})
	})
}

func TestTakeEndsItsProducersToo(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		sink, got := collector[int]("sink")
		take := Take[int](5)
		Connect(g, counter(&wants{}, 1), take, Demand(4, 0))
		Connect(g, take, sink)
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		equal(t, "out", slices.Concat(got()...), ints(0, 5))
		checkConservation(t, g)
	})
}

// A Take of nothing must not wait for an event that never comes.
func TestTakeNoneEndsWithoutAnEvent(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		sink, got := collector[int]("sink")
		take := Take[int](0)
		Connect(g, Never[int]("never"), take)
		Connect(g, take, sink)
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		equal(t, "batches", got(), [][]int(nil))
	})
}

func TestUnbatchUndoesBatch(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		batch, unbatch := BatchN[int](4), Unbatch[int]()
		sink, got := collector[int]("sink")
		Connect(g, FromSlice("source", ints(0, 10)), batch)
		Connect(g, batch, unbatch)
		Connect(g, unbatch, sink)
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		equal(t, "out", slices.Concat(got()...), ints(0, 10))
	})
}

func TestMergeEndsWithItsLastProducer(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		sink, got := collector[int]("sink")
		Connect(g, Merge(g, "all", FromSlice("a", ints(0, 5)), FromSlice("b", ints(100, 107)), Empty[int]("c")), sink)
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		all := slices.Concat(got()...)
		slices.Sort(all) // of each producer in order, which the property tests hold
		equal(t, "out", all, slices.Concat(ints(0, 5), ints(100, 107)))
	})
}

func TestMergeFailsWithItsFirstFailure(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		sink, _ := collector[int]("sink")
		Connect(g, Merge(g, "all", Never[int]("never"), FailedWith[int]("failed", errBoom)), sink)
		if err := g.Run(context.Background()); !errors.Is(err, errBoom) {
			t.Errorf("Run returned %v", err)
		}
	})
}

var errBoom = errors.New("boom")

// Every mistake in an operator's arguments is an error at Start that names it.
func TestOperatorsRefuseWhatCannotBe(t *testing.T) {
	limiter, err := NewLimiter(LimiterConfig{Events: 1})
	if err != nil {
		t.Fatal(err)
	}
	one := func(*int) int { return 1 }
	same := func(_ context.Context, v int) (int, error) { return v, nil }
	for name, gate := range map[string]Inleter[int]{
		"take":        Take[int](-1),
		"drop":        Drop[int](-1),
		"takewhile":   TakeWhile[int](nil),
		"dropwhile":   DropWhile[int](nil),
		"tap":         Tap[int](nil),
		"filtermap":   FilterMap[int, int](nil),
		"scan":        Scan[int, int](0, nil),
		"dedupe":      DedupeAdjacentFunc[int](nil),
		"batch":       BatchN[int](0),
		"within":      BatchWithin[int](3, 0),
		"within none": BatchWithin[int](0, 1),
		"weighted":    BatchWeighted(0, 0, one),
		"weighted d":  BatchWeighted(1, -1, one),
		"weigh":       BatchWeighted[int](1, 0, nil),
		"throttle":    Throttle[int](nil),
		"cost":        ThrottleCost[int](limiter, nil),
		"delay":       Delay[int](-1, 0),
		"delay limit": Delay[int](1, -1),
		"debounce":    Debounce[int](0),
		"sample":      Sample[int](-1),
		"conflate":    Conflate[int, int](nil, nil),
		"buffer":      BufferGate[int](-1, KeepLast),
		"wait":        BufferGate[int](0, Wait),
		"policy":      BufferGate[int](1, Fail+1),
		"wiretap":     WireTap[int](nil),
		"concurrent":  MapConcurrent(0, same),
		"unordered":   MapConcurrentUnordered(-1, same),
		"partitioned": MapPartitioned(0, func(v *int) int { return *v }, same),
		"no key":      MapPartitioned[int, int, int](1, nil, same),
		"no f":        MapConcurrent[int, int](1, nil),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				Connect(g, Never[int]("source"), gate)
				if err := g.Start(context.Background()); !errors.Is(err, penstock.ErrInvalid) {
					t.Errorf("Start returned %v", err)
					g.Abort(nil)
					g.Wait()
				}
			})
		})
	}
}

// A Take of nothing whose input was over before its first turn has said so once:
// it used to say it for ever, and to keep a processor busy with it.
func TestTakeOfNothingWhoseInputIsOverEnds(t *testing.T) {
	g := NewGraph(quietLog())
	src, gate := FailedWith[int]("source", errBoom), Take[int](0)
	gate.OnSubscribed(func(*Subscription) { <-src.Done() }) // before its first turn
	Connect(g, src, gate, FailFast())
	Connect(g, gate, Discard[int]())
	end := make(chan error, 1)
	go func() { end <- g.Run(context.Background()) }() // ends with the graph; the select waits for it
	select {
	case err := <-end:
		if !errors.Is(err, errBoom) {
			t.Errorf("Run: %v", err)
		}
		checkConservation(t, g)
	case <-time.After(20 * time.Second): // no bubble: its time would stand still
		t.Fatal("the graph does not end")
	}
}
