package demo

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// quietStart and quietEnd keep the first and the last kill off the very ends
// of the time for which events are produced.
const (
	quietStart  = 300 * time.Millisecond
	quietEnd    = 300 * time.Millisecond
	meanBetween = 3 * time.Second // kills, when nobody knows how long events will come
)

// moments returns n moments, ascending, spread at random over span, the same
// ones for the same seed. When span is 0 the end is not known: the distances
// between the moments are then random around their mean.
func moments(seed uint64, n int, span time.Duration) []time.Duration {
	r := rand.New(rand.NewPCG(seed, 3))
	at := make([]time.Duration, n)
	if span <= 0 {
		last := quietStart
		for i := range at {
			last += time.Duration(r.Float64() * 2 * float64(meanBetween))
			at[i] = last
		}
		return at
	}
	room := max(span-quietStart-quietEnd, span/2)
	for i := range at {
		at[i] = min(quietStart, span/4) + time.Duration(r.Float64()*float64(room))
	}
	slices.Sort(at)
	return at
}

// crasher kills and restarts the node at its moments, and at once for those
// that are still owed when hurry is closed. It returns when all are done, ctx
// ends, or the node does not come back.
func crasher(ctx context.Context, at []time.Duration, hurry <-chan struct{}, crash func(context.Context) error) error {
	start := time.Now()
	for _, moment := range at {
		wait := time.NewTimer(moment - time.Since(start))
		select {
		case <-wait.C:
		case <-hurry:
		case <-ctx.Done():
		}
		wait.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := crash(ctx); err != nil {
			return err
		}
	}
	return nil
}
