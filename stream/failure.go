package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// Verdict says what becomes of something that finally failed.
type Verdict uint8

const (
	// Skip passes over the failed items; the subscription goes on behind them.
	// Their container is not reported to the receiver as delivered. A
	// subscription that could not be attached starts without an answer, as
	// with PositionNone.
	Skip Verdict = iota
	// Retry keeps the items and offers them again when the agent next polls.
	// The subscription and the checkpoint wait for them.
	Retry
	// Fault gives the subscription up: it is removed and its name refuses to
	// be subscribed with ErrFaulted until it is unsubscribed.
	Fault
	// DeadLetter hands the items to Config.DeadLetter and goes on behind them
	// when that has returned nil; otherwise the items are kept as with Retry.
	// It is for deliveries only: a subscription is asked again, as with Retry.
	DeadLetter
)

var verdictNames = [...]string{"skip", "retry", "fault", "dead letter"}

// String returns the verdict in words.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Failure describes a delivery, or the attaching of a subscription, that
// failed until its time, or the number of its attempts, was used up.
type Failure struct {
	Queue        QueueID
	Subscription SubscriptionRecord
	Items        []Item // that failed, in order; nil for a subscription. Valid until the handler returns
	Err          error  // the last error

	refused bool // of a subscription: it has asked for a place, which cannot be had
}

// Decision is what a failure handler wants done. A Decision without a field
// but the verdict is complete.
type Decision struct {
	Verdict Verdict
	// After is for Retry: the items are offered, or the consumer asked, at the
	// first poll after that time; 0 means at the next poll.
	After time.Duration
	// Reason is for DeadLetter, Skip and Fault: it is logged, and it goes into
	// the Origin of a dead letter in front of the error. At most 4 KiB of both
	// are kept.
	Reason string
}

// FailureHandler decides what becomes of failures. It may block; the
// subscription concerned waits. A handler that panics keeps the items, as with
// Retry. Implementations must be safe for concurrent use.
type FailureHandler interface {
	// DeliveryFailed is told of items that could not be delivered within
	// Config.MaxDeliveryTime.
	DeliveryFailed(ctx context.Context, f Failure) Decision
	// SubscribeFailed is told of a subscription whose handshake failed, or that
	// asked for a position that cannot be had.
	SubscribeFailed(ctx context.Context, f Failure) Decision
}

// defaultFailure is the policy of G-8: dead-letter if there is somewhere to
// put it, else skip; a subscription that asks for a lost position is faulted,
// any other is tried again.
type defaultFailure struct{ deadLetter bool }

func (d defaultFailure) DeliveryFailed(context.Context, Failure) Decision {
	if d.deadLetter {
		return Decision{Verdict: DeadLetter}
	}
	return Decision{Verdict: Skip}
}

func (defaultFailure) SubscribeFailed(_ context.Context, f Failure) Decision {
	if !f.refused { // what the error of a consumer matches is its own affair
		return Decision{Verdict: Retry}
	}
	for _, lost := range []error{ErrCacheMiss, penstock.ErrUnsupported, penstock.ErrInvalid, penstock.ErrOffsetOutOfRange} {
		if errors.Is(f.Err, lost) {
			return Decision{Verdict: Fault}
		}
	}
	return Decision{Verdict: Retry}
}
