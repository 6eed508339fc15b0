package debugpage

import (
	"sync"
	"time"
)

// Rates are events per second, as the mean since an earlier look.
type Rates struct {
	In, Out float64
	Over    time.Duration // that they are the mean of; 0 when it is too short to tell
	Still   time.Duration // for how long Out has been seen to be zero
}

const (
	rateSpan  = 10 * time.Second // what rates are preferably the mean of
	rateStep  = time.Second      // how far apart readings are kept
	rateStale = time.Minute      // what is older is taken only for want of another
	rateLeast = 100 * time.Millisecond
	rateKept  = 16 // readings; more than rateSpan/rateStep
)

// Stale reports whether rates are not known, or of long ago.
func (r Rates) Stale() bool { return r.Over == 0 || r.Over > rateStale }

// reading is a pair of counters at a time.
type reading struct {
	at      time.Time
	in, out uint64
}

// Meter turns readings of counters into rates. It is safe for concurrent use,
// costs nothing until it is read, and is bounded.
//
// Invariants: kept is in the order of time, at most rateKept long, and begins
// with the reading at the start or a later one. movedAt is when last.out was
// seen first.
type Meter struct {
	mu      sync.Mutex
	kept    []reading
	last    reading
	movedAt time.Time
}

// Start sets the reading at the beginning.
func (m *Meter) Start(now time.Time, in, out uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last, m.movedAt = reading{now, in, out}, now
	m.kept = nil
}

// Read takes a reading and returns the rates since an earlier one.
func (m *Meter) Read(now time.Time, in, out uint64) Rates {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.kept) == 0 {
		m.kept = append(make([]reading, 0, rateKept), m.last)
	}
	if now.Before(m.last.at) { // another reader was faster
		now = m.last.at
	}
	if in < m.last.in || out < m.last.out { // a counter went back: begin again
		m.kept = m.kept[:0]
	}
	if out != m.last.out {
		m.movedAt = now
	}
	m.last = reading{now, in, out}
	if len(m.kept) == 0 {
		m.kept = append(m.kept, m.last)
	}
	r := m.since(now)
	if now.Sub(m.kept[len(m.kept)-1].at) >= rateStep {
		if len(m.kept) == rateKept {
			m.kept = append(m.kept[:0], m.kept[1:]...)
		}
		m.kept = append(m.kept, m.last)
	}
	r.Still = now.Sub(m.movedAt)
	return r
}

// since returns the rates since the reading that base names.
func (m *Meter) since(now time.Time) Rates {
	from, ok := m.base(now)
	if !ok {
		return Rates{}
	}
	over := now.Sub(from.at)
	return Rates{
		In:   float64(m.last.in-from.in) / over.Seconds(),
		Out:  float64(m.last.out-from.out) / over.Seconds(),
		Over: over,
	}
}

// base returns the latest reading that is rateSpan old and not stale, else the
// earliest younger one that is old enough to tell a rate, else the latest of
// the stale ones.
func (m *Meter) base(now time.Time) (from reading, ok bool) {
	for _, r := range m.kept {
		age := now.Sub(r.at)
		if age < rateLeast || ok && age < rateSpan && now.Sub(from.at) <= rateStale {
			break
		}
		from, ok = r, true
	}
	return from, ok
}
