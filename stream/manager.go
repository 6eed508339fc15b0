package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// manager keeps one agent per queue that this node owns. Notices of ownership
// and commands are orders, which one goroutine, that of Provider.Run, executes
// one after the other; an order that was overtaken by a later one of its kind
// is skipped (OR-35). Which queues to start and stop is a pure function,
// planChange.
//
// Invariants: an agent is live from its start until its stop has begun; agents
// are started and stopped by the executing goroutine only; a queue that comes
// back gets the same agent, whose start waits for its cleanup (OR-40).
type manager struct {
	provider *Provider
	agents   []*agent         // by queue number; an agent that does not run costs nothing
	owned    func() Ownership // what this node owns now

	watchers sync.WaitGroup
	failed   chan struct{} // of capacity 1: an agent has ended by itself
	woken    chan struct{} // of capacity 1: there are orders
	applied  uint64        // sequence of the ownership applied last; used by the executing goroutine only

	mu       sync.Mutex
	open     bool // Run takes orders
	started  bool
	orders   []order
	notices  uint64 // number of the last one that arrived
	commands uint64
	live     map[int]chan struct{} // by queue number; closed to end its watcher
}

// Ownership is what a node owns. Seq rises with each change.
type Ownership struct {
	Seq    uint64
	Queues []QueueID
}

func newManager(p *Provider) *manager {
	m := &manager{provider: p, live: map[int]chan struct{}{}}
	queues := slices.Clone(p.mapper.Queues())                               // what the mapper says later changes nothing
	m.owned = func() Ownership { return Ownership{Seq: 1, Queues: queues} } // static: all
	for _, q := range queues {
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
		attached:        p.attachment,
		forget:          p.forget,
		implicit:        p.implicit,
		filter:          c.Filter,
		filterErrors:    c.FilterErrors,
		onMiss:          c.OnMiss,
		failure:         c.Failure,
		deadLetter:      c.DeadLetter,
		rewindable:      p.adapter.Rewindable(),
		tokenCheck:      func(t penstock.Token) error { return p.checkToken(q, t) },
		unread:          p.unread(q),
		hub:             &p.hub,
		groupSize:       c.GroupSize,
		poll:            c.Poll,
		pollOffset:      time.Duration(c.Rand(int64(c.Poll))),
		initTimeout:     c.InitTimeout,
		shutdownTimeout: c.ShutdownTimeout,
		maxDelivery:     c.MaxDeliveryTime,
		inactivity:      c.Inactivity,
		readAttempts:    c.ReadAttempts,
		maxAttempts:     c.MaxAttempts,
		attempts:        c.Attempts,
		suspects:        p.suspects,
		deliveryBackoff: c.DeliveryBackoff,
		readBackoff:     c.ReadBackoff,
		log:             c.Logger,
	}
}

// run executes orders until ctx ends or an agent does, and stops all agents.
func (m *manager) run(ctx context.Context) error {
	if m.provider.adapter.Direction() == WriteOnly {
		<-ctx.Done()
		return nil
	}
	m.begin()
	first := m.serve(ctx)
	if err := m.end(); first == nil {
		first = err
	}
	if first != nil {
		return fmt.Errorf("stream: provider %q: %w", m.provider.config.Name, first)
	}
	return nil
}

func (m *manager) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open, m.started, m.applied = true, false, 0
	m.failed, m.woken = make(chan struct{}, 1), make(chan struct{}, 1)
}

// serve returns nil at the end of ctx or of an agent, and the first error of
// the start (OR-38).
func (m *manager) serve(ctx context.Context) error {
	if m.provider.config.Startup == AgentsStarted {
		if err := m.start(ctx); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.failed:
			return nil
		case <-m.woken:
			for o, ok := m.next(); ok; o, ok = m.next() {
				o.finish(m.execute(ctx, o))
			}
		}
	}
}

// end refuses the orders that are left and stops every agent.
func (m *manager) end() error {
	m.mu.Lock()
	m.open = false
	left := m.orders
	m.orders = nil
	m.mu.Unlock()
	for _, o := range left {
		o.finish(errNotRunning)
	}
	err := m.stop()
	m.watchers.Wait()
	return err
}

// start starts the agents of all owned queues.
func (m *manager) start(ctx context.Context) error {
	m.setStarted(true)
	own := m.owned()
	m.applied = own.Seq
	start, _ := planChange(m.running(), own.Queues)
	return m.startAgents(ctx, start)
}

// stop drains all agents at once.
func (m *manager) stop() error {
	m.setStarted(false)
	return m.stopAgents(m.running())
}

// change makes the running agents those of the owned queues. Additions and
// removals go on at the same time (OR-34); failures are logged, and other
// queues go on (OR-38).
func (m *manager) change(ctx context.Context, own Ownership) {
	m.applied = own.Seq
	m.provider.hub.tell(Diagnostic{Kind: OwnershipChanged, Events: len(own.Queues)})
	start, stop := planChange(m.running(), own.Queues)
	var both sync.WaitGroup
	var startErr, stopErr error
	both.Go(func() { startErr = m.startAgents(ctx, start) }) // waited for below
	stopErr = m.stopAgents(stop)
	both.Wait()
	if startErr != nil || stopErr != nil {
		m.provider.config.Logger.Error("ownership not applied as a whole", "provider", m.provider.config.Name, "sequence", own.Seq, "start", startErr, "stop", stopErr)
	}
}

// planChange says which queues to start and which to stop, by number and in
// order, so that those that run are the wanted ones.
func planChange(running []int, want []QueueID) (start, stop []int) {
	runs, wanted := map[int]bool{}, map[int]bool{}
	for _, n := range running {
		runs[n] = true
	}
	for _, q := range want {
		if !runs[q.Number] && !wanted[q.Number] {
			start = append(start, q.Number)
		}
		wanted[q.Number] = true
	}
	for _, n := range running {
		if !wanted[n] {
			stop = append(stop, n)
		}
	}
	return start, stop
}

// running returns the numbers of the queues whose agents run, in order.
func (m *manager) running() (out []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n := range m.agents {
		if m.live[n] != nil {
			out = append(out, n)
		}
	}
	return out
}

func (m *manager) setStarted(b bool) {
	m.mu.Lock()
	m.started = b
	m.mu.Unlock()
}

// startAgents starts them at once and returns the first error; the others run.
func (m *manager) startAgents(ctx context.Context, numbers []int) error {
	errs := make([]error, len(numbers))
	var starts sync.WaitGroup
	for i, n := range numbers {
		starts.Go(func() { // one per agent; waited for below
			if errs[i] = m.agents[n].start(ctx); errs[i] == nil {
				m.watch(n)
			}
		})
	}
	starts.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// watch tells the executing goroutine when an agent ends by itself, and names one
// that is silent.
func (m *manager) watch(n int) {
	unwatch, ended, failed := make(chan struct{}), m.agents[n].ended(), m.failed
	m.mu.Lock()
	m.live[n] = unwatch
	m.mu.Unlock()
	m.watchers.Go(func() { // one per live agent; stopAgents ends it, end waits for it
		if m.watchdog(m.agents[n], ended, unwatch) {
			select {
			case <-unwatch: // it was stopped, and both were seen at once
				return
			default:
			}
			select {
			case failed <- struct{}{}:
			default: // told already
			}
		}
	})
}

// stopAgents drains them at once within Config.Drain. What they left is added
// up; any other error goes first.
func (m *manager) stopAgents(numbers []int) error {
	m.mu.Lock()
	for _, n := range numbers {
		close(m.live[n])
		delete(m.live, n)
	}
	m.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(context.Background(), m.provider.config.Drain, errDrainOver)
	defer cancel()
	errs := make([]error, len(numbers))
	var stops sync.WaitGroup
	for i, n := range numbers {
		stops.Go(func() { errs[i] = m.agents[n].stop(ctx) }) // one per agent; waited for below
	}
	stops.Wait()
	var first error
	left, cause := 0, error(nil)
	var busy []string
	for _, err := range errs {
		var d *penstock.DrainError
		switch {
		case errors.As(err, &d):
			left, cause, busy = left+d.Left, d.Err, append(busy, d.Busy...)
		case err != nil && first == nil:
			first = err
		}
	}
	if first == nil && cause != nil {
		first = &penstock.DrainError{Left: left, Busy: busy[:min(len(busy), busyNamed)], Err: cause}
	}
	return first
}

var errDrainOver = errors.New("drain deadline passed")
