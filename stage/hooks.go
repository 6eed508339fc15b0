package stage

// OnSubscribed sets a function that is told of every subscription of the sink,
// on the sink's goroutine and never beside its callback. It may ask on it, when
// it is [Manual], and cancel it. It returns s. Call it before the graph starts.
func (s *Sink[T]) OnSubscribed(f func(*Subscription)) *Sink[T] {
	s.in.onSubscribed = f
	return s
}

// OnCancelled sets a function that decides, in place of the cancel modes, what
// becomes of the sink when a subscription of its has ended: reason is nil for a
// normal end or a cancel. nil lets the sink go on, [Done] ends it normally, any
// other error abnormally. It runs on the sink's goroutine, never beside its
// callback, after the last event of the subscription was processed, and not
// when the sink itself ends. It returns s. Call it before the graph starts.
func (s *Sink[T]) OnCancelled(f func(sub *Subscription, reason error) error) *Sink[T] {
	s.in.onCancelled = f
	return s
}

// OnSubscribed sets a function that is told of every subscription of the gate
// to a producer; it is [Sink.OnSubscribed] for gates.
func (g *Gate[In, Out]) OnSubscribed(f func(*Subscription)) *Gate[In, Out] {
	g.in.onSubscribed = f
	return g
}

// OnCancelled sets a function that decides what becomes of the gate when a
// subscription of its to a producer has ended; it is [Sink.OnCancelled] for
// gates.
func (g *Gate[In, Out]) OnCancelled(f func(sub *Subscription, reason error) error) *Gate[In, Out] {
	g.in.onCancelled = f
	return g
}
