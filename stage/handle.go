package stage

import (
	"context"

	"github.com/penstock/penstock"
)

// Stage is a source, a gate or a sink, whatever it carries. The package's own
// types alone implement it.
type Stage interface {
	// Name returns the name that the stage was given; helpers get theirs when
	// the graph takes them in.
	Name() string
	// Done returns a channel that is closed when the stage has ended, or when
	// its graph could not be started. A later Start that is successful begins
	// the stage anew: then Done returns another channel.
	Done() <-chan struct{}
	// Wait blocks until the stage has ended and returns why: nil for a normal
	// end, else the stage's error or that of the producer whose failure ended
	// it. When its graph could not be started it returns the error of
	// [Graph.Start]. A callback of the stage must not call it.
	Wait() error
	// Stop has the stage take nothing more in and end normally after it has
	// served what it holds. It does not wait.
	Stop()

	common() *base
}

// Name returns the name of the stage.
func (b *base) Name() string { return b.name }

// Done returns a channel that is closed when the stage has ended.
func (b *base) Done() <-chan struct{} { return b.life.Load().over }

// Wait blocks until the stage has ended and returns why.
func (b *base) Wait() error {
	if b.graph() == nil {
		return &penstock.FieldError{Field: "Graph", Reason: "the stage belongs to none"}
	}
	l := b.life.Load()
	<-l.over
	return l.err
}

// Stop has the stage end normally after it has served what it holds.
func (b *base) Stop() { b.wake(ctlStop) }

// Name returns the name of the source.
func (s *Source[T]) Name() string { return s.out.Name() }

// Done returns a channel that is closed when the source has ended.
func (s *Source[T]) Done() <-chan struct{} { return s.out.Done() }

// Wait blocks until the source has ended and returns why, nil for a normal end.
// It returns an error at once when the source belongs to no graph.
func (s *Source[T]) Wait() error { return s.out.Wait() }

// Stop has the source produce nothing more and end normally after what it holds
// was delivered, as [Emitter.Finish] does. It does not wait.
func (s *Source[T]) Stop() { s.out.Stop() }

// Name returns the name of the gate.
func (g *Gate[In, Out]) Name() string { return g.in.Name() }

// Done returns a channel that is closed when the gate has ended.
func (g *Gate[In, Out]) Done() <-chan struct{} { return g.in.Done() }

// Wait blocks until the gate has ended and returns why, nil for a normal end.
// It returns an error at once when the gate belongs to no graph.
func (g *Gate[In, Out]) Wait() error { return g.in.Wait() }

// Stop has the gate take nothing more in and end normally after what it holds
// was delivered. What was sent to it and not processed is counted as
// undelivered. It does not wait.
func (g *Gate[In, Out]) Stop() { g.in.Stop() }

// Name returns the name of the sink.
func (s *Sink[T]) Name() string { return s.in.Name() }

// Done returns a channel that is closed when the sink has ended.
func (s *Sink[T]) Done() <-chan struct{} { return s.in.Done() }

// Wait blocks until the sink has ended and returns why, nil for a normal end.
// It returns an error at once when the sink belongs to no graph.
func (s *Sink[T]) Wait() error { return s.in.Wait() }

// Stop has the sink end normally after the batch in its hands. What else was
// sent to it is counted as undelivered. It does not wait.
func (s *Sink[T]) Stop() { s.in.Stop() }

// callContext is the context of a stage's callbacks: the graph's, and what
// [Origin] returns.
type callContext struct {
	context.Context
	b *base
}

type originKey struct{}

// Value returns the value for key, the graph's unless key is the package's own.
func (c *callContext) Value(key any) any {
	if _, ok := key.(originKey); ok {
		return c.b.origin.Load()
	}
	return c.Context.Value(key)
}

// Origin returns the subscription that the batch in hands came by, from the
// context that a callback of a gate or a sink was given, or a child of [Slots] or
// a call of a [Pool]. It is nil in calls of [MapConcurrent] and its like, in other
// callbacks, and for other contexts.
func Origin(ctx context.Context) *Subscription {
	s, _ := ctx.Value(originKey{}).(*Subscription)
	return s
}

// cameBy notes the subscription whose batch is next.
func (b *base) cameBy(s *Subscription) {
	if b.origin.Load() != s {
		b.origin.Store(s)
	}
}
