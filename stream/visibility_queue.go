package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
)

// VisibilityConfig describes a [VisibilityQueue]. Zero fields have the defaults
// given; a negative one is refused with a *penstock.FieldError.
type VisibilityConfig struct {
	// Visibility, 30 s, is how long a container that was handed out stays
	// hidden. When nobody has acknowledged it or asked for more time by then,
	// it comes again.
	Visibility time.Duration
	// Renew, a third of Visibility, is how often a receiver asks for more time
	// for what it holds; it must be below Visibility.
	Renew time.Duration
	// Hold, ten times Visibility, is how long a receiver goes on asking for one
	// container. One that a failed delivery passed, or whose handler hangs,
	// comes again when it is over, at the latest.
	Hold time.Duration
	// Capacity, 16,384, bounds the events of each queue, hidden ones included.
	Capacity int
	// MaxReceives is how often a container is handed out before it goes to
	// DeadLetter instead; 0 means no limit. It needs DeadLetter.
	MaxReceives int
	// DeadLetter takes a container that was handed out MaxReceives times and
	// not acknowledged; Attempts says how often. It is called by the reader of
	// the queue, and a container is hidden for as long as it is with it. When it
	// fails it is called again after Visibility.
	DeadLetter func(ctx context.Context, c Container) error
	Logger     *slog.Logger // nil means slog.Default()
}

func (c *VisibilityConfig) validate() error {
	if c.Visibility == 0 {
		c.Visibility = 30 * time.Second
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration
	}{{"Visibility", &c.Visibility, 0}, {"Renew", &c.Renew, max(c.Visibility/3, 1)}, {"Hold", &c.Hold, 10 * c.Visibility}} {
		if *f.value < 0 {
			return &penstock.FieldError{Field: f.name, Reason: fmt.Sprintf("%v is negative", *f.value)}
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	switch {
	case c.Renew >= c.Visibility:
		return &penstock.FieldError{Field: "Renew", Reason: fmt.Sprintf("%v is not below Visibility, %v", c.Renew, c.Visibility)}
	case c.Capacity < 0:
		return &penstock.FieldError{Field: "Capacity", Reason: fmt.Sprintf("%d is negative", c.Capacity)}
	case c.MaxReceives < 0:
		return &penstock.FieldError{Field: "MaxReceives", Reason: fmt.Sprintf("%d is negative", c.MaxReceives)}
	case c.MaxReceives > 0 && c.DeadLetter == nil:
		return &penstock.FieldError{Field: "DeadLetter", Reason: "is missing, and MaxReceives is set"}
	}
	if c.Capacity == 0 {
		c.Capacity = 16_384
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// VisibilityQueue is a queue in this process that works as hosted message
// queues do, and the [Factory] of a provider over it: a container that is
// handed out gets a receipt and is hidden for a while; acknowledging the
// receipt in time deletes it, otherwise it comes again, with Attempts one
// higher. It has no positions: it cannot be rewound, keeps no checkpoint, and
// a container has another token each time it is handed out. Tokens rise for as
// long as the queue lives, also over receivers.
//
// Enqueue returns when the queue holds the container, or an error that matches
// penstock.ErrFull, or penstock.ErrTooLarge when it would not fit alone. What was not acknowledged comes again in the order in
// which it was enqueued; within a run it comes behind what was handed out
// meanwhile. A receiver that is shut down gives back what it holds at once.
// All of it is gone with the process.
//
// A VisibilityQueue is safe for concurrent use.
type VisibilityQueue struct {
	DefaultParts
	config VisibilityConfig

	mu     sync.Mutex
	mapper Mapper // of the first provider
	queues []*visibleQueue
}

// OpenVisibilityQueue returns an empty queue. It has as many queues as the
// first provider over it.
func OpenVisibilityQueue(c VisibilityConfig) (*VisibilityQueue, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("stream: open visibility queue: %w", err)
	}
	return &VisibilityQueue{config: c}, nil
}

// NewAdapter returns the adapter. The error matches penstock.ErrInvalid when
// another provider uses the queue with a mapper that is not the same.
func (v *VisibilityQueue) NewAdapter(_ context.Context, e Environment) (Adapter, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mapper == nil {
		v.mapper = e.Mapper
		for range e.Mapper.Queues() {
			v.queues = append(v.queues, newVisibleQueue(&v.config))
		}
	} else if Fingerprint(v.mapper) != Fingerprint(e.Mapper) {
		return nil, &penstock.FieldError{Field: "Mapper", Reason: "another provider uses the queue with another mapper"}
	}
	return &visibilityAdapter{v}, nil
}

// VisibilityStats is the state of one queue.
type VisibilityStats struct {
	Ready        int    // containers that can be handed out now
	Hidden       int    // handed out and not acknowledged
	Events       int    // in both
	Acknowledged uint64 // containers
	Repeated     uint64 // containers handed out for a second time or more often
	LateReceipts uint64 // acknowledgements and renewals that came too late
	DeadLettered uint64 // containers
}

// Stats returns the state of each queue, by number; nothing before the first
// provider was opened.
func (v *VisibilityQueue) Stats() []VisibilityStats {
	v.mu.Lock()
	queues := v.queues
	v.mu.Unlock()
	out := make([]VisibilityStats, len(queues))
	for i, q := range queues {
		out[i] = q.statistics(time.Now())
	}
	return out
}

type visibilityAdapter struct{ v *VisibilityQueue }

func (*visibilityAdapter) Rewindable() bool     { return false }
func (*visibilityAdapter) Direction() Direction { return ReadWrite }
func (*visibilityAdapter) Close() error         { return nil } // the queue belongs to VisibilityQueue

func (a *visibilityAdapter) Enqueue(ctx context.Context, c Container) error {
	if err := penstock.ContextError(ctx); err != nil {
		return err
	}
	if err := checkEvents(c.Events.Len()); err != nil {
		return err
	}
	n := a.v.mapper.QueueFor(c.Stream).Number
	if n < 0 || n >= len(a.v.queues) {
		return &penstock.FieldError{Field: "Mapper", Reason: fmt.Sprintf("says queue %d for stream %s, of %d", n, c.Stream, len(a.v.queues))}
	}
	return a.v.queues[n].enqueue(c, time.Now())
}

func (a *visibilityAdapter) NewReceiver(q QueueID) (Receiver, error) {
	if q.Number < 0 || q.Number >= len(a.v.queues) {
		return nil, &penstock.FieldError{Field: "q", Reason: fmt.Sprintf("queue %s is none of %d", q, len(a.v.queues))}
	}
	return &visibilityReceiver{queue: a.v.queues[q.Number], config: &a.v.config}, nil
}

// ErrReceiptExpired: containers were acknowledged, or more time was asked for,
// after they had become visible again. They will be delivered again.
var ErrReceiptExpired = errors.New("receipt has expired")

// visibilityReceiver holds receipts for one run of an agent and renews them.
type visibilityReceiver struct {
	queue  *visibleQueue
	config *VisibilityConfig
	stop   chan struct{} // closed by Shutdown; nil before Init
	shut   bool
	done   chan struct{} // closed when the renewer has ended

	mu   sync.Mutex
	held []heldContainer // by rising token
}

type heldContainer struct {
	token   penstock.Token
	receipt uint64
	since   time.Time
	passed  time.Time // when it was passed by a failed delivery; then it is not renewed
}

func (r *visibilityReceiver) Init(context.Context) error {
	if r.stop != nil {
		return nil
	}
	r.stop, r.done = make(chan struct{}), make(chan struct{})
	// Renews what is held; Shutdown stops it and waits for it.
	go r.renew()
	return nil
}

func (r *visibilityReceiver) renew() {
	defer close(r.done)
	tick := time.NewTicker(r.config.Renew)
	defer tick.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-tick.C: // whose time may be over for long
			r.renewHeld(time.Now())
		}
	}
}

// renewHeld asks for more time. What the queue has given to somebody else, or
// what was held for too long, is not asked for again.
func (r *visibilityReceiver) renewHeld(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept, late := r.held[:0], 0
	for _, h := range r.held {
		switch {
		case !h.passed.IsZero():
			if now.Sub(h.passed) < r.config.Visibility {
				kept = append(kept, h) // Shutdown gives it back earlier
			}
		case now.Sub(h.since) >= r.config.Hold:
		case !r.queue.renew(h.receipt, now):
			late++
		default:
			kept = append(kept, h)
		}
	}
	r.held = kept
	if late > 0 {
		r.config.Logger.Warn("receipts expired before they were renewed; the containers will be delivered again", "containers", late)
	}
}

func (r *visibilityReceiver) Read(ctx context.Context, limit int) ([]Container, error) {
	if err := r.Init(ctx); err != nil {
		return nil, err
	}
	if limit < 0 {
		limit = readLimit
	}
	now := time.Now()
	got, dead := r.queue.receive(limit, now)
	r.mu.Lock() // at once: they are renewed while the dead-letter handler is at work
	for i := range got {
		r.held = append(r.held, heldContainer{token: got[i].Token, receipt: got[i].Raw.(receipt).number, since: now})
	}
	r.mu.Unlock()
	err := r.deadLetter(ctx, dead)
	if len(got) > 0 && err != nil {
		r.config.Logger.Error("dead-letter handler failed; it is asked again", "err", err)
		err = nil
	}
	return got, err
}

// deadLetter hands over what was received too often, one after the other. One
// that is not taken is hidden for Visibility, and those behind it go back to be
// received again at once: they neither wait for it nor fail with it.
func (r *visibilityReceiver) deadLetter(ctx context.Context, dead []Container) error {
	for i, c := range dead {
		number := c.Raw.(receipt).number
		c.Raw = nil
		if err := guard.Call("dead-letter handler", func() error { return r.config.DeadLetter(ctx, c) }); err != nil {
			r.queue.kept(number, time.Now())
			rest := make([]uint64, 0, len(dead))
			for _, c := range dead[i+1:] {
				rest = append(rest, c.Raw.(receipt).number)
			}
			r.queue.release(rest)
			return fmt.Errorf("container of stream %s, received %d times: dead letter: %w", c.Stream, c.Attempts, err)
		}
		r.queue.buried(number)
	}
	return nil
}

func (r *visibilityReceiver) Wait(ctx context.Context) error { return r.queue.wait(ctx) }

// Delivered acknowledges. Containers leave a cache in the order of their
// tokens, so what is held below the last one and not among them was passed by
// a failed delivery: it is not renewed any more and comes again. Those without
// events were never in the cache, and say nothing about others.
func (r *visibilityReceiver) Delivered(_ context.Context, done []Container) error {
	if len(done) == 0 {
		return nil
	}
	r.mu.Lock() // what is acknowledged is not renewed any more
	defer r.mu.Unlock()
	now, late := time.Now(), 0
	for i := range done {
		if n, ok := done[i].Raw.(receipt); !ok || !r.queue.acknowledge(n.number, now) {
			late++
		}
	}
	last := len(done) - 1
	for last >= 0 && done[last].Events.Len() == 0 {
		last--
	}
	kept, next := r.held[:0], 0
	for _, h := range r.held {
		for next < len(done) && done[next].Token.Compare(h.token) < 0 {
			next++
		}
		switch {
		case next < len(done) && done[next].Token == h.token:
			continue
		case next <= last && h.passed.IsZero():
			h.passed = now
		}
		kept = append(kept, h)
	}
	r.held = kept
	if late > 0 {
		return fmt.Errorf("%d of %d containers: %w", late, len(done), ErrReceiptExpired)
	}
	return nil
}

func (r *visibilityReceiver) Shutdown(context.Context) error {
	if r.stop != nil && !r.shut {
		r.shut = true
		close(r.stop)
		<-r.done
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	receipts := make([]uint64, len(r.held))
	for i, h := range r.held {
		receipts[i] = h.receipt
	}
	r.queue.release(receipts)
	r.held = nil
	return nil
}
