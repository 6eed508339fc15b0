package stream

import (
	"context"

	"github.com/penstock/penstock"
)

// QualifiedStreamID names a stream together with its provider.
type QualifiedStreamID struct {
	Provider string
	penstock.StreamID
}

// SubscriptionRecord is what a registry knows of a subscription. Stream and
// name identify it.
type SubscriptionRecord struct {
	Stream QualifiedStreamID
	Name   string
	// Filter is the subscription's own data for the provider's filter; empty
	// when it has none.
	Filter string
	// Implicit is set for a subscription that a binding declares. A registry
	// does not know those.
	Implicit bool
	// Incarnation is the revision that created the subscription; a name that
	// was unsubscribed and is used again has a new one.
	Incarnation uint64
	// Attached is the revision of the last Subscribe. When it changes, the
	// agent asks the consumer anew where it wants to start.
	Attached uint64
}

// Roster is the set of subscriptions of one stream that are not faulted, at
// one revision of the registry.
type Roster struct {
	Revision      uint64
	Subscriptions []SubscriptionRecord // must not be changed
}

// Producer is told when the subscriptions of a stream change.
type Producer interface {
	// ProducerID identifies the producer; the same after a restart.
	ProducerID() string
	// RosterChanged hands over the new set. It acknowledges at once: it must
	// not wait for a handshake or for user code. Notices may arrive in any
	// order; one with a revision not above the last one seen is stale. It
	// returns false when there is no producer any more: the registry then
	// forgets this registration of it, but not a later one.
	RosterChanged(s QualifiedStreamID, r Roster) bool
}

// Registry knows the producers and the subscriptions of each stream.
// Implementations must be safe for concurrent use and must not hold a lock
// while they call a Producer. Every method must return soon after its ctx has
// ended.
type Registry interface {
	// RegisterProducer stores the producer and returns the stream's roster.
	// Later changes reach the producer as notices. Repeating it is allowed.
	RegisterProducer(ctx context.Context, s QualifiedStreamID, p Producer) (Roster, error)
	// UnregisterProducer removes it; removing an unknown one is no error.
	UnregisterProducer(ctx context.Context, s QualifiedStreamID, p Producer) error
	// Subscribe creates the subscription with the record's stream and name or,
	// when it exists, attaches it anew; either way it has the record's filter
	// data from then on. The record returned has the revisions. The error
	// matches ErrFaulted for a faulted one.
	Subscribe(ctx context.Context, r SubscriptionRecord) (SubscriptionRecord, error)
	// Unsubscribe removes the subscription with the record's stream and name,
	// faulted or not, if it has the record's incarnation; incarnation 0 stands
	// for any. The error matches penstock.ErrNotFound when there is none.
	Unsubscribe(ctx context.Context, r SubscriptionRecord) error
	// Fault marks one incarnation of a subscription as given up. It reports
	// false when that incarnation does not exist any more.
	Fault(ctx context.Context, r SubscriptionRecord) (bool, error)
	// Reset gives a faulted subscription back to its consumer, with the record's
	// incarnation or, when that is 0, whatever it is. It is attached anew. The
	// error matches penstock.ErrNotFound when there is no such faulted one.
	Reset(ctx context.Context, r SubscriptionRecord) error
	// Producers returns the ids of the stream's producers, in order.
	Producers(ctx context.Context, s QualifiedStreamID) ([]string, error)
	// Subscriptions returns the subscriptions that are not faulted, by name.
	Subscriptions(ctx context.Context, s QualifiedStreamID) ([]SubscriptionRecord, error)
	// Faulted returns the faulted subscriptions, by name.
	Faulted(ctx context.Context, s QualifiedStreamID) ([]SubscriptionRecord, error)
}
