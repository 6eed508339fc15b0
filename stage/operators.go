package stage

import "context"

// The operators of this file answer their input at once and hold nothing back,
// so they are helpers like Map: they run in the goroutine of the stage after
// them. What they let go is counted as filtered.

// Pass returns a gate that passes everything on: a place with a name, for
// several producers to meet in or several consumers to come from.
func Pass[T any](name string, opts ...Option) *Gate[T, T] {
	return NewGate(name, func(_ context.Context, in []T, out *Output[T]) error {
		out.Forward(in)
		return nil
	}, opts...)
}

// Merge connects every producer of from to a new gate with the given name, and
// returns it: what they emit comes out of it, one chunk of each in turn, and
// the events of each in their order. It ends normally when all of them
// have, and with the first that fails.
func Merge[T any](g *Graph, name string, from ...Outleter[T]) *Gate[T, T] {
	to := Pass[T](name)
	for _, f := range from {
		Connect(g, f, to, CancelMode(Transient))
	}
	return to
}

// Tap returns a gate that shows every event to f and passes it on. f may change
// it; the pointer may not be kept.
func Tap[T any](f func(*T), opts ...Option) *Gate[T, T] {
	return helper("tap", f != nil, func(_ context.Context, in []T, out *Output[T]) error {
		for i := range in {
			f(&in[i])
		}
		out.Forward(in)
		return nil
	}, opts)
}

// FilterMap returns a gate that emits the first result of f(v) for every v for
// which the second is true.
func FilterMap[In, Out any](f func(In) (Out, bool), opts ...Option) *Gate[In, Out] {
	return helper("filtermap", f != nil, func(_ context.Context, in []In, out *Output[Out]) error {
		for i := range in {
			if v, ok := f(in[i]); ok {
				out.buf = append(out.buf, v)
			} else {
				out.lost.filtered++
			}
		}
		return nil
	}, opts)
}

// Scan returns a gate that keeps a state, at first zero, and emits after every
// event v the state that f(state, v) returns.
func Scan[In, State any](zero State, f func(State, In) State, opts ...Option) *Gate[In, State] {
	first := zero
	g := helper("scan", f != nil, func(_ context.Context, in []In, out *Output[State]) error {
		to, state := out.Grow(len(in)), zero
		for i := range to {
			state = f(state, in[i])
			to[i] = state
		}
		zero = state
		return nil
	}, opts)
	g.in.anew(func() { zero = first })
	return g
}

// Take returns a gate that passes the first n events and then ends normally;
// its producers then lose this consumer. With n 0 it ends without an event. A
// negative n is an error at Start.
func Take[T any](n int, opts ...Option) *Gate[T, T] {
	left := n
	g := helper("take", true, func(_ context.Context, in []T, out *Output[T]) error {
		k := min(left, len(in))
		left -= k
		out.lost.filtered = len(in) - k
		out.Forward(in[:k:cap(in)])
		if left == 0 {
			return Done
		}
		return nil
	}, opts)
	if n < 0 {
		g.in.invalid("Take", "%d is negative", n)
	}
	g.in.anew(func() { left = n })
	if n == 0 {
		g.drv = &overAtOnce[T]{}
	}
	return g
}

// overAtOnce ends its gate before any input, once: also one whose input was over
// before its first turn.
type overAtOnce[Out any] struct {
	passive[Out]
	said bool
}

func (o *overAtOnce[Out]) due(bool, int) bool { return !o.said }

func (o *overAtOnce[Out]) poll(context.Context, int, *Output[Out]) error {
	o.said = true
	return Done
}

func (o *overAtOnce[Out]) renew() { o.said = false }

// TakeWhile returns a gate that passes events until keep returns false for one:
// with that it ends normally, without passing it. The pointer may not be kept.
func TakeWhile[T any](keep func(*T) bool, opts ...Option) *Gate[T, T] {
	return helper("takewhile", keep != nil, func(_ context.Context, in []T, out *Output[T]) error {
		k := 0
		for k < len(in) && keep(&in[k]) {
			k++
		}
		out.lost.filtered = len(in) - k
		out.Forward(in[:k:cap(in)])
		if k < len(in) {
			return Done
		}
		return nil
	}, opts)
}

// Drop returns a gate that lets the first n events go and passes all others. A
// negative n is an error at Start.
func Drop[T any](n int, opts ...Option) *Gate[T, T] {
	left := n
	g := helper("drop", true, func(_ context.Context, in []T, out *Output[T]) error {
		k := min(left, len(in))
		left -= k
		out.lost.filtered = k
		out.Forward(in[k:])
		return nil
	}, opts)
	if n < 0 {
		g.in.invalid("Drop", "%d is negative", n)
	}
	g.in.anew(func() { left = n })
	return g
}

// DropWhile returns a gate that lets events go as long as drop returns true,
// and passes the first one for which it does not and all after it. The pointer
// may not be kept.
func DropWhile[T any](drop func(*T) bool, opts ...Option) *Gate[T, T] {
	dropping := true
	g := helper("dropwhile", drop != nil, func(_ context.Context, in []T, out *Output[T]) error {
		k := 0
		for dropping && k < len(in) {
			if dropping = drop(&in[k]); dropping {
				k++
			}
		}
		out.lost.filtered = k
		out.Forward(in[k:])
		return nil
	}, opts)
	g.in.anew(func() { dropping = true })
	return g
}

// DedupeAdjacent returns a gate that passes an event only when it differs from
// the one before it. It remembers one event.
func DedupeAdjacent[T comparable](opts ...Option) *Gate[T, T] {
	return dedupe(true, func(a, b *T) bool { return *a == *b }, opts)
}

// DedupeAdjacentFunc is [DedupeAdjacent] with same in place of ==: it gets the
// last event that was passed and the one after it. The pointers may not be
// kept.
func DedupeAdjacentFunc[T any](same func(last, next *T) bool, opts ...Option) *Gate[T, T] {
	return dedupe(same != nil, same, opts)
}

func dedupe[T any](given bool, same func(last, next *T) bool, opts []Option) *Gate[T, T] {
	var last T
	first := true
	g := helper("dedupe", given, func(_ context.Context, in []T, out *Output[T]) error {
		n := 0
		for i := range in {
			if first || !same(&last, &in[i]) {
				first, last = false, in[i]
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
	g.in.anew(func() {
		var none T
		first, last = true, none
	})
	return g
}

// Unbatch returns a gate that emits the events of the batches it gets, in
// order. They are copied: the batches stay their producer's.
func Unbatch[T any](opts ...Option) *Gate[[]T, T] {
	return helper("unbatch", true, func(_ context.Context, in [][]T, out *Output[T]) error {
		for _, b := range in {
			out.EmitAll(b...)
		}
		return nil
	}, opts)
}
