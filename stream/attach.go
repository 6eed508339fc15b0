package stream

import (
	"context"
	"fmt"
	"strings"

	"github.com/penstock/penstock"
)

// Attach makes the subscription with that name, or resumes it, as
// [Stream.Subscribe] does, for a consumer of your own instead of a handler: one
// across a connection, for example. The consumer says in its handshake where it
// starts. The only option is [WithFilter].
//
// The error matches penstock.ErrInvalid for a blank name, a nil consumer or
// another option; otherwise errors are those of Subscribe.
func (p *Provider) Attach(ctx context.Context, s penstock.StreamID, name string, c Consumer, options ...SubscribeOption) (*Subscription, error) {
	var o subscribeOptions
	for _, option := range options {
		option(&o)
	}
	err := s.Validate()
	switch {
	case err != nil:
	case strings.TrimSpace(name) == "":
		err = &penstock.FieldError{Field: "name", Reason: "is blank"}
	case c == nil:
		err = &penstock.FieldError{Field: "consumer", Reason: "is nil"}
	case o.at.Kind != PositionNone || o.recover != nil || o.hooks.onEnd != nil || o.hooks.onNotice != nil:
		err = &penstock.FieldError{Field: "options", Reason: "the only option for a consumer of one's own is WithFilter"}
	default:
		err = p.subscribe(ctx, s, name, &o, func(Consumer) Consumer { return c })
	}
	if err != nil {
		return nil, fmt.Errorf("attach %q to stream %s: %w", name, s, err)
	}
	return &Subscription{provider: p, stream: s, name: name}, nil
}

// NewConsumer returns the consumer that [Stream.Subscribe] makes of a handler,
// for one subscription that is attached elsewhere: at the other end of a
// connection. Options are [From], [OnEnd] and [OnNotice]; without From it asks
// for nothing at first, and later for what follows the last delivery that it
// has settled as a whole. It is safe for concurrent use.
//
// The error matches penstock.ErrInvalid for a nil codec or handler and another
// option.
func NewConsumer[T any](codec penstock.Codec[T], h penstock.Handler[T], options ...SubscribeOption) (Consumer, error) {
	var o subscribeOptions
	for _, option := range options {
		option(&o)
	}
	err := error(nil)
	switch {
	case codec == nil:
		err = &penstock.FieldError{Field: "codec", Reason: "is nil"}
	case h == nil:
		err = &penstock.FieldError{Field: "handler", Reason: "is nil"}
	case o.filter != "" || o.recover != nil:
		err = &penstock.FieldError{Field: "options", Reason: "WithFilter and Recover are for those who attach the subscription"}
	}
	if err != nil {
		return nil, fmt.Errorf("stream: new consumer: %w", err)
	}
	deliver := deliverTo(codec, h)
	var none *localConsumer
	return none.successor("", func(ctx context.Context, _ string, d *Delivery) (Answer, error) {
		return deliver(ctx, d.Subscription.Stream.Provider, d)
	}, &o), nil
}
