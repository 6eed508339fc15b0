package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock"
)

// Startup says what Run does with the agents.
type Startup uint8

const (
	// AgentsStarted starts them at once.
	AgentsStarted Startup = iota
	// AgentsStopped leaves them to [Provider.StartAgents].
	AgentsStopped
)

// State is what the agents of a provider do.
type State uint8

const (
	// StateIdle: the provider does not run.
	StateIdle State = iota
	// StateStarted: it runs, and agents pull the queues that this node owns.
	StateStarted
	// StateStopped: it runs, without agents.
	StateStopped
)

var stateWords = [...]string{"idle", "started", "stopped"}

// String returns the state in words.
func (s State) String() string {
	if int(s) < len(stateWords) {
		return stateWords[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// ErrSuperseded: a later command came before this one's turn, which was then
// not executed.
var ErrSuperseded = errors.New("superseded by a later command")

var errNotRunning error = notRunning{}

// notRunning matches penstock.ErrClosed; a provider that does not run need not
// be closed, so the text does not say so.
type notRunning struct{}

func (notRunning) Error() string        { return "provider is not running" }
func (notRunning) Is(target error) bool { return target == penstock.ErrClosed }

// StartAgents starts the agents of all queues that this node owns, and returns
// when they have begun. When they are started already it does nothing. Commands
// are executed one after the other, with changes of ownership. The error
// matches penstock.ErrClosed when the provider does not run, [ErrSuperseded]
// when another command came before this one's turn, and the context's when that
// ends first: the command is executed nevertheless.
func (p *Provider) StartAgents(ctx context.Context) error { return p.command(ctx, orderStart) }

// StopAgents drains all agents, as the end of Run does, and returns when they
// have ended; publishing and subscribing go on. When they are stopped already it
// does nothing. The errors are those of [Provider.StartAgents], and a
// *penstock.DrainError when events were left unsettled.
func (p *Provider) StopAgents(ctx context.Context) error { return p.command(ctx, orderStop) }

// State returns what the agents do, as of the last command whose execution has
// begun, and how many of them run.
func (p *Provider) State() (s State, agents int) {
	m := p.manager
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !m.open:
		return StateIdle, len(m.live)
	case m.started:
		return StateStarted, len(m.live)
	}
	return StateStopped, len(m.live)
}

func (p *Provider) command(ctx context.Context, kind orderKind) error {
	o := order{kind: kind, done: make(chan error, 1)}
	if !p.manager.take(o) {
		return fmt.Errorf("stream: provider %q: %s agents: %w", p.config.Name, kind, errNotRunning)
	}
	select {
	case err := <-o.done:
		if err != nil {
			return fmt.Errorf("stream: provider %q: %s agents: %w", p.config.Name, kind, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stream: provider %q: %s agents: not done yet, goes on: %w", p.config.Name, kind, penstock.ContextError(ctx))
	}
}

type orderKind uint8

const (
	orderNotice orderKind = iota // ownership has changed
	orderStart
	orderStop
)

func (k orderKind) String() string { return [...]string{"notice", "start", "stop"}[k] }

// order is one thing to execute. Notices and commands have numbers of their
// own, given on arrival.
type order struct {
	kind   orderKind
	number uint64
	done   chan error // of capacity 1; nil for a notice
}

func (o order) finish(err error) {
	if o.done != nil {
		o.done <- err
	}
}

// take puts an order at the end of the line; false when Run does not execute
// any. A notice while stopped is ignored (OR-36), and one that waits already is
// replaced, so that the line is bounded by the commands that callers wait for.
func (m *manager) take(o order) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.open {
		return false
	}
	if o.kind == orderNotice {
		if !m.started && !slices.ContainsFunc(m.orders, func(o order) bool { return o.kind == orderStart }) {
			return true
		}
		m.notices++
		o.number = m.notices
		m.orders = slices.DeleteFunc(m.orders, func(o order) bool { return o.kind == orderNotice })
	} else {
		m.commands++
		o.number = m.commands
	}
	m.orders = append(m.orders, o)
	select {
	case m.woken <- struct{}{}:
	default: // told already
	}
	return true
}

// ownershipChanged is what a balancer calls; it does not wait.
func (m *manager) ownershipChanged() { m.take(order{kind: orderNotice}) }

func (m *manager) next() (o order, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.orders) == 0 {
		return order{}, false
	}
	o = m.orders[0]
	m.orders = m.orders[1:]
	return o, true
}

// execute does what an order says, unless a later one of its kind has arrived.
func (m *manager) execute(ctx context.Context, o order) error {
	m.mu.Lock()
	newest, started := m.commands, m.started
	if o.kind == orderNotice {
		newest = m.notices
	}
	m.mu.Unlock()
	switch {
	case o.number != newest:
		return ErrSuperseded
	case o.kind == orderStart && !started:
		return m.start(ctx)
	case o.kind == orderStart: // what an earlier start could not
		start, _ := planChange(m.running(), m.owned().Queues)
		return m.startAgents(ctx, start)
	case o.kind == orderStop && started:
		return m.stop()
	case o.kind == orderNotice && started:
		if own := m.owned(); own.Seq > m.applied {
			m.change(ctx, own)
		}
	}
	return nil
}
