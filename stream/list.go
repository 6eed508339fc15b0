package stream

import (
	"context"
	"fmt"
)

// Subscriptions returns the subscriptions of the stream that are not faulted,
// implicit ones too, by name. All subscriptions of one consumer are those whose
// names it has chosen.
func (s *Stream[T]) Subscriptions(ctx context.Context) ([]SubscriptionRecord, error) {
	p := s.provider
	explicit, err := p.registry().Subscriptions(ctx, p.qualified(s.id))
	if err != nil {
		return nil, fmt.Errorf("subscriptions of stream %s: %w", s.id, err)
	}
	return union(p.implicit(s.id), explicit), nil
}

// Faulted returns the faulted subscriptions of the stream, by name.
func (s *Stream[T]) Faulted(ctx context.Context) ([]SubscriptionRecord, error) {
	p := s.provider
	out, err := p.registry().Faulted(ctx, p.qualified(s.id))
	if err != nil {
		return nil, fmt.Errorf("faulted subscriptions of stream %s: %w", s.id, err)
	}
	return out, nil
}

// Reset gives a faulted subscription back to its consumer. It goes on where the
// consumer asks, and otherwise after what has been read by then. The error
// matches penstock.ErrNotFound when no subscription with that name is faulted.
func (s *Stream[T]) Reset(ctx context.Context, name string) error {
	p := s.provider
	if err := p.registry().Reset(ctx, SubscriptionRecord{Stream: p.qualified(s.id), Name: name}); err != nil {
		return fmt.Errorf("reset subscription %q of stream %s: %w", name, s.id, err)
	}
	return nil
}

// Counts returns how many producers (agents) deliver the stream now, and how
// many explicit subscriptions it has that are not faulted.
func (s *Stream[T]) Counts(ctx context.Context) (producers, subscriptions int, err error) {
	p := s.provider
	ids, err := p.registry().Producers(ctx, p.qualified(s.id))
	if err == nil {
		var recs []SubscriptionRecord
		recs, err = p.registry().Subscriptions(ctx, p.qualified(s.id))
		subscriptions = len(recs)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("counts of stream %s: %w", s.id, err)
	}
	return len(ids), subscriptions, nil
}

// registry is the one that agents and handles use: the configured one, unless
// all subscriptions are implicit and it is never asked.
func (p *Provider) registry() Registry {
	if p.config.Subscriptions == ImplicitOnly {
		return p.none
	}
	return p.config.Registry
}
