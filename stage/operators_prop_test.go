package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// An opPlan is an operator and what it does to a list.
type opPlan struct {
	name  string
	gate  func() *Gate[int, int]
	model func([]int) []int
	chain func(g *Graph, from Outleter[int]) Outleter[int] // in place of gate: more than one stage
	ends  bool                                             // before its input
}

func same(in []int) []int { return in }

func plainOp(t *rapid.T) opPlan {
	k := rapid.IntRange(0, 12).Draw(t, "k")
	m := k%4 + 1
	odd := func(v *int) bool { return (*v/m)%2 == 1 }
	keep := func(f func(int, int) bool) func([]int) []int {
		return func(in []int) (out []int) {
			for i, v := range in {
				if f(i, v) {
					out = append(out, v)
				}
			}
			return out
		}
	}
	before := func(in []int) int {
		i := slices.IndexFunc(in, func(v int) bool { return !odd(&v) })
		if i < 0 {
			i = len(in)
		}
		return i
	}
	return rapid.SampledFrom([]opPlan{
		{name: "map", gate: func() *Gate[int, int] { return Map(func(v int) int { return v + k }) }, model: func(in []int) []int {
			out := slices.Clone(in)
			for i := range out {
				out[i] += k
			}
			return out
		}},
		{name: "filter", gate: func() *Gate[int, int] { return Filter(odd) }, model: keep(func(_, v int) bool { return odd(&v) })},
		{name: "filtermap", gate: func() *Gate[int, int] { return FilterMap(func(v int) (int, bool) { return v, odd(&v) }) }, model: keep(func(_, v int) bool { return odd(&v) })},
		{name: "scan", gate: func() *Gate[int, int] { return Scan(k, func(s, v int) int { return s + v }) }, model: func(in []int) []int {
			out, s := slices.Clone(in), k
			for i := range out {
				s += out[i]
				out[i] = s
			}
			return out
		}},
		{name: "take", ends: true, gate: func() *Gate[int, int] { return Take[int](k * 5) }, model: keep(func(i, _ int) bool { return i < k*5 })},
		{name: "takewhile", ends: true, gate: func() *Gate[int, int] { return TakeWhile(odd) }, model: func(in []int) []int { return in[:before(in)] }},
		{name: "drop", gate: func() *Gate[int, int] { return Drop[int](k) }, model: keep(func(i, _ int) bool { return i >= k })},
		{name: "dropwhile", gate: func() *Gate[int, int] { return DropWhile(odd) }, model: func(in []int) []int { return in[before(in):] }},
		{name: "dedupe", gate: func() *Gate[int, int] { return DedupeAdjacent[int]() }, model: func(in []int) []int { return slices.Compact(slices.Clone(in)) }},
		{name: "pass", gate: func() *Gate[int, int] { return Pass[int]("") }, model: same},
		{name: "batch", chain: func(g *Graph, from Outleter[int]) Outleter[int] { return batched(g, from, BatchN[int](k+1)) }, model: same},
		{name: "within", chain: func(g *Graph, from Outleter[int]) Outleter[int] {
			return batched(g, from, BatchWithin[int](k+1, time.Duration(m)*time.Millisecond))
		}, model: same},
		{name: "weighted", chain: func(g *Graph, from Outleter[int]) Outleter[int] {
			return batched(g, from, BatchWeighted(k+1, time.Duration(k%2)*time.Millisecond, func(v *int) int { return *v % 5 }))
		}, model: same},
		{name: "buffer", gate: func() *Gate[int, int] { return BufferGate[int](k+1, Wait) }, model: same},
		{name: "delay", gate: func() *Gate[int, int] { return Delay[int](time.Duration(k)*time.Millisecond, m) }, model: same},
		{name: "throttle", gate: func() *Gate[int, int] {
			l, _ := NewLimiter(LimiterConfig{Events: 1000, Burst: k + 1})
			return ThrottleCost(l, func(v *int) int { return *v % 3 })
		}, model: same},
		{name: "concurrent", gate: func() *Gate[int, int] {
			return MapConcurrent(m, func(_ context.Context, v int) (int, error) {
				time.Sleep(time.Duration(v*7%5) * time.Millisecond)
				return v, nil
			})
		}, model: same},
	}).Draw(t, "operator")
}

func batched(g *Graph, from Outleter[int], batch *Gate[int, []int]) Outleter[int] {
	un := Unbatch[int]()
	Connect(g, from, batch, Demand(5, 2))
	Connect(g, batch, un)
	return un
}

// inBubble hides the test's deadline from rapid, which would take the time of
// the bubble for that of the machine.
type inBubble struct{ *testing.T }

// TestRandomChainsOfOperatorsDoWhatTheirModelsDo runs random chains over random
// events with random demand, fused and not, to a normal end, a failure of
// the source behind its last event, or a drain: what arrives is what the
// models make of it, in order, and every counter adds up.
func TestRandomChainsOfOperatorsDoWhatTheirModelsDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(inBubble{t}, func(t *rapid.T) {
			in := rapid.SliceOfN(rapid.IntRange(0, 9), 0, 120).Draw(t, "events")
			ops := make([]opPlan, rapid.IntRange(1, 4).Draw(t, "operators"))
			for i := range ops {
				ops[i] = plainOp(t)
			}
			end := rapid.SampledFrom([]string{"done", "fail", "drain"}).Draw(t, "end")
			g := NewGraph(Fuse(rapid.Bool().Draw(t, "fuse")), Logger(slog.New(slog.DiscardHandler)), withPoison())
			src, emit := Push[int]("source")
			emit.Push(in...)
			switch end {
			case "done":
				emit.Finish()
			case "fail":
				emit.Fail(errBoom)
			}
			var from Outleter[int] = src
			want, early := in, false
			for i, op := range ops {
				want, early = op.model(want), early || op.ends
				if op.chain != nil {
					from = op.chain(g, from)
					continue
				}
				gate := op.gate()
				gate.in.name = fmt.Sprintf("%s %d", op.name, i)
				Connect(g, from, gate, drawDemand(t)...)
				from = gate
			}
			var got []int
			Connect(g, from, NewSink("sink", func(_ context.Context, in []int) error {
				got = append(got, in...)
				return nil
			}), drawDemand(t)...)
			pause := time.Duration(rapid.IntRange(0, 20).Draw(t, "ms")) * time.Millisecond
			var err error
			if end == "drain" {
				if err := g.Start(context.Background()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(pause)
				err = g.Stop(context.Background())
			} else {
				err = g.Run(context.Background())
			}
			switch {
			case end == "fail" && early && err == nil: // the failure came after the end
			case errors.Is(err, errBoom) != (end == "fail") || (err != nil) != (end == "fail"):
				t.Fatalf("end by %s: %v", end, err)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("got %v, want %v", got, want)
			}
			checkConservation(t, g)
			checkOperators(t, g, early)
		})
	})
}

func drawDemand(t *rapid.T) []SubOption {
	m := rapid.IntRange(0, 9).Draw(t, "max")
	if m == 0 {
		return nil
	}
	return []SubOption{Demand(m, rapid.IntRange(0, m-1).Draw(t, "min"))}
}

// checkOperators holds that each operator has settled what it was given. Batches
// are events of another kind: what came in is compared with what came out
// behind their Unbatch, unless that has ended before them.
func checkOperators(t *rapid.T, g *Graph, early bool) {
	all := g.Stats()
	for i, s := range all {
		out := s.Emitted
		if s.Kind != KindGate || s.Name[:2] == "un" {
			continue
		}
		if s.Name[:5] == "batch" {
			if early {
				continue
			}
			out = all[i+1].Emitted
		}
		if s.Held != 0 || s.In != out+s.Filtered+s.Dropped+s.Failed {
			t.Fatalf("%s has not settled what it was given: %+v", s.Name, s)
		}
	}
}
