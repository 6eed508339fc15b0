package stream

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
)

// Provider joins streams to a queue: producers enqueue through its adapter;
// while it runs, its agents pull the queues that this node owns and deliver to
// the subscriptions. It is safe for concurrent use.
//
// Invariants: an agent exists per queue; agents run only inside Run; a local
// consumer exists for each subscription made here and not removed.
type Provider struct {
	config   Config
	mapper   Mapper
	adapter  Adapter
	manager  *manager
	none     *MemoryRegistry // of a provider whose subscriptions are all implicit
	hub      hub             // who wants to hear what happens
	number   uint64          // in openProviders
	dropped  runtime.Cleanup
	turns    keyTurns // of those who subscribe and unsubscribe
	suspects suspects

	mu        sync.Mutex
	consumers map[consumerKey]*attachment
	bindings  []*binding // by name
	running   bool
	closed    atomic.Bool // set under mu
}

// Open makes the parts of a provider and connects its adapter. Publishing and
// subscribing work from then on; delivery begins with Run. The error matches
// penstock.ErrInvalid when a field is wrong.
func Open(c Config) (*Provider, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("stream: open provider %q: %w", c.Name, err)
	}
	m, err := c.Factory.NewMapper(c.Name, c.Queues)
	if err != nil {
		return nil, fmt.Errorf("stream: mapper of provider %q: %w", c.Name, err)
	}
	if err := checkMapper(m); err != nil {
		return nil, fmt.Errorf("stream: open provider %q: %w", c.Name, err)
	}
	if err := keepMapper(&c, m); err != nil {
		return nil, fmt.Errorf("stream: open provider %q: %w", c.Name, err)
	}
	a, err := c.Factory.NewAdapter(context.Background(), Environment{Provider: c.Name, Mapper: m, Logger: c.Logger})
	if err != nil {
		return nil, fmt.Errorf("stream: adapter of provider %q: %w", c.Name, err)
	}
	if a == nil {
		return nil, fmt.Errorf("stream: open provider %q: %w", c.Name, &penstock.FieldError{Field: "Factory", Reason: "makes no adapter"})
	}
	if c.Attempts != nil && !a.Rewindable() {
		err := &penstock.FieldError{Field: "Attempts", Reason: "the adapter cannot rewind: its queue counts attempts itself"}
		return nil, errors.Join(fmt.Errorf("stream: open provider %q: %w", c.Name, err), a.Close())
	}
	p := &Provider{config: c, mapper: m, adapter: a, consumers: map[consumerKey]*attachment{}, suspects: make(suspects, 1), none: NewMemoryRegistry()}
	p.manager = newManager(p)
	openProviders.show(p)
	return p, nil
}

// Name returns the provider's name.
func (p *Provider) Name() string { return p.config.Name }

// Run pulls the queues of this node and delivers until ctx ends. Then it
// drains: nothing new begins, accepted deliveries keep their retries, and when
// they have ended the progress is stored. After Config.Drain the context of
// handlers and receivers is cancelled. One that does not return within one second
// of that is left behind, and so is a call at the end that takes a second
// longer than Config.ShutdownTimeout: the provider cannot be run again until it
// has returned, and a receiver is shut down then.
//
// It returns nil after a full drain, a *penstock.DrainError that says how many
// events were left unsettled (they are delivered again by the next run, unless
// a handler that was left behind settles them yet) and names what was left
// behind, or the first failure of an agent. Run can be called again after it
// returned; while it runs, or when something was left behind and has not
// returned, a second call fails with penstock.ErrExists.
//
// Subscribe before Run: an agent that finds no subscription for an event takes
// the event as done. The memory registry does not survive a restart, so a
// process that starts again must make its subscriptions again before it calls
// Run; then nothing that an earlier run left unsettled is passed over. An
// adapter that can only be written to has nothing to run: Run waits for ctx.
func (p *Provider) Run(ctx context.Context) error {
	p.mu.Lock()
	if p.closed.Load() || p.running {
		err := penstock.ErrExists
		if p.closed.Load() {
			err = penstock.ErrClosed
		}
		p.mu.Unlock()
		return fmt.Errorf("stream: run provider %q: %w", p.config.Name, err)
	}
	p.running = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.running = false
		p.mu.Unlock()
	}()
	return p.manager.run(ctx)
}

// Close releases the adapter, under a receiver too that Run has left behind. The
// provider must not be running; otherwise the error matches penstock.ErrExists.
// Closing twice is allowed.
func (p *Provider) Close() error {
	p.mu.Lock()
	if p.running {
		p.mu.Unlock()
		return fmt.Errorf("stream: close provider %q: it is running: %w", p.config.Name, penstock.ErrExists)
	}
	was := p.closed.Swap(true)
	p.mu.Unlock()
	if was {
		return nil
	}
	p.dropped.Stop()
	openProviders.hide(p.number)
	p.hub.close()
	return p.adapter.Close()
}

// Stats returns the state of every queue's agent, ordered by queue number.
func (p *Provider) Stats() []QueueStats {
	out := make([]QueueStats, len(p.manager.agents))
	for i, a := range p.manager.agents {
		out[i] = a.statistics()
	}
	return out
}

// enqueue stores one container in the queue of its stream.
func (p *Provider) enqueue(ctx context.Context, c Container) error {
	if p.adapter.Direction() == ReadOnly {
		return &unsupportedError{what: fmt.Sprintf("provider %q is read-only", p.config.Name)}
	}
	if p.closed.Load() {
		return fmt.Errorf("provider %q: %w", p.config.Name, penstock.ErrClosed)
	}
	return p.adapter.Enqueue(ctx, c)
}

// checkToken asks the adapter, if it can tell, whether a token is one of its own.
func (p *Provider) checkToken(q QueueID, t penstock.Token) error {
	if c, ok := p.adapter.(TokenChecker); ok {
		return guard.Call("token checker", func() error { return c.CheckToken(q, t) })
	}
	return nil
}

// unread returns how the adapter tells what a queue holds; nil when it cannot.
func (p *Provider) unread(q QueueID) func(penstock.Token, bool) (uint64, bool) {
	m, ok := p.adapter.(Measurer)
	if !ok {
		return nil
	}
	return func(read penstock.Token, known bool) (uint64, bool) { return m.Unread(q, read, known) }
}

type consumerKey struct {
	stream penstock.StreamID
	name   string
}

// attachment is a consumer that was subscribed here; each time makes one.
type attachment struct {
	consumer Consumer
	gone     atomic.Bool // another one took its place, or none; set under the provider's mu

	incarnation uint64 // of its subscription; 0 until the registry has answered
	withdrawn   uint64 // one of which it was told meanwhile that it is no more
}

func (a *attachment) get() Consumer {
	if a == nil {
		return nil
	}
	return a.consumer
}

// resolve returns the consumer of a subscription; agents call it on a worker.
func (p *Provider) resolve(ctx context.Context, rec SubscriptionRecord) (Consumer, error) {
	if rec.Implicit {
		return p.bound(rec)
	}
	if c := p.local(rec); c != nil {
		return c, nil
	}
	return p.unattached(ctx, rec)
}

// local returns the consumer that was subscribed here; nil when there is none.
func (p *Provider) local(rec SubscriptionRecord) Consumer { return p.attachment(rec).get() }

// attachment returns what was subscribed here, nil for nothing. Who keeps it asks
// whether it is gone before each use, and then is as good as one who looks anew.
func (p *Provider) attachment(rec SubscriptionRecord) *attachment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.consumers[consumerKey{rec.Stream.StreamID, rec.Name}]
}

// put makes a the consumer of its key, nil for none. The caller has mu.
func (p *Provider) put(key consumerKey, a *attachment) {
	if old := p.consumers[key]; old != nil {
		old.gone.Store(true)
	}
	if a == nil {
		delete(p.consumers, key)
		return
	}
	a.gone.Store(false)
	p.consumers[key] = a
}

// subscribe attaches the consumer that next makes of the one before, if there
// was one, here first, then registers it; when that fails, what was attached
// before comes back (OR-146).
func (p *Provider) subscribe(ctx context.Context, s penstock.StreamID, name string, o *subscribeOptions, next func(before Consumer) Consumer) error {
	at := o.at
	if err := p.explicitAllowed(s, name); err != nil {
		return err
	}
	if p.adapter.Direction() == WriteOnly {
		return &unsupportedError{what: fmt.Sprintf("provider %q is write-only", p.config.Name)}
	}
	if at.Kind >= PositionAt && !p.adapter.Rewindable() {
		return &unsupportedError{what: fmt.Sprintf("start %s: provider %q cannot rewind", at, p.config.Name)}
	}
	if at.Kind >= PositionAt && at.Kind != PositionAtTime {
		if err := p.checkToken(p.mapper.QueueFor(s), at.Token); err != nil {
			return fmt.Errorf("start %s: %w", at, err)
		}
	}
	key := consumerKey{s, name}
	leave, err := p.turns.enter(ctx, key)
	if err != nil {
		return err
	}
	defer leave()
	p.mu.Lock()
	if p.closed.Load() {
		p.mu.Unlock()
		return fmt.Errorf("provider %q: %w", p.config.Name, penstock.ErrClosed)
	}
	before := p.consumers[key]
	c := &attachment{consumer: next(before.get())}
	p.put(key, c)
	p.mu.Unlock()
	rec, err := p.registry().Subscribe(ctx, SubscriptionRecord{Stream: p.qualified(s), Name: name, Filter: strings.TrimSpace(o.filter)})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		if c.incarnation = rec.Incarnation; c.withdrawn != 0 && c.withdrawn == rec.Incarnation && p.consumers[key] == c {
			p.put(key, nil)
		}
		return nil
	}
	if p.consumers[key] == c {
		if before != nil && c.withdrawn != 0 && before.incarnation <= c.withdrawn {
			before = nil // it was removed elsewhere meanwhile
		}
		p.put(key, before)
	}
	return err
}

// forget gives up the consumer of a subscription that is no more: it was
// removed elsewhere, or its consumer is gone. One that was attached since stays.
func (p *Provider) forget(rec SubscriptionRecord) {
	key := consumerKey{rec.Stream.StreamID, rec.Name}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch c := p.consumers[key]; {
	case c == nil:
	case c.incarnation == 0:
		c.withdrawn = max(c.withdrawn, rec.Incarnation)
	case c.incarnation == rec.Incarnation:
		p.put(key, nil)
	}
}

// unsubscribe unregisters first and detaches then, so that no agent takes the
// consumer for gone.
func (p *Provider) unsubscribe(ctx context.Context, s penstock.StreamID, name string) error {
	if b := p.binding(s, name); b != nil {
		return &unsupportedError{what: fmt.Sprintf("subscription %q of stream %s is implicit: a binding of provider %q declares it", name, s, p.config.Name)}
	}
	key := consumerKey{s, name}
	leave, err := p.turns.enter(ctx, key)
	if err != nil {
		return err
	}
	defer leave()
	p.mu.Lock()
	c := p.consumers[key]
	p.mu.Unlock()
	err = p.registry().Unsubscribe(ctx, SubscriptionRecord{Stream: p.qualified(s), Name: name})
	if err != nil && !errors.Is(err, penstock.ErrNotFound) {
		return err
	}
	p.mu.Lock()
	if p.consumers[key] == c {
		p.put(key, nil)
	}
	p.mu.Unlock()
	return err
}

func (p *Provider) qualified(s penstock.StreamID) QualifiedStreamID {
	return QualifiedStreamID{Provider: p.config.Name, StreamID: s}
}
