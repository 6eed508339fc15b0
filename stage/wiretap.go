package stage

import "context"

// WireTap returns a gate that passes everything on and pushes a copy of it into
// the source of to, which belongs to this or to another graph. The side can
// never slow the main flow: what it does not take waits in that source's
// buffer, or is dropped by its policy and counted there. A side that has ended
// gets nothing more, and the main flow goes on. When the gate ends, the side's
// source ends as it did: normally, or with its error.
func WireTap[T any](to *Emitter[T], opts ...Option) *Gate[T, T] {
	w := &wireTap[T]{to: to}
	g := driven[T, T]("wiretap", to != nil, w, func(_ context.Context, in []T, out *Output[T]) error {
		_ = to.Push(in...) // the source has ended, or its discard hook has failed it: both are its own
		out.Forward(in)
		return nil
	}, opts)
	g.in.helper = true
	w.gate = g.in.base
	return g
}

type wireTap[T any] struct {
	passive[T]
	to   *Emitter[T]
	gate *base
}

func (w *wireTap[T]) close() { w.to.end(w.gate.cause) }
