package stage

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// DefaultSubscribe bounds how long [SubscribeWait] waits when [Timeout] says
// nothing else.
const DefaultSubscribe = 5 * time.Second

// Subscribe has the consumer to subscribe to the producer from while both run.
// They may belong to two graphs: a consumer of another graph is none of the sinks
// that keep the producer's graph going (see [Graph]), and a circle over several
// graphs is not found.
//
// It does not wait for either: a nil error says that the consumer asks, not
// that the producer has answered. When the producer's dispatcher refuses, the
// subscription ends with the reason, and the consumer as its cancel mode says;
// see [SubscribeWait]. What the producer emits before it has taken the
// subscription in goes to others; when it ends before that, the subscription
// ends as the producer did.
//
// The error matches [ErrProducerNotAlive] or [ErrConsumerNotAlive] when one of
// them does not run, [ErrSelfSubscription], [ErrAlreadySubscribed], [ErrCycle],
// [ErrInvalidDemand], [ErrUnsupportedDemandMode], or ctx.Err() and its cause
// when ctx has ended before the call. Then nothing has changed.
func Subscribe[T any](ctx context.Context, from Outleter[T], to Inleter[T], opts ...SubOption) (*Subscription, error) {
	r, err := newRequest(ctx, from, to, opts)
	if err != nil {
		return nil, err
	}
	r.sub.standing.Store(accepted)
	if !r.i.post(func() { r.i.join(r.e) }) {
		r.sub.over(ErrConsumerNotAlive)
		return nil, r.sub.where(ErrConsumerNotAlive)
	}
	if !r.o.post(r.attach) {
		l := r.o.life.Load()
		<-l.over // it has run its last errand, nothing holds it up
		r.e.end(l.err)
	}
	return r.sub, nil
}

// SubscribeWait is [Subscribe] and waits until the producer has accepted the
// subscription; what refuses it is returned, and leaves the consumer as it was.
// It waits for at most [Timeout], 5 s by default, and for ctx: then the request
// is withdrawn and never comes to life, no hook runs for it, and the error
// matches [ErrSubscribeTimeout], or ctx.Err() and its cause. A callback of the
// producer must not call it: it would wait for itself.
func SubscribeWait[T any](ctx context.Context, from Outleter[T], to Inleter[T], opts ...SubOption) (*Subscription, error) {
	r, err := newRequest(ctx, from, to, opts)
	if err != nil {
		return nil, err
	}
	answer := make(chan error, 1)
	if !r.o.post(func() { r.answer(answer) }) {
		answer <- ErrProducerNotAlive
	}
	deadline := time.NewTimer(r.sub.timeout)
	defer deadline.Stop()
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = r.withdraw(answer, penstock.ContextError(ctx))
	case <-deadline.C:
		err = r.withdraw(answer, ErrSubscribeTimeout)
	}
	if err != nil {
		r.sub.over(err)
		return nil, r.sub.where(err)
	}
	return r.sub, nil
}

// A request is a subscription on its way to its producer and its consumer.
type request[T any] struct {
	sub *Subscription
	e   *edge[T]
	o   *outlet[T]
	i   *inlet[T]
}

func newRequest[T any](ctx context.Context, from Outleter[T], to Inleter[T], opts []SubOption) (*request[T], error) {
	f, t := from.Out(), to.In()
	o, i := f.resolve("Subscribe"), t.resolve("Subscribe")
	s := newSubscription(opts)
	s.names = [2]string{f.called(o), t.called(i)}
	switch {
	case o == nil:
		return nil, s.where(ErrProducerNotAlive)
	case i == nil:
		return nil, s.where(ErrConsumerNotAlive)
	}
	s.from, s.to = o.base, i.base
	s.ready.Store(true)
	if err := penstock.ContextError(ctx); err != nil {
		return nil, s.where(err)
	}
	rule := i.rule(&s.subscription)
	e := newEdge(f, o, i, s)
	if g := o.graph(); g != nil {
		e.clears = e.clears || g.once
	}
	if err := s.enter(e, rule); err != nil {
		return nil, err
	}
	return &request[T]{s, e, o, i}, nil
}

// enter checks a subscription between running stages and lists it with the
// consumer's graph: from then on the pair is taken.
func (s *Subscription) enter(e subscribed, rule error) error {
	switch {
	case s.from == s.to:
		return s.where(ErrSelfSubscription)
	case s.subscription.err != nil:
		return s.where(s.subscription.err)
	case rule != nil:
		return s.where(rule)
	case !s.from.alive():
		return s.where(ErrProducerNotAlive)
	case !s.to.alive():
		return s.where(ErrConsumerNotAlive)
	}
	s.graph = s.to.graph()
	s.edge = e
	e.wire(s.from.bell.Load(), s.to.bell.Load())
	g := s.graph
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining.Load() {
		return s.where(ErrConsumerNotAlive)
	}
	if err := g.single(s, e.part()); err != nil {
		return err
	}
	if name, found := cycle(append(slices.Clone(g.links), s)); found {
		return s.where(fmt.Errorf("%w through stage %q", ErrCycle, name))
	}
	g.links = append(g.links, s)
	return nil
}

// alive reports whether the stage runs, as far as others can see.
func (b *base) alive() bool {
	g := b.graph()
	return g != nil && b.bell.Load() != nil && !b.over.Load() && b.ctl.Load()&(ctlStop|ctlQuit) == 0
}

// attach is the producer's part: it runs on its goroutine.
func (r *request[T]) attach() {
	if r.o.phase != running { // its end came first: the subscription shares it
		r.e.end(r.o.cause)
		return
	}
	err := ErrProducerNotAlive
	defer func() { // also when a hook calls runtime.Goexit in accept
		if err != nil {
			r.e.end(err)
		}
	}()
	if err = r.accept(); err == nil {
		r.o.greet(len(r.o.edges))
	}
}

// accept takes the subscription in, unless the producer is at its end or the
// dispatcher refuses.
func (r *request[T]) accept() error {
	if r.o.phase != running {
		return ErrProducerNotAlive
	}
	r.o.poison = r.o.graph().poison
	r.o.once = r.o.graph().once
	r.o.prune() // a newcomer may take the place of one who has left
	return r.o.adopt(r.e)
}

// answer is attach for SubscribeWait, unless the request was withdrawn.
func (r *request[T]) answer(to chan<- error) {
	if !r.sub.standing.CompareAndSwap(requested, accepted) {
		return
	}
	err := ErrProducerNotAlive
	told := false
	defer func() { // also when a hook calls runtime.Goexit in accept
		if !told {
			to <- err
		}
	}()
	if err = r.accept(); err != nil {
		return
	}
	if !r.i.post(func() { r.i.join(r.e) }) {
		r.e.leave() // for the consumer, which has ended and touches it no more
		err = ErrConsumerNotAlive
	}
	told = true
	to <- err
	r.o.greet(len(r.o.edges))
}

// withdraw takes the request back. When the producer was faster, its answer
// counts.
func (r *request[T]) withdraw(answer <-chan error, why error) error {
	if r.sub.standing.CompareAndSwap(requested, withdrawn) {
		return why
	}
	return <-answer
}
