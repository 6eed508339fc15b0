package queue

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/debugpage"
	"github.com/penstock/penstock/settle"
)

// How long a handler runs, or nothing is committed, before somebody wonders.
const (
	busyAfter    = time.Second
	stuckAfter   = 30 * time.Second
	stalledAfter = 5 * time.Second
	behindAfter  = time.Second // of the oldest event
)

// topicFacts are what a group's state depends on beyond the group.
type topicFacts struct {
	closed  bool
	fault   error // of a partition in which the group has events to read; nil when there is none
	faulted int   // which one
	full    bool
	waiting int // producers
}

// explain fills in the states of a topic and its groups.
func (s *Stats) explain(now time.Time) {
	full := s.Capacity > 0 && s.Retained >= uint64(s.Capacity) || s.CapacityBytes > 0 && s.UsedBytes >= s.CapacityBytes ||
		s.WaitingProducers > 0
	slowest := &GroupStats{}
	for _, list := range [][]GroupStats{s.Groups, s.Stored} {
		for i := range list {
			if list[i].Lag > slowest.Lag {
				slowest = &list[i]
			}
		}
	}
	slowest.HoldsBack = full
	for _, list := range [][]GroupStats{s.Groups, s.Stored} {
		for i := range list {
			g := &list[i]
			facts := topicFacts{closed: s.Closed, full: full, waiting: s.WaitingProducers}
			for p := range s.Partitions {
				if fault := s.Partitions[p].Fault; fault != nil && facts.fault == nil && p < len(g.Partitions) && g.Partitions[p].Lag > 0 {
					facts.fault, facts.faulted = fault, p
				}
			}
			g.explain(now, facts)
		}
	}
	s.State, s.Why = whyTopic(s, full, slowest.Name)
	if s.KeyPanics > 0 {
		s.Why += "; Config.Key has panicked " + debugpage.Count(s.KeyPanics, "time", "times") + ": such events count as ones without a key"
	}
	if s.SizePanics > 0 {
		s.Why += "; Config.Size has panicked " + debugpage.Count(s.SizePanics, "time", "times") + ": such events count no bytes"
	}
}

// whyTopic says what ails a topic.
func whyTopic(s *Stats, full bool, slowest string) (State, string) {
	if s.Closed {
		return Closed, "the topic is closed"
	}
	for i := range s.Partitions {
		if err := s.Partitions[i].Fault; err != nil {
			return Faulted, fmt.Sprintf("partition %d takes no events: %s", i, debugpage.ErrorText(err))
		}
	}
	switch {
	case s.DiskFull:
		return DiskFull, "the disk was full at the last append"
	case full && len(s.Groups)+len(s.Stored) == 0:
		return NoGroup, "the topic is full and has no group to make room" + waitingProducers(s.WaitingProducers)
	case full && slowest == "": // all is committed, and those in line are admitted in a moment
		return Full, "the topic is full" + waitingProducers(s.WaitingProducers)
	case full:
		return Full, fmt.Sprintf("the topic is full; group %s has the most to commit%s", slowest, waitingProducers(s.WaitingProducers))
	case s.Retained == 0 && s.In == 0:
		return Idle, "nothing to read"
	case len(s.Groups)+len(s.Stored) == 0 && s.Capacity > 0:
		return NoGroup, "no group reads the topic, so nothing gives its capacity back"
	}
	return Moving, "takes events"
}

func waitingProducers(n int) string {
	if n == 0 {
		return ""
	}
	return "; " + debugpage.Count(uint64(n), "request of a producer waits", "requests of producers wait")
}

// explain fills in State and Why.
func (s *GroupStats) explain(now time.Time, facts topicFacts) {
	s.State, s.Why = why(s, now, facts)
	if s.HoldsBack && !facts.closed {
		s.Why += "; the topic is full because of this group" + waitingProducers(facts.waiting)
	}
}

// why says why a group is not moving, or that it is. What stops it for good
// comes first, then what somebody did, then what it waits for. It is a pure
// function of the picture.
func why(s *GroupStats, now time.Time, facts topicFacts) (State, string) {
	if facts.closed {
		return Closed, "the group is closed"
	}
	for _, step := range []func(*GroupStats, time.Time, topicFacts) (State, string, bool){
		whyBroken, whyPaused, whyUnattended, whyInHandler, whyBlocked, whyHeld,
	} {
		if state, text, ok := step(s, now, facts); ok {
			return state, text
		}
	}
	return whyMoving(s)
}

// whyBroken: nothing goes on before somebody acts.
func whyBroken(s *GroupStats, now time.Time, facts topicFacts) (State, string, bool) {
	if facts.fault != nil {
		return Faulted, fmt.Sprintf("partition %d is faulted: %s%s", facts.faulted, debugpage.ErrorText(facts.fault), behind(s)), true
	}
	for i := range s.Run.Blocked {
		if b := &s.Run.Blocked[i]; b.Kind == settle.Faulted {
			return Faulted, fmt.Sprintf("partition %d: %s%s", b.Partition, b.Reason, behind(s)), true
		}
	}
	for i := range s.Run.Unreadable {
		if u := &s.Run.Unreadable[i]; u.Next.IsZero() {
			return Faulted, fmt.Sprintf("partition %d is stopped at offset %d: %s%s", u.Partition, u.Offset, u.Reason, behind(s)), true
		}
	}
	for i := range s.Run.Unreadable {
		u := &s.Run.Unreadable[i]
		return Unreadable, fmt.Sprintf("partition %d cannot be read at offset %d for %s: %s; next attempt in %s%s",
			u.Partition, u.Offset, debugpage.Span(now.Sub(u.Since)), u.Reason, debugpage.Span(max(0, u.Next.Sub(now))), behind(s)), true
	}
	e := s.LastError
	switch {
	case !s.Run.Running && s.Run.EndedBy != "":
		return Ended, fmt.Sprintf("Run ended %s ago and nobody runs the group: %s%s", debugpage.Span(now.Sub(s.Run.Ended)), s.Run.EndedBy, behind(s)), true
	case e == nil || e.Kind != KindCommit || e.Partition < 0 || e.Partition >= len(s.Partitions) ||
		s.Partitions[e.Partition].Committed >= e.Offset:
		return whyUnread(s, now)
	case e.DiskFull:
		return DiskFull, fmt.Sprintf("the disk is full: the commit of partition %d to offset %d could not be stored: %s",
			e.Partition, e.Offset, e.Text), true
	}
	return CommitFailed, fmt.Sprintf("the commit of partition %d to offset %d failed %s ago: %s",
		e.Partition, e.Offset, debugpage.Span(now.Sub(e.Time)), e.Text), true
}

// whyUnread: a pull has met something that it cannot read, and has not passed it.
func whyUnread(s *GroupStats, now time.Time) (State, string, bool) {
	e := s.LastError
	if e == nil || e.Kind != KindRead || s.Use != useNames[pulled] || e.Partition >= len(s.Partitions) || s.Partitions[e.Partition].Committed > e.Offset {
		return 0, "", false
	}
	return Unreadable, fmt.Sprintf("partition %d could not be read at offset %d %s ago: %s%s", e.Partition, e.Offset, debugpage.Span(now.Sub(e.Time)), e.Text, behind(s)), true
}

func whyPaused(s *GroupStats, _ time.Time, _ topicFacts) (State, string, bool) {
	if s.Paused {
		return Paused, "paused by Pause" + behind(s), true
	}
	lag := uint64(0)
	for _, p := range s.PausedPartitions {
		if p < len(s.Partitions) {
			lag += s.Partitions[p].Lag
		}
	}
	if lag == 0 || lag < s.Lag { // nothing waits there, or other partitions go on
		return 0, "", false
	}
	return Paused, "all that is left lies in paused partitions: " + partitionList(s.PausedPartitions) + behind(s), true
}

// whyUnattended: nobody reads.
func whyUnattended(s *GroupStats, now time.Time, _ topicFacts) (State, string, bool) {
	idle := s.Use == useNames[unused] || s.Use == useNames[pushed] && !s.Run.Running
	switch {
	case s.Lag == 0 && s.Parked.Keys > 0 && idle:
		return NoConsumer, "no consumer is running; " + parkedKeys(s, now), true
	case s.Lag == 0:
		return 0, "", false
	case s.Consumers == 0:
		return NoConsumer, "the group is not open; its position is stored on disk" + behind(s), true
	case idle:
		return NoConsumer, "no consumer is running" + behind(s), true
	}
	return 0, "", false
}

// whyInHandler: user code has not come back.
func whyInHandler(s *GroupStats, now time.Time, _ topicFacts) (State, string, bool) {
	if len(s.Run.Calls) == 0 {
		return 0, "", false
	}
	c := &s.Run.Calls[0]
	age := now.Sub(c.Since)
	if age < busyAfter {
		return 0, "", false
	}
	text := fmt.Sprintf("handler has been running for %s on partition %d offset %d%s", debugpage.Span(age), c.Partition, c.Offset, behind(s))
	if s.ResizingTo > 0 {
		text += "; so does all of the group, because Resize to " + debugpage.Count(uint64(s.ResizingTo), "consumer", "consumers") + " waits for it"
	}
	if age < stuckAfter {
		return Busy, text, true
	}
	return Stuck, text, true
}

// blockedStates are the states that the reasons of the settlement machine
// lead to.
var blockedStates = [...]State{
	settle.Retrying: Retrying, settle.DeadLettering: NotTaken, settle.RetryLogFull: RetryLogFull,
	settle.NotLogged: NotLogged, settle.WindowFull: WindowFull, settle.Faulted: Faulted,
}

// whyBlocked: events of a partition wait for one in their way.
func whyBlocked(s *GroupStats, now time.Time, _ topicFacts) (State, string, bool) {
	worst, state := -1, Idle
	for i := range s.Run.Blocked {
		if k := s.Run.Blocked[i].Kind; int(k) < len(blockedStates) && blockedStates[k] > state {
			worst, state = i, blockedStates[k]
		}
	}
	if worst < 0 {
		return 0, "", false
	}
	b := &s.Run.Blocked[worst]
	text := fmt.Sprintf("partition %d: %s", b.Partition, b.Reason)
	if wait := b.Due.Sub(now); !b.Due.IsZero() && wait > 0 {
		text += ", due in " + debugpage.Span(wait)
	}
	if n := len(s.Run.Blocked) - 1; n > 0 {
		text += "; " + debugpage.Count(uint64(n), "more partition waits", "more partitions wait") + " likewise"
	}
	return state, text, true
}

// whyHeld: the group is told to go slowly, or does.
func whyHeld(s *GroupStats, now time.Time, _ topicFacts) (State, string, bool) {
	switch {
	case s.Lag == 0 && s.Parked.Keys > 0:
		return Parked, "all is read; " + parkedKeys(s, now), true
	case s.Lag == 0:
		return 0, "", false
	case s.RateLimited:
		return RateLimited, "held to " + debugpage.Rate(s.Rate) + " by Rate" + behind(s), true
	case s.Out > 0 && s.Out < s.In && s.LagTime >= behindAfter && s.Drain == NeverDrains:
		return Behind, fmt.Sprintf("falls behind: takes %s of the %s that come in%s", debugpage.Rate(s.Out), debugpage.Rate(s.In), handlerPace(s)+behind(s)), true
	}
	return 0, "", false
}

// parkedKeys says how many keys are parked, and why.
func parkedKeys(s *GroupStats, now time.Time) string {
	text := debugpage.Count(uint64(s.Parked.Keys), "key is", "keys are") + " parked"
	if !s.Parked.Oldest.IsZero() { // perhaps by the clock of an earlier process
		text += ", the longest for " + debugpage.Span(max(0, now.Sub(s.Parked.Oldest)))
	}
	if s.Parked.Reason != "" {
		text += ": " + s.Parked.Reason
	}
	return text
}

// handlerPace says how long a call of the handler takes, when that is known.
func handlerPace(s *GroupStats) string {
	if s.Run.Batches == 0 || s.Run.HandlerTime == 0 {
		return ""
	}
	each := s.Run.HandlerTime / time.Duration(s.Run.Batches)
	return fmt.Sprintf(", its handler takes %s for %.3g events", debugpage.Span(each), float64(s.Run.Delivered)/float64(s.Run.Batches))
}

func whyMoving(s *GroupStats) (State, string) {
	switch {
	case s.Lag == 0 && s.Out > 0 && s.Still < stalledAfter:
		return Moving, "keeps up: all " + debugpage.Rate(s.Out) + " are committed"
	case s.Lag == 0:
		return Idle, "nothing to read"
	case s.Out == 0 && s.Still >= stalledAfter && s.LagTime >= stalledAfter:
		return Stalled, fmt.Sprintf("nothing has been committed for %s%s%s", debugpage.Span(s.Still), usedBy(s), behind(s))
	case s.Drain == NeverDrains:
		return Moving, "moving" + behind(s)
	case float64(s.Lag) <= s.Out:
		return Moving, "keeps up: " + debugpage.Rate(s.Out) + " of " + debugpage.Rate(s.In) + " are committed"
	}
	return Moving, "moving, drains in " + debugpage.Span(s.Drain) + behind(s)
}

// usedBy says whom to ask why nothing is committed.
func usedBy(s *GroupStats) string {
	if s.Use == useNames[pulled] {
		return " by its pull consumers"
	}
	if s.Use == useNames[readAhead] {
		return " by its readers"
	}
	return ""
}

// behind says how much there is to read.
func behind(s *GroupStats) string {
	if s.Lag == 0 {
		return ""
	}
	text := "; " + debugpage.Count(s.Lag, "event waits", "events wait")
	if s.LagTime > 0 {
		text += ", the oldest for " + debugpage.Span(s.LagTime)
	}
	return text
}

// partitionList names partitions, at most eight.
func partitionList(list []int) string {
	var b strings.Builder
	for i, p := range list {
		if i == 8 {
			fmt.Fprintf(&b, " and %d more", len(list)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(p))
	}
	return b.String()
}
