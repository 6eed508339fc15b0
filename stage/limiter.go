package stage

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// ErrRateExceeded ends a gate made by [Throttle] or [ThrottleCost] when an
// event comes faster than its [Limiter] allows, and the limiter enforces.
var ErrRateExceeded = errors.New("rate exceeded")

// LimiterConfig says what a [Limiter] lets through.
type LimiterConfig struct {
	// Events may pass in every Per, in a long run. Required, at least 1.
	Events int
	// Per is the time that Events counts for; 0 means a second.
	Per time.Duration
	// Burst may pass at once after a time in which nothing did; 0 means 1.
	Burst int
	// Enforce makes what comes too fast an error, [ErrRateExceeded], in place
	// of having it wait.
	Enforce bool
}

func (c *LimiterConfig) validate() error {
	field := func(name, format string, args ...any) error {
		return &penstock.FieldError{Field: "LimiterConfig." + name, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case c.Events < 1:
		return field("Events", "%d is not positive", c.Events)
	case c.Per < 0:
		return field("Per", "%v is negative", c.Per)
	case c.Burst < 0:
		return field("Burst", "%d is negative", c.Burst)
	}
	if c.Per == 0 {
		c.Per = time.Second
	}
	if c.Burst == 0 {
		c.Burst = 1
	}
	switch {
	case int64(c.Burst) > math.MaxInt64/4/int64(c.Per):
		return field("Burst", "%d in %v is too large", c.Burst, c.Per)
	case int64(c.Events) > math.MaxInt64/4/int64(c.Per):
		return field("Events", "%d in %v is too large", c.Events, c.Per)
	}
	return nil
}

// Limiter is a bucket of tokens, for one gate or shared by many: it begins with
// Burst tokens, gets Events new ones every Per, evenly, and holds at most
// Burst. What costs more than Burst is let through when the tokens for it would
// have come. Gates that share a limiter are served in the order in which they
// ask. The arithmetic is exact: no rate drifts by rounding. Safe for
// concurrent use.
//
// Invariant: credit <= burst*per, in units of one token divided by per.
type Limiter struct {
	events, per, burst int64
	enforce            bool

	mu     sync.Mutex
	credit int64 // tokens times per; negative where some are promised
	seen   time.Time
}

// NewLimiter returns a full bucket. The error names the field that is wrong.
func NewLimiter(c LimiterConfig) (*Limiter, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	l := &Limiter{events: int64(c.Events), per: int64(c.Per), burst: int64(c.Burst), enforce: c.Enforce}
	l.credit = l.burst * l.per
	return l, nil
}

// maxCost bounds what one event may cost, so that the arithmetic cannot wrap:
// half of what credit can express.
func (l *Limiter) maxCost() int64 { return math.MaxInt64 / 4 / l.per }

// refill adds the tokens that have come since the last call.
func (l *Limiter) refill(now time.Time) {
	if l.seen.IsZero() {
		l.seen = now
	}
	elapsed := int64(now.Sub(l.seen))
	if elapsed <= 0 {
		return
	}
	l.seen = now
	missing := l.burst*l.per - l.credit // >= 0
	if elapsed > missing/l.events {
		l.credit = l.burst * l.per
	} else {
		l.credit += elapsed * l.events
	}
}

// take takes cost tokens at once, or none.
func (l *Limiter) take(now time.Time, cost int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refill(now)
	if need := min(cost, l.maxCost()) * l.per; need <= l.credit {
		l.credit -= need
		return true
	}
	return false
}

// reserve takes cost tokens now, also ones that have not come yet, and returns
// how long it takes until they have.
func (l *Limiter) reserve(now time.Time, cost int64) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refill(now)
	l.credit = max(l.credit-min(cost, l.maxCost())*l.per, -math.MaxInt64/2)
	if l.credit >= 0 {
		return 0
	}
	return time.Duration((-l.credit + l.events - 1) / l.events)
}

// giveBack returns tokens that were reserved and not used.
func (l *Limiter) giveBack(cost int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.credit = min(l.credit+min(cost, l.maxCost())*l.per, l.burst*l.per)
}
