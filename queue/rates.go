package queue

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/debugpage"
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

// drainMax bounds a drain time that is computed from very small rates.
const drainMax = 100 * 365 * 24 * time.Hour

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
	// skipped are events past which groups were moved, expired those that went
	// without a group.
	skipped, expired atomic.Uint64
	forgotten        atomic.Uint64 // groups
	// keyPanics and sizePanics count looks at events on which Config.Key and
	// Config.Size panicked.
	keyPanics, sizePanics atomic.Uint64
	meter                 debugpage.Meter
	number                uint64 // in the registry; 0 when it is not there
	dropped               runtime.Cleanup
}

// look begins to watch a topic, whose partitions stand.
func (t *Topic[T]) look() {
	t.seen.opened = time.Now()
	in, out := uint64(0), uint64(0)
	for _, p := range t.parts {
		in += uint64(p.end())
		out += uint64(p.marks.Committed())
	}
	t.seen.meter.Start(t.seen.opened, in, out)
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
	meter     debugpage.Meter
	began     int64        // what was committed when the group was made
	sought    atomic.Int64 // events that seeks passed over; those passed back to are negative
	lastError atomic.Pointer[GroupError]

	readErrors  atomic.Uint64
	undecodable atomic.Uint64 // events that were handed over or dropped
}

// look begins to watch a group, whose cursors stand.
func (g *Group[T]) look() {
	in, out := uint64(0), uint64(0)
	for i, c := range g.shares.Load().cursors {
		in += uint64(g.topic.parts[i].end())
		out += uint64(c.shown().Committed())
	}
	g.seen.began = int64(out)
	g.seen.meter.Start(time.Now(), in, 0)
}

// measureRates fills in the rates. Commits and ends stand.
func (g *Group[T]) measureRates(now time.Time, s *GroupStats) {
	committed := s.committed()
	s.Committed = uint64(max(0, int64(committed)-g.seen.sought.Load()-g.seen.began)) // the two were not read at once
	s.Rates = Rates(g.seen.meter.Read(now, committed+s.Lag, s.Committed))
	s.Drain = drainTime(s.Lag, s.Rates)
}
