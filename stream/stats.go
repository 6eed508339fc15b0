package stream

import (
	"time"

	"github.com/penstock/penstock"
)

// QueueStats is what one agent has done and where it stands. Counters count
// since the agent was last started.
type QueueStats struct {
	Queue         QueueID
	Running       bool
	Streams       int // in the agent's table
	Subscriptions int // attached, or being attached
	Busy          int // streams with something outstanding
	Cached        int // containers
	UnderPressure bool

	// Reason says in words what holds the queue up: why nothing is read, and
	// whom the checkpoint waits for, how long and why. It is empty when
	// nothing is outstanding and after a drain; after a failure of the agent
	// it says which.
	Reason string

	Read         uint64 // containers
	ReadFailures uint64 // failed reads
	Delivered    uint64 // events settled by their consumer
	Failed       uint64 // failed attempts, in events
	Skipped      uint64 // events passed without delivery
	DeadLettered uint64 // events
	Faulted      uint64 // subscriptions
	Filtered     uint64 // events that the filter passed over, once per subscription
	FilterErrors uint64 // failures of the filter
	Unattended   uint64 // events passed over because nobody handled their subscription
	Missed       uint64 // times that a subscription's place was no longer in the cache

	// Newest is the newest container read, Checkpoint how far all
	// subscriptions had come when the agent last looked; zero for none.
	Newest     penstock.Token
	Checkpoint penstock.Token
}

// snapshot fills in what is not counted. It runs on the loop.
func (r *run) snapshot() QueueStats {
	s := r.stats
	s.Queue, s.Running = r.queue, true
	s.Streams, s.Subscriptions, s.Busy = len(r.streams), r.subs, len(r.busy)
	if r.cache != nil {
		s.Cached, s.UnderPressure = r.cache.Len(), r.cache.UnderPressure()
	}
	s.Newest, s.Checkpoint = r.read, r.marked
	if r.cache != nil {
		s.Reason = r.reason(time.Now())
	}
	return s
}

// statistics returns the state of the current run, or of the last one.
func (a *agent) statistics() QueueStats {
	r := a.last()
	if r == nil {
		return QueueStats{Queue: a.queue}
	}
	var s QueueStats
	if a.ask(func(r *run) { s = r.snapshot() }) {
		return s
	}
	<-r.done
	return r.stats
}
