package queue

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// maxBurst bounds a burst, in events.
const maxBurst = 1 << 30

// bucket limits a group to a rate: tokens come in at rate per second, at most
// burst are kept, and each delivered event takes one. Whoever needs more than
// are there reserves them and is told when they will be: reservations are
// served in order, so a large batch is not starved by small ones. Over any time
// d at most burst + rate*d events are delivered.
//
// Invariant: tokens <= burst; it is negative by what is reserved and not there.
type bucket struct {
	rate  float64 // per second
	burst int

	mu     sync.Mutex
	tokens float64
	at     time.Time // tokens is of this moment
}

func newBucket(rate float64, burst int) *bucket {
	return &bucket{rate: rate, burst: burst, tokens: float64(burst), at: time.Now()}
}

// reserve takes n tokens, at most burst, and returns when they are there.
func (b *bucket) reserve(now time.Time, n int) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now)
	b.tokens -= float64(n)
	if b.tokens >= 0 {
		return now
	}
	wait := math.Ceil(-b.tokens / b.rate * float64(time.Second))
	return b.at.Add(time.Duration(min(wait, math.MaxInt64/2)))
}

func (b *bucket) refill(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.tokens = min(float64(b.burst), b.tokens+b.rate*d.Seconds())
		b.at = now
	}
}

// giveBack returns tokens that were reserved and are not needed. While others
// wait they are lost: those have been told their time, and would come on top of
// a bucket that these have filled.
func (b *bucket) giveBack(now time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now) // or what was reserved and has come since counts as waited for
	if b.tokens < 0 {
		return
	}
	b.tokens = min(float64(b.burst), b.tokens+float64(n))
}

// lateMax is how long a reservation is good. The bucket fills while it is not
// used, so what comes later would come on top of a full bucket.
const lateMax = 10 * time.Millisecond

// ticket is the reservation of one who takes batches. It belongs to the owner
// of its partitions.
type ticket struct {
	n       int
	at      time.Time // when it is good
	limited bool      // the last batch that was asked for waits for it
}

// allow returns how many of n events may be taken now. When it is none, t.at
// says when to ask again.
func (t *ticket) allow(c *control, n int) int {
	b, now := c.bucket, time.Now()
	if t.n > 0 && now.Sub(t.at) > lateMax {
		b.giveBack(now, t.n)
		t.n = 0
	}
	if t.n == 0 {
		t.n = min(n, b.burst)
		t.at = b.reserve(now, t.n)
	}
	if now.Before(t.at) {
		t.wait(c, true)
		return 0
	}
	return min(n, t.n)
}

// wait notes whether its owner waits for tokens.
func (t *ticket) wait(c *control, yes bool) {
	switch {
	case yes && !t.limited:
		c.limited.Add(1)
	case !yes && t.limited:
		c.limited.Add(-1)
	}
	t.limited = yes
}

// paid ends the reservation with n events taken.
func (t *ticket) paid(c *control, n int) {
	if t.n > n {
		c.bucket.giveBack(time.Now(), t.n-n)
	}
	t.wait(c, false)
	*t = ticket{}
}

// validateRate fills the default of Burst.
func (c *GroupConfig) validateRate() error {
	switch {
	case math.IsNaN(c.Rate) || math.IsInf(c.Rate, 0):
		return &penstock.FieldError{Field: "Rate", Reason: fmt.Sprintf("%v is not a number of events", c.Rate)}
	case c.Rate < 0:
		return &penstock.FieldError{Field: "Rate", Reason: fmt.Sprintf("%v is negative", c.Rate)}
	case c.Burst > 0 && c.Rate == 0:
		return &penstock.FieldError{Field: "Burst", Reason: "Rate is 0, which is no limit"}
	}
	if c.Burst == 0 && c.Rate > 0 {
		c.Burst = int(math.Ceil(min(c.Rate, maxBurst)))
	}
	return inRange("Burst", c.Burst, maxBurst)
}
