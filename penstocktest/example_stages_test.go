package penstocktest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock/penstocktest"
	"github.com/penstock/penstock/stage"
)

// What the guide shows in docs/guide/testing.md.

func TestGateIsDrivenFromBothSides(t *testing.T) {
	penstocktest.Stages(t, func(t *testing.T, g *stage.Graph) {
		words := penstocktest.NewSource[string](t, "words")
		dedupe := stage.DedupeAdjacent[string]() // what is tested
		out := penstocktest.NewConsumer[string](t, "out")
		stage.Connect(g, words, dedupe, stage.Demand(4, 2))
		stage.Connect(g, dedupe, out, stage.Manual())
		penstocktest.Start(t, g)

		words.ExpectDemand(4)
		words.Send("a", "a", "b")
		out.Expect() // nobody has asked
		out.Ask(5)
		out.Expect("a", "b")
		words.Finish()
		out.ExpectEnd(nil)
		penstocktest.CheckCounts(t, g)
	})
}

func TestTimeIsExact(t *testing.T) {
	penstocktest.Stages(t, func(t *testing.T, g *stage.Graph) {
		rows := penstocktest.NewSource[int](t, "rows")
		batch := stage.BatchWithin[int](100, time.Minute)
		out := penstocktest.NewConsumer[[]int](t, "out")
		stage.Connect(g, rows, batch)
		stage.Connect(g, batch, out)
		penstocktest.Start(t, g)

		rows.Send(1, 2)
		time.Sleep(time.Minute - 1) // takes no time
		out.Expect()
		time.Sleep(time.Nanosecond)
		out.Expect([]int{1, 2})
	})
}

func TestFailureReachesTheEnd(t *testing.T) {
	broken := errors.New("broken")
	penstocktest.Stages(t, func(t *testing.T, g *stage.Graph) {
		in := penstocktest.NewSource[int](t, "in")
		double := stage.Map(func(v int) int { return 2 * v })
		out := penstocktest.NewConsumer[int](t, "out")
		stage.Connect(g, in, double)
		stage.Connect(g, double, out)
		penstocktest.Start(t, g)

		in.Send(1, 2)
		in.Fail(broken)
		out.Expect(2, 4) // the failure does not overtake
		out.ExpectEnd(broken)
	})
}

func TestSourceOfOnesOwn(t *testing.T) {
	penstocktest.Stages(t, func(t *testing.T, g *stage.Graph) {
		n := 0
		numbers := stage.Pull("numbers", func(_ context.Context, want int, out *stage.Output[int]) error {
			for range want {
				out.Emit(n)
				n++
			}
			return nil
		})
		out := penstocktest.NewConsumer[int](t, "out")
		stage.Connect(g, numbers, out, stage.Manual(), stage.CancelMode(stage.Temporary))
		penstocktest.Start(t, g)

		out.Ask(3)
		out.ExpectBatches([]int{0, 1, 2}) // what one delivery brings is one batch
		out.Ask(2)
		out.Expect(3, 4) // and not one event more than asked for
		out.Cancel()
		out.Expect()
	})
}
