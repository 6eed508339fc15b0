package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// manager keeps one agent per queue that this node owns. Ownership is static:
// this node owns all queues. Its methods are called by Provider.Run only.
type manager struct {
	provider *Provider
	agents   []*agent // by queue number
}

func newManager(p *Provider) *manager {
	m := &manager{provider: p}
	for _, q := range p.mapper.Queues() {
		m.agents = append(m.agents, newAgent(m.agentConfig(q)))
	}
	return m
}

func (m *manager) agentConfig(q QueueID) agentConfig {
	p, c := m.provider, &m.provider.config
	return agentConfig{
		provider:        c.Name,
		queue:           q,
		newReceiver:     func() (Receiver, error) { return p.adapter.NewReceiver(q) },
		newCache:        func() (Cache, error) { return c.Factory.NewCache(q) },
		registry:        p.registry(),
		resolve:         p.resolve,
		implicit:        p.implicit,
		filter:          c.Filter,
		filterErrors:    c.FilterErrors,
		onMiss:          c.OnMiss,
		failure:         c.Failure,
		deadLetter:      c.DeadLetter,
		rewindable:      p.adapter.Rewindable(),
		tokenCheck:      func(t penstock.Token) error { return p.checkToken(q, t) },
		groupSize:       c.GroupSize,
		poll:            c.Poll,
		pollOffset:      time.Duration(c.Rand(int64(c.Poll))),
		initTimeout:     c.InitTimeout,
		shutdownTimeout: c.ShutdownTimeout,
		maxDelivery:     c.MaxDeliveryTime,
		inactivity:      c.Inactivity,
		readAttempts:    c.ReadAttempts,
		deliveryBackoff: c.DeliveryBackoff,
		readBackoff:     c.ReadBackoff,
		log:             c.Logger,
	}
}

// run starts the agents, waits for the end of ctx or of an agent, and stops
// all of them at the same time.
func (m *manager) run(ctx context.Context) error {
	if m.provider.adapter.Direction() == WriteOnly {
		<-ctx.Done()
		return nil
	}
	started := m.agents
	var first error
	for i, a := range m.agents {
		if first = a.start(ctx); first != nil {
			started = m.agents[:i]
			break
		}
	}
	if first == nil {
		m.wait(ctx, started)
	}
	if err := m.stop(started); first == nil {
		first = err
	}
	if first != nil {
		return fmt.Errorf("stream: provider %q: %w", m.provider.config.Name, first)
	}
	return nil
}

// wait returns when ctx has ended, or an agent has.
func (m *manager) wait(ctx context.Context, agents []*agent) {
	failed := make(chan struct{}, len(agents))
	watched, stopWatching := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	for _, a := range agents {
		watchers.Go(func() { // one per agent; wait stops it and waits for it
			select {
			case <-a.ended():
				failed <- struct{}{}
			case <-watched.Done():
			}
		})
	}
	select {
	case <-ctx.Done():
	case <-failed:
	}
	stopWatching()
	watchers.Wait()
}

// stop drains all agents at once within Config.Drain. What they left is added
// up; any other error goes first.
func (m *manager) stop(agents []*agent) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), m.provider.config.Drain, errDrainOver)
	defer cancel()
	errs := make([]error, len(agents))
	var stops sync.WaitGroup
	for i, a := range agents {
		stops.Go(func() { errs[i] = a.stop(ctx) }) // one per agent; waited for below
	}
	stops.Wait()
	var first error
	left, cause := 0, error(nil)
	for _, err := range errs {
		var d *penstock.DrainError
		switch {
		case errors.As(err, &d):
			left, cause = left+d.Left, d.Err
		case err != nil && first == nil:
			first = err
		}
	}
	if first == nil && cause != nil {
		first = &penstock.DrainError{Left: left, Err: cause}
	}
	return first
}

var errDrainOver = errors.New("drain deadline passed")
