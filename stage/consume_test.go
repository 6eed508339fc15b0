package stage

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func sum(a, v int) int { return a + v }

// started starts a graph with a push source, whose sink ends with it.
func started(t *testing.T, g *Graph, opts ...Option) (*Source[int], *Emitter[int]) {
	t.Helper()
	src, emit := Push[int]("source", opts...)
	if err := g.Add(src); err != nil {
		t.Fatal(err)
	}
	start(t, g)
	synctest.Wait()
	return src, emit
}

// after runs f in another goroutine once everything in the bubble is quiet.
func after(f func()) {
	// Another goroutine: ends with f, which does not wait for anything; the test
	// waits for what f causes.
	go func() {
		synctest.Wait()
		f()
	}()
}

func TestFoldReturnsWhatItMadeOfAll_STC103(t *testing.T) {
	bothWays(t, func(t *testing.T, _ *Graph) { // the source in a graph of Fold's
		v, err := Fold(t.Context(), FromSeq("seq", count(1, 101)), 0, sum)
		equal(t, "error", err, nil)
		equal(t, "sum", v, 5050)
	})
	bothWays(t, func(t *testing.T, g *Graph) { // in a graph that runs
		src, emit := Push[int]("source")
		double := Map(func(v int) int { return v * 2 })
		Connect(g, src, double)
		start(t, g)
		after(func() {
			emit.Push(ints(1, 101)...)
			emit.Finish()
		})
		v, err := Fold(t.Context(), double, 0, sum)
		equal(t, "error", err, nil)
		equal(t, "sum", v, 10100)
		equal(t, "graph", g.Wait(), nil)
	})
}

func TestFoldTellsItsErrorsApart(t *testing.T) {
	fold := func(ctx context.Context, from Outleter[int]) (int, error) { return Fold(ctx, from, 0, sum) }
	bubble(t, func(t *testing.T, _ *Graph) {
		_, err := fold(t.Context(), FromSeq[int]("seq", nil))
		equal(t, "could not start", errors.Is(err, penstock.ErrInvalid), true)
	})
	bubble(t, func(t *testing.T, g *Graph) {
		src, _ := Push[int]("source")
		equal(t, "add", g.Add(src), nil)
		_, err := fold(t.Context(), src)
		equal(t, "not started", errors.Is(err, ErrProducerNotAlive), true)
	})
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := started(t, g)
		after(func() {
			emit.Push(1, 2)
			emit.Fail(errBoom)
		})
		v, err := fold(t.Context(), src)
		equal(t, "failed", errors.Is(err, ErrProducerFailed) && errors.Is(err, errBoom), true)
		equal(t, "what there was", v, 3)
	})
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := started(t, g)
		emit.Push(1, 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		v, err := fold(ctx, src)
		equal(t, "timed out", errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrProducerFailed), true)
		equal(t, "time", time.Since(began), time.Minute)
		equal(t, "what there was", v, 3)
		synctest.Wait()
		equal(t, "subscribers", src.Out().Subscribers(), 0)
		_, err = fold(ctx, src)
		equal(t, "before the call", errors.Is(err, context.DeadlineExceeded), true)
	})
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := started(t, g)
		emit.Push(1)
		_, err := Fold(t.Context(), src, 0, func(int, int) int { panic("f") })
		var p *penstock.PanicError
		equal(t, "panic", errors.As(err, &p) && !errors.Is(err, ErrProducerFailed), true)
	})
}

func TestCollectCountAndFirst(t *testing.T) {
	bubble(t, func(t *testing.T, _ *Graph) {
		all, err := Collect(t.Context(), FromSlice("slice", ints(0, 700)), Demand(10, 5))
		equal(t, "error", err, nil)
		equal(t, "all", all, ints(0, 700))
		n, err := Count(t.Context(), FromSlice("slice", ints(0, 700)))
		equal(t, "error", err, nil)
		equal(t, "count", n, 700)
		v, ok, err := First(t.Context(), FromSlice("slice", ints(5, 700)))
		equal(t, "error", err, nil)
		equal(t, "first", v, 5)
		equal(t, "found", ok, true)
		_, ok, err = First(t.Context(), Empty[int]("empty"))
		equal(t, "error", err, nil)
		equal(t, "found", ok, false)
		_, ok, err = First(t.Context(), FailedWith[int]("failed", errBoom))
		equal(t, "failed", errors.Is(err, errBoom), true)
		equal(t, "found", ok, false)
	})
	bubble(t, func(t *testing.T, g *Graph) { // First takes one event from a graph that runs, and leaves the others
		src, emit := started(t, g)
		emit.Push(1, 2, 3)
		for want := range 3 {
			v, _, err := First(t.Context(), src)
			equal(t, "error", err, nil)
			equal(t, "first", v, want+1)
			synctest.Wait()
		}
	})
}

func TestForEachAndDiscard(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var got []int
		Connect(g, FromSlice("a", ints(0, 10)), ForEach(func(_ context.Context, v int) error {
			got = append(got, v)
			return nil
		}))
		Connect(g, FromSlice("b", ints(0, 10)), Discard[int]())
		equal(t, "error", g.Run(t.Context()), nil)
		equal(t, "events", got, ints(0, 10))
		checkConservation(t, g)
	})
	bubble(t, func(t *testing.T, g *Graph) {
		Connect(g, FromSlice("a", ints(0, 10)), ForEach(func(context.Context, int) error { return errBoom }))
		equal(t, "failed", errors.Is(g.Run(t.Context()), errBoom), true)
	})
}

func TestBreakingOutOfAllLeavesNothingBehind_STC106(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src := counter(&wants{}, 1)
		equal(t, "add", g.Add(src), nil)
		start(t, g)
		synctest.Wait()
		before := bubbled()
		if before < 2 {
			t.Fatalf("%d goroutines: the source's is not counted", before)
		}
		for round := range 3 {
			var got []int
			for v, err := range src.Out().All(t.Context(), Demand(6, 2)) {
				if err != nil {
					t.Fatal(err)
				}
				if got = append(got, v); len(got) == 10 {
					break
				}
			}
			synctest.Wait()
			for i, v := range got {
				if v != got[0]+i {
					t.Fatalf("round %d: %v", round, got)
				}
			}
			equal(t, "subscribers", src.Out().Subscribers(), 0)
			equal(t, "goroutines", bubbled(), before)
			equal(t, "source has ended", isOver(src.Done()), false)
		}
		s := stat(t, g, 0)
		// 30 were seen; all others that were sent are counted as undelivered, by
		// the source or by what consumed it.
		if s.Sent < 30 || s.Emitted != s.Dispatched+s.Buffered+s.Discarded {
			t.Errorf("%+v", s)
		}
	})
}

func TestAllEndsWithItsProducer(t *testing.T) {
	bubble(t, func(t *testing.T, _ *Graph) {
		var got []int
		for v, err := range FromSlice("slice", ints(0, 600)).Out().All(t.Context()) {
			equal(t, "error", err, nil)
			got = append(got, v)
		}
		equal(t, "all", got, ints(0, 600))
	})
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := started(t, g)
		after(func() {
			emit.Push(1, 2)
			emit.Fail(errBoom)
		})
		var got []int
		var last error
		for v, err := range src.Out().All(t.Context()) {
			got, last = append(got, v), err
		}
		equal(t, "all", got, []int{1, 2, 0})
		equal(t, "failed", errors.Is(last, errBoom), true)
	})
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := started(t, g)
		emit.Push(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var last error
		n := 0
		for _, err := range src.Out().All(ctx) {
			last = err
			n++
		}
		equal(t, "pairs", n, 2)
		equal(t, "timed out", errors.Is(last, context.DeadlineExceeded), true)
	})
}

// A body that panics leaves nothing behind either.
func TestAllWhoseBodyPanics(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := started(t, g)
		emit.Push(1, 2, 3)
		func() {
			defer func() { equal(t, "panic", recover(), any("body")) }()
			for range src.Out().All(t.Context()) {
				panic("body")
			}
		}()
		synctest.Wait()
		equal(t, "subscribers", src.Out().Subscribers(), 0)
		emit.Push(4)
		v, _, err := First(t.Context(), src)
		equal(t, "error", err, nil)
		equal(t, "the source goes on", v, 4)
	})
}

func TestBatchesGivesWhatASinkGets(t *testing.T) {
	bubble(t, func(t *testing.T, _ *Graph) {
		var got [][]int
		for b, err := range FromSlice("slice", ints(0, 10)).Out().Batches(t.Context(), Demand(6, 2)) {
			equal(t, "error", err, nil)
			got = append(got, slices.Clone(b))
		}
		equal(t, "batches", got, [][]int{{0, 1, 2, 3}, {4, 5}, {6, 7, 8, 9}})
	})
}

func TestIteratorSourceWithUntilLastLeavesEndsAfterTheBreak_STC107(t *testing.T) {
	for name, opts := range map[string][]Option{"stop": {UntilLastLeaves()}, "continue": nil} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				var cleaned atomic.Bool
				src := FromSeq("seq", func(yield func(int) bool) {
					defer cleaned.Store(true)
					for i := 0; yield(i); i++ {
					}
				}, opts...)
				equal(t, "add", g.Add(src), nil)
				start(t, g)
				for v := range src.Out().All(t.Context()) {
					if v == 5 {
						break
					}
				}
				synctest.Wait()
				stops := name == "stop"
				equal(t, "ended", isOver(src.Done()), stops)
				equal(t, "cleaned up", cleaned.Load(), stops)
				if stops {
					equal(t, "graph", g.Wait(), nil)
				}
			})
		})
	}
}

func TestUntilLastLeavesIsForSources(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		sink := NewSink("sink", func(context.Context, []int) error { return nil }, UntilLastLeaves())
		Connect(g, Empty[int]("empty"), sink)
		equal(t, "invalid", errors.Is(g.Start(t.Context()), penstock.ErrInvalid), true)
	})
}

func TestHybridInterleavesPushesAndEndsByFinish_STC108(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		n := 0
		src, emit := Hybrid("hybrid", func(_ context.Context, want int, out *Output[int]) error {
			w.add(want)
			for range want {
				out.Emit(n)
				n++
			}
			return nil
		})
		sink := newLockstep[int]("sink")
		Connect(g, src, sink, Demand(4, 0))
		start(t, g)
		synctest.Wait()
		equal(t, "wants", w.all(), []int{4})
		emit.Push(100, 101)
		synctest.Wait()
		sink.step()
		equal(t, "batches", sink.all(), [][]int{{0, 1, 2, 3}, {100, 101}})
		equal(t, "wants after two were pushed", w.all(), []int{2})
		sink.step()
		equal(t, "batches", sink.all(), [][]int{{4, 5}})
		emit.Push(102)
		done := make(chan struct{})
		// Another goroutine: ends at once; the receive from done waits.
		go func() {
			emit.Finish()
			close(done)
		}()
		<-done
		for !isOver(sink.Done()) {
			select {
			case sink.go1 <- struct{}{}:
			case <-sink.Done():
			}
		}
		equal(t, "graph", g.Wait(), nil)
		equal(t, "batches", sink.all(), [][]int{{102}})
		checkConservation(t, g)
	})
}

func TestToChanDeliversAndSaysWhyItEnded(t *testing.T) {
	bubble(t, func(t *testing.T, _ *Graph) {
		events, why := ToChan(t.Context(), FromSlice("slice", ints(0, 300)), 10)
		var got []int
		for v := range events {
			got = append(got, v)
		}
		equal(t, "error", why(), nil)
		equal(t, "events", got, ints(0, 300))
	})
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := started(t, g)
		after(func() {
			emit.Push(1, 2)
			emit.Fail(errBoom)
		})
		events, why := ToChan(t.Context(), src, -1)
		n := 0
		for range events {
			n++
		}
		equal(t, "events", n, 2)
		equal(t, "failed", errors.Is(why(), errBoom), true)
	})
	bubble(t, func(t *testing.T, g *Graph) { // nobody receives any more
		src, emit := started(t, g)
		emit.Push(ints(0, 100)...)
		ctx, cancel := context.WithCancel(t.Context())
		events, why := ToChan(ctx, src, 3)
		equal(t, "first", <-events, 0)
		synctest.Wait()
		cancel()
		equal(t, "cancelled", errors.Is(why(), context.Canceled), true)
		synctest.Wait()
		equal(t, "subscribers", src.Out().Subscribers(), 0)
		n := 0
		for range events {
			n++
		}
		equal(t, "in the channel", n, 3)
	})
}
