package stream

import (
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// Condition says in one word how it goes with a queue, a stream or a
// subscription. Reason and Waiting say the same in a sentence.
type Condition uint8

// Conditions, by rising severity.
const (
	ConditionIdle        Condition = iota // nothing is outstanding
	ConditionMoving                       // events are on their way
	ConditionStopped                      // of a queue: its agent does not run
	ConditionStarting                     // of a queue: its receiver is being opened
	ConditionAttaching                    // a registry or a consumer is being asked
	ConditionBusy                         // a handler, a filter or a receiver has been at work for a second or more
	ConditionRetrying                     // events failed and come again
	ConditionUnattached                   // nobody in this process handles the subscription
	ConditionFull                         // of a queue: the cache has no room; a subscription holds it
	ConditionStuck                        // something has been busy, or has not answered, for half a minute or more
	ConditionReadFailing                  // of a queue: it cannot be read; the agent tries again
	ConditionUnrecovered                  // of a queue: a read had an unknown outcome, and the receiver has not certified that it has recovered
	ConditionRefused                      // of a queue: the cache can never keep a container, and nobody takes it
	ConditionLost                         // the subscription's place is no longer in the cache
	ConditionSilent                       // of a queue: its agent does not answer
	ConditionFailed                       // of a queue: its agent has failed
	conditions
)

var conditionNames = [conditions]string{
	"idle", "moving", "stopped", "starting", "attaching", "busy", "retrying", "unattached", "full", "stuck",
	"read_failing", "unrecovered", "refused", "lost_place", "silent", "failed",
}

// String returns the word.
func (c Condition) String() string {
	if c < conditions {
		return conditionNames[c]
	}
	return fmt.Sprintf("condition(%d)", uint8(c))
}

// Severity returns how bad it is.
func (c Condition) Severity() penstock.Severity {
	switch {
	case c <= ConditionMoving:
		return penstock.Fine
	case c <= ConditionBusy:
		return penstock.Notice
	case c <= ConditionReadFailing:
		return penstock.Warning
	}
	return penstock.Alarm
}

// How long something goes on before somebody wonders.
const (
	busyAfter  = time.Second
	stuckAfter = 30 * time.Second
)

// atWork is the condition of what has been going on for so long; young is its
// condition before anybody wonders.
func atWork(now, since time.Time, young Condition) Condition {
	switch d := now.Sub(since); {
	case d >= stuckAfter:
		return ConditionStuck
	case d >= busyAfter:
		return max(young, ConditionBusy)
	}
	return young
}
