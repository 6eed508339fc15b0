package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
	"github.com/penstock/penstock/internal/guard"
	"github.com/penstock/penstock/stream"
)

// SubscriberConfig describes a [Subscriber]. Zero fields have the defaults
// given; a negative field is refused with a *penstock.FieldError.
type SubscriberConfig struct {
	// Dial makes a connection to the owner; required. It should return soon
	// after its ctx has ended: one that does not within a second is left behind,
	// and what it returns is closed. Close of the connection must end a Read and a
	// Write under way.
	Dial func(ctx context.Context) (io.ReadWriteCloser, error)
	// Consumer makes the consumer of a subscription, when the owner first asks
	// or delivers; required. See [stream.NewConsumer]. It is called again for
	// the same subscription when the owner has another history; see
	// OwnerConfig.History. It must be safe for concurrent use.
	Consumer func(r stream.SubscriptionRecord) (stream.Consumer, error)

	// Demand, 65,536, is the most events that are here at a time, handled or
	// waiting for their handler. A container with more is refused.
	Demand int
	// Expiry, 15 s, at most 5 minutes, is how long a demand holds unless it is
	// renewed, which happens three times as often. After twice that time of
	// silence each end gives the connection up.
	Expiry time.Duration
	// Remember, 65,536 and at least Demand, is how many settled events are
	// remembered, by their tokens: those of the last delivery of each
	// subscription. When their answer was lost they come again, and are settled
	// without calling the handler. The subscription that settled something
	// longest ago is forgotten first.
	Remember int
	// Subscriptions, 4,096, is how many are known at a time. For one more the one
	// is forgotten that was used longest ago and has no handler at work, with its
	// consumer, which is made anew if it is needed again. When all have one, it
	// is refused.
	Subscriptions int
	MaxLine       int            // 4 MiB, at least 64 KiB; the longest line in bytes, read or written
	Backoff       stream.Backoff // between connections; Exponential 100 ms to 10 s, step 100 ms
	Drain         time.Duration  // 25 s; how long Run lets handlers end
	Logger        *slog.Logger   // nil means slog.Default()
}

func (c *SubscriberConfig) validate() error {
	switch {
	case c.Dial == nil:
		return &penstock.FieldError{Field: "Dial", Reason: "is missing"}
	case c.Consumer == nil:
		return &penstock.FieldError{Field: "Consumer", Reason: "is missing"}
	}
	for _, f := range []struct {
		name  string
		value *int
		zero  int
	}{{"Demand", &c.Demand, stream.MaxContainerEvents}, {"Remember", &c.Remember, max(c.Demand, stream.MaxContainerEvents)}, {"Subscriptions", &c.Subscriptions, 4096}} {
		if *f.value < 0 {
			return &penstock.FieldError{Field: f.name, Reason: fmt.Sprintf("%d is negative", *f.value)}
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	if c.Remember < c.Demand {
		return &penstock.FieldError{Field: "Remember", Reason: fmt.Sprintf("%d is below Demand, %d", c.Remember, c.Demand)}
	}
	if c.Expiry == 0 {
		c.Expiry = 15 * time.Second
	}
	if c.Expiry < time.Millisecond || c.Expiry > maxExpiry {
		return &penstock.FieldError{Field: "Expiry", Reason: fmt.Sprintf("%v is not in [1ms, %v]", c.Expiry, maxExpiry)}
	}
	if c.Drain < 0 {
		return &penstock.FieldError{Field: "Drain", Reason: fmt.Sprintf("%v is negative", c.Drain)}
	}
	if c.Drain == 0 {
		c.Drain = 25 * time.Second
	}
	if c.Backoff == nil {
		c.Backoff = stream.Exponential{Min: 100 * time.Millisecond, Max: 10 * time.Second, Step: 100 * time.Millisecond}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return checkMaxLine(&c.MaxLine)
}

// Subscriber is the far end of a consumer across a connection: it connects to
// an [Owner], hands what comes to consumers of its own, and answers. Make one
// with [NewSubscriber].
type Subscriber struct {
	config SubscriberConfig
	id     string
	ping   chan struct{} // of capacity 1: a handler or a question has ended

	mu      sync.Mutex
	running bool
	dialing int // calls of Dial that have not returned
	far     *far
	link    *link // the connection in use; nil when there is none
	conns   uint64
	owner   string // of the last connection
	history string
	ctx     context.Context // of handlers, during Run
	endBy   time.Time       // of the drain; zero before it
}

// NewSubscriber returns a subscriber that is not connected. The error matches
// penstock.ErrInvalid when a field is wrong.
func NewSubscriber(c SubscriberConfig) (*Subscriber, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("remote: new subscriber: %w", err)
	}
	return &Subscriber{
		config: c, id: random(), ping: make(chan struct{}, 1),
		far: newFar(c.Demand, demand.DefaultMin(c.Demand), c.Remember, c.Subscriptions),
	}, nil
}

// Connected reports whether an owner is connected.
func (s *Subscriber) Connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link != nil
}

// Run connects, and connects again when the connection is lost, until ctx ends.
// Then it drains: the owner delivers no more, and handlers have
// SubscriberConfig.Drain to end and to have their answers sent; after that their
// context is cancelled, and one that does not return within a second is left
// behind. A handler keeps running when its connection is lost; what it settles
// is remembered for the delivery that comes again.
//
// It returns nil after a full drain and a *penstock.DrainError when handlers
// had to be cancelled or left behind, or the dial was; otherwise an error that matches
// [ErrReplaced] when another subscriber has connected to the same owner, or
// penstock.ErrUnsupported when the owner speaks another version. While it runs,
// and while a handler or a dial that was left behind has not returned, a second
// call fails with penstock.ErrExists.
func (s *Subscriber) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.running || s.far.handling+s.far.asking+s.dialing > 0 {
		s.mu.Unlock()
		return fmt.Errorf("remote: run subscriber: %w", penstock.ErrExists)
	}
	handlers, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	s.running, s.far.leaving, s.ctx, s.endBy = true, false, handlers, time.Time{}
	s.mu.Unlock()
	err := s.connections(ctx)
	left := s.drain(cancel)
	s.mu.Lock()
	s.running = false
	s.mu.Unlock()
	switch {
	case errors.Is(err, errDialing):
		return &penstock.DrainError{Left: left, Busy: []string{"dial"}, Err: context.DeadlineExceeded}
	case err != nil:
		return err
	case left > 0:
		return &penstock.DrainError{Left: left, Err: context.DeadlineExceeded}
	}
	return nil
}

// connections serves one connection after the other, until ctx ends or an
// error says that another one would not help.
func (s *Subscriber) connections(ctx context.Context) error {
	for n := 0; ctx.Err() == nil; n++ {
		greeted, err := s.connect(ctx)
		var f *finalError
		if errors.As(err, &f) {
			return fmt.Errorf("remote: %w", f.err)
		}
		if errors.Is(err, errDialing) {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if greeted {
			n = 0
		}
		s.config.Logger.Warn("no connection to the owner; trying again", "err", err)
		wait := time.NewTimer(s.pause(n))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
		}
	}
	return nil
}

// pause asks the backoff, which is user code.
func (s *Subscriber) pause(n int) (d time.Duration) {
	if err := guard.Call("Backoff", func() error { d = s.config.Backoff.Next(n); return nil }); err != nil {
		s.config.Logger.Error("backoff failed", "waiting", brokenPause, "err", err)
		return brokenPause
	}
	return d
}

// brokenPause is the wait where a backoff has failed to tell one.
const brokenPause = time.Second

// finalError ends Run: connecting again would not help.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

// connect makes a connection and serves it. Greeted reports whether the owner
// has said hello.
func (s *Subscriber) connect(ctx context.Context) (greeted bool, err error) {
	conn, err := s.dial(ctx)
	if err != nil {
		return false, err
	}
	if conn == nil {
		return false, errors.New("dial has returned no connection")
	}
	c := newSession(s, conn)
	return c.serve(ctx)
}

// errDialing says that Dial has not returned although its context has ended.
var errDialing = errors.New("dial was left behind")

// dial calls Dial. One that does not return within abandonAfter of the end of
// ctx is left behind.
func (s *Subscriber) dial(ctx context.Context) (conn io.ReadWriteCloser, err error) {
	s.mu.Lock()
	s.dialing++
	s.mu.Unlock()
	var made io.ReadWriteCloser
	var failed error
	var taken atomic.Bool // by who returns, or by who left it behind
	done := make(chan struct{})
	go func() { // one call of Dial: ends with it; dial waits, or the next Run refuses
		defer close(done)
		failed = guard.Call("dial", func() (err error) {
			made, err = s.config.Dial(ctx)
			return err
		})
		if !taken.CompareAndSwap(false, true) && made != nil {
			_ = guard.Call("connection", made.Close)
		}
		s.mu.Lock()
		s.dialing--
		s.mu.Unlock()
	}()
	select {
	case <-done:
		return made, failed
	case <-ctx.Done():
	}
	limit := time.NewTimer(abandonAfter)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		if taken.CompareAndSwap(false, true) {
			s.config.Logger.Error("dial left behind; it has not returned", "after", abandonAfter)
			return nil, errDialing
		}
		<-done // about to be closed
	}
	return made, failed
}

// drain waits for handlers whose connection has ended, cancels them at the
// deadline, and returns how many events were not handled.
func (s *Subscriber) drain(cancel context.CancelCauseFunc) (left int) {
	defer cancel(penstock.ErrClosed)
	deadline := time.NewTimer(s.drainTime())
	defer deadline.Stop()
	cut := false
	for {
		s.mu.Lock()
		busy, held := s.far.handling+s.far.asking, s.far.held
		s.mu.Unlock()
		if busy == 0 {
			return left
		}
		select {
		case <-s.ping:
		case <-deadline.C:
			left = held
			if cut {
				s.config.Logger.Error("handlers left behind; they have not returned", "events", held, "after", abandonAfter)
				return left
			}
			cut = true
			cancel(penstock.ErrClosed)
			deadline.Reset(abandonAfter)
		}
	}
}

// drainTime is what is left of the drain, which begins with the first call.
func (s *Subscriber) drainTime() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endBy.IsZero() {
		s.endBy = time.Now().Add(s.config.Drain)
	}
	return time.Until(s.endBy)
}

// abandonAfter is how long a drain waits for handlers whose context has ended.
const abandonAfter = time.Second
