package stream

import (
	"context"

	"github.com/penstock/penstock"
)

// hooks are the calls of a subscription beside its handler; nil ones are not
// made.
type hooks struct {
	onEnd    func(ctx context.Context, s penstock.StreamID, cause error) error
	onNotice func(ctx context.Context, n Notice)
}

// deliver hands events to the handler, and the mark of an end to onEnd. A mark
// comes alone.
func (h *hooks) deliver(ctx context.Context, d *Delivery, provider string, handle deliverFunc) (Answer, error) {
	end, marked := d.from().End()
	switch {
	case !marked:
		return handle(ctx, provider, d)
	case h.onEnd == nil:
		return Answer{}, nil
	}
	return Answer{}, h.onEnd(ctx, d.Subscription.Stream.StreamID, end.Err())
}

func (h *hooks) notify(ctx context.Context, n Notice) {
	if h.onNotice != nil {
		h.onNotice(ctx, n)
	}
}

// subscribeOptions is what options of Subscribe and Bind set.
type subscribeOptions struct {
	at      Position
	filter  string
	hooks   hooks
	recover func(ctx context.Context, s penstock.StreamID) (penstock.Token, bool, error)
}

// SubscribeOption is an option of [Stream.Subscribe] and, where it says so, of
// [Bind].
type SubscribeOption func(*subscribeOptions)

// From says where the subscription starts; for one that exists, where it goes
// on. Without it a new one starts at [Latest]: what was published and read
// before it subscribed does not come. A group of a topic starts at the
// earliest event instead.
//
// How far back it can go: to what lies above the checkpoint of the queue, which
// follows the slowest subscription, and is in the cache. What all subscriptions
// of the queue have settled cannot be asked for again, by none of them, but for
// what a handler of the subscription has when Subscribe is called. That is
// found out behind Subscribe, by the agent: the failure handler is asked, which
// by default faults the subscription ([ErrFaulted], [Stream.Reset]). To start
// with what there is, take [Earliest].
func From(where Start) SubscribeOption {
	return func(o *subscribeOptions) { o.at = where.position() }
}

// WithFilter gives the subscription data for [Config.Filter]. It is stored with
// the subscription; subscribing again without it takes it away. Other data
// decides about everything that was not delivered yet; a delivery that is under
// way is not taken back. Blank data is the same as none.
func WithFilter(data string) SubscribeOption {
	return func(o *subscribeOptions) { o.filter = data }
}

// OnEnd is called for the mark that [Stream.Complete] or [Stream.Fail] has put
// into the stream, in its place among the events: everything before it has been
// settled, and nothing behind it is delivered before f has returned nil. Cause
// is nil for a stream that is complete and an *[EndedError] for one that has
// failed. An error is a failed delivery. The subscription stays; a stream may
// go on after its end. Without OnEnd marks are settled and nobody is told. It
// is an option of Subscribe and of Bind.
func OnEnd(f func(ctx context.Context, s penstock.StreamID, cause error) error) SubscribeOption {
	return func(o *subscribeOptions) { o.hooks.onEnd = f }
}

// OnNotice is called with what is decided about the subscription; see
// [Listener]. It is an option of Subscribe and of Bind.
func OnNotice(f func(ctx context.Context, n Notice)) SubscribeOption {
	return func(o *subscribeOptions) { o.hooks.onNotice = f }
}

// Each makes a handler of a function that takes one event at a time, in order,
// with its token. The first event that it fails ends the batch: those behind
// it fail too, without having been tried, and come again after it, so that
// their order is kept. The attempts of those count nevertheless.
func Each[T any](f func(ctx context.Context, v T, t penstock.Token) error) penstock.Handler[T] {
	return func(ctx context.Context, b penstock.Batch[T]) error {
		var failed error
		for i, v := range b.All() {
			if failed == nil {
				failed = f(ctx, v, b.Token(i))
			}
			if failed != nil {
				b.Fail(i, failed)
			}
		}
		return nil
	}
}
