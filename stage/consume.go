package stage

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock/penstock"
)

// ErrProducerFailed: what was consumed has failed. The error that matches it
// matches the producer's error too.
var ErrProducerFailed = errors.New("producer failed")

// The functions of this file consume an outlet from outside of its graph, until
// it ends, ctx does, or they have what they want; then nothing of them is left:
// no subscription, no goroutine.
//
// The producer's graph has to run; they are one more subscriber of it, and get
// what is emitted from then on. A stage that belongs to no graph gets one of
// its own, which starts and ends with the call.

// consume has sink take from an outlet until either ends, or ctx does. It
// returns the error that the sink ended with: its own, or one that matches
// ErrProducerFailed.
func consume[T any](ctx context.Context, from Outleter[T], sink *Sink[T], opts []SubOption) error {
	if err := penstock.ContextError(ctx); err != nil {
		return err
	}
	o := from.Out().resolve("consume")
	if o == nil {
		return ErrProducerNotAlive
	}
	g := NewGraph()
	alone := o.graph() == nil
	if alone {
		Connect(g, from, sink, opts...)
	} else if err := g.Add(sink); err != nil {
		return err
	}
	if err := g.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	if !alone {
		if _, err := SubscribeWait(ctx, from, sink, opts...); err != nil {
			g.Abort(err)
			_ = g.Wait() // the same
			return err
		}
	}
	select {
	case <-sink.Done():
	case <-ctx.Done():
		sink.Stop()
	}
	failure := g.Wait() // with the last sink the rest of the graph ends too
	switch err := sink.Wait(); {
	case sink.in.own:
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrProducerFailed, err)
	case failure != nil: // after the sink had what it wants
		return fmt.Errorf("%w: %w", ErrProducerFailed, failure)
	}
	return nil
}

// taker returns a sink that gives each batch to f, which returns how many of it
// it has taken. Fewer than all, or false, end the sink; the rest is counted as
// undelivered.
func taker[T any](name string, f func(in []T) (taken int, goOn bool)) *Sink[T] {
	var s *Sink[T]
	s = NewSink(name, func(_ context.Context, in []T) error {
		taken, goOn := f(in)
		s.unseen = len(in) - taken
		if s.unseen > 0 || !goOn {
			return Done
		}
		return nil
	})
	s.in.auto = true
	return s
}

// finished says why a call ended that had not got what it wants before.
func finished(ctx context.Context, err error) error {
	if err == nil {
		err = penstock.ContextError(ctx)
	}
	return err
}

// Fold consumes from until it ends and returns what f makes of every event,
// beginning with zero: f(...f(f(zero, v1), v2)..., vn). See the functions' error:
// it matches [penstock.ErrInvalid] when the stage cannot start,
// [ErrProducerNotAlive] or another error of [SubscribeWait] when it cannot be
// subscribed to, [ErrProducerFailed] and the producer's error when that failed,
// and ctx.Err() and its cause when ctx ended first. With an error Fold
// returns what it has by then. A panic of f is a *[penstock.PanicError]. A
// callback of the producer must not call it.
//
// The producer's graph has to run, and Fold gets what is emitted from then on,
// as one more subscriber. It does not keep that graph going: when the last sink of
// the graph has ended, the producer ends, normally. A stage that belongs to no
// graph is run by Fold, in a graph of its own.
func Fold[T, A any](ctx context.Context, from Outleter[T], zero A, f func(A, T) A, opts ...SubOption) (A, error) {
	sink := taker("fold", func(in []T) (int, bool) {
		for _, v := range in {
			zero = f(zero, v)
		}
		return len(in), true
	})
	err := consume(ctx, from, sink, opts)
	return zero, finished(ctx, err)
}

// Collect consumes from until it ends and returns its events in order: as many
// as there are, so it is for those that are few. It is [Fold] to a slice.
func Collect[T any](ctx context.Context, from Outleter[T], opts ...SubOption) ([]T, error) {
	return Fold(ctx, from, nil, func(all []T, v T) []T { return append(all, v) }, opts...)
}

// Count consumes from until it ends and returns the number of its events. It is
// [Fold] to a number.
func Count[T any](ctx context.Context, from Outleter[T], opts ...SubOption) (int, error) {
	return Fold(ctx, from, 0, func(n int, _ T) int { return n + 1 }, opts...)
}

// First consumes one event and leaves. ok is false when from ends without one;
// the errors are those of [Fold].
func First[T any](ctx context.Context, from Outleter[T]) (v T, ok bool, err error) {
	sink := taker("first", func(in []T) (int, bool) {
		v, ok = in[0], true
		return 1, false
	})
	if err = consume(ctx, from, sink, []SubOption{Demand(1, 0)}); err == nil && !ok {
		err = finished(ctx, nil)
	}
	return v, ok, err
}

// ForEach returns a sink that calls f for every event, in order. An error or a
// panic of f counts as one of [NewSink]'s callback does: for the whole batch. Where
// one event alone is to fail use [NewPool], or a batch of one ([Demand] of 1 and 0).
func ForEach[T any](f func(ctx context.Context, v T) error, opts ...Option) *Sink[T] {
	return unnamed("foreach", f != nil, func(ctx context.Context, in []T) error {
		for i := range in {
			if err := f(ctx, in[i]); err != nil {
				return err
			}
		}
		return nil
	}, opts)
}

// Discard returns a sink that takes everything and does nothing with it.
func Discard[T any](opts ...Option) *Sink[T] {
	return unnamed("discard", true, func(context.Context, []T) error { return nil }, opts)
}

// unnamed returns a sink that the graph gives a name.
func unnamed[T any](name string, given bool, f func(context.Context, []T) error, opts []Option) *Sink[T] {
	s := NewSink(name, f, opts...)
	s.in.callback(given)
	s.in.auto = true
	return s
}
