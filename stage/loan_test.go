package stage

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
)

// Consumers that read only get the producer's own array; one that may change
// its input gets a copy of it.
func TestReadersOfABroadcastShareOneBatch(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var mu sync.Mutex
		got := map[string]*int{}
		saw := func(name string, first *int) {
			mu.Lock()
			defer mu.Unlock()
			got[name] = first
		}
		src := Pull("source", func(_ context.Context, _ int, out *Output[int]) error {
			to := out.Grow(3)
			copy(to, []int{1, 2, 3})
			saw("source", &to[0])
			return Done
		}).Broadcast()
		for _, name := range []string{"a", "b"} {
			Connect(g, src, NewSink(name, func(_ context.Context, in []int) error {
				saw(name, &in[0])
				return nil
			}))
		}
		words := NewGate("words", func(_ context.Context, in []int, out *Output[string]) error {
			saw("words", &in[0])
			out.Emit("three")
			return nil
		})
		double := MapPtr(func(in, out *int) {
			if *in == 1 {
				saw("map", in)
			}
			*out = 2 * *in
		})
		same := NewGate("same", func(_ context.Context, in []int, out *Output[int]) error {
			saw("same", &in[0])
			out.Forward(in)
			return nil
		})
		Connect(g, src, words)
		Connect(g, words, Discard[string]())
		for _, gate := range []*Gate[int, int]{double, same} {
			Connect(g, src, gate)
			Connect(g, gate, Discard[int]())
		}
		if err := g.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b", "words", "map"} {
			if got[name] != got["source"] {
				t.Errorf("%s got another array than the source made", name)
			}
		}
		if got["same"] == got["source"] {
			t.Error("a gate that may change its input got the array that others read")
		}
		checkConservation(t, g)
	})
}

// A batch stays what it is until the last of its readers is done with it,
// however far ahead the others are.
func TestSharedBatchOutlivesItsFastReaders(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) { // slabs that are free are cleared
		n := 0
		src := Pull("counter", func(_ context.Context, want int, out *Output[int]) error {
			for range want {
				n++
				out.Emit(n) // never 0
			}
			return nil
		}).Broadcast()
		fast, gotFast := collector[int]("fast")
		var held []int
		step := make(chan struct{})
		slow := NewSink("slow", func(ctx context.Context, in []int) error {
			held = in
			select {
			case <-step:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		Connect(g, src, fast, Demand(6, 2))
		Connect(g, src, slow, Demand(60, 50))
		start(t, g)
		next := 1
		for range 20 {
			synctest.Wait()
			equal(t, "batch of the slow one", held, ints(next, next+len(held)))
			if ahead := len(flat(gotFast())); next == 1 && ahead != 60 {
				t.Errorf("the fast one is at %d, want 60, as far as the slow one has asked", ahead)
			}
			next += len(held)
			step <- struct{}{}
		}
		synctest.Wait()
	})
}

// What a reader of a shared batch panics with may refer to the batch: it is not
// used again, and the other readers go on with it.
func TestSharedBatchOfAPanicIsNotUsedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		src := counter(&w, 1).Broadcast()
		bad := NewSink("bad", func(_ context.Context, in []int) error { panic(in) })
		good := newLockstep[int]("good")
		Connect(g, src, bad, Demand(6, 2))
		Connect(g, src, good, Demand(6, 2))
		start(t, g)
		var p *penstock.PanicError
		if err := bad.Wait(); !errors.As(err, &p) {
			t.Fatalf("Wait: %v, want a PanicError", err)
		}
		held := p.Value.([]int)
		synctest.Wait()
		next := 0
		for range 20 {
			for _, b := range good.all() {
				equal(t, "batch of the other", b, ints(next, next+len(b)))
				next += len(b)
			}
			good.step()
		}
		equal(t, "batch of the panic", held, ints(0, 4))
	})
}

// When the last reader is done with a shared batch, it pins nothing.
func TestSharedBatchesPinNothing(t *testing.T) {
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
		}).Broadcast()
		gate := Filter(func(**int) bool { return true })
		Connect(g, src, gate, Demand(7, 2))
		Connect(g, gate, Discard[*int]())
		for range 2 {
			Connect(g, src, Discard[*int](), Demand(5, 1))
		}
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		for _, e := range src.out.edges {
			src.out.reclaim(e)
		}
		for _, s := range append(src.out.free, slabsIn(src.out.edges)...) {
			if s.refs > 0 {
				t.Errorf("a slab has %d references after the end", s.refs)
			}
			for _, p := range s.buf[:cap(s.buf)] {
				if p != nil {
					t.Fatal("a slab that is free still holds an event")
				}
			}
		}
	})
}
