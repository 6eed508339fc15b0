package stream

import (
	"context"

	"github.com/penstock/penstock"
)

// Consumer is the seam between an agent and whoever handles the events of a
// subscription: a handler in this process, or one across a connection. The
// agent never calls it from its own goroutine. Both methods may fail and be
// repeated; an error that matches [ErrConsumerGone] ends the subscription, one
// that matches [ErrAway] keeps what it was called with for the next poll.
type Consumer interface {
	// Handshake asks where the consumer wants to start or go on. It is called
	// when a subscription is attached and whenever it is announced again;
	// calls may overlap, and only the answer to the latest request counts.
	Handshake(ctx context.Context, h Handshake) (Position, error)
	// Deliver hands items over, one call at a time per attached subscription.
	// An error fails all of them. The delivery belongs to the agent and is
	// valid until Deliver returns. ctx ends when a drain deadline has passed,
	// not when a drain begins.
	Deliver(ctx context.Context, d *Delivery) (Answer, error)
}

// Handshake is the question of an agent to a consumer.
type Handshake struct {
	Subscription SubscriptionRecord
	Queue        QueueID
	Request      uint64 // rises with each request; never used again by the agent of the queue in this process
	// Placed is the request whose answer was taken last, so that the
	// subscription stands where it says or behind that; 0 for none that the agent
	// knows of. A consumer need not ask for that place again: the checkpoint may
	// have passed it, and rightly.
	Placed uint64
}

// Delivery is what an agent hands to a consumer: items of one stream in the
// order of their tokens. After a failure only the items that failed come again.
type Delivery struct {
	Subscription SubscriptionRecord
	Queue        QueueID
	Request      uint64 // of the handshake whose answer the position came from
	Items        []Item

	whole  []Container // instead of Items, for a consumer of this package: all their events, not offered before
	events int         // of whole
	room   *room       // for the batch of a handler in this process; nil: it makes its own
}

// from returns the container of the first item.
func (d *Delivery) from() *Container {
	if d.whole != nil {
		return &d.whole[0]
	}
	return d.Items[0].From
}

// last returns the token of the last item.
func (d *Delivery) last() penstock.Token {
	if d.whole != nil {
		return lastToken(d.whole)
	}
	return d.Items[len(d.Items)-1].Token
}

// Item is one event of a container.
type Item struct {
	Token   penstock.Token // of the container, with the event's index
	Attempt int            // number of the last delivery attempt; 1 for the first
	From    *Container     // the container it came in
	Index   int            // in From.Events
}

// Value returns the event's payload, which must not be changed.
func (it *Item) Value() []byte { return it.From.Events.Value(it.Index) }

// Event returns the event. Its payload must not be changed.
func (it *Item) Event() penstock.Envelope { return it.From.Events.At(it.Index) }

// Answer is a consumer's answer to a delivery. The zero Answer settles all
// items.
type Answer struct {
	// Failed lists the items that failed, by rising index; the others are
	// settled.
	Failed []ItemFailure
	// Rewind, unless PositionNone, asks for another place to go on from.
	// Nothing of this delivery counts as processed then, and Failed is ignored.
	// PositionResume goes on behind its token, but not before this
	// delivery. After the second rewind in a row, with nothing settled in
	// between, the next delivery waits for Config.DeliveryBackoff.
	Rewind Position
}

// ItemFailure is one item that a consumer failed. An Err that matches [ErrAway]
// says that the item was not tried: it is no failed attempt, and a decision about
// those that failed before it does not take it along.
type ItemFailure struct {
	Index int // in Delivery.Items
	Err   error
}
