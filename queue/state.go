package queue

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// State says in one word how a group or a topic is doing.
type State uint8

// The states of a group, by severity. A topic is in one of Idle, Moving, Full,
// NoGroup, DiskFull, Faulted and Closed.
const (
	Idle         State = iota // nothing to read
	Moving                    // events are committed
	Closed                    // the group or the topic is closed
	Paused                    // by Pause; or some partitions are
	RateLimited               // held to GroupConfig.Rate
	Busy                      // the handler has been running for a second or more
	Behind                    // events are committed more slowly than they come
	Retrying                  // a partition waits for an event that failed
	Parked                    // all is read; keys are parked
	NoConsumer                // nobody runs the group, or it is not open
	NoGroup                   // a bounded topic without a group: nothing gives capacity back
	Stalled                   // nothing is committed, and no reason is known
	Stuck                     // the handler has been running for half a minute or more
	Full                      // the topic is full
	WindowFull                // an unsettled event has as many behind it as may be
	RetryLogFull              // no key can be parked any more
	NotLogged                 // the retry log does not take what is parked
	NotTaken                  // a dead letter is not taken
	Unreadable                // a partition cannot be read now, and is tried again
	CommitFailed              // a commit cannot be stored
	Ended                     // Run returned an error, and nobody has run the group since
	DiskFull                  // the disk is full
	Faulted                   // damage, or a write that failed, stopped a partition
	states
)

var stateNames = [states]string{
	"idle", "moving", "closed", "paused", "rate_limited", "busy", "behind", "retrying", "parked", "no_consumer", "no_group",
	"stalled", "stuck", "full", "window_full", "retry_log_full", "not_logged", "not_taken", "unreadable", "commit_failed", "ended",
	"disk_full", "faulted",
}

// String returns the state as it stands in JSON and metrics: no_consumer.
func (s State) String() string {
	if s < states {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Severity says who should look; it is the root's.
type Severity = penstock.Severity

// The severities, by their short names.
const (
	Fine    = penstock.Fine
	Notice  = penstock.Notice
	Warning = penstock.Warning
	Alarm   = penstock.Alarm
)

// Severity returns how bad the state is.
func (s State) Severity() Severity {
	switch {
	case s <= Moving:
		return Fine
	case s <= Busy:
		return Notice
	case s <= Stuck:
		return Warning
	}
	return Alarm
}

// Severity is that of the group's state, and Alarm when the group holds the
// producers of the topic back.
func (s *GroupStats) Severity() Severity {
	if s.HoldsBack {
		return Alarm
	}
	return s.State.Severity()
}

// bySeverity returns the groups of a topic, the open ones and the stored ones:
// who needs somebody first, then who is behind for the longest.
func (s *Stats) bySeverity() []*GroupStats {
	all := make([]*GroupStats, 0, len(s.Groups)+len(s.Stored))
	for i := range s.Groups {
		all = append(all, &s.Groups[i])
	}
	for i := range s.Stored {
		all = append(all, &s.Stored[i])
	}
	slices.SortStableFunc(all, compareSeverity)
	return all
}

func compareSeverity(a, b *GroupStats) int {
	return cmp.Or(
		cmp.Compare(b.Severity(), a.Severity()), cmp.Compare(b.LagTime.Truncate(lagStep), a.LagTime.Truncate(lagStep)),
		cmp.Compare(b.Lag, a.Lag), cmp.Compare(a.Name, b.Name),
	)
}

// lagStep is how precisely lags are told apart for sorting, so that groups that
// keep up do not change places at every look.
const lagStep = time.Second
