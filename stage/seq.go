package stage

import (
	"context"
	"iter"
)

// All returns an iterator over what the outlet emits while the loop runs: the
// loop's body sets the pace. Leaving the loop cancels the subscription and
// leaves nothing behind: what was sent and not seen is counted as undelivered.
// When the producer ends normally, the loop does. When it fails, when it
// cannot be subscribed to, or when ctx ends, the last pair of the loop is the
// zero value and the error, as those of [Fold]. The same rules as there say
// which graph has to run. Each loop is a subscription of its own.
//
//	for order, err := range shop.Out().All(ctx) {
//		if err != nil {
//			return err
//		}
//		...
//	}
func (o Outlet[T]) All(ctx context.Context, opts ...SubOption) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		err, left := o.loop(ctx, opts, func(in []T) (int, bool) {
			for i := range in {
				if !yield(in[i], nil) {
					return i + 1, false
				}
			}
			return len(in), true
		})
		if err != nil && !left {
			var zero T
			yield(zero, err)
		}
	}
}

// Batches is [Outlet.All] over batches as a sink's callback gets them: a slice
// is valid until the next turn of the loop.
func (o Outlet[T]) Batches(ctx context.Context, opts ...SubOption) iter.Seq2[[]T, error] {
	return func(yield func([]T, error) bool) {
		err, left := o.loop(ctx, opts, func(in []T) (int, bool) { return len(in), yield(in, nil) })
		if err != nil && !left {
			yield(nil, err)
		}
	}
}

// A handful is a batch on its way to the loop and back.
type handful[T any] struct {
	in    []T
	taken int
	goOn  bool
}

// loop consumes o with body, on the calling goroutine. left says that body has
// ended it.
func (o Outlet[T]) loop(ctx context.Context, opts []SubOption, body func(in []T) (taken int, goOn bool)) (err error, left bool) {
	there, back, gone := make(chan handful[T]), make(chan handful[T]), make(chan struct{})
	sink := taker("loop", func(in []T) (int, bool) {
		select {
		case there <- handful[T]{in: in}:
			h := <-back
			return h.taken, h.goOn
		case <-gone: // by ctx
			return 0, false
		}
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	// The subscription: ends when the producer does, when body has had enough,
	// or with ctx; the receives from ended wait for it.
	go func() { ended <- consume(ctx, o, sink, opts) }()
	var in *handful[T] // in body's hands
	defer func() {
		if in != nil { // body has panicked, or called runtime.Goexit
			in.goOn = false
			back <- *in
			<-ended
		}
	}()
	for {
		select {
		case h := <-there:
			in = &h
			h.taken, h.goOn = body(h.in)
			in = nil
			back <- h
			if !h.goOn {
				return <-ended, true
			}
		case err = <-ended:
			return finished(ctx, err), false
		case <-ctx.Done():
			close(gone)
			return finished(ctx, <-ended), false
		}
	}
}

// ToChan returns a channel of what the outlet emits, and a function that waits
// until it is closed and says why: nil after a normal end, else an error as
// those of [Fold]. Up to capacity events wait in the channel. It is closed when
// the producer ends, and when ctx does: what was sent and is not in the channel
// then is counted as undelivered. Whoever stops receiving has to end ctx.
// A negative capacity counts as 0.
func ToChan[T any](ctx context.Context, from Outleter[T], capacity int, opts ...SubOption) (<-chan T, func() error) {
	events, closed := make(chan T, max(0, capacity)), make(chan struct{})
	var why error
	sink := taker("tochan", func(in []T) (int, bool) {
		for i := range in {
			select {
			case events <- in[i]:
			case <-ctx.Done():
				return i, false
			}
		}
		return len(in), true
	})
	// The subscription: ends when the producer does, or with ctx; the function
	// returned waits for it.
	go func() {
		why = finished(ctx, consume(ctx, from, sink, opts))
		close(events)
		close(closed)
	}()
	return events, func() error {
		<-closed
		return why
	}
}
