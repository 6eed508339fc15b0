package queue

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Rates are events per second. They are taken when somebody asks, as the mean
// since an earlier call of Stats: one about ten seconds ago, or the earliest of
// the last minute, or the last one before that, or the beginning. Nothing runs
// in between.
type Rates struct {
	In  float64 // appended to the topic
	Out float64 // committed
	// Over is the time that the rates are the mean of; 0 when it is too short
	// to tell.
	Over time.Duration
	// Still is for how long Out has been seen to be zero; 0 while events are
	// committed.
	Still time.Duration
}

// NeverDrains is the drain time of a group that does not get nearer to the end.
const NeverDrains time.Duration = -1

const (
	rateSpan  = 10 * time.Second // what rates are preferably the mean of
	rateStep  = time.Second      // how far apart readings are kept
	rateStale = time.Minute      // what is older is taken only for want of another
	rateLeast = 100 * time.Millisecond
	rateKept  = 16 // readings; more than rateSpan/rateStep
)

// drainMax bounds a drain time that is computed from very small rates.
const drainMax = 100 * 365 * 24 * time.Hour

// reading is a pair of counters at a time.
type reading struct {
	at      time.Time
	in, out uint64
}

// meter turns readings of counters into rates. It is safe for concurrent use,
// costs nothing until it is read, and is bounded.
//
// Invariants: kept is in the order of time, at most rateKept long, and begins
// with the reading at the start or a later one. movedAt is when last.out was
// seen first.
type meter struct {
	mu      sync.Mutex
	kept    []reading
	last    reading
	movedAt time.Time
}

// start sets the reading at the beginning.
func (m *meter) start(now time.Time, in, out uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last, m.movedAt = reading{now, in, out}, now
	m.kept = nil
}

// read takes a reading and returns the rates since an earlier one.
func (m *meter) read(now time.Time, in, out uint64) Rates {
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
func (m *meter) since(now time.Time) Rates {
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
func (m *meter) base(now time.Time) (from reading, ok bool) {
	for _, r := range m.kept {
		age := now.Sub(r.at)
		if age < rateLeast || ok && age < rateSpan && now.Sub(from.at) <= rateStale {
			break
		}
		from, ok = r, true
	}
	return from, ok
}

// drainTime returns how long a lag lasts at given rates. A lag of less than a
// second's work is on its way, whatever comes in.
func drainTime(lag uint64, r Rates) time.Duration {
	switch net := r.Out - r.In; {
	case lag == 0:
		return 0
	case r.Over == 0 || r.Out <= 0:
		return NeverDrains
	case float64(lag) <= r.Out:
		return seconds(float64(lag) / r.Out)
	case net > 0:
		return seconds(float64(lag) / net)
	}
	return NeverDrains
}

func seconds(s float64) time.Duration {
	if s >= drainMax.Seconds() {
		return drainMax
	}
	return time.Duration(s * float64(time.Second))
}

// topicSeen is what a topic keeps for those who look at it.
type topicSeen struct {
	opened  time.Time
	refused atomic.Uint64 // events
	// keyPanics counts looks at events on which Config.Key panicked.
	keyPanics atomic.Uint64
	meter     meter
	number    uint64 // in the registry; 0 when it is not there
	dropped   runtime.Cleanup
}

// look begins to watch a topic, whose partitions stand.
func (t *Topic[T]) look() {
	t.seen.opened = time.Now()
	in, out := uint64(0), uint64(0)
	for _, p := range t.parts {
		in += uint64(p.end())
		out += uint64(p.marks.Committed())
	}
	t.seen.meter.start(t.seen.opened, in, out)
	if !t.config.hidden {
		show(&openTopics, t)
	}
}

// lookAway ends what look began.
func (t *Topic[T]) lookAway() {
	t.seen.dropped.Stop()
	openTopics.hide(t.seen.number)
}

// refuse counts n events as refused for want of capacity.
func (t *Topic[T]) refuse(n int) error {
	t.seen.refused.Add(uint64(n))
	return t.full
}

// groupSeen is what a group keeps for those who look at it.
type groupSeen struct {
	meter     meter
	began     int64        // what was committed when the group was made
	sought    atomic.Int64 // events that seeks passed over; those passed back to are negative
	lastError atomic.Pointer[GroupError]
}

// look begins to watch a group, whose cursors stand.
func (g *Group[T]) look() {
	in, out := uint64(0), uint64(0)
	for i, c := range g.cursors {
		in += uint64(g.topic.parts[i].end())
		out += uint64(c.shown().Committed())
	}
	g.seen.began = int64(out)
	g.seen.meter.start(time.Now(), in, 0)
}

// measureRates fills in the rates. Commits and ends stand.
func (g *Group[T]) measureRates(now time.Time, s *GroupStats) {
	committed := s.committed()
	s.Committed = uint64(max(0, int64(committed)-g.seen.sought.Load()-g.seen.began)) // the two were not read at once
	s.Rates = g.seen.meter.read(now, committed+s.Lag, s.Committed)
	s.Drain = drainTime(s.Lag, s.Rates)
}
