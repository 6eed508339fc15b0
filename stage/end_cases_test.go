package stage

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
)

func TestGateChangesTheTypeOfEvents_STC63(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		word := Map(strconv.Itoa)
		sink, got := collector[string]("sink")
		Connect(g, finite("source", 12, false), word)
		Connect(g, word, sink)
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		var want []string
		for i := range 12 {
			want = append(want, strconv.Itoa(i))
		}
		equal(t, "events", flat(got()), want)
	})
}

func TestFilterDoesNotStopTheFlow_STC64(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		const events = 1_000_000
		even := Filter(func(v *int) bool { return *v%2 == 0 })
		n, last := 0, -2
		sink := NewSink("sink", func(_ context.Context, in []int) error {
			for _, v := range in {
				if v != last+2 {
					t.Errorf("%d after %d", v, last)
				}
				last = v
			}
			n += len(in)
			return nil
		})
		Connect(g, finite("source", events, false), even, Demand(6, 2))
		Connect(g, even, sink, Demand(6, 2))
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		equal(t, "events", n, events/2)
	})
}

func TestGateThatStopsLeavesItsProducer_STC70(t *testing.T) {
	boom := errors.New("boom")
	for name, end := range map[string]error{"normally": Done, "with an error": boom} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				var w wants
				src := counter(&w, 1)
				gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
					out.Forward(in[:3])
					return end
				})
				sink, got := collector[int]("sink")
				other := newLockstep[int]("other")
				Connect(g, src, gate, Demand(6, 2))
				Connect(g, gate, sink)
				Connect(g, src, other, Demand(6, 2)) // keeps the graph
				start(t, g)
				synctest.Wait()
				want := end
				if errors.Is(end, Done) {
					want = nil
				}
				for _, s := range []Stage{gate, sink} {
					if err := s.Wait(); !errors.Is(err, want) {
						t.Errorf("%s: %v, want %v", s.Name(), err, want)
					}
				}
				equal(t, "number of events", len(flat(got())), 3)
				other.step()
				if isOver(src.Done()) {
					t.Error("the source has ended")
				}
				equal(t, "subscribers", src.Out().Subscribers(), 1)
			})
		})
	}
}

func TestEmptySourceEndsWhoNeverAsked_STC105(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("empty")
		pass := Map(func(v int) int { return v })
		sink, got := collector[int]("sink")
		Connect(g, src, pass)
		sub := Connect(g, pass, sink, Manual())
		emit.Finish()
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if err := sink.Wait(); err != nil || !isOver(sub.Done()) || sub.Err() != nil {
			t.Errorf("the sink ended with %v, its subscription with %v", err, sub.Err())
		}
		equal(t, "batches", got(), [][]int(nil))
	})
}
