package stream

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// DiagnosticKind says what an agent did, or what became of it.
type DiagnosticKind uint8

// Kinds of diagnostics.
const (
	AgentStarted DiagnosticKind = iota // a run of an agent has begun
	AgentStopped                       // it has ended, cleanup and all; Events were left unsettled, Err says why
	AgentFailed                        // it has ended by a fault of its cache or of itself
	AgentSilent                        // it, or its receiver, has not answered for Config.Silence
	AgentAnswers                       // it does again
	ReceiverOpened
	ReceiverFailed // to open; reads are tried nevertheless
	ReadFailed     // once per failed read
	ReadUnknown    // the outcome of a read is not known; the checkpoint waits
	ReadRecovered  // the receiver has certified that it has recovered
	ContainerRefused
	ContainerDeadLettered // one that was refused
	StreamRegistered      // its subscriptions are known
	StreamInactive        // it has left memory
	SubscriptionAdded     // the agent has heard of it
	SubscriptionAttached  // its place is known
	SubscriptionUnattached
	SubscriptionFailed // it could not be attached in its time
	SubscriptionFaulted
	SubscriptionRemoved // here; faulted ones too
	SubscriptionLost    // its place is no longer in the cache
	DeliveryFailed      // one attempt
	DeliveryGivenUp     // by the verdict of the failure handler
	Delivered           // Events were settled by their consumer; Token is the last one
	CursorDrained       // everything that was read has been delivered to it, and something was
	OwnershipChanged    // of the node; Events is the number of its queues
	diagnosticKinds
)

var diagnosticNames = [diagnosticKinds]string{
	"agent started", "agent stopped", "agent failed", "agent silent", "agent answers", "receiver opened", "receiver failed",
	"read failed", "read of unknown outcome", "read recovered", "container refused", "container dead-lettered",
	"stream registered", "stream inactive", "subscription added", "subscription attached", "subscription unattached",
	"subscription failed", "subscription faulted", "subscription removed", "subscription lost its place",
	"delivery failed", "delivery given up", "delivered", "cursor drained", "ownership changed",
}

// String returns the kind in words.
func (k DiagnosticKind) String() string {
	if k < diagnosticKinds {
		return diagnosticNames[k]
	}
	return fmt.Sprintf("diagnostic(%d)", uint8(k))
}

// Diagnostic is something that happened, for people who look and for tests
// that wait. Fields that do not belong to the kind are zero.
type Diagnostic struct {
	Kind         DiagnosticKind
	Time         time.Time
	Queue        QueueID
	Stream       penstock.StreamID
	Subscription string         // its name
	Token        penstock.Token // of the container or event that it is about
	Events       int
	Err          error
	// Missed is how many diagnostics came before this one, since the one that
	// Next returned last, and were dropped for want of room.
	Missed uint64
}

// Diagnostics is a bounded list of what happens in a provider, from the call
// that made it on. When it is full the oldest one is dropped and counted in the
// next one's Missed: nobody waits for who reads it. It is safe for concurrent
// use.
//
// Invariants: 0 <= count <= len(ring); ready holds a value, or somebody is
// about to look, whenever count > 0 or closed is set.
type Diagnostics struct {
	hub   *hub
	ready chan struct{} // of capacity 1

	mu     sync.Mutex
	ring   []Diagnostic
	first  int
	count  int
	missed uint64
	closed bool
}

// DefaultDiagnostics is how many diagnostics are kept unless told otherwise.
const DefaultDiagnostics = 1024

// Diagnostics begins to keep what happens, at most size of them; 0 means
// [DefaultDiagnostics], and a negative one panics. Close it when it is no
// longer needed: while there is one, each delivery costs its agent a short lock.
// Those of a provider that was closed are closed.
func (p *Provider) Diagnostics(size int) *Diagnostics {
	if size < 0 {
		panic("stream: Provider.Diagnostics: negative size")
	}
	if size == 0 {
		size = DefaultDiagnostics
	}
	d := &Diagnostics{hub: &p.hub, ready: make(chan struct{}, 1), ring: make([]Diagnostic, size)}
	p.hub.change(func(list []*Diagnostics) []*Diagnostics {
		if d.closed = p.hub.closed; d.closed {
			return nil
		}
		return append(list, d)
	})
	return d
}

// Next returns the oldest diagnostic that is kept, and waits for one when there
// is none. The error is that of ctx, or matches penstock.ErrClosed after Close
// when there is nothing left.
func (d *Diagnostics) Next(ctx context.Context) (Diagnostic, error) {
	for {
		if next, ok, closed := d.take(); ok {
			return next, nil
		} else if closed {
			return Diagnostic{}, fmt.Errorf("stream: diagnostics: %w", penstock.ErrClosed)
		}
		select {
		case <-d.ready:
		case <-ctx.Done():
			return Diagnostic{}, penstock.ContextError(ctx)
		}
	}
}

func (d *Diagnostics) take() (next Diagnostic, ok, closed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() {
		if d.count > 0 || d.closed {
			d.wake() // for another one that waits
		}
	}()
	if d.count == 0 {
		return Diagnostic{}, false, d.closed
	}
	next = d.ring[d.first]
	d.ring[d.first] = Diagnostic{}
	d.first, d.count = (d.first+1)%len(d.ring), d.count-1
	next.Missed, d.missed = d.missed, 0
	return next, true, false
}

func (d *Diagnostics) wake() {
	select {
	case d.ready <- struct{}{}:
	default: // told already
	}
}

func (d *Diagnostics) put(x Diagnostic) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	if d.count == len(d.ring) {
		d.first, d.count = (d.first+1)%len(d.ring), d.count-1
		d.missed++
	}
	d.ring[(d.first+d.count)%len(d.ring)] = x
	d.count++
	d.wake()
}

// Close ends it. Next returns what is left. Closing twice is allowed.
func (d *Diagnostics) Close() {
	d.hub.change(func(list []*Diagnostics) (rest []*Diagnostics) {
		for _, o := range list {
			if o != d {
				rest = append(rest, o)
			}
		}
		return rest
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.wake()
}

// hub knows who wants to hear. Telling takes no lock of its own; who does not
// want to hear costs a load.
type hub struct {
	list atomic.Pointer[[]*Diagnostics] // never changed, only replaced; nil for nobody

	mu     sync.Mutex // of those who replace it
	closed bool
}

func (h *hub) change(f func([]*Diagnostics) []*Diagnostics) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var old []*Diagnostics
	if p := h.list.Load(); p != nil {
		old = append(old, *p...)
	}
	if next := f(old); len(next) > 0 {
		h.list.Store(&next)
	} else {
		h.list.Store(nil)
	}
}

// heard reports whether somebody wants to hear. h may be nil.
func (h *hub) heard() bool { return h != nil && h.list.Load() != nil }

func (h *hub) tell(x Diagnostic) {
	if h == nil {
		return
	}
	p := h.list.Load()
	if p == nil {
		return
	}
	x.Time = time.Now()
	for _, d := range *p {
		d.put(x)
	}
}

// close ends all of them.
func (h *hub) close() {
	var all []*Diagnostics
	h.change(func(list []*Diagnostics) []*Diagnostics { h.closed, all = true, list; return list })
	for _, d := range all {
		d.Close()
	}
}

// tell tells those who watch what the agent did.
func (a *agent) tell(kind DiagnosticKind, x Diagnostic) {
	if !a.hub.heard() {
		return
	}
	x.Kind, x.Queue = kind, a.queue
	a.hub.tell(x)
}

// tellOf tells of a subscription.
func (r *run) tellOf(sub *subscription, kind DiagnosticKind, x Diagnostic) {
	if !r.hub.heard() {
		return
	}
	x.Stream, x.Subscription = sub.entry.id, sub.rec.Name
	r.tell(kind, x)
}

// drained tells that a subscription has come to the end of what was read, if it
// was given something since it last came there (OR-95).
func (r *run) drained(sub *subscription) {
	if sub.fresh {
		sub.fresh = false
		r.tellOf(sub, CursorDrained, Diagnostic{Token: sub.offered})
	}
}
