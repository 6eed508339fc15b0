package stage

import (
	"context"
	"math"
	"testing"
	"time"
)

// BenchmarkOperators runs events through one operator, between a source and a
// sink that cost next to nothing. BenchmarkOperators/none is what they cost.
func BenchmarkOperators(b *testing.B) {
	l, err := NewLimiter(LimiterConfig{Events: math.MaxInt32, Burst: math.MaxInt32})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		gate func() *Gate[int, int]
	}{
		{"none", func() *Gate[int, int] { return Pass[int]("pass") }},
		{"scan", func() *Gate[int, int] { return Scan(0, func(s, v int) int { return s + v }) }},
		{"filter", func() *Gate[int, int] { return Filter(func(v *int) bool { return *v%2 == 0 }) }},
		{"filtermap", func() *Gate[int, int] { return FilterMap(func(v int) (int, bool) { return v, v%2 == 0 }) }},
		{"dedupe", func() *Gate[int, int] { return DedupeAdjacent[int]() }},
		{"takewhile", func() *Gate[int, int] { return TakeWhile(func(*int) bool { return true }) }},
		{"buffer", func() *Gate[int, int] { return BufferGate[int](1000, Wait) }},
		{"throttle", func() *Gate[int, int] { return Throttle[int](l) }},
		{"delay", func() *Gate[int, int] { return Delay[int](0, 0) }},
		{"concurrent4", func() *Gate[int, int] {
			return MapConcurrent(4, func(_ context.Context, v int) (int, error) { return v, nil })
		}},
	} {
		per(b, c.name, func(n int) error { return operate(n, c.gate()) })
	}
	per(b, "batch100", func(n int) error { return operate(n, BatchN[int](100)) })
	per(b, "within100", func(n int) error { return operate(n, BatchWithin[int](100, time.Second)) })
	per(b, "unbatch100", func(n int) error {
		g, batch, un := NewGraph(), BatchN[int](100), Unbatch[int]()
		Connect(g, numbers(n), batch)
		Connect(g, batch, un)
		Connect(g, un, Discard[int]())
		return g.Run(context.Background())
	})
}

// BenchmarkSources runs events from a source into a sink.
func BenchmarkSources(b *testing.B) {
	run := func(src *Source[int]) error {
		g := NewGraph()
		Connect(g, src, Discard[int]())
		return g.Run(context.Background())
	}
	upTo := func(n int) func(yield func(int) bool) {
		return func(yield func(int) bool) {
			for i := range n {
				if !yield(i) {
					return
				}
			}
		}
	}
	per(b, "pull", func(n int) error { return run(numbers(n)) })
	per(b, "seq", func(n int) error { return run(FromSeq("seq", upTo(n))) })
	per(b, "func", func(n int) error {
		return run(Func("func", func(_ context.Context, yield func(int) bool) error {
			upTo(n)(yield)
			return nil
		}))
	})
	per(b, "chan", func(n int) error {
		ch := make(chan int, 1000)
		go func() { // ends after n events, which the source takes
			defer close(ch)
			upTo(n)(func(v int) bool { ch <- v; return true })
		}()
		return run(FromChan("chan", ch))
	})
}

// BenchmarkAll runs a loop over a source.
func BenchmarkAll(b *testing.B) {
	per(b, "all", func(n int) error {
		for v, err := range numbers(n).Out().All(context.Background()) {
			if err != nil {
				return err
			}
			total += int64(v)
		}
		return nil
	})
}

func numbers(n int) *Source[int] {
	next := 0
	return Pull("numbers", func(_ context.Context, want int, out *Output[int]) error {
		to := out.Grow(min(want, n-next))
		for i := range to {
			to[i] = next
			next++
		}
		if next == n {
			return Done
		}
		return nil
	})
}

func operate[Out any](n int, gate *Gate[int, Out]) error {
	g := NewGraph()
	Connect(g, numbers(n), gate)
	Connect(g, gate, Discard[Out]())
	return g.Run(context.Background())
}
