package stage

import (
	"context"
	"fmt"
	"testing"
)

func fan(n int, dispatch func(*Source[int64]) func(i int) Outleter[int64], times int) error {
	next := 0
	src := Pull("source", func(_ context.Context, want int, out *Output[int64]) error {
		to := out.Grow(min(want, n-next))
		for i := range to {
			to[i] = int64(next)
			next++
		}
		if next == n {
			return Done
		}
		return nil
	})
	of := dispatch(src)
	g := NewGraph()
	var seen [4]struct {
		n   int
		sum int64
		_   [6]int64
	}
	for i := range 4 {
		Connect(g, of(i), NewSink(fmt.Sprint("sink ", i), func(_ context.Context, in []int64) error {
			for _, v := range in {
				seen[i].sum += v
			}
			seen[i].n += len(in)
			return nil
		}))
	}
	err := g.Run(context.Background())
	if got := seen[0].n + seen[1].n + seen[2].n + seen[3].n; err == nil && got != n*times {
		err = fmt.Errorf("%d of %d events arrived", got, n*times)
	}
	return err
}

func BenchmarkFanOut(b *testing.B) {
	per(b, "broadcast4", func(n int) error {
		return fan(n, func(s *Source[int64]) func(int) Outleter[int64] {
			s.Broadcast()
			return func(int) Outleter[int64] { return s }
		}, 4)
	})
	per(b, "partition4", func(n int) error {
		return fan(n, func(s *Source[int64]) func(int) Outleter[int64] {
			s.Dispatch(Partition(4, func(v int64) int { return int(v) }))
			return func(i int) Outleter[int64] { return s.Out().Partition(i) }
		}, 1)
	})
}
