package stage

import (
	"context"
	"fmt"
	"sync"

	"github.com/penstock/penstock"
)

// DefaultMailbox is how many messages wait in a [Mailbox] at most, unless it
// was made with another capacity.
const DefaultMailbox = 256

// Mailbox is the address of messages of type M to one stage: what it is told
// from outside, or tells itself later, besides its events. Make one with
// [NewMailbox], give it to its stage with [OnMessage] or [OnSinkMessage], and
// send from anywhere. The stage handles messages one at a time, never beside
// another callback of its; a handler may emit events, change what the callbacks
// share, and end the stage.
//
// The messages of one goroutine that are sent the same way keep their order. A
// mailbox outlives its stage: when that has ended, another may take its place.
// Messages are not events: they cost no demand, and none is counted with them.
//
// At most its capacity of messages wait, each running timer counted as one.
// While 10,000 events wait in a gate for demand, it handles none: so what its
// handler emits has a bound too. All methods are safe for concurrent use.
type Mailbox[M any] struct {
	g    *Graph
	name string
	err  error
	room chan struct{} // one token per message that waits, and per timer

	mu    sync.Mutex
	owner *receiver[M] // nil: none
}

// NewMailbox returns a mailbox for a stage of g. No other of g's may have the
// name. capacity 0 means [DefaultMailbox]; a negative one, and a name that is
// taken, are errors at Start or, while the graph runs, of [Graph.Add].
func NewMailbox[M any](g *Graph, name string, capacity int) *Mailbox[M] {
	m := &Mailbox[M]{g: g, name: name}
	switch {
	case capacity < 0:
		m.err = &penstock.FieldError{Field: "NewMailbox", Reason: fmt.Sprintf("capacity %d is negative", capacity)}
	case capacity == 0:
		capacity = DefaultMailbox
	}
	if err := g.takeName(name); err != nil {
		m.err = err
	}
	if m.err != nil {
		g.refuseUnstarted(m.err)
	}
	m.room = make(chan struct{}, max(1, capacity))
	return m
}

// Name returns the name of the mailbox.
func (m *Mailbox[M]) Name() string { return m.name }

// Send gives a message to the stage, which handles it as soon as it has come
// back from the callback that it is in. While the mailbox is full Send waits,
// first come first served, for room, the end of ctx, or the end of the stage.
// The error matches [ErrStageNotAlive] when no stage has the mailbox or the
// stage has ended, or ctx.Err() and its cause; then the message was not taken. A
// callback of the stage itself should use TrySend: while it waits, nothing
// makes room.
func (m *Mailbox[M]) Send(ctx context.Context, message M) error {
	return m.send(ctx, message, false)
}

// TrySend is [Mailbox.Send] that never waits: the error matches
// [penstock.ErrFull] when the mailbox is full.
func (m *Mailbox[M]) TrySend(message M) error { return m.trySend(message, false) }

// SendBehind is [Mailbox.Send] behind the events that the stage has in its
// buffer now: the message is handled when the last of them has gone out, or was
// dropped, and before the events that come after it. In a gate those are the
// events that it has emitted and nobody has asked for, when it takes the
// message; a sink holds none. What a partition's queue holds has gone out.
func (m *Mailbox[M]) SendBehind(ctx context.Context, message M) error {
	return m.send(ctx, message, true)
}

// TrySendBehind is [Mailbox.SendBehind] that never waits, as TrySend.
func (m *Mailbox[M]) TrySendBehind(message M) error { return m.trySend(message, true) }

func (m *Mailbox[M]) send(ctx context.Context, message M, behind bool) error {
	if err := penstock.ContextError(ctx); err != nil {
		return err
	}
	r := m.receiver()
	if r == nil {
		return m.notAlive()
	}
	select {
	case m.room <- struct{}{}:
	default:
		select {
		case m.room <- struct{}{}:
		case <-r.gone:
			return m.notAlive()
		case <-ctx.Done():
			return penstock.ContextError(ctx)
		}
	}
	return m.put(message, behind)
}

func (m *Mailbox[M]) trySend(message M, behind bool) error {
	if m.receiver() == nil {
		return m.notAlive()
	}
	select {
	case m.room <- struct{}{}:
		return m.put(message, behind)
	default:
		return fmt.Errorf("mailbox %q: %w", m.name, penstock.ErrFull)
	}
}

// put adds a message whose token is in room, and takes that out again when the
// stage has ended.
func (m *Mailbox[M]) put(message M, behind bool) error {
	m.mu.Lock()
	r := m.owner
	if r == nil || r.closed {
		m.mu.Unlock()
		<-m.room
		return m.notAlive()
	}
	r.add(letter[M]{message: message}, behind)
	m.mu.Unlock()
	r.b.wake(ctlMail)
	return nil
}

func (m *Mailbox[M]) receiver() *receiver[M] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.owner == nil || m.owner.closed {
		return nil
	}
	return m.owner
}

func (m *Mailbox[M]) notAlive() error { return fmt.Errorf("mailbox %q: %w", m.name, ErrStageNotAlive) }
