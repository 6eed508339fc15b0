package stage

import "context"

// Helpers are gates without state: they run in the goroutine of the stage
// after them where that changes nothing else (ADR 0009). The graph names them after their
// kind and their place.

// Map returns a gate that emits f(v) for every v. f is called once per event,
// in order. For a large T, [MapPtr] copies less.
func Map[In, Out any](f func(In) Out, opts ...Option) *Gate[In, Out] {
	return reader("map", f != nil, func(_ context.Context, in []In, out *Output[Out]) error {
		to := out.Grow(len(in))
		for i := range to {
			to[i] = f(in[i])
		}
		return nil
	}, opts)
}

// MapPtr is [Map] without copies: f reads *in, which it must not change, and
// writes *out, whose content is unspecified until then. Neither pointer may be
// kept.
func MapPtr[In, Out any](f func(in *In, out *Out), opts ...Option) *Gate[In, Out] {
	return reader("map", f != nil, func(_ context.Context, in []In, out *Output[Out]) error {
		to := out.Grow(len(in))
		for i := range to {
			f(&in[i], &to[i])
		}
		return nil
	}, opts)
}

// FlatMap returns a gate that emits the events that f(v) returns, in order, for
// every v; there may be none. They are copied: the slice stays f's, and may be
// used again in its next call.
func FlatMap[In, Out any](f func(In) []Out, opts ...Option) *Gate[In, Out] {
	return reader("flatmap", f != nil, func(_ context.Context, in []In, out *Output[Out]) error {
		for i := range in {
			out.EmitAll(f(in[i])...)
		}
		return nil
	}, opts)
}

// Filter returns a gate that passes the events for which keep returns true. The
// pointer may not be kept.
func Filter[T any](keep func(*T) bool, opts ...Option) *Gate[T, T] {
	return helper("filter", keep != nil, func(_ context.Context, in []T, out *Output[T]) error {
		n := 0
		for i := range in {
			if keep(&in[i]) {
				if n != i {
					in[n] = in[i]
				}
				n++
			}
		}
		out.lost.filtered = len(in) - n
		out.Forward(in[:n:cap(in)])
		return nil
	}, opts)
}

func helper[In, Out any](name string, given bool, f func(context.Context, []In, *Output[Out]) error, opts []Option) *Gate[In, Out] {
	g := NewGate(name, f, opts...)
	g.in.helper, g.in.auto = true, true
	g.in.callback(given)
	return g
}

// reader is helper for an f that leaves its input as it is.
func reader[In, Out any](name string, given bool, f func(context.Context, []In, *Output[Out]) error, opts []Option) *Gate[In, Out] {
	g := helper(name, given, f, opts)
	g.in.changes = false
	return g
}
