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
	maxReprieve = 400 * time.Millisecond
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

// crasher kills and restarts the node at its moments. A moment that passed
// while the node was restarting, or that is still owed when hurry is closed,
// comes after a random reprieve of up to 400 ms, so that a node is killed at
// any point of its work and not always as it begins. It returns when all are
// done, ctx ends, or the node does not come back.
func crasher(ctx context.Context, seed uint64, at []time.Duration, hurry <-chan struct{}, crash func(context.Context) error) error {
	start := time.Now()
	r := rand.New(rand.NewPCG(seed, 4))
	for _, moment := range at {
		reprieve := time.Duration(r.Int64N(int64(maxReprieve)))
		if err := await(ctx, max(moment-time.Since(start), reprieve), reprieve, hurry); err != nil {
			return err
		}
		if err := crash(ctx); err != nil {
			return err
		}
	}
	return nil
}

// await waits for a while, from the moment that hurry is closed no longer than
// the reprieve.
func await(ctx context.Context, while, reprieve time.Duration, hurry <-chan struct{}) error {
	timer := time.NewTimer(while)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-hurry:
		timer.Reset(min(while, reprieve))
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
