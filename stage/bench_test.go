package stage

import (
	"context"
	"fmt"
	"testing"
)

type wide struct{ words [8]int64 }

// linearBatch runs n events through source, gate and sink over asynchronous
// edges; the gate writes its output in place.
func linearBatch[T any](n int, fill func(i int, v *T), change func(*T), look func(*T)) error {
	next := 0
	src := Pull("source", func(_ context.Context, want int, out *Output[T]) error {
		to := out.Grow(min(want, n-next))
		for i := range to {
			fill(next, &to[i])
			next++
		}
		if next == n {
			return Done
		}
		return nil
	})
	gate := NewGate("gate", func(_ context.Context, in []T, out *Output[T]) error {
		for i := range in {
			change(&in[i])
		}
		out.Forward(in)
		return nil
	})
	seen := 0
	sink := NewSink("sink", func(_ context.Context, in []T) error {
		for i := range in {
			look(&in[i])
		}
		seen += len(in)
		return nil
	})
	g := NewGraph()
	Connect(g, src, gate)
	Connect(g, gate, sink)
	err := g.Run(context.Background())
	if err == nil && seen != n {
		err = fmt.Errorf("%d of %d events arrived", seen, n)
	}
	return err
}

// recycled is the same by hand: channels of batches that go round.
func recycled[T any](n, size int, fill func(i int, v *T), change func(*T), look func(*T)) error {
	free, a, b := make(chan []T, 5), make(chan []T, 4), make(chan []T, 4)
	for range cap(free) {
		free <- make([]T, size)
	}
	go func() { // source: ends after n events; the gate waits for it
		defer close(a)
		for next := 0; next < n; {
			s := (<-free)[:min(size, n-next)]
			for i := range s {
				fill(next, &s[i])
				next++
			}
			a <- s
		}
	}()
	go func() { // gate: ends with a; the sink waits for it
		defer close(b)
		for s := range a {
			for i := range s {
				change(&s[i])
			}
			b <- s
		}
	}()
	seen := 0
	for s := range b {
		for i := range s {
			look(&s[i])
		}
		seen += len(s)
		free <- s[:cap(s)]
	}
	if seen != n {
		return fmt.Errorf("%d of %d events arrived", seen, n)
	}
	return nil
}

var total int64

func BenchmarkLinearBatch(b *testing.B) {
	fill, change, look := func(i int, v *int64) { *v = int64(i) }, func(v *int64) { *v++ }, func(v *int64) { total += *v }
	per(b, "stage/int64", func(n int) error { return linearBatch(n, fill, change, look) })
	per(b, "channel/int64", func(n int) error { return recycled(n, 250, fill, change, look) })
	fillW, changeW, lookW := func(i int, v *wide) { v.words[0], v.words[7] = int64(i), 1 }, func(v *wide) { v.words[7]++ }, func(v *wide) { total += v.words[0] + v.words[7] }
	per(b, "stage/64B", func(n int) error { return linearBatch(n, fillW, changeW, lookW) })
	per(b, "channel/64B", func(n int) error { return recycled(n, 250, fillW, changeW, lookW) })
}

// per reports the time and the allocations of one event.
func per(b *testing.B, name string, f func(n int) error) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		if err := f(b.N); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkLinearEvent(b *testing.B) {
	per(b, "stage", func(n int) error {
		next, seen := 0, 0
		src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
			for range min(want, n-next) {
				out.Emit(next)
				next++
			}
			if next == n {
				return Done
			}
			return nil
		})
		gate := Map(func(v int) int { return v + 1 })
		sink := NewSink("sink", func(_ context.Context, in []int) error {
			for _, v := range in {
				total += int64(v)
			}
			seen += len(in)
			return nil
		})
		g := NewGraph(Fuse(false))
		Connect(g, src, gate)
		Connect(g, gate, sink)
		err := g.Run(context.Background())
		if err == nil && seen != n {
			err = fmt.Errorf("%d of %d events arrived", seen, n)
		}
		return err
	})
	per(b, "channel", func(n int) error {
		x, y := make(chan int, 1000), make(chan int, 1000)
		go func() { // source: ends after n events
			defer close(x)
			for i := range n {
				x <- i
			}
		}()
		go func() { // gate: ends with x
			defer close(y)
			for v := range x {
				y <- v + 1
			}
		}()
		for v := range y {
			total += int64(v)
		}
		return nil
	})
}

func BenchmarkDemandOne(b *testing.B) {
	per(b, "stage", func(n int) error {
		next := 0
		src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
			for range min(want, n-next) {
				out.Emit(next)
				next++
			}
			if next == n {
				return Done
			}
			return nil
		})
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
			out.Emit(in[0] + 1)
			return nil
		})
		sink := NewSink("sink", func(_ context.Context, in []int) error {
			total += int64(in[0])
			return nil
		})
		g := NewGraph()
		Connect(g, src, gate, Demand(1, 0))
		Connect(g, gate, sink, Demand(1, 0))
		return g.Run(context.Background())
	})
	per(b, "channel", func(n int) error {
		askA, a, askB, c := make(chan struct{}), make(chan int), make(chan struct{}), make(chan int)
		go func() { // source: ends when the asks end
			defer close(a)
			i := 0
			for range askA {
				a <- i
				i++
			}
		}()
		go func() { // gate: ends when the asks end
			defer close(c)
			defer close(askA)
			for range askB {
				askA <- struct{}{}
				c <- <-a + 1
			}
		}()
		for range n {
			askB <- struct{}{}
			total += int64(<-c)
		}
		close(askB)
		<-c
		return nil
	})
}
