package stage

import "github.com/penstock/penstock"

// Feedback connects a producer back to a stage before it, through a buffer of up
// to n events that drops by policy p, which is KeepLast, KeepFirst or DropAll:
// so the circle cannot wait for itself. It is the one way to close a circle; with
// [Connect] it is an error at Start. The buffer is a [BufferGate] of the graph,
// which counts and logs what it drops. It returns the subscription by which the
// consumer gets the events, to which opts apply.
//
// The end of the circle does not depend on itself: the consumer ends with its
// last producer that is no feedback, and what is on its way around then is
// dropped and counted. An n below 1 and other policies are errors at Start. Most
// producers at such a place broadcast, with [Outlet.Where] saying what goes
// around again.
func Feedback[T any](g *Graph, from Outleter[T], to Inleter[T], n int, p Policy, opts ...SubOption) *Subscription {
	buffer := BufferGate[T](n, p)
	buffer.in.name = "feedback"
	switch {
	case n < 1:
		buffer.in.invalid("Feedback", "a buffer of %d events", n)
	case p == Wait || p == Fail:
		buffer.in.invalid("Feedback", "policy %v does not drop", p)
	}
	Connect(g, from, buffer)
	return Connect(g, buffer, to, append(opts[:len(opts):len(opts)], func(s *subscription) {
		s.feedback = true
		if s.hasty && s.err == nil {
			s.err = &penstock.FieldError{Field: "FailFast", Reason: "has no meaning for a feedback"}
		}
	})...)
}
