package stream

import (
	"cmp"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// StreamState is what an agent knows of one stream.
type StreamState struct {
	Stream    penstock.StreamID
	Queue     QueueID
	Condition Condition     // the worst of its own and those of its subscriptions
	Idle      time.Duration // since its last container was read
	Waiting   string        // for what the stream itself waits; empty when its subscriptions are known
	// Newest is its container read last, NewestTime when the queue took that
	// one in, if it says so.
	Newest     penstock.Token
	NewestTime time.Time
	// Lag is how many events its slowest subscription has not settled of what
	// was read, LagTime how old the oldest of them is; 0 when nothing is
	// outstanding, or the queue does not say when it took it in.
	Lag     uint64
	LagTime time.Duration

	Subscriptions []SubscriptionState
}

// SubscriptionState is where one subscription stands.
type SubscriptionState struct {
	SubscriptionRecord
	// Processed is the position up to which nothing is outstanding for it, as
	// far as its agent knows; zero for none. Everything that was read is
	// processed when CaughtUp is set.
	Processed penstock.Token
	CaughtUp  bool
	// Offered is the last event that its consumer was given, zero for none;
	// Settled is how many it has settled since it was attached.
	Offered penstock.Token
	Settled uint64
	// Lag is how many events of its stream it has not settled of what was read;
	// LagTime is the age of the oldest of them, as for the stream.
	Lag     uint64
	LagTime time.Duration

	Condition Condition
	InFlight  int // events that its consumer has, or that wait to be offered again
	Attempts  int // of those, in a row
	// Waiting says in words what it waits for, who and for how long; empty when
	// nothing is outstanding.
	Waiting string
}

// Inspect returns the state of the streams that agents of this node know, by
// namespace and key: all of them, or, with onlyBusy, those that something is
// outstanding for. At most limit of each queue are returned, those that it met
// first in no order; 0 means 100, and a negative limit all, for which an agent
// of very many streams stops for milliseconds. QueueStats counts them. An agent
// that does not answer within a second is left out; Stats names it.
func (p *Provider) Inspect(onlyBusy bool, limit int) []StreamState {
	if limit == 0 {
		limit = 100
	}
	var out []StreamState
	for _, a := range p.manager.agents {
		if r := a.last(); r != nil {
			got, _ := inquire(r, func(r *run) []StreamState { return r.inspect(onlyBusy, limit, time.Now()) })
			out = append(out, got...)
		}
	}
	slices.SortFunc(out, func(a, b StreamState) int {
		return cmp.Or(cmp.Compare(a.Stream.Namespace, b.Stream.Namespace), cmp.Compare(a.Stream.Key, b.Stream.Key))
	})
	return out
}

// inspect runs on the loop.
func (r *run) inspect(onlyBusy bool, limit int, now time.Time) (out []StreamState) {
	for _, e := range r.streams {
		if len(out) == limit {
			break
		}
		b := e.backlog()
		s := StreamState{
			Stream: e.id, Queue: r.queue, Idle: since(now, e.activity),
			Newest: e.newest, NewestTime: e.taken, Lag: b.events, LagTime: b.age(now),
		}
		if e.waits() {
			s.Condition, s.Waiting = (&holder{entry: e}).words(now)
		}
		busy := s.Waiting != ""
		for _, sub := range e.subs {
			w := r.inspectSubscription(sub, now)
			busy = busy || w.Waiting != ""
			s.Condition = max(s.Condition, w.Condition)
			s.Subscriptions = append(s.Subscriptions, w)
		}
		if busy || !onlyBusy {
			out = append(out, s)
		}
	}
	return out
}

func (r *run) inspectSubscription(sub *subscription, now time.Time) SubscriptionState {
	v, b := sub.view(), sub.backlog()
	out := SubscriptionState{
		SubscriptionRecord: sub.rec, CaughtUp: v.registered && !v.unresolved && v.caughtUp,
		Offered: sub.offered, Settled: sub.settled, Lag: b.events, LagTime: b.age(now),
	}
	if out.CaughtUp {
		out.Processed = r.read
		return out
	}
	if v.hasSafe {
		out.Processed = v.safe
	}
	if d := sub.outstanding(); d != nil {
		out.InFlight, out.Attempts = d.events(), d.attempts
	}
	out.Condition, out.Waiting = (&holder{entry: sub.entry, sub: sub, view: v}).words(now)
	return out
}

// waits reports whether the stream's subscriptions are not known yet.
func (e *streamEntry) waits() bool {
	return e.state == registering || e.state == leaving && e.pin != nil
}
