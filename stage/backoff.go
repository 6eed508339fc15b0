package stage

import (
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// Defaults of [Restarts].
const (
	DefaultRestartMin    = 100 * time.Millisecond // before the first restart
	DefaultRestartMax    = 10 * time.Second       // before any
	DefaultRestartJitter = 0.2
	DefaultRestartBudget = 10 // restarts without a quiet window between them
	DefaultRestartWindow = time.Minute
)

// Restarts says how often a stage is restarted, and how long it waits before.
// The zero value has the defaults. Make one with [Backoff].
type Restarts struct {
	min, max time.Duration
	jitter   float64
	budget   int
	window   time.Duration
	err      error
}

// Backoff returns restarts that wait min before the first, twice as long before
// each next one, and max at most, and each time longer by a random part of it
// up to jitter, which is in [0, 1]: so that what failed together does not come
// back together. 0 for min and max means [DefaultRestartMin] and
// [DefaultRestartMax]. What is negative, a jitter above 1, or a max below min is
// an error at Start.
func Backoff(min, max time.Duration, jitter float64) Restarts {
	r := Restarts{min: min, max: max, jitter: jitter}
	switch {
	case min < 0:
		r.invalid("min %v is negative", min)
	case max < 0:
		r.invalid("max %v is negative", max)
	case !(jitter >= 0 && jitter <= 1):
		r.invalid("jitter %v is not in [0, 1]", jitter)
	}
	if r.min == 0 {
		r.min = DefaultRestartMin
	}
	if r.max == 0 {
		r.max = DefaultRestartMax
	}
	if r.max < r.min {
		r.invalid("max %v is below min %v", r.max, r.min)
	}
	return r
}

// AtMost returns r with a budget: a stage is restarted n times. One that fails
// once more, without having run for a whole window since its last restart, is
// given up, and the graph with it. Only such a window without a failure sets the
// count back, and the wait to min. 0 means [DefaultRestartBudget] and
// [DefaultRestartWindow]; a negative n allows no restart at all. A negative
// window is an error at Start.
func (r Restarts) AtMost(n int, window time.Duration) Restarts {
	r.budget, r.window = n, window
	if window < 0 {
		r.invalid("a window of %v is negative", window)
	}
	return r
}

func (r *Restarts) invalid(format string, args ...any) {
	if r.err == nil {
		r.err = &penstock.FieldError{Field: "Backoff", Reason: fmt.Sprintf(format, args...)}
	}
}

// filled returns r with the defaults in place of zeros.
func (r Restarts) filled() Restarts {
	if r.min == 0 { // not made by Backoff
		r.min, r.max, r.jitter = DefaultRestartMin, DefaultRestartMax, DefaultRestartJitter
	}
	if r.budget == 0 {
		r.budget = DefaultRestartBudget
	}
	if r.window == 0 {
		r.window = DefaultRestartWindow
	}
	return r
}

// longestBackoff keeps the end of a backoff within what an int64 of nanoseconds
// can tell.
const longestBackoff = 100 * 365 * 24 * time.Hour

// A tally is what decides about the next restart of one stage.
//
// Invariant: count restarts have come since the last window without a failure,
// the last one at last; 0 <= count <= max(0, budget).
type tally struct {
	count int
	last  time.Time
}

// next says whether a stage that fails now is restarted, and after which wait;
// chance is random in [0, 1). It is a pure function. r has no zeros.
func (t tally) next(r Restarts, now time.Time, chance float64) (after tally, wait time.Duration, ok bool) {
	if t.count > 0 && now.Sub(t.last) >= r.window {
		t.count = 0
	}
	if t.count >= r.budget {
		return t, 0, false
	}
	wait = r.min
	for range t.count {
		if wait > r.max-wait {
			wait = r.max
			break
		}
		wait *= 2
	}
	if more := float64(wait) * r.jitter * chance; float64(wait)+more < float64(longestBackoff) {
		wait += time.Duration(more)
	} else {
		wait = longestBackoff
	}
	t.count++
	t.last = now.Add(wait)
	return t, wait, true
}
