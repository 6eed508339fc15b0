package settle

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// ErrLate is returned for the settlement of a span that is not in hand any
// more: it was settled before, or has been delivered again. Nothing has
// changed; the first settlement counts.
var ErrLate = errors.New("settled too late")

// Verdict says what becomes of a delivered event.
type Verdict uint8

const (
	// Done settles the event.
	Done Verdict = iota
	// Retry delivers the event again after a backoff, and after its last
	// attempt hands it over as a dead letter. Given on a dead letter, it means
	// that handing over failed and is to be tried again.
	Retry
	// Park is Retry with the event's key out of the way meanwhile, however short
	// the delay is: it moves to the retry log with its followers. It is Retry
	// without [Config.Parking], while the retry log is full, and for an event
	// that has had its last attempt or is a dead letter already.
	Park
	// DeadLetter gives the event up without further attempts.
	DeadLetter
	// Fault stops the machine: the event stays unsettled and nothing more is
	// delivered. It is for what no attempt can repair.
	Fault
)

var verdictNames = [...]string{"done", "retry", "park", "dead letter", "fault"}

// String returns the verdict in words.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Span is a run of offsets [From, To) in hand: delivered to a handler, or, when
// DeadLetter is set, to be handed over as dead letters. It is a value and a
// receipt: only the span that Next or NextParked returned, or a part of it,
// settles.
type Span struct {
	From, To   penstock.Offset
	Attempt    int   // which delivery this is, from 1; of a dead letter, how many were made
	DeadLetter bool  // hand over, do not handle
	Parked     bool  // one event, to be read from the retry log
	Cause      error // of a dead letter: the error of its last attempt

	serial uint64
}

// Len returns the number of events.
func (s Span) Len() int { return int(s.To - s.From) }

// Part returns the part [from, to) of s, to be settled by itself while the rest
// stays in hand. It panics when that is empty or not inside s.
func (s Span) Part(from, to penstock.Offset) Span {
	if from < s.From || to > s.To || from >= to {
		panic(fmt.Sprintf("settle: part [%d, %d) of span [%d, %d)", from, to, s.From, s.To))
	}
	s.From, s.To = from, to
	return s
}

// Outcome is the verdict on the events [From, To) of a span.
type Outcome struct {
	From, To penstock.Offset
	Verdict  Verdict
	After    time.Duration // with Retry or Park: the delay; 0 takes the policy's backoff
	Cause    error         // why the verdict is not Done
}

func (o Outcome) cause() error {
	if o.Cause == nil {
		return errNoCause
	}
	return o.Cause
}
