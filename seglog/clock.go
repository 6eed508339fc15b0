package seglog

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// clockStep is how long a reading of [Clock] may be used again.
	clockStep = time.Millisecond
	// clockRun is how many readings close together are exact before one is used
	// again.
	clockRun = 16
)

// Clock is a coarse wall clock for append times: a reading is at most about
// 1 ms old, and costs one atomic load while it is fresh (ADR 0020). It runs
// nothing while nobody asks, and nothing while it is asked now and then: those
// readings are exact. To set a timer may cost a call of the system and the
// wake-up of a thread, more than many readings of the time, and whoever
// produces a single event waits for it. Safe for concurrent use.
//
// Invariant: now is 0 (stale), or a timer that makes it stale is running.
type Clock struct {
	now atomic.Int64 // Unix nanoseconds; 0 when stale

	mu      sync.Mutex
	last    int64 // the last reading of the system's clock
	row     int   // how many in a row
	timer   *time.Timer
	stopped bool
}

// NewClock returns a clock. Its timer is made when it is first asked often.
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
	if !c.often(now) {
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

// often notes an exact reading, and reports whether the clock is asked so often
// that the reading is worth a timer: after clockRun readings that came close
// together, and at once when the last one had a timer that has just run out.
func (c *Clock) often(now int64) bool {
	apart := time.Duration(now - c.last)
	c.last = now
	close := clockStep / 2
	if c.row == clockRun {
		close = clockStep + clockStep/2
	}
	if apart < 0 || apart >= close {
		c.row = 0
	}
	if c.row < clockRun {
		c.row++
		return false
	}
	return true
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
