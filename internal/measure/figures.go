package measure

import (
	"slices"
	"time"
)

// A Spread is the median of some figures, the smallest and the largest.
type Spread struct{ Median, Min, Max float64 }

// SpreadOf returns the spread of at least one figure.
func SpreadOf(s []float64) Spread {
	return Spread{Median(s), slices.Min(s), slices.Max(s)}
}

// Ratio pairs two sides' figures round by round: a's over b's. Above 1 means
// that b took less.
func Ratio(a, b []float64) Spread {
	paired := make([]float64, len(a))
	for i := range a {
		paired[i] = a[i] / b[i]
	}
	return SpreadOf(paired)
}

// Median returns the middle of at least one figure, the mean of the two middle
// ones of an even number.
func Median(s []float64) float64 {
	s = slices.Sorted(slices.Values(s))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// Percentile returns, in nanoseconds, the sample below which lies the share q
// of at least one sample.
func Percentile(samples []time.Duration, q float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	return float64(s[min(len(s)-1, int(q*float64(len(s))))].Nanoseconds())
}

// Percentiles returns the percentile of each round.
func Percentiles(rounds [][]time.Duration, q float64) []float64 {
	var all []float64
	for _, r := range rounds {
		all = append(all, Percentile(r, q))
	}
	return all
}
