package seglog

import (
	"sync"
	"sync/atomic"
	"time"
)

// clockStep is how long a reading of [Clock] may be used again.
const clockStep = time.Millisecond

// Clock is a coarse wall clock for append times: a reading is at most about
// 1 ms old, and costs one atomic load while it is fresh (ADR 0020). It runs
// nothing while nobody asks. Safe for concurrent use.
//
// Invariant: now is 0 (stale), or a timer that makes it stale is running.
type Clock struct {
	now atomic.Int64 // Unix nanoseconds; 0 when stale

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

// NewClock returns a clock. Its timer is made at the first reading.
func NewClock() *Clock { return &Clock{} }

// UnixNano returns the wall time, at most about 1 ms old.
func (c *Clock) UnixNano() int64 {
	if now := c.now.Load(); now != 0 {
		return now
	}
	return c.refresh()
}

func (c *Clock) refresh() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now.Load(); now != 0 {
		return now
	}
	now := time.Now().UnixNano()
	if now == 0 || c.stopped {
		return now
	}
	c.now.Store(now)
	if c.timer == nil {
		c.timer = time.AfterFunc(clockStep, c.expire)
	} else {
		c.timer.Reset(clockStep)
	}
	return now
}

func (c *Clock) expire() { c.now.Store(0) }

// Stop ends the timer. Readings after it are exact and cost a call of
// time.Now each.
func (c *Clock) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	c.now.Store(0)
	if c.timer != nil {
		c.timer.Stop()
	}
}
