package stream

import "time"

// PressureMonitor judges how far the cursors of a [LogCache] lag. It belongs
// to one cache, which calls it from one goroutine; it must not block.
type PressureMonitor interface {
	// Read tells of a container that a cursor has read. lag is its distance
	// from the newest container as a share of what the cache holds, in [0, 1].
	Read(lag float64, now time.Time)
	// UnderPressure reports whether reading the queue should pause.
	UnderPressure(now time.Time) bool
}

// leastSpan is how many times its MaxAdd a cache must hold for the lag of a
// cursor to mean anything.
const leastSpan = 10

// contribute tells the monitors of a read.
func (l *LogCache) contribute(it *item) {
	if l.count < leastSpan*l.config.MaxAdd {
		return
	}
	lag, now := float64(l.number-it.number)/float64(l.count), time.Now()
	for _, m := range l.config.Monitors {
		m.Read(lag, now)
	}
}

// Averaging sees pressure when the mean lag of the reads since the last check
// is above Threshold; reads at or above it weigh three times. It favours
// throughput: a single slow cursor among fast ones does not stop reading.
// Without reads the judgement stays, but after five checks in a row without
// any there is no pressure. The zero value is ready for use.
type Averaging struct {
	Threshold float64       // 1/3 when zero; a share in (0, 1]
	Recheck   time.Duration // 2 s when zero; between two checks

	sum, weight float64
	checked     time.Time
	empty       int // checks in a row without a read
	pressure    bool
}

const (
	heavyWeight = 3 // of a read at or above the threshold
	emptyChecks = 5 // after so many checks without reads there is no pressure
)

func (a *Averaging) threshold() float64 {
	if a.Threshold == 0 {
		return 1.0 / 3
	}
	return a.Threshold
}

// Read implements [PressureMonitor].
func (a *Averaging) Read(lag float64, _ time.Time) {
	w := 1.0
	if lag >= a.threshold() {
		w = heavyWeight
	}
	a.sum += w * lag
	a.weight += w
}

// UnderPressure implements [PressureMonitor].
func (a *Averaging) UnderPressure(now time.Time) bool {
	recheck := a.Recheck
	if recheck == 0 {
		recheck = 2 * time.Second
	}
	if now.Sub(a.checked) < recheck {
		return a.pressure
	}
	a.checked = now
	switch {
	case a.weight > 0:
		a.pressure = a.sum/a.weight > a.threshold()
		a.sum, a.weight, a.empty = 0, 0, 0
	case a.pressure:
		if a.empty++; a.empty >= emptyChecks {
			a.pressure, a.empty = false, 0
		}
	}
	return a.pressure
}

// SlowConsumer sees pressure from a read whose lag is above Threshold until
// Window has passed without another one. It protects the slowest subscription.
// The zero value is ready for use.
type SlowConsumer struct {
	Threshold float64       // 0.5 when zero; a share in (0, 1]
	Window    time.Duration // 1 min when zero

	until time.Time
}

// Read implements [PressureMonitor].
func (s *SlowConsumer) Read(lag float64, now time.Time) {
	threshold, window := s.Threshold, s.Window
	if threshold == 0 {
		threshold = 0.5
	}
	if window == 0 {
		window = time.Minute
	}
	if lag > threshold {
		s.until = now.Add(window)
	}
}

// UnderPressure implements [PressureMonitor].
func (s *SlowConsumer) UnderPressure(now time.Time) bool { return now.Before(s.until) }

// threshold returns that of a monitor of this package.
func threshold(m PressureMonitor) (share float64, ok bool) {
	switch m := m.(type) {
	case *Averaging:
		return m.Threshold, true
	case *SlowConsumer:
		return m.Threshold, true
	}
	return 0, false
}
