package stage

import (
	"context"

	"github.com/penstock/penstock/demand"
)

// Pool is a sink that handles every event in a call of its own, several at a
// time. Make one with [NewPool]. [MapConcurrent] is the gate of this kind.
type Pool[T any] struct{ crew[T] }

// NewPool returns a sink that calls f for every event, up to n at a time per
// subscription, each in a goroutine of its own. It asks for one more event
// whenever a call has returned, so no event waits in the pool: what no worker is
// free for stays with the producer. Events begin in the order of their
// subscription, and end as they like.
//
// n is the demand of its subscriptions: one with [Demand], [Max] or [Manual] is
// refused with [ErrUnsupportedDemandMode]. n < 1 is an error at Start.
//
// An error, a panic or runtime.Goexit of f is the failure of its event and not
// of the pool: it is counted in [Stats].Failed, given to [Pool.OnFailed] or else
// logged, and the worker takes the next event. [Done] ends the pool normally.
//
// A pool that ends normally waits for the calls that go on, without a limit
// unless [Drain] sets one; Origin tells f's subscription by its context. When the graph is aborted, its drain deadline has passed, or
// Drain's, the contexts of the calls are cancelled; those that do not return
// within [ChildShutdown] are abandoned: counted, logged, and an [ErrAbandoned]
// in what Run returns.
func NewPool[T any](name string, n int, f func(ctx context.Context, event T) error, opts ...Option) *Pool[T] {
	p := &Pool[T]{}
	p.init(name, p, func(ctx context.Context, event T) (func() error, error) { return nil, f(ctx, event) }, opts)
	p.in.callback(f != nil)
	if n < 1 {
		p.in.invalid("NewPool", "%d calls at a time are not positive", n)
		n = 1
	}
	if p.in.children.restarts != "" {
		p.in.invalid(p.in.children.restarts, "is for Slots, not for a pool")
	}
	p.in.ownWindow, p.in.err = fixedWindow(n, p.in.err)
	return p
}

// fixedWindow asks for one whenever one is done.
func fixedWindow(n int, before error) (demand.Window, error) {
	w, err := demand.NewWindow(n, n-1)
	if before != nil {
		err = before
	}
	return w, err
}

// OnFailed sets what the pool does instead of logging when a call has failed, or
// was stopped before its end: f is called with the event and why, on the pool's
// goroutine; err matches [ErrAbandoned] when the call did not return in time. f
// must not block. A panic of f fails the pool. It returns p. Call it before the
// graph starts.
func (p *Pool[T]) OnFailed(f func(event T, err error)) *Pool[T] {
	p.onFailed = f
	return p
}

// OnSubscribed sets a function that is told of every subscription of the pool;
// it is [Sink.OnSubscribed].
func (p *Pool[T]) OnSubscribed(f func(*Subscription)) *Pool[T] {
	p.in.onSubscribed = f
	return p
}

// OnCancelled sets a function that decides what becomes of the pool when a
// subscription of its has ended; it is [Sink.OnCancelled]. Calls may go on when
// it runs.
func (p *Pool[T]) OnCancelled(f func(sub *Subscription, reason error) error) *Pool[T] {
	p.in.onCancelled = f
	return p
}

// In returns the pool's inlet.
func (p *Pool[T]) In() Inlet[T] { return Inlet[T]{i: &p.in} }

// Name returns the name of the pool.
func (p *Pool[T]) Name() string { return p.in.Name() }

// Done returns a channel that is closed when the pool has ended.
func (p *Pool[T]) Done() <-chan struct{} { return p.in.Done() }

// Wait blocks until the pool has ended and returns why, nil for a normal end. It
// returns an error at once when the pool belongs to no graph.
func (p *Pool[T]) Wait() error { return p.in.Wait() }

// Stop has the pool take no more events and end normally when the calls that go
// on have returned. It does not wait.
func (p *Pool[T]) Stop() { p.in.Stop() }
