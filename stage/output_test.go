package stage

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

func TestForwardPassesTheArrayOn(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var sent, got []*int // the first event of each batch
		var w wants
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
			sent = append(sent, &in[0])
			out.Forward(in)
			return nil
		})
		n := 0
		sink := NewSink("sink", func(_ context.Context, in []int) error {
			got = append(got, &in[0])
			if n += len(in); n >= 1000 {
				return Done
			}
			return nil
		})
		Connect(g, counter(&w, 1), gate)
		Connect(g, gate, sink)
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		if len(got) != 4 || !slices.Equal(sent[:4], got) {
			t.Errorf("the sink got other arrays than the gate forwarded: %v, %v", got, sent)
		}
	})
}

// A gate fails in the middle of a delivery of which it has forwarded a part: the
// producer must not use the slab again while that part is in hands.
func TestForwardedPartOutlivesTheGate(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		n := 0
		src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
			if n == 0 {
				want = 6 // the gate alone, so that the slab is its own
			}
			for range want {
				n++
				out.Emit(n)
			}
			return nil
		})
		calls := 0
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
			if calls++; calls == 2 {
				panic("quit")
			}
			out.Forward(in)
			return nil
		})
		step := make(chan struct{})
		holder := NewSink("holder", func(_ context.Context, in []int) error {
			kept := slices.Clone(in)
			<-step
			equal(t, "the batch in hands", in, kept)
			return nil
		})
		other := newLockstep[int]("other")
		Connect(g, src, gate, Demand(6, 4)) // three batches of two
		Connect(g, gate, holder)
		Connect(g, src, other, Demand(4, 0))
		start(t, g)
		synctest.Wait()
		for range 10 {
			other.step()
		}
		close(step)
		synctest.Wait()
		equal(t, "what the holder got", g.Stats()[2].In, int64(2))
	})
}

// A gate ends in the middle of a delivery of which it has forwarded a part. While
// the producer has not looked, its slot must hold another slab already: both
// would count references to the same one.
func TestForwardedSlabHasOneOwnerWhenTheGateEnds(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		release := make(chan struct{})
		calls := 0
		src := Pull("source", func(_ context.Context, _ int, out *Output[int]) error {
			if calls++; calls == 1 {
				out.EmitAll(ints(0, 6)...)
				return nil
			}
			<-release
			return Done
		})
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
			out.Forward(in)
			return Done
		})
		holder := newLockstep[int]("holder")
		Connect(g, src, gate, Demand(7, 5))
		Connect(g, gate, holder)
		start(t, g)
		synctest.Wait()
		equal(t, "in hands", holder.all(), [][]int{{0, 1}})
		given, taken := src.out.edges[0], gate.out.edges[0]
		if given.tail.Load() != 1 || given.head.Load() != 0 || !given.left.Load() {
			t.Fatal("the delivery is not the one that the test is about")
		}
		if given.slot(0).slab == taken.slot(0).slab {
			t.Error("the forwarded slab is still in the slot of the producer")
		}
		holder.step()
		close(release)
		synctest.Wait()
		if s := g.Stats()[0]; s.Undelivered != 4 {
			t.Errorf("source: %+v, want 4 events undelivered", s)
		}
		checkConservation(t, g)
	})
}

func TestForwardCopiesWhatItMustNotPassOn(t *testing.T) {
	lent := ints(0, 8)
	lent = lent[:8:8]
	for name, c := range map[string]struct {
		emit func(o *Output[int])
		want []int // forwarded without a copy
		buf  []int
	}{
		"all":            {func(o *Output[int]) { o.Forward(lent) }, ints(0, 8), nil},
		"a part":         {func(o *Output[int]) { o.Forward(lent[2:5]) }, ints(2, 5), nil}, // its capacity shows where it begins
		"a cut part":     {func(o *Output[int]) { o.Forward(lent[2:5:5]) }, nil, ints(2, 5)},
		"nothing":        {func(o *Output[int]) { o.Forward(nil) }, nil, nil},
		"after an event": {func(o *Output[int]) { o.Emit(9); o.Forward(lent) }, nil, append([]int{9}, ints(0, 8)...)},
		"twice":          {func(o *Output[int]) { o.Forward(lent[:4]); o.Forward(lent[4:]) }, ints(0, 4), ints(4, 8)},
		"something else": {func(o *Output[int]) { o.Forward(ints(3, 6)) }, nil, ints(3, 6)},
		"same length":    {func(o *Output[int]) { o.Forward(slices.Clone(lent)) }, nil, ints(0, 8)},
		"then more":      {func(o *Output[int]) { o.Forward(lent); o.EmitAll(7, 7); o.Grow(1)[0] = 8 }, ints(0, 8), []int{7, 7, 8}},
	} {
		o := &Output[int]{lent: lent}
		c.emit(o)
		got := append([]int{}, lent[o.from:o.to]...)
		if !slices.Equal(got, c.want) || !slices.Equal(o.buf, c.buf) {
			t.Errorf("%s: forwarded %v and copied %v, want %v and %v", name, got, o.buf, c.want, c.buf)
		}
		if o.Len() != len(c.want)+len(c.buf) {
			t.Errorf("%s: Len %d", name, o.Len())
		}
	}
}

func TestPointersAreFound(t *testing.T) {
	for _, c := range []struct {
		got, want bool
		what      string
	}{
		{holdsPointers[int](), false, "int"},
		{holdsPointers[string](), true, "string"},
		{holdsPointers[[4]float64](), false, "[4]float64"},
		{holdsPointers[[0]*int](), false, "[0]*int"},
		{holdsPointers[[1]*int](), true, "[1]*int"},
		{holdsPointers[struct{ a, b int }](), false, "struct of ints"},
		{holdsPointers[struct {
			a int
			b []byte
		}](), true, "struct with a slice"},
		{holdsPointers[any](), true, "any"},
		{holdsPointers[chan int](), true, "chan"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v", c.what, c.got)
		}
	}
}

// TestConsumedEventsPinNothing: after the run every slab that the stages keep is
// empty of pointers.
func TestConsumedEventsPinNothing(t *testing.T) {
	for name, gate := range map[string]*Gate[*int, *int]{
		"forward": Filter(func(**int) bool { return true }),
		"emit":    Map(func(v *int) *int { return v }),
	} {
		bubble(t, func(t *testing.T, g *Graph) {
			g.poison = false
			n := 0
			src := Pull("source", func(_ context.Context, want int, out *Output[*int]) error {
				for range min(want, 300-n) {
					out.Emit(new(int))
					n++
				}
				if n == 300 {
					return Done
				}
				return nil
			})
			sink := NewSink("sink", func(context.Context, []*int) error { return nil })
			Connect(g, src, gate, Demand(7, 2))
			Connect(g, gate, sink, Demand(5, 1))
			if err := g.Run(context.Background()); err != nil {
				t.Error(err)
			}
			for _, o := range []*outlet[*int]{&src.out, &gate.out} {
				o.take()
				for _, s := range append(o.free, slabsIn(o.edges)...) {
					for _, p := range s.buf[:cap(s.buf)] {
						if p != nil {
							t.Fatalf("%s: %s: a slab that is free still holds an event", name, o.name)
						}
					}
				}
			}
		})
	}
}

func slabsIn[T any](edges []*edge[T]) (all []*slab[T]) {
	for _, e := range edges {
		for i := range e.ring {
			if s := e.ring[i].slab; s != nil {
				all = append(all, s)
			}
		}
	}
	return all
}

// TestFusedAndUnfusedAreTheSame_STC166: the same output under the same demand, in fewer
// goroutines (P-19).
func TestFusedAndUnfusedAreTheSame_STC166(t *testing.T) {
	type result struct {
		Wants   []int
		Batches [][]string
	}
	run := func(fuse bool) (r result, executors int) {
		bubble(t, func(t *testing.T, g *Graph) {
			var w wants
			n := 0
			src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
				w.add(want)
				for range min(want, 3000-n) {
					out.Emit(n)
					n++
				}
				if n == 3000 {
					return Done
				}
				return nil
			})
			double := MapPtr(func(in, out *int) { *out = 2 * *in })
			most := Filter(func(v *int) bool { return *v%3 != 0 })
			text := Map(func(v int) string { return fmt.Sprint(v) })
			sink, got := collector[string]("sink")
			Connect(g, src, double)
			Connect(g, double, most)
			Connect(g, most, text)
			Connect(g, text, sink)
			if err := g.Start(context.Background()); err != nil {
				t.Fatal(err)
			}
			seen := map[*doorbell]bool{}
			for _, n := range g.nodes {
				seen[n.common().bell.Load()] = true
			}
			executors = len(seen)
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
			r = result{w.all(), got()}
		}, Fuse(fuse))
		return r, executors
	}
	fused, two := run(true)
	unfused, five := run(false)
	if two != 2 || five != 5 {
		t.Errorf("%d and %d executors, want 2 and 5", two, five)
	}
	if d := cmp.Diff(slices.Concat(unfused.Batches...), slices.Concat(fused.Batches...)); d != "" {
		t.Errorf("outputs differ:\n%s", d)
	}
	for _, r := range []result{fused, unfused} {
		for _, w := range r.Wants {
			if w < 250 || w > 1000 {
				t.Errorf("a want of %d in %v, want the ordinary cycle", w, r.Wants)
			}
		}
		for _, b := range r.Batches {
			if len(b) > 250 {
				t.Errorf("a batch of %d, want at most 250", len(b))
			}
		}
	}
}

// TestFusionKeepsToItsRules looks at who shares a goroutine with whom.
func TestFusionKeepsToItsRules(t *testing.T) {
	id := func() *Gate[int, int] { return Map(func(v int) int { return v }) }
	sinkOf := func(name string) *Sink[int] {
		return NewSink(name, func(context.Context, []int) error { return nil })
	}
	for name, c := range map[string]struct {
		build func(g *Graph) (a, b *base)
		same  bool
	}{
		"helper and the stage after it": {func(g *Graph) (a, b *base) {
			h, k := id(), sinkOf("k")
			Connect(g, finite("s", 1, false), h)
			Connect(g, h, k)
			return h.common(), k.common()
		}, true},
		"source and sink": {func(g *Graph) (a, b *base) {
			s, h, k := finite("s", 1, false), id(), sinkOf("k")
			Connect(g, s, h)
			Connect(g, h, k)
			return s.common(), k.common()
		}, false},
		"demand of its own": {func(g *Graph) (a, b *base) {
			s, h := finite("s", 1, false), id()
			Connect(g, s, h)
			Connect(g, h, sinkOf("k"), Demand(10, 5))
			return s.common(), h.common()
		}, false},
		"helpers in a row": {func(g *Graph) (a, b *base) {
			h, i := id(), id()
			Connect(g, finite("s", 1, false), h)
			Connect(g, h, i)
			Connect(g, i, sinkOf("k"), Demand(10, 5))
			return h.common(), i.common()
		}, true},
		"async": {func(g *Graph) (a, b *base) {
			h, k := id(), sinkOf("k")
			Connect(g, finite("s", 1, false), h)
			Connect(g, h, k, Async())
			return h.common(), k.common()
		}, false},
		"two consumers": {func(g *Graph) (a, b *base) {
			h, k := id(), sinkOf("k")
			Connect(g, finite("s", 1, false), h)
			Connect(g, h, k)
			Connect(g, h, sinkOf("l"))
			return h.common(), k.common()
		}, false},
		"no helper": {func(g *Graph) (a, b *base) {
			h := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error { out.Forward(in); return nil })
			k := sinkOf("k")
			Connect(g, finite("s", 1, false), h)
			Connect(g, h, k)
			return h.common(), k.common()
		}, false},
	} {
		g := NewGraph()
		a, b := c.build(g)
		if err := g.Start(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if same := a.bell.Load() == b.bell.Load(); same != c.same {
			t.Errorf("%s: share a goroutine: %v, want %v", name, same, c.same)
		}
		if err := g.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Nothing comes before the blocked callback returns but what there is already.
func TestHelperDoesNotWaitForABlockedProducer(t *testing.T) {
	for _, fuse := range []bool{true, false} {
		bubble(t, func(t *testing.T, g *Graph) {
			calls := 0
			src := Pull("source", func(ctx context.Context, _ int, out *Output[int]) error {
				if calls++; calls == 1 {
					out.EmitAll(ints(0, 8)...)
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			})
			helper := Map(func(v int) int { return v })
			sink, batches := collector[int]("sink")
			Connect(g, src, helper)
			Connect(g, helper, sink, Demand(3, 1))
			start(t, g)
			synctest.Wait()
			equal(t, "arrived", flat(batches()), ints(0, 8))
		}, Fuse(fuse))
	}
}

// TestSteadyStateAllocatesNothing: ten times the events, the same allocations
// but for chance (a slab more, a goroutine's stack).
func TestSteadyStateAllocatesNothing(t *testing.T) {
	fill, change, look := func(i int, v *int64) { *v = int64(i) }, func(v *int64) { *v++ }, func(v *int64) {}
	mallocs := func(n int) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := linearBatch(n, fill, change, look); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	mallocs(10_000)
	few, many := mallocs(100_000), mallocs(1_100_000)
	if batches := uint64(1_000_000 / 250); many > few+batches/10 {
		t.Errorf("%d allocations for a million events more, in %d batches", many-few, batches)
	}
}

func TestFlatMapEmitsNoneOneOrMany(t *testing.T) {
	for _, fuse := range []bool{true, false} {
		bubble(t, func(t *testing.T, g *Graph) {
			buf := make([]int, 0, 3) // used again in every call
			many := FlatMap(func(v int) []int {
				buf = buf[:0]
				for range v % 4 {
					buf = append(buf, v)
				}
				return buf
			})
			sink, batches := collector[int]("sink")
			Connect(g, finite("source", 100, false), many, Demand(8, 4))
			Connect(g, many, sink)
			if err := g.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			var want []int
			for v := range 100 {
				for range v % 4 {
					want = append(want, v)
				}
			}
			equal(t, "arrived", flat(batches()), want)
			checkConservation(t, g)
		}, Fuse(fuse))
	}
}
