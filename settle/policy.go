package settle

import (
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock"
)

// Defaults of [Policy] and [Backoff].
const (
	DefaultAttempts = 5
	DefaultMin      = 100 * time.Millisecond
	DefaultMax      = 30 * time.Second
	DefaultFactor   = 2
	DefaultJitter   = 0.2
)

// Policy says how often a failing event is delivered, and how long to wait in
// between. The zero Policy is the default one.
type Policy struct {
	// Attempts is how many deliveries an event gets, the first one included,
	// before it becomes a dead letter. 0 is 5; a negative number means that
	// there is no limit.
	Attempts int
	Backoff  Backoff
}

// Backoff is the delay between attempts: Min after the first, Factor times as
// long after each further one, at most Max, each shortened by a random part of
// up to Jitter so that retries of many do not come at once. Zero fields take
// the defaults 100 ms, 30 s, 2 and 0.2.
type Backoff struct {
	Min    time.Duration
	Max    time.Duration // not below Min
	Factor float64       // at least 1
	Jitter float64       // in [0, 1]; a negative number means none
}

// Validate fills in defaults. The error matches [penstock.ErrInvalid] and
// names the field that is wrong.
func (p *Policy) Validate() error {
	if p.Attempts == 0 {
		p.Attempts = DefaultAttempts
	}
	return p.Backoff.validate()
}

func (b *Backoff) validate() error {
	switch {
	case b.Min < 0:
		return &penstock.FieldError{Field: "Backoff.Min", Reason: b.Min.String() + " is negative"}
	case b.Max < 0:
		return &penstock.FieldError{Field: "Backoff.Max", Reason: b.Max.String() + " is negative"}
	case b.Factor != 0 && !(b.Factor >= 1 && b.Factor <= math.MaxFloat64):
		return &penstock.FieldError{Field: "Backoff.Factor", Reason: fmt.Sprintf("%v is not a number of at least 1", b.Factor)}
	case b.Jitter > 1 || math.IsNaN(b.Jitter):
		return &penstock.FieldError{Field: "Backoff.Jitter", Reason: fmt.Sprintf("%v is not in [0, 1]", b.Jitter)}
	}
	if b.Max == 0 {
		b.Max = max(DefaultMax, b.Min)
	}
	if b.Min == 0 {
		b.Min = min(DefaultMin, b.Max)
	}
	if b.Max < b.Min {
		return &penstock.FieldError{Field: "Backoff.Max", Reason: fmt.Sprintf("%v is below Min, %v", b.Max, b.Min)}
	}
	if b.Factor == 0 {
		b.Factor = DefaultFactor
	}
	if b.Jitter == 0 {
		b.Jitter = DefaultJitter
	}
	return nil
}

// Delay returns how long to wait after the given failed attempt, counted from
// 1. random, in [0, 1), decides how much of the jitter is taken off. The result
// is in [(1-Jitter) * d, d] with d the delay without jitter, and d is in
// [Min, Max]. b must be valid.
func (b Backoff) Delay(attempt int, random float64) time.Duration {
	d := b.Max // also where the power exceeds what a Duration holds
	if grown := float64(b.Min) * math.Pow(b.Factor, float64(max(attempt, 1)-1)); grown < float64(b.Max) {
		d = min(d, time.Duration(grown)) // a float64 rounds
	}
	if b.Jitter > 0 {
		d -= min(d, time.Duration(float64(d)*b.Jitter*random))
	}
	return d
}
