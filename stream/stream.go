package stream

import (
	"context"
	"fmt"
	"strings"

	"github.com/penstock/penstock"
)

// Stream is a handle on one stream of a provider. Making one is cheap and
// creates nothing anywhere. It is safe for concurrent use.
type Stream[T any] struct {
	provider *Provider
	id       penstock.StreamID
	codec    penstock.Codec[T]
	raw      bool // T is []byte, and codec is that of bytes
}

// Of returns the handle of the stream namespace/key, whose values are JSON.
func Of[T any](p *Provider, namespace, key string) *Stream[T] {
	return OfCodec(p, namespace, key, penstock.JSON[T]())
}

// OfCodec returns the handle of a stream with a codec of your own. All
// producers and subscribers of a stream must use the same.
func OfCodec[T any](p *Provider, namespace, key string, c penstock.Codec[T]) *Stream[T] {
	return &Stream[T]{provider: p, id: penstock.StreamID{Namespace: namespace, Key: key}, codec: c, raw: any(c) == any(penstock.Raw())}
}

// ID returns the stream's id.
func (s *Stream[T]) ID() penstock.StreamID { return s.id }

// Queue returns the queue of the stream, which its mapper chose.
func (s *Stream[T]) Queue() QueueID { return s.provider.mapper.QueueFor(s.id) }

// Publish stores the events as one container: they share a token and are
// delivered together, all or none at first. It returns when the queue has
// accepted the container, which says nothing about its consumption; what the
// acceptance is worth is the adapter's contract. No events, no effect. A
// handler that publishes to a queue that is full, and waits, may wait for room
// that only its own return can make: give such a call a deadline.
//
// The error matches penstock.ErrTooLarge for more than [MaxContainerEvents],
// penstock.ErrUnsupported when the provider cannot write, penstock.ErrClosed
// after Close, and penstock.ErrInvalid when the stream's id is.
func (s *Stream[T]) Publish(ctx context.Context, events ...T) error {
	return s.publish(ctx, nil, events, nil)
}

// PublishEvents is [Stream.Publish] with metadata per event and a header for
// all of them, which a batch shows behind each event's own. Meta.Stream is
// ignored. Headers belong to penstock from the call on.
func (s *Stream[T]) PublishEvents(ctx context.Context, header penstock.Header, events ...penstock.Event[T]) error {
	return s.publish(ctx, header, nil, events)
}

func (s *Stream[T]) publish(ctx context.Context, header penstock.Header, values []T, events []penstock.Event[T]) error {
	if len(values)+len(events) == 0 {
		return nil
	}
	if len(header) > 0 && header[0].Name == endHeader {
		return fmt.Errorf("publish to stream %s: %w", s.id, &penstock.FieldError{Field: "header", Reason: "the name " + endHeader + " is penstock's own"})
	}
	c, err := s.container(header, values, events)
	if err == nil {
		err = s.provider.enqueue(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("publish to stream %s: %w", s.id, err)
	}
	return nil
}

// container puts events together: values, or events with metadata.
func (s *Stream[T]) container(header penstock.Header, values []T, events []penstock.Event[T]) (Container, error) {
	n := len(values) + len(events)
	if err := s.id.Validate(); err != nil {
		return Container{}, err
	}
	if err := checkEvents(n); err != nil {
		return Container{}, err
	}
	p := takePacking()
	if s.raw {
		p.bytes(any(values).([][]byte))
		values = nil
	}
	for i := range values {
		if err := pack(p, s.codec, &values[i]); err != nil {
			return Container{}, err
		}
	}
	for i := range events {
		if err := pack(p, s.codec, &events[i].Value); err != nil {
			return Container{}, err
		}
	}
	c := Container{Stream: s.id, Header: header, Events: p.take()}
	for i := range events {
		m := events[i].Meta
		m.Stream = penstock.StreamID{} // the container has it
		c.Events.describe(i, n, &m)
	}
	p.leave()
	return c, nil
}

// pack encodes a value behind those that are there.
func pack[T any](p *packing, codec penstock.Codec[T], v *T) error {
	from := len(p.payload)
	out, err := codec.Append(p.payload, *v)
	if err == nil && len(out) < from {
		err = fmt.Errorf("codec %s took away what was before the value: %w", codec.ID(), penstock.ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("event %d: %w", len(p.starts), err)
	}
	p.payload, p.starts = out, append(p.starts, from)
	return nil
}

// Start is a place where a subscription begins: [Latest], [Earliest], [AtTime], [At] or
// [After].
type Start interface{ position() Position }

// Named is a place that needs no token.
type Named uint8

const (
	// Latest is strictly after everything that the agent of the queue had read
	// when it heard of the subscription. It is where a new subscription starts
	// unless told otherwise. A subscription made before Run gets everything
	// that no earlier run has settled.
	Latest Named = iota + 1
	// Earliest is the earliest container that the provider keeps: above its
	// checkpoint, and, while it runs, still in the cache.
	Earliest
)

func (n Named) position() Position {
	if n == Earliest {
		return Position{Kind: PositionEarliest}
	}
	return Position{Kind: PositionLatest}
}

type token Position

func (t token) position() Position { return Position(t) }

// At is the container with the token, or the next one of the stream. The index
// of the token is ignored: containers are delivered whole.
func At(t penstock.Token) Start { return token{Kind: PositionAt, Token: t} }

// After is strictly after the container with the token.
func After(t penstock.Token) Start { return token{Kind: PositionAfter, Token: t} }

// Subscription is a handle on an explicit subscription, which lives until it
// is unsubscribed or faulted, whether the provider runs or not.
type Subscription struct {
	provider *Provider
	stream   penstock.StreamID
	name     string
}

// Stream returns the stream's id.
func (s *Subscription) Stream() penstock.StreamID { return s.stream }

// Name returns the subscription's name.
func (s *Subscription) Name() string { return s.name }

// Unsubscribe removes the subscription. It does not wait for a delivery under
// way, whose outcome changes nothing any more. The error matches
// penstock.ErrNotFound when it was removed before.
func (s *Subscription) Unsubscribe(ctx context.Context) error {
	if err := s.provider.unsubscribe(ctx, s.stream, s.name); err != nil {
		return fmt.Errorf("unsubscribe: %w", err)
	}
	return nil
}

// Subscribe makes the subscription with that name, or resumes it: the handler
// is replaced, and the position stays unless From moves it. Each subscription
// has its own position and one delivery under way at a time; a slow one does
// not hold another. The handler takes batches of this stream only; an event
// that it fails is delivered again, after a backoff, while those behind it
// wait; see Config.MaxDeliveryTime and Config.Failure for the end of it.
//
// The error matches [ErrFaulted] when the subscription was given up,
// penstock.ErrUnsupported when the adapter cannot rewind to a token,
// penstock.ErrInvalid for a blank name, a nil handler or a token of another
// adapter, and penstock.ErrOffsetOutOfRange for a token beyond the end of the
// queue (if the adapter can tell; see [TokenChecker]), and penstock.ErrClosed
// after Close. A token that is no
// longer kept is found out later, when the stream becomes active: the failure
// handler is asked, which by default faults the subscription.
func (s *Stream[T]) Subscribe(ctx context.Context, name string, h penstock.Handler[T], options ...SubscribeOption) (*Subscription, error) {
	var o subscribeOptions
	for _, option := range options {
		option(&o)
	}
	err := s.id.Validate()
	switch {
	case err != nil:
	case strings.TrimSpace(name) == "":
		err = &penstock.FieldError{Field: "name", Reason: "is blank"}
	case h == nil:
		err = &penstock.FieldError{Field: "handler", Reason: "is nil"}
	case o.recover != nil:
		err = &penstock.FieldError{Field: "options", Reason: "Recover is for bindings"}
	default:
		err = s.provider.subscribe(ctx, s.id, name, &o, func(before Consumer) Consumer {
			c, _ := before.(*localConsumer)
			return c.successor(s.provider.config.Name, deliverTo(s.codec, h), &o)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("subscribe %q to stream %s: %w", name, s.id, err)
	}
	return &Subscription{provider: s.provider, stream: s.id, name: name}, nil
}

// Unsubscribe removes the subscription with that name; see
// [Subscription.Unsubscribe].
func (s *Stream[T]) Unsubscribe(ctx context.Context, name string) error {
	return (&Subscription{provider: s.provider, stream: s.id, name: name}).Unsubscribe(ctx)
}
