package stream

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/penstock/penstock"
)

// SubscriptionKinds says which kinds of subscriptions a provider has.
type SubscriptionKinds uint8

const (
	// ExplicitAndImplicit is the default: those that were subscribed, and those
	// that bindings declare.
	ExplicitAndImplicit SubscriptionKinds = iota
	// ExplicitOnly refuses bindings.
	ExplicitOnly
	// ImplicitOnly refuses to subscribe, and never asks the registry.
	ImplicitOnly
)

var kindNames = [...]string{"ExplicitAndImplicit", "ExplicitOnly", "ImplicitOnly"}

// String returns the name of the constant.
func (k SubscriptionKinds) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("SubscriptionKinds(%d)", uint8(k))
}

// Pattern says to which streams a binding applies: [Namespace], [NamespaceLike],
// [EveryNamespace] or [Matching]. A blank namespace never matches.
type Pattern struct {
	matches func(penstock.StreamID) bool
	err     error
}

// Namespace matches the streams of one namespace. Space around the name is
// ignored.
func Namespace(name string) Pattern {
	name = strings.TrimSpace(name)
	if name == "" {
		return Pattern{err: &penstock.FieldError{Field: "pattern", Reason: "the namespace is blank"}}
	}
	return Pattern{matches: func(s penstock.StreamID) bool { return s.Namespace == name }}
}

// NamespaceLike matches the streams whose namespace the regular expression
// matches somewhere; begin it with ^ and end it with $ for all of it.
func NamespaceLike(expression string) Pattern {
	re, err := regexp.Compile(expression)
	if err != nil {
		return Pattern{err: &penstock.FieldError{Field: "pattern", Reason: err.Error()}}
	}
	return Pattern{matches: func(s penstock.StreamID) bool { return re.MatchString(s.Namespace) }}
}

// EveryNamespace matches every stream with a namespace.
func EveryNamespace() Pattern {
	return Pattern{matches: func(penstock.StreamID) bool { return true }}
}

// Matching matches the streams for which f returns true. It must always say
// the same of the same stream, on every node, and be safe for concurrent use.
// The agent waits for it before it delivers anything of the stream; when it
// panics it is asked again after the delivery backoff.
func Matching(f func(penstock.StreamID) bool) Pattern {
	if f == nil {
		return Pattern{err: &penstock.FieldError{Field: "pattern", Reason: "the function is nil"}}
	}
	return Pattern{matches: f}
}

func (p Pattern) applies(s penstock.StreamID) bool {
	return strings.TrimSpace(s.Namespace) != "" && p.matches(s)
}

// binding declares an implicit subscription for each stream that its pattern
// matches. It is the consumer of all of them and keeps nothing per stream, so
// that millions of streams cost nothing.
type binding struct {
	name     string
	provider string
	pattern  Pattern
	handle   deliverFunc
	hooks    hooks
	recover  func(ctx context.Context, s penstock.StreamID) (penstock.Token, bool, error)
}

// Recover is an option of [Bind] for handlers that keep, with their effects,
// the token that they processed last: f returns it, and the subscription goes
// on with the event behind it, of the same container if that has more, instead of
// repeating what came after the checkpoint. Ok is false when there is none. A
// token behind where the subscription already is changes nothing: an implicit
// subscription is never moved back.
func Recover(f func(ctx context.Context, s penstock.StreamID) (t penstock.Token, ok bool, err error)) SubscribeOption {
	return func(o *subscribeOptions) { o.recover = f }
}

// Bind declares an implicit subscription with that name for every stream that
// the pattern matches, now and later: nothing is stored, a stream's first event
// is the first that its subscription gets, and it cannot be unsubscribed or
// faulted; where a failure would fault it, the events are skipped. The name,
// not the type of the handler, identifies it: keep it, and you may rename
// everything else. Values are JSON; see [BindCodec]. Batch.Stream tells the
// stream of a batch.
//
// Bind before Run. Options are [OnEnd], [OnNotice] and [Recover]. The error
// matches penstock.ErrInvalid for a blank name, a nil handler, a pattern that
// cannot be used or another option, penstock.ErrUnsupported when the provider
// has explicit subscriptions only or cannot read, and penstock.ErrExists for a
// name that is bound already and while the provider runs.
func Bind[T any](p *Provider, name string, where Pattern, h penstock.Handler[T], options ...SubscribeOption) error {
	return BindCodec(p, name, where, penstock.JSON[T](), h, options...)
}

// BindCodec is [Bind] with a codec of your own.
func BindCodec[T any](p *Provider, name string, where Pattern, c penstock.Codec[T], h penstock.Handler[T], options ...SubscribeOption) error {
	var o subscribeOptions
	for _, option := range options {
		option(&o)
	}
	err := where.err
	switch {
	case err != nil:
	case strings.TrimSpace(name) == "":
		err = &penstock.FieldError{Field: "name", Reason: "is blank"}
	case h == nil:
		err = &penstock.FieldError{Field: "handler", Reason: "is nil"}
	case where.matches == nil:
		err = &penstock.FieldError{Field: "pattern", Reason: "is missing"}
	case o.at.Kind != PositionNone || o.filter != "":
		err = &penstock.FieldError{Field: "options", Reason: "From and WithFilter are for explicit subscriptions"}
	default:
		err = p.bind(&binding{name: name, provider: p.config.Name, pattern: where, handle: deliverTo(c, h), hooks: o.hooks, recover: o.recover})
	}
	if err != nil {
		return fmt.Errorf("bind %q to provider %q: %w", name, p.config.Name, err)
	}
	return nil
}

func (p *Provider) bind(b *binding) error {
	if p.config.Subscriptions == ExplicitOnly {
		return &unsupportedError{what: "its subscriptions are ExplicitOnly; bindings need ExplicitAndImplicit or ImplicitOnly"}
	}
	if p.adapter.Direction() == WriteOnly {
		return &unsupportedError{what: "it is write-only"}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return penstock.ErrClosed
	}
	if p.running {
		return fmt.Errorf("it is running: %w", penstock.ErrExists)
	}
	i, found := slices.BinarySearchFunc(p.bindings, b.name, func(b *binding, name string) int { return strings.Compare(b.name, name) })
	if found {
		return penstock.ErrExists
	}
	p.bindings = slices.Insert(slices.Clone(p.bindings), i, b)
	return nil
}

// implicit returns the implicit subscriptions of a stream, by name.
func (p *Provider) implicit(s penstock.StreamID) (out []SubscriptionRecord) {
	p.mu.Lock()
	bindings := p.bindings // never changed, only replaced
	p.mu.Unlock()
	for _, b := range bindings {
		if b.pattern.applies(s) {
			out = append(out, SubscriptionRecord{Stream: p.qualified(s), Name: b.name, Implicit: true, Incarnation: 1, Attached: 1})
		}
	}
	return out
}

// binding returns the one that declares the subscription; nil when none does.
func (p *Provider) binding(s penstock.StreamID, name string) *binding {
	p.mu.Lock()
	bindings := p.bindings
	p.mu.Unlock()
	for _, b := range bindings {
		if b.name == name && b.pattern.applies(s) {
			return b
		}
	}
	return nil
}

func (p *Provider) bound(rec SubscriptionRecord) (Consumer, error) {
	if b := p.binding(rec.Stream.StreamID, rec.Name); b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("implicit subscription %q of stream %s: %w", rec.Name, rec.Stream.StreamID, ErrConsumerGone)
}

// explicitAllowed refuses what the provider's kinds or its bindings exclude.
func (p *Provider) explicitAllowed(s penstock.StreamID, name string) error {
	if p.config.Subscriptions == ImplicitOnly {
		return &unsupportedError{what: fmt.Sprintf("provider %q has subscriptions of kind %s; explicit ones need %s or %s",
			p.config.Name, ImplicitOnly, ExplicitOnly, ExplicitAndImplicit)}
	}
	if p.binding(s, name) != nil {
		return fmt.Errorf("a binding of provider %q declares it: %w", p.config.Name, penstock.ErrExists)
	}
	return nil
}

// Handshake answers with what the handler has processed, if it keeps that.
func (b *binding) Handshake(ctx context.Context, h Handshake) (Position, error) {
	if b.recover == nil {
		return Position{}, nil
	}
	t, ok, err := b.recover(ctx, h.Subscription.Stream.StreamID)
	if err != nil || !ok {
		return Position{}, ofHandler(err)
	}
	return Position{Kind: PositionResume, Token: t}, nil
}

func (*binding) takesContainers() {}

// Deliver runs the handler.
func (b *binding) Deliver(ctx context.Context, d *Delivery) (Answer, error) {
	a, err := b.hooks.deliver(ctx, d, b.provider, b.handle)
	failuresOfHandler(b.name, a.Failed)
	return a, ofHandler(err)
}

// Notify tells the hook.
func (b *binding) Notify(ctx context.Context, n Notice) { b.hooks.notify(ctx, n) }

// union joins two lists by name. A binding goes before an explicit subscription
// of the same name (OR-152).
func union(implicit, explicit []SubscriptionRecord) []SubscriptionRecord {
	if len(implicit) == 0 {
		return explicit
	}
	out := slices.Clone(implicit)
	for _, rec := range explicit {
		if _, found := find(implicit, rec.Name); !found {
			i, _ := find(out, rec.Name)
			out = slices.Insert(out, i, rec)
		}
	}
	return out
}
