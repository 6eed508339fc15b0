package stage

import "slices"

// Output takes what a callback emits. It is valid until the callback returns,
// and only for the goroutine that runs the callback. Emitting never blocks: what
// nobody has asked for waits in the stage.
type Output[T any] struct {
	buf []T

	// Forwarding: the chunk that the callback was given, if its slab may be
	// passed on, and the part of it that was. A forwarded part always comes
	// before buf.
	lent     []T
	from, to int

	lost losses // what an operator let go in this call
}

// losses are input events that an operator of this package did not emit.
type losses struct{ filtered, dropped, failed int }

// Emit emits one event.
func (o *Output[T]) Emit(v T) { o.buf = append(o.buf, v) }

// EmitAll emits events in order. It copies them.
func (o *Output[T]) EmitAll(vs ...T) { o.buf = append(o.buf, vs...) }

// Grow emits n events that the caller writes in place: the slice returned has
// length n, unspecified content, and is valid until the next call of a method
// of o or the callback's return. Grow panics when n is negative.
func (o *Output[T]) Grow(n int) []T {
	at := len(o.buf)
	o.buf = slices.Grow(o.buf, n)[:at+n]
	return o.buf[at:]
}

// Forward emits events in order. Where in is the callback's input or a part of
// it, and nothing was emitted before, the events are passed on without a copy;
// in every other case they are copied. The caller must not use in
// afterwards.
func (o *Output[T]) Forward(in []T) {
	if len(in) == 0 {
		return
	}
	// Slices of one array end at the same place exactly when capacity tells
	// so: a part in of lent, cut by in = lent[a:b], has capacity cap(lent) - a.
	if at := cap(o.lent) - cap(in); len(o.buf) == 0 && o.to == 0 && at >= 0 &&
		at+len(in) <= len(o.lent) && &o.lent[at] == &in[0] {
		o.from, o.to = at, at+len(in)
		return
	}
	o.buf = append(o.buf, in...)
}

// Len returns the number of events emitted in this call so far.
func (o *Output[T]) Len() int { return o.to - o.from + len(o.buf) }
