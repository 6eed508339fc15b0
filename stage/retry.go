package stage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/penstock/penstock"
)

// ErrGivenUp is what a call of [MapConcurrent], [MapConcurrentUnordered] or
// [MapPartitioned] returns, alone or wrapped, when its event was dealt with in
// another way and is not to be emitted, such as one that was put aside as a dead
// letter: the event counts as failed, and the gate goes on whatever its
// [Reaction].
var ErrGivenUp = errors.New("given up")

// RetryConfig says how often, and when, a [Retrier] calls again.
type RetryConfig struct {
	// Attempts is how often a function is called for one event at most; 0 means
	// 5.
	Attempts int
	// Min is how long it waits before the second call, twice as long before each
	// next one, and Max is the longest wait; 0 means [DefaultRestartMin] and
	// [DefaultRestartMax].
	Min, Max time.Duration
	// Jitter makes each wait longer by a random part of it up to Jitter, at most
	// 1; 0 means [DefaultRestartJitter], and a negative value that there is none.
	Jitter float64
	// Final says of an error that calling again will not help; nil: of none.
	Final func(error) bool
}

// DefaultAttempts is how often a [Retrier] calls a function for one event.
const DefaultAttempts = 5

// Retrier calls again what has failed. Make one with [NewRetrier]; functions may
// share it. It holds nothing but its configuration.
type Retrier struct {
	attempts int
	schedule Restarts
	final    func(error) bool
}

// NewRetrier returns a retrier. The error matches [penstock.ErrInvalid] and names
// the field: Attempts, Min and Max must not be negative, nor Max below Min, nor
// Jitter above 1.
func NewRetrier(c RetryConfig) (*Retrier, error) {
	invalid := func(field, format string, args ...any) (*Retrier, error) {
		return nil, &penstock.FieldError{Field: "RetryConfig." + field, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case c.Attempts < 0:
		return invalid("Attempts", "%d is negative", c.Attempts)
	case c.Min < 0:
		return invalid("Min", "%v is negative", c.Min)
	case c.Max < 0:
		return invalid("Max", "%v is negative", c.Max)
	case !(c.Jitter <= 1):
		return invalid("Jitter", "%v is not a number of at most 1", c.Jitter)
	}
	if c.Attempts == 0 {
		c.Attempts = DefaultAttempts
	}
	switch {
	case c.Jitter == 0:
		c.Jitter = DefaultRestartJitter
	case c.Jitter < 0:
		c.Jitter = 0
	}
	r := Backoff(c.Min, c.Max, c.Jitter)
	if r.err != nil {
		return invalid("Max", "%v is below Min %v", r.max, r.min)
	}
	r.budget, r.window = c.Attempts-1, 1<<62
	return &Retrier{attempts: c.Attempts, schedule: r, final: c.Final}, nil
}

// WithRetry returns a function for [MapConcurrent] and its like that calls f, and
// calls it again for the same event, after a wait, when it has failed. In
// between the event keeps its place: its result comes where it belongs, and at
// most n events are under way. [Done], [ErrGivenUp] and a panic are passed on at
// once, and so is the end of ctx, which ends a wait.
//
// An error that is Final, or that of the last attempt, is passed on too. When
// giveUp is not nil it is called with it instead, in the same goroutine: it may
// put the event aside as a dead letter. Its error is passed on; when it returns
// nil the event counts as failed and the gate goes on, see [ErrGivenUp]. With a
// nil r or f WithRetry returns nil, which is an error at Start.
func WithRetry[In, Out any](
	r *Retrier, f func(ctx context.Context, v In) (Out, error), giveUp func(ctx context.Context, v In, err error) error,
) func(ctx context.Context, v In) (Out, error) {
	if r == nil || f == nil {
		return nil
	}
	return func(ctx context.Context, v In) (Out, error) {
		var t tally
		for {
			out, err := f(ctx, v)
			if err == nil || errors.Is(err, Done) || errors.Is(err, ErrGivenUp) || isInterrupt(ctx, err) {
				return out, err
			}
			wait, again := time.Duration(0), r.final == nil || !r.final(err)
			if again {
				t, wait, again = t.next(r.schedule, time.Now(), rand.Float64())
			}
			if again {
				if err := pause(ctx, wait); err != nil {
					return out, err
				}
				continue
			}
			if giveUp == nil {
				return out, err
			}
			if err := giveUp(ctx, v, err); err != nil {
				return out, err
			}
			return out, fmt.Errorf("%w: %w", ErrGivenUp, err)
		}
	}
}

// pause waits, for at most as long as ctx lives.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return penstock.ContextError(ctx)
	}
}
