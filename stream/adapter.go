package stream

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/penstock/penstock"
)

// Direction says what an adapter can do.
type Direction uint8

// Directions of an adapter.
const (
	ReadWrite Direction = iota
	ReadOnly
	WriteOnly
)

// Factory makes the parts of a provider that depend on its queue. The provider
// calls NewMapper and NewAdapter once, in this order, when it is opened, and
// NewCache at the start of each run of an agent. Embed [DefaultParts] to get
// the usual mapper and cache.
type Factory interface {
	// NewMapper returns the mapper of a provider with that name and number of
	// queues.
	NewMapper(provider string, queues int) (Mapper, error)
	// NewAdapter connects to the queue.
	NewAdapter(ctx context.Context, e Environment) (Adapter, error)
	// NewCache returns an empty cache for one queue.
	NewCache(q QueueID) (Cache, error)
}

// Environment is what a provider tells the factory of its adapter.
type Environment struct {
	Provider string
	Mapper   Mapper
	Logger   *slog.Logger
}

// DefaultParts is embedded by factories that use the ring mapper and a simple
// cache of the default capacity.
type DefaultParts struct{}

// NewMapper returns a [RingMapper].
func (DefaultParts) NewMapper(provider string, queues int) (Mapper, error) {
	return NewRingMapper(provider, queues)
}

// NewCache returns a [SimpleCache] of [DefaultCapacity] containers.
func (DefaultParts) NewCache(QueueID) (Cache, error) { return NewSimpleCache(DefaultCapacity) }

// Adapter is the boundary to a durable queue. Implementations must be safe for
// concurrent use. The queue stays the durable boundary: what an acknowledgement
// of Enqueue is worth, and when a container comes again, is the adapter's
// contract with its queue and belongs in its documentation.
type Adapter interface {
	// Rewindable reports whether a container has the same token each time that
	// it is read, so that a subscription may start at one, above the checkpoint.
	// A subscription that starts earlier than what is read is served from the
	// queue's cache; the queue is not read again. Where Rewindable returns false,
	// positions are refused.
	Rewindable() bool
	// Direction reports whether the adapter can read, write or both.
	Direction() Direction
	// Enqueue stores one container in the queue of its stream and returns when
	// the queue has accepted it. It sets no field of c; c belongs to the
	// adapter from then on. An error that matches penstock.ErrUnknownOutcome
	// means that it may have been stored.
	Enqueue(ctx context.Context, c Container) error
	// NewReceiver returns a receiver of one queue for one run of an agent. It
	// does not block; connecting belongs to Init.
	NewReceiver(q QueueID) (Receiver, error)
	// Close releases the adapter. No receiver is open any more, except one that
	// a drain has left behind.
	Close() error
}

// TokenChecker is implemented by adapters that can tell a token that they gave
// out from any other (ADR 0028). Without it a token of another adapter, or one
// of containers that were lost with the tail of a queue, would be taken for a
// place that is yet to come, and everything before it would be passed over.
type TokenChecker interface {
	// CheckToken returns nil when t is the token of a container that the queue
	// holds or has held. Otherwise the error matches penstock.ErrInvalid for a
	// token of another adapter and penstock.ErrOffsetOutOfRange for one beyond
	// the end of the queue. It does not block.
	CheckToken(q QueueID, t penstock.Token) error
}

// Receiver reads one queue for one run of an agent. Its methods, with those of
// [Waiter] and of its [Checkpointer], are called by one goroutine at a time.
// Every method must return soon after its ctx has ended: one that does not is
// left behind by a drain, and Shutdown follows when it has returned.
type Receiver interface {
	// Init prepares reading. ctx carries the provider's InitTimeout. After an
	// error the agent goes on to read: the receiver tries again inside Read.
	Init(ctx context.Context) error
	// Read returns up to limit containers with rising tokens; a negative limit
	// means no limit. It does not wait for data: no containers and no error
	// mean that the queue is empty now. What it returns beside an error counts as
	// read. Containers without events are given to nobody, and reported as delivered.
	Read(ctx context.Context, limit int) ([]Container, error)
	// Delivered reports containers that left the cache and that no
	// subscription needs any more: the queue may acknowledge or delete them.
	// Containers that a failed delivery passed are not among them. One that
	// the cache refused, and that is a dead letter, is reported without its
	// events; it, and one that had none, may come before containers with lower
	// tokens. All others come in the order of their tokens. An error is logged; the queue will
	// deliver them again.
	Delivered(ctx context.Context, done []Container) error
	// Shutdown flushes what is left to flush, then closes the receiver. ctx
	// carries the provider's ShutdownTimeout. It is called exactly once.
	Shutdown(ctx context.Context) error
}

// Waiter is implemented by receivers that can say when data comes. An agent
// then reads without waiting for its poll period, and reports progress
// as soon as deliveries have ended.
type Waiter interface {
	// Wait returns nil when Read may have something, and the context's error
	// when ctx has ended.
	Wait(ctx context.Context) error
}

// Checkpointed is implemented by receivers of queues that are read by
// position. The agent then tells the checkpointer how far every subscription
// has come. The receiver's Shutdown must flush it.
type Checkpointed interface {
	// Checkpointer returns the receiver's checkpointer; always the same one.
	Checkpointer() Checkpointer
}

// Checkpointer keeps the position of one queue: everything up to and including
// it has been processed. Its methods are called by one goroutine at a time.
type Checkpointer interface {
	// Load returns the stored position; ok is false when there is none. It is
	// called by the agent once, after the receiver's Init, or, when one of the two
	// has failed, at polls until it succeeds, after a Read if it was Init; and by the
	// receiver itself if it begins behind that position. Until it succeeds, but for a
	// minute at most, the agent does not call Update before the end.
	Load(ctx context.Context) (pos penstock.Token, ok bool, err error)
	// Update takes the position of now and stores it when it is time to: a
	// checkpointer may hold back. The newest position given wins over earlier
	// ones that were not stored yet; a position that is not above the stored
	// one changes nothing. The agent repeats the last position at each poll.
	Update(ctx context.Context, pos penstock.Token, now time.Time) error
	// Flush stores the last position given, if that has not been done. The
	// receiver's Shutdown does the same; the agent does not call it.
	Flush(ctx context.Context) error
}

// Errors of this package that a caller or a failure handler branches on.
var (
	// ErrFaulted: the subscription was given up after a failure. [Stream.Reset]
	// gives it back; unsubscribed, its name is free again.
	ErrFaulted = errors.New("subscription is faulted")
	// ErrConsumerGone: the consumer behind the seam does not exist any more.
	// The agent unregisters its subscription.
	ErrConsumerGone = errors.New("consumer is gone")
	// ErrAway: the consumer behind the seam cannot be reached now, and was not
	// given anything. What it was to be given or asked is kept, and offered
	// again at the next poll: that is no failed attempt.
	ErrAway = errors.New("consumer is away")
	// ErrCacheMiss: the position asked for is no longer kept, or not above the
	// checkpoint. See [CacheMissError].
	ErrCacheMiss = errors.New("position is no longer kept")
)

// unsupportedError matches penstock.ErrUnsupported.
type unsupportedError struct{ what string }

func (e *unsupportedError) Error() string        { return e.what }
func (e *unsupportedError) Is(target error) bool { return target == penstock.ErrUnsupported }
