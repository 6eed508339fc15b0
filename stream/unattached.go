package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// UnattachedPolicy says what becomes of a stored subscription that nobody in
// this process handles: after a restart, until it is subscribed again.
type UnattachedPolicy uint8

const (
	// HoldUnattached keeps its place: nothing is delivered to it, and the
	// checkpoint of its queue waits, until somebody subscribes with its name or
	// removes it. QueueStats.Reason names it.
	HoldUnattached UnattachedPolicy = iota
	// DropUnattached passes its events over and counts them in
	// QueueStats.Unattended.
	DropUnattached
	// RemoveUnattached removes the subscription.
	RemoveUnattached
)

// errUnattached says that a subscription has nobody who handles it, and that it
// is held.
var errUnattached = errors.New("nobody in this process handles it")

// unattached is the consumer of a subscription that has none: what the hook
// makes of it, or the policy does.
func (p *Provider) unattached(ctx context.Context, rec SubscriptionRecord) (Consumer, error) {
	if hook := p.config.OnUnattached; hook != nil {
		if err := hook(ctx, rec); err != nil {
			return nil, fmt.Errorf("unattached subscription %q of stream %s: %w", rec.Name, rec.Stream.StreamID, ofHandler(err))
		}
		if c := p.local(rec); c != nil {
			return c, nil
		}
	}
	what := errUnattached
	switch p.config.Unattached {
	case DropUnattached:
		return dropConsumer{}, nil
	case RemoveUnattached:
		what = ErrConsumerGone
	}
	return nil, fmt.Errorf("subscription %q of stream %s: %w", rec.Name, rec.Stream.StreamID, what)
}

// dropConsumer settles what it is given; the agent counts it as unattended.
type dropConsumer struct{}

func (dropConsumer) Handshake(context.Context, Handshake) (Position, error) { return Position{}, nil }

func (dropConsumer) Deliver(context.Context, *Delivery) (Answer, error) { return Answer{}, nil }

// hold ends a handshake without an answer: the subscription waits to be
// announced again.
func (r *run) hold(h *handshake) {
	if !h.sub.held {
		r.log.Warn("subscription has nobody who handles it; it and the checkpoint wait", r.about(h.sub)...)
	}
	h.sub.held = true
	r.tellOf(h.sub, SubscriptionUnattached, Diagnostic{})
	r.endHandshake(h)
}

// withdrawn has the consumer of a subscription given up that is not in the
// roster any more, unless that is because it was faulted: then it may come back.
func (r *run) withdrawn(rec SubscriptionRecord) {
	if rec.Implicit || r.forget == nil || !r.latch.enter() {
		return
	}
	faulted := false
	r.spawn("registry", func(ctx context.Context) error {
		list, err := r.registry.Faulted(ctx, rec.Stream)
		faulted = slices.ContainsFunc(list, func(f SubscriptionRecord) bool { return f.Name == rec.Name && f.Incarnation == rec.Incarnation })
		return err
	}, func(err error) {
		defer r.latch.leave()
		if err != nil {
			r.log.Warn("consumer of a removed subscription is kept", r.fields("stream", rec.Stream.StreamID.String(), "subscription", rec.Name, "err", err)...)
		} else if !faulted {
			r.forget(rec)
		}
	})
}
