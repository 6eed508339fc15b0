package queue

import (
	"math"
	"testing"
	"time"
)

func TestDrainTime(t *testing.T) {
	over := 10 * time.Second
	for _, c := range []struct {
		name string
		lag  uint64
		r    Rates
		want time.Duration
	}{
		{"no lag", 0, Rates{}, 0},
		{"rates not known", 10, Rates{}, NeverDrains},
		{"stands still", 10, Rates{In: 1, Over: over}, NeverDrains},
		{"drains", 600, Rates{In: 10, Out: 70, Over: over}, 10 * time.Second},
		{"falls behind", 6000, Rates{In: 70, Out: 70, Over: over}, NeverDrains},
		{"keeps up", 35, Rates{In: 70, Out: 70, Over: over}, 500 * time.Millisecond},
		{"as good as never", math.MaxUint64, Rates{In: 1, Out: 1.0000001, Over: over}, drainMax},
	} {
		if got := drainTime(c.lag, c.r); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
