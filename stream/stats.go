package stream

import (
	"math"
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

	// Condition says in one word how it goes, Reason in a sentence.
	Condition Condition
	// Reason says in words what holds the queue up: why nothing is read, and
	// whom the checkpoint waits for, how long and why. It is empty when
	// nothing is outstanding and after a drain; after a failure of the agent
	// it says which, and when the agent does not answer it says so.
	Reason string

	// Lag is how many events were read and are not settled by every
	// subscription of their stream, each counted once; LagTime is the age of
	// the oldest of them, 0 when the queue does not say when it took it in.
	// Both are 0 while the agent does not run.
	Lag     uint64
	LagTime time.Duration
	// Unread is how many containers the queue holds that were not read; -1 when
	// the adapter cannot tell (see [Measurer]).
	Unread int64

	// ReadPerSecond and DeliveredPerSecond are the rates of ReadEvents and
	// Delivered since an earlier look; Over is the time that they are the mean
	// of, 0 when it is too short to tell.
	ReadPerSecond, DeliveredPerSecond float64
	Over                              time.Duration

	Read         uint64 // containers
	ReadEvents   uint64 // events in them
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
	Refused      uint64 // containers that the cache could never keep; see Config.DeadLetter
	Empty        uint64 // containers without events, or without a stream, which nobody can be given; they are reported as delivered

	// Newest is the newest container read, NewestTime when the queue took it
	// in, Checkpoint how far all subscriptions had come when the agent last
	// looked; zero for none.
	Newest     penstock.Token
	NewestTime time.Time
	Checkpoint penstock.Token

	read  penstock.Token // from where on the queue is unread
	known bool
}

// snapshot fills in what is not counted. It runs on the loop.
func (r *run) snapshot() QueueStats {
	s := r.stats
	s.Queue, s.Running = r.queue, true
	s.Streams, s.Subscriptions, s.Busy = len(r.streams), r.subs, r.busy.len()
	if r.cache != nil {
		s.Cached, s.UnderPressure = r.cache.Len(), r.cache.UnderPressure()
	}
	s.Newest, s.NewestTime, s.Checkpoint = r.read, r.taken, r.marked
	if s.read, s.known = r.read, r.hasRead; !s.known {
		s.read, s.known = r.floor, r.hasFloor
	}
	if r.cache != nil {
		now := time.Now()
		s.Condition, s.Reason = r.reason(now)
		b := r.backlog()
		s.Lag, s.LagTime = b.events, b.age(now)
		if s.Condition == ConditionIdle && s.Lag > 0 {
			s.Condition = ConditionMoving
		}
	}
	return s
}

// snapshotAtEnd is what is told of a run that has ended.
func (r *run) snapshotAtEnd() QueueStats {
	s := r.snapshot()
	s.Running, s.Cached, s.Condition, s.Reason, s.Lag, s.LagTime = false, 0, ConditionStopped, "", 0, 0
	return s
}

// statistics returns the state of the current run, or of the last one.
func (a *agent) statistics() QueueStats {
	s := a.asked()
	s.Unread = -1
	if s.Condition != ConditionSilent { // it says nothing
		rates := a.meter.Read(time.Now(), s.ReadEvents, s.Delivered)
		s.ReadPerSecond, s.DeliveredPerSecond, s.Over = rates.In, rates.Out, rates.Over
	}
	if a.unread != nil {
		if n, ok := a.unread(s.read, s.known); ok {
			s.Unread = int64(min(n, math.MaxInt64))
		}
	}
	return s
}

// patience is how long somebody who looks waits for an agent's answer.
const patience = time.Second

// asked asks the agent, but does not wait for one that does not answer.
func (a *agent) asked() QueueStats {
	r := a.last()
	if r == nil {
		return QueueStats{Queue: a.queue, Condition: ConditionStopped}
	}
	if s, ok := inquire(r, (*run).snapshot); ok {
		if f := a.silence.found.Load(); f != nil && f.run == r { // its receiver
			s.Condition, s.Reason = ConditionSilent, a.silence.words(r, time.Now())
		}
		return s
	}
	select {
	case <-r.done:
		return r.stats
	default:
	}
	return QueueStats{Queue: a.queue, Running: true, Condition: ConditionSilent, Reason: a.silence.words(r, time.Now())}
}

// inquire runs f on the loop of a run and returns what it says; false when the
// run takes no questions any more, and has ended or is ending for longer than
// patience, or when it does not answer for so long.
func inquire[T any](r *run, f func(*run) T) (answer T, ok bool) {
	answered := make(chan T, 1)
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case r.mail <- func() { answered <- f(r) }:
	case <-r.deaf:
		select {
		case <-r.done:
		case <-limit.C:
		}
		return answer, false
	case <-limit.C:
		return answer, false
	}
	select {
	case answer = <-answered:
		return answer, true
	case <-r.done: // the agent failed
	case <-limit.C:
	}
	return answer, false
}
