package measure

import (
	"runtime"
	"time"
)

// A Side is one of the things that are compared. Run does one iteration, with
// the part that counts inside the clock, and checks it; its error says what was
// wrong. It is called by one goroutine at a time.
type Side struct {
	Name string
	Run  func(c *Clock) error
}

// A Clock runs while the work that counts is done. It is for one goroutine.
type Clock struct {
	Every   bool            // the untimed pass: check every event
	Allocs  bool            // count allocations as well; the time is then not of use
	Elapsed time.Duration   // of all spans
	Events  int             // of all spans
	Mallocs uint64          // of all goroutines, during all spans
	Samples []time.Duration // of sides that measure latency

	began time.Time
	mem   runtime.MemStats
}

// Start begins a span.
func (c *Clock) Start() {
	if c.Allocs {
		runtime.ReadMemStats(&c.mem)
		c.Mallocs -= c.mem.Mallocs
	}
	c.began = time.Now()
}

// Stop ends the span, in which so many events were worked on.
func (c *Clock) Stop(events int) {
	c.Add(time.Since(c.began), events)
	if c.Allocs {
		runtime.ReadMemStats(&c.mem)
		c.Mallocs += c.mem.Mallocs
	}
}

// Add counts a span that was measured in another way, such as processor time.
func (c *Clock) Add(d time.Duration, events int) {
	c.Elapsed += d
	c.Events += events
}

func (c *Clock) nsPerEvent() float64 { return float64(c.Elapsed.Nanoseconds()) / float64(c.Events) }
