package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

// A consumer takes from the producer of the highest priority first, and in turn
// from those of one priority.
func TestProducersOfHigherPriorityComeFirst(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var emits []*Emitter[int]
		sink := newLockstep[int]("sink")
		for i, rank := range []int{0, 7, -1, 7} {
			src, emit := Push[int](fmt.Sprint("source ", i))
			emits = append(emits, emit)
			Connect(g, src, sink, Demand(4, 2), Priority(rank))
		}
		start(t, g)
		for i, emit := range emits {
			emit.Push(10*i, 10*i+1, 10*i+2, 10*i+3)
			if i == 0 {
				synctest.Wait() // the sink holds the first two of it
			}
		}
		synctest.Wait()
		var got []int
		for len(got) < 16 {
			got = append(got, flat(sink.all())...)
			sink.step()
		}
		equal(t, "order", got, []int{0, 1, 10, 11, 30, 31, 12, 13, 32, 33, 2, 3, 20, 21, 22, 23})
		late, emit := Push[int]("late") // while it runs
		if err := g.Add(late); err != nil {
			t.Fatal(err)
		}
		subscribe(t, late, sink, Demand(2, 0), Priority(9))
		emits[1].Push(40, 41)
		synctest.Wait()
		emits[3].Push(50)
		emit.Push(60, 61)
		synctest.Wait()
		got = nil
		for len(got) < 5 {
			got = append(got, flat(sink.all())...)
			if len(got) < 5 {
				sink.step()
			}
		}
		equal(t, "order with a latecomer", got, []int{40, 41, 60, 61, 50})
		sink.step()
		for _, e := range append(emits, emit) {
			e.Finish()
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		checkConservation(t, g)
	})
}

// What a producer of higher priority has in between does not change whose turn it
// is among equals: the last of them used to get none.
func TestEqualsHaveTheirTurnBesideAHigherPriority(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		sink := newLockstep[int]("sink")
		high, emitHigh := Push[int]("high")
		Connect(g, high, sink, Demand(2, 1), Priority(1))
		emits := []*Emitter[int]{emitHigh}
		for _, name := range []string{"a", "b", "c"} {
			src, emit := Push[int](name)
			emits = append(emits, emit)
			Connect(g, src, sink, Demand(2, 1))
		}
		start(t, g)
		for i, emit := range emits[1:] {
			must(t, emit.Push(ints(10*i+10, 10*i+13)...))
			synctest.Wait() // the sink has the first one in hands
		}
		var got []int
		for range 9 { // it has one of theirs in hands
			must(t, emitHigh.Push(0))
			synctest.Wait()
			sink.step()
			sink.step()
			got = append(got, flat(sink.all())...)
		}
		for _, e := range emits {
			e.Finish()
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		equal(t, "order", got, []int{10, 0, 20, 0, 30, 0, 11, 0, 21, 0, 31, 0, 12, 0, 22, 0, 32, 0})
		checkConservation(t, g)
	})
}

func TestMergePreferredServesItsFirstProducerFirst(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		a, emitA := Push[int]("a")
		b, emitB := Push[int]("b")
		merged := MergePreferred(g, "merged", a, b)
		sink := newLockstep[int]("sink")
		Connect(g, merged, sink, Demand(2, 0))
		start(t, g)
		emitB.Push(ints(100, 600)...)
		synctest.Wait() // the sink has two of b, and the gate one chunk of it
		emitA.Push(ints(0, 500)...)
		emitA.Finish()
		emitB.Finish()
		var got []int
		for !isOver(sink.Done()) {
			synctest.Wait()
			got = append(got, flat(sink.all())...)
			select {
			case sink.go1 <- struct{}{}:
			case <-sink.Done():
			}
		}
		equal(t, "order", got, slices.Concat(ints(100, 350), ints(0, 500), ints(350, 600)))
		checkConservation(t, g)
	})
}

// interleaved is the model: n of each in turn, without those that are over.
func interleaved(n int, parts ...[]int) (out []int) {
	for {
		before := len(out)
		for i, p := range parts {
			k := min(n, len(p))
			out, parts[i] = append(out, p[:k]...), p[k:]
		}
		if len(out) == before {
			return out
		}
	}
}

func TestMergeInterleavedGoesInStrictTurn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(rt, "n")
		concat := rapid.Bool().Draw(rt, "concat")
		var parts [][]int
		for i := range rapid.IntRange(1, 4).Draw(rt, "producers") {
			parts = append(parts, ints(1000*i, 1000*i+rapid.IntRange(0, 60).Draw(rt, "events")))
		}
		demandMax := rapid.IntRange(1, 20).Draw(rt, "max")
		var bad error
		synctest.Test(t, func(*testing.T) {
			g := NewGraph(withPoison())
			var from []Outleter[int]
			for i, p := range parts {
				from = append(from, FromSlice(fmt.Sprint("source ", i), p))
			}
			want := interleaved(n, slices.Clone(parts)...)
			var merged *Gate[int, int]
			if concat {
				merged, want = MergeConcat(g, "merged", from...), slices.Concat(parts...)
			} else {
				merged = MergeInterleaved(g, "merged", n, from...)
			}
			sink, got := collector[int]("sink")
			Connect(g, merged, sink, Max(demandMax))
			if bad = g.Run(context.Background()); bad != nil {
				return
			}
			if all := flat(got()); !slices.Equal(all, want) {
				bad = fmt.Errorf("got %v, want %v", all, want)
			}
			c := &complaints{}
			checkConservation(c, g)
			if len(c.all) > 0 {
				bad = errors.New(c.all[0])
			}
		})
		if bad != nil {
			rt.Fatal(bad)
		}
	})
}

// It waits for the one whose turn it is, and holds no more than max of the others.
func TestMergeInterleavedHoldsNoMoreThanMax(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		slow, emit := Push[int]("slow")
		fast := counter(&w, 1)
		merged := newInterleaver[int]("merged", 2)
		Connect(g, slow, merged, Demand(5, 1))
		Connect(g, fast, merged, Demand(7, 3))
		sink, got := collector[int]("sink")
		Connect(g, merged, sink)
		start(t, g)
		synctest.Wait()
		equal(t, "asked of the fast one", w.all(), []int{7})
		equal(t, "held", g.Stats()[1].Held, int64(7))
		emit.Push(-1, -2, -3)
		synctest.Wait()
		equal(t, "events", flat(got()), []int{-1, -2, 0, 1, -3})
		emit.Push(-4, -5, -6)
		synctest.Wait()
		equal(t, "events", flat(got()), []int{-4, 2, 3, -5, -6, 4, 5})
		equal(t, "asked again", w.all(), []int{4})
		emit.Fail(errBoom)
		if err := g.Wait(); !errors.Is(err, errBoom) {
			t.Error(err)
		}
		checkConservation(t, g)
	})
}

// A restart lets go of what is held, and asks for as much again.
func TestMergeInterleavedBeginsAnew(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		other, emitOther := Push[int]("other")
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
			if in[0] < 0 {
				return errBoom
			}
			out.EmitAll(in...)
			return nil
		})
		merged := newInterleaver[int]("merged", 1)
		sink, got := collector[int]("sink")
		Connect(g, src, gate)
		Connect(g, gate, merged, Demand(3, 0))
		Connect(g, other, merged, Demand(3, 0))
		Connect(g, merged, sink)
		start(t, g)
		for round := range 4 { // more than max in all: what was dropped must be asked for again
			emitOther.Push(ints(10*round, 10*round+3)...)
			synctest.Wait()
			m := g.Stats()[slices.IndexFunc(g.Stats(), func(s Stats) bool { return s.Name == "merged" })]
			if m.Held != 3 {
				t.Fatalf("round %d: %d held, want 3", round, m.Held)
			}
			emit.Push(-1)
			time.Sleep(time.Second)
		}
		emitOther.Push(100)
		emit.Push(1)
		synctest.Wait()
		equal(t, "events", len(flat(got())), 2)
		emit.Finish()
		emitOther.Finish()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		checkConservation(t, g)
	}, RestForOne(Backoff(1, 1, 0).AtMost(100, 0)))
}

func TestMisbuiltMergesAreRefused(t *testing.T) {
	g := NewGraph()
	Connect(g, MergeInterleaved[int](g, "merged", 0, Empty[int]("a")), Discard[int]())
	if err := g.Start(t.Context()); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("none in a row: %v", err)
	}
	g = NewGraph()
	Connect(g, Empty[int]("a"), newInterleaver[int]("merged", 1), Manual())
	if err := g.Start(t.Context()); !errors.Is(err, ErrUnsupportedDemandMode) {
		t.Errorf("a manual subscription: %v", err)
	}
}
