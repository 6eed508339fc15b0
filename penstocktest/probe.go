package penstocktest

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock/stage"
)

// Source is a source whose events and end the test writes, and whose demand it
// looks at. Give it to [stage.Connect] like any source. Its methods must be
// called in a testing/synctest bubble, where each waits until nothing moves any
// more.
type Source[T any] struct {
	*stage.Source[T]
	t    testing.TB
	emit *stage.Emitter[T]

	mu   sync.Mutex
	open int // as its callback was last told
}

// NewSource returns a source that has nothing yet. opts are options of the
// stage; its buffer is unbounded unless they say otherwise.
func NewSource[T any](t testing.TB, name string, opts ...stage.Option) *Source[T] {
	s := &Source[T]{t: t}
	s.Source, s.emit = stage.Hybrid(name, func(_ context.Context, want int, _ *stage.Output[T]) error {
		s.told(want)
		return nil
	}, append([]stage.Option{stage.Buffer(stage.Unbounded, stage.KeepLast)}, opts...)...)
	return s
}

func (s *Source[T]) told(open int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = open
}

// Send emits events and waits until nothing moves any more. What nobody has
// asked for waits in the source's buffer.
func (s *Source[T]) Send(events ...T) {
	s.t.Helper()
	if err := s.emit.Push(events...); err != nil {
		s.t.Errorf("source %q: Send: %v", s.Name(), err)
	}
	synctest.Wait()
}

// Finish ends the source normally, behind what was sent, and waits until
// nothing moves any more.
func (s *Source[T]) Finish() {
	s.emit.Finish()
	synctest.Wait()
}

// Fail ends the source with err, behind what was sent, and waits until nothing
// moves any more.
func (s *Source[T]) Fail(err error) {
	s.emit.Fail(err)
	synctest.Wait()
}

// ExpectDemand waits until nothing moves any more, and fails the test unless the
// source might emit exactly n events now: what its consumers have asked for and
// it has not sent. That is 6 when one consumer has asked for 6, and 2 after 4 of
// them were sent.
func (s *Source[T]) ExpectDemand(n int) {
	s.t.Helper()
	synctest.Wait()
	s.told(0) // the callback is not called when nobody asks
	s.Wake()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != n {
		s.t.Errorf("source %q: %d events are asked for, want %d", s.Name(), s.open, n)
	}
}

// ExpectCancelled waits until nothing moves any more, and fails the test unless
// every subscription to the source is over: cancelled, or ended with the source.
func (s *Source[T]) ExpectCancelled() {
	s.t.Helper()
	synctest.Wait()
	select {
	case <-s.Done():
		return
	default:
	}
	if n := s.Out().Subscribers(); n != 0 {
		s.t.Errorf("source %q: %d subscriptions are left, want none", s.Name(), n)
	}
}

// Consumer is a sink that gets what the test asks for, and keeps it for the
// test to look at. Give it to [stage.Connect] or [stage.Subscribe], with
// [stage.Manual] when the test is to ask, without when the subscription is to
// ask by itself. It never blocks. Its methods must be called in a
// testing/synctest bubble, where each waits until nothing moves any more.
type Consumer[T any] struct {
	*stage.Sink[T]
	t testing.TB

	mu      sync.Mutex
	subs    []*stage.Subscription // all that it ever had
	batches [][]T
}

// NewConsumer returns a consumer without a subscription.
func NewConsumer[T any](t testing.TB, name string) *Consumer[T] {
	c := &Consumer[T]{t: t}
	c.Sink = stage.NewSink(name, func(_ context.Context, in []T) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.batches = append(c.batches, slices.Clone(in))
		return nil
	}).OnSubscribed(func(s *stage.Subscription) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.subs = append(c.subs, s)
	})
	return c
}

// subscription returns the newest one.
func (c *Consumer[T]) subscription() *stage.Subscription {
	c.t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.subs) == 0 {
		c.t.Fatalf("consumer %q is not subscribed: the graph has to be started first", c.Name())
	}
	return c.subs[len(c.subs)-1]
}

// Ask asks for n more events on the newest subscription, which must be
// [stage.Manual], and waits until nothing moves any more.
func (c *Consumer[T]) Ask(n int) {
	c.t.Helper()
	if err := c.subscription().Ask(n); err != nil {
		c.t.Errorf("consumer %q: Ask(%d): %v", c.Name(), n, err)
	}
	synctest.Wait()
}

// Cancel cancels the newest subscription and waits until nothing moves any
// more. What becomes of the consumer says its [stage.CancelMode].
func (c *Consumer[T]) Cancel() {
	c.t.Helper()
	c.subscription().Cancel()
	synctest.Wait()
}

// Batches waits until nothing moves any more, and returns the batches that came
// since the last look, one per call of the callback. They are the caller's.
func (c *Consumer[T]) Batches() [][]T {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	got := c.batches
	c.batches = nil
	return got
}

// Events is [Consumer.Batches], with the events of all batches in one slice.
func (c *Consumer[T]) Events() []T { return slices.Concat(c.Batches()...) }

// Expect waits until nothing moves any more, and fails the test unless exactly
// these events came since the last look, in this order and in any batches.
// Expect() says that nothing came. Events are compared by reflect.DeepEqual.
func (c *Consumer[T]) Expect(want ...T) {
	c.t.Helper()
	if got := c.Events(); len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		c.t.Errorf("consumer %q: got %v, want %v", c.Name(), got, want)
	}
}

// ExpectBatches is [Consumer.Expect] for the batches as they came.
func (c *Consumer[T]) ExpectBatches(want ...[]T) {
	c.t.Helper()
	if got := c.Batches(); len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		c.t.Errorf("consumer %q: got batches %v, want %v", c.Name(), got, want)
	}
}

// ExpectEnd waits until nothing moves any more, and fails the test unless the
// consumer has ended: normally when want is nil, else with an error that
// matches want.
func (c *Consumer[T]) ExpectEnd(want error) {
	c.t.Helper()
	synctest.Wait()
	select {
	case <-c.Done():
	default:
		c.t.Errorf("consumer %q has not ended", c.Name())
		return
	}
	if err := c.Wait(); !errors.Is(err, want) {
		c.t.Errorf("consumer %q ended with %v, want %v", c.Name(), err, want)
	}
}
