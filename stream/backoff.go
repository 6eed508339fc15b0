package stream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
)

// Backoff says how long to wait before a repetition. Implementations must be
// safe for concurrent use. One that panics is logged, and a second is waited.
type Backoff interface {
	// Next returns the wait before repetition n, counted from 0; a negative one
	// is none.
	Next(n int) time.Duration
}

// brokenPause is the wait where a backoff has failed to tell one.
const brokenPause = time.Second

// pause asks a backoff of the configuration, on a worker: it is user code.
func (r *run) pause(field string, b Backoff, n int) (d time.Duration) {
	if f, ok := b.(Fixed); ok {
		return time.Duration(f)
	}
	if err := guard.Call(field, func() error { d = b.Next(n); return nil }); err != nil {
		r.log.Error("backoff failed", r.fields("waiting", brokenPause, "err", err)...)
		return brokenPause
	}
	return d
}

// backOff waits before repetition n of a delivery or a handshake that began at
// started. When its time would be used up by then it returns errExpired at once.
func (r *run) backOff(ctx context.Context, n int, started time.Time, stop <-chan struct{}) error {
	d := r.pause("DeliveryBackoff", r.deliveryBackoff, n)
	if r.maxDelivery >= 0 && d > r.maxDelivery-time.Since(started) {
		return errExpired
	}
	if err := sleep(ctx, d, stop); err != nil {
		return err
	}
	if r.expired(started) {
		return errExpired
	}
	return nil
}

// Exponential waits for a random time in [Min, min(Min + Step*2^n, Max)).
type Exponential struct {
	Min, Max, Step time.Duration
	// Rand returns a random number in [0, n); nil means package math/rand/v2.
	Rand func(n int64) int64
}

func (e Exponential) validate(field string) error {
	if e.Min < 0 || e.Step < 0 || e.Max < e.Min {
		return &penstock.FieldError{Field: field, Reason: fmt.Sprintf("min %v, max %v, step %v: need 0 <= min <= max and step >= 0", e.Min, e.Max, e.Step)}
	}
	return nil
}

// Next returns the wait before repetition n.
func (e Exponential) Next(n int) time.Duration {
	top := e.Max
	if n < 62 && e.Step <= (e.Max-e.Min)>>n {
		top = e.Min + e.Step<<n
	}
	if top <= e.Min {
		return e.Min
	}
	random := e.Rand
	if random == nil {
		random = rand.Int64N
	}
	return e.Min + time.Duration(random(int64(top-e.Min)))
}

// Fixed waits for the same time before every repetition.
type Fixed time.Duration

// Next returns the time.
func (f Fixed) Next(int) time.Duration { return time.Duration(f) }
