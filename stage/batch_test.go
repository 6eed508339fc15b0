package stage

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestBatchWithinByCountLeavesNoTailBehind_STC157(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var want [][]int
		for i := range 11 {
			want = append(want, []int{i})
		}
		equal(t, "n=1", through(t, g, ints(0, 11), BatchWithin[int](1, time.Second)), want)
	})
	bothWays(t, func(t *testing.T, g *Graph) {
		want := [][]int{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10}}
		equal(t, "n=2", through(t, g, ints(0, 11), BatchWithin[int](2, time.Second)), want)
	})
}

func TestBatchWithinWaitsFromItsFirstEvent(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		batch := BatchWithin[int](3, 100*time.Millisecond)
		sink, got := collector[[]int]("sink")
		Connect(g, src, batch)
		Connect(g, batch, sink)
		start(t, g)
		emit.Push(0)
		time.Sleep(60 * time.Millisecond)
		emit.Push(1)
		time.Sleep(39 * time.Millisecond)
		synctest.Wait()
		equal(t, "before", got(), [][][]int(nil))
		equal(t, "held", stat(t, g, 1).Held, int64(2))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		equal(t, "at 100 ms", got(), [][][]int{{{0, 1}}})
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "empty batches", got(), [][][]int(nil))
		emit.Push(2, 3, 4, 5)
		synctest.Wait()
		equal(t, "a full batch goes at once", got(), [][][]int{{{2, 3, 4}}})
		time.Sleep(99 * time.Millisecond)
		synctest.Wait()
		equal(t, "the rest has a time of its own", got(), [][][]int(nil))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		equal(t, "the rest", got(), [][][]int{{{5}}})
		emit.Finish()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		checkConservation(t, g)
	})
}

// A batch that is due while nobody asks waits, goes first, and nothing of it is
// lost.
func TestBatchWithinWaitsForDemand(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		batch := BatchWithin[int](10, time.Second)
		sink := newLockstep[[]int]("sink")
		Connect(g, src, batch)
		Connect(g, batch, sink, Demand(1, 0))
		start(t, g)
		for i := range 4 {
			emit.Push(i)
			time.Sleep(1100 * time.Millisecond)
			synctest.Wait()
		}
		equal(t, "first", sink.all(), [][][]int{{{0}}})
		for _, want := range [][]int{{1}, {2, 3}} { // 1 was due, and waits: 2 and 3 are not added to it
			sink.step()
			time.Sleep(1100 * time.Millisecond)
			synctest.Wait()
			equal(t, "next", sink.all(), [][][]int{{want}})
		}
		sink.step()
	})
}

func TestBatchWeightedBeginsAnewBeforeItWouldBeTooHeavy(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		in := []int{3, 4, 2, 9, 25, 1, -5, 9, 10, 1}
		want := [][]int{{3, 4, 2}, {9}, {25}, {1, -5, 9}, {10}, {1}}
		equal(t, "batches", through(t, g, in, BatchWeighted(10, 0, func(v *int) int { return *v }), Demand(3, 1)), want)
	})
}

func TestBatchWeightedWithin(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		batch := BatchWeighted(10, time.Second, func(v *int) int { return *v })
		sink, got := collector[[]int]("sink")
		Connect(g, src, batch)
		Connect(g, batch, sink)
		start(t, g)
		emit.Push(3, 4)
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		equal(t, "before", got(), [][][]int(nil))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		equal(t, "after", got(), [][][]int{{{3, 4}}})
	})
}

// What was gathered goes out before the error that ends the input.
func TestBatchOfAFailedInputGoesOutBeforeTheError(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		batch := BatchN[int](4)
		sink, got := collector[[]int]("sink")
		Connect(g, src, batch)
		Connect(g, batch, sink)
		emit.Push(0, 1, 2, 3, 4, 5)
		emit.Fail(errBoom)
		if err := g.Run(context.Background()); !errors.Is(err, errBoom) {
			t.Errorf("Run returned %v", err)
		}
		equal(t, "batches", got(), [][][]int{{{0, 1, 2, 3}}, {{4, 5}}})
		checkConservation(t, g)
	})
}

// A graph that drains delivers what a batcher holds, without waiting for its
// time.
func TestBatchIsDrained(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		batch := BatchWithin[int](10, time.Hour)
		sink, got := collector[[]int]("sink")
		Connect(g, src, batch)
		Connect(g, batch, sink)
		start(t, g)
		emit.Push(ints(0, 7)...)
		synctest.Wait()
		began := time.Now()
		if err := g.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		equal(t, "time", time.Since(began), time.Duration(0))
		equal(t, "batches", got(), [][][]int{{ints(0, 7)}})
		checkConservation(t, g)
	})
}

// What a batcher holds when the graph is aborted is counted.
func TestAbortCountsWhatABatcherHolds(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		batch := BatchWithin[int](10, time.Hour)
		sink, _ := collector[[]int]("sink")
		Connect(g, src, batch)
		Connect(g, batch, sink)
		start(t, g)
		emit.Push(ints(0, 7)...)
		synctest.Wait()
		g.Abort(errBoom)
		err := g.Wait()
		equal(t, "left", left(err), 7)
		equal(t, "dropped", stat(t, g, 1).Dropped, int64(7))
		checkConservation(t, g)
	})
}
