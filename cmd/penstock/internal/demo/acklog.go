package demo

import (
	"sort"
	"time"
)

const (
	ackEvery   = 100 * time.Millisecond // distance of samples
	ackSamples = 6000                   // ten minutes of them
)

// ackLog remembers how many events had been acknowledged when, so that a lag
// in events can be told in seconds. It keeps ten minutes; what is older counts
// as ten minutes old.
//
// Invariant: samples ascend in time and in count.
type ackLog struct{ samples []ackSample }

type ackSample struct {
	at    time.Duration // since the start of the run
	count uint64
}

// add notes the count at a moment. Moments do not go back.
func (l *ackLog) add(at time.Duration, count uint64) {
	if n := len(l.samples); n > 0 && at-l.samples[n-1].at < ackEvery {
		return // the next sample covers these events; they look up to 100 ms younger
	}
	if len(l.samples) == ackSamples {
		l.samples = append(l.samples[:0], l.samples[1:]...)
	}
	l.samples = append(l.samples, ackSample{at, count})
}

// behind returns how long ago event number settled (counted in the order of
// acknowledgement) was acknowledged: the age of the oldest event that a group
// which has settled that many still owes.
func (l *ackLog) behind(now time.Duration, settled uint64) time.Duration {
	i := sort.Search(len(l.samples), func(i int) bool { return l.samples[i].count > settled })
	if i == len(l.samples) {
		return 0
	}
	return now - l.samples[i].at
}
