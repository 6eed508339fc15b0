package stage

import (
	"fmt"

	"github.com/penstock/penstock"
)

// Dispatcher says which consumers of a source or a gate get an event. Make one
// with [Greatest], [Broadcast], [Partition], [RoundRobin], [ConsistentHash] or, of your own, [Choose], and give it to Dispatch. A
// Dispatcher may be given to several producers: it is a recipe and holds no
// state.
type Dispatcher[T any] struct {
	make    func() router[T]
	shuffle bool // the declared subscriptions, before the first dispatch
	err     error
}

// Greatest returns the dispatcher that producers have from the start: each event
// goes to one consumer, the one with the greatest open demand, and of equals to
// the one that subscribed first; what it has not asked for spills to the next.
func Greatest[T any]() Dispatcher[T] { return Dispatcher[T]{} }

// GreatestShuffled is [Greatest] where the order among equals is one of chance:
// the declared subscriptions are shuffled before the first event goes out. So
// producers with the same consumers do not all begin with the first.
func GreatestShuffled[T any]() Dispatcher[T] { return Dispatcher[T]{shuffle: true} }

// A router is what a dispatcher does in one outlet, on its goroutine. It may
// hold events of its own: they come before the outlet's pieces.
type router[T any] interface {
	// admit takes a subscription in or says why not.
	admit(o *outlet[T], e *edge[T]) error
	// leave forgets one that admit took in.
	leave(o *outlet[T], e *edge[T])
	// want returns the demand that nothing held will meet.
	want(o *outlet[T]) int
	// flush gives what waits to the consumers as far as they have asked.
	flush(o *outlet[T]) (progress bool)
	// held returns how many events the router holds.
	held() int
	// stuck reports whether nothing of what waits can be delivered to those who
	// are subscribed.
	stuck(o *outlet[T]) bool
	// unsent returns a copy of the events that the router holds, and letGo
	// forgets them.
	unsent() []T
	letGo()
}

// Errors of subscriptions that a dispatcher refuses. All match
// [penstock.ErrInvalid].
var (
	// ErrPartition: no partition was chosen, or one that does not exist, of a
	// producer that dispatches by [Partition]; or one was chosen elsewhere.
	ErrPartition = fmt.Errorf("%w partition", penstock.ErrInvalid)
	// ErrPartitionTaken: the partition has a subscription already.
	ErrPartitionTaken = fmt.Errorf("%w: has a consumer", ErrPartition)
)

var (
	errNoPartitions error = fmt.Errorf("%w: the producer has none", ErrPartition)
	errNoSelector   error = &penstock.FieldError{Field: "Where", Reason: "the producer does not broadcast"}
)

func (o *outlet[T]) dispatch(d Dispatcher[T]) {
	if d.err != nil {
		o.fault(d.err)
	}
	o.router, o.shuffle = nil, d.shuffle
	if d.make != nil {
		o.router = d.make()
	}
	if c, ok := o.router.(*chosen[T]); ok && c.core == nil {
		o.invalid("Choose", "make returned nil")
	}
	_, o.copies = o.router.(*broadcast[T])
}

// Dispatch sets which consumers get an event. It returns s. Call it before the
// graph starts.
func (s *Source[T]) Dispatch(d Dispatcher[T]) *Source[T] {
	s.out.dispatch(d)
	return s
}

// Broadcast has every consumer get every event; see [Broadcast]. It returns s.
// Call it before the graph starts.
func (s *Source[T]) Broadcast() *Source[T] { return s.Dispatch(Broadcast[T]()) }

// OnSubscribers sets a function that is told of every subscription that the
// source has accepted or lost, on the source's goroutine and never beside its
// callback. It returns s. Call it before the graph starts.
func (s *Source[T]) OnSubscribers(f func(Change)) *Source[T] {
	s.out.onSubscribers = f
	return s
}

// Dispatch sets which consumers get an event. It returns g. Call it before the
// graph starts.
func (g *Gate[In, Out]) Dispatch(d Dispatcher[Out]) *Gate[In, Out] {
	g.out.dispatch(d)
	return g
}

// Broadcast has every consumer get every event; see [Broadcast]. It returns g.
// Call it before the graph starts.
func (g *Gate[In, Out]) Broadcast() *Gate[In, Out] { return g.Dispatch(Broadcast[Out]()) }

// OnSubscribers sets a function that is told of every subscription to the gate
// that was accepted or lost, on the gate's goroutine and never beside its
// callback. It returns g. Call it before the graph starts.
func (g *Gate[In, Out]) OnSubscribers(f func(Change)) *Gate[In, Out] {
	g.out.onSubscribers = f
	return g
}
