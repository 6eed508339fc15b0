package stream

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// streamEntry is what an agent knows of one stream that is active on its
// queue.
//
// Invariants: pin is open exactly while state is registering or initial > 0;
// subs are ordered by name; an entry that is leaving has no subscription.
type streamEntry struct {
	subs      []*subscription // those up to taken are needed for each container
	busy      int             // place in the run's busy set, from 1; 0 when it is not in it
	pin       Cursor          // keeps the cache from the trigger on
	state     entryState
	forgotten bool           // it is not in the table any more
	activity  time.Time      // when its container read last was accounted for
	newest    penstock.Token // of that container
	taken     time.Time      // when the queue took that one in; zero when it does not say

	id       penstock.StreamID
	trigger  penstock.Token // container that made the stream active
	initial  int            // subscriptions found by registration, not yet attached
	seen     uint64         // newest roster revision applied
	notice   Roster         // newest notice that came while registering
	heard    map[string]heard
	implicit []SubscriptionRecord // that bindings declare; of the registration
}

type entryState uint8

const (
	registering entryState = iota // the registry has not answered yet
	registered
	leaving // being taken out of the registry
)

// heard is what had been read when a notice first named a subscription.
type heard struct {
	incarnation uint64
	at          Position
}

// wake groups containers by stream in the order of arrival, and wakes or
// registers each stream (OR-53 to OR-56).
func (r *run) wake(batch []Container) {
	now := time.Now()
	woken := r.woken[:0]
	r.woken = nil // a delivery that fails at once may come here again
	for i := range batch {
		e, known := r.entryOf(batch, i)
		if known {
			r.refresh(e, batch[i].Token, now)
		} else {
			e = r.enlist(batch[i].Stream, batch[i].Token, now)
		}
		if s := r.shelf; s != nil {
			s.recent[i].entry = e
		}
		e.newest, e.taken = batch[i].Token, batch[i].Time
		woken = append(woken, e)
	}
	for _, e := range woken { // after all are refreshed: a group may take several
		if e.state == registered {
			for _, sub := range e.subs {
				r.deliver(sub)
			}
		}
	}
	clear(woken)
	r.woken = woken
}

// entryOf finds the stream of a container that was just added: at its posting, if
// it was noted there, or else in the table.
func (r *run) entryOf(batch []Container, i int) (e *streamEntry, known bool) {
	if s := r.shelf; s != nil {
		if e := s.recent[i].entry; e != nil && !e.forgotten {
			return e, true
		}
	}
	e, known = r.streams[batch[i].Stream]
	return e, known
}

// enlist pins a stream at its first container and registers as its producer in
// the background; reading goes on (OR-56, OR-57).
func (r *run) enlist(id penstock.StreamID, first penstock.Token, now time.Time) *streamEntry {
	e := &streamEntry{id: id}
	r.streams[id] = e
	r.register(e, first, now)
	return e
}

func (r *run) register(e *streamEntry, first penstock.Token, now time.Time) {
	e.state, e.trigger, e.activity = registering, first, now
	e.pin = r.open(e.id, Position{Kind: PositionAt, Token: first})
	r.busy.add(e)
	if r.latch.enter() {
		r.tryRegister(e, 0)
	}
}

// open opens a cursor at a place that was in the cache when it was read. A
// cache that evicts under live cursors may have lost it since: the cursor's first
// read says so then. Any other refusal is a fault of the cache.
func (r *run) open(id penstock.StreamID, at Position) Cursor {
	c, err := r.cache.Cursor(id, at)
	if errors.Is(err, ErrCacheMiss) && at.Kind != PositionEarliest {
		return &lostCursor{Cursor: r.open(id, Position{Kind: PositionEarliest}), at: at.Token, err: err}
	}
	if err != nil {
		panic("stream: Cache.Cursor refused a place that the cache holds: " + err.Error())
	}
	return c
}

// lostCursor stands at a container that is no longer in the cache; what is left
// behind it is held.
type lostCursor struct {
	Cursor
	at  penstock.Token
	err error
}

func (l *lostCursor) Next() (Container, bool, error) { return Container{}, false, l.err }
func (l *lostCursor) Peek() (Peeked, bool)           { return Peeked{Token: l.at}, true }

// Lag implements [Lagging]: what was dropped is not there to be counted.
func (l *lostCursor) Lag() (events uint64, oldest time.Time) {
	if c, ok := l.Cursor.(Lagging); ok {
		return c.Lag()
	}
	return 0, time.Time{}
}

// tryRegister is attempt n. It is repeated until it succeeds or the agent
// drains (OR-61); until then nothing of the stream is purged and no progress
// is reported (OR-64).
func (r *run) tryRegister(e *streamEntry, n int) {
	var roster Roster
	var implicit []SubscriptionRecord
	r.spawn("registry", func(ctx context.Context) error {
		if n > 0 {
			if err := sleep(ctx, r.pause("DeliveryBackoff", r.deliveryBackoff, n-1), r.drain); err != nil {
				return err
			}
		}
		implicit = r.implicit(e.id) // asks the functions of patterns
		var err error
		roster, err = r.registry.RegisterProducer(ctx, r.qualified(e.id), r.agent)
		return err
	}, func(err error) {
		if err == nil {
			e.implicit = implicit
			r.registrationEnded(e, roster)
			r.latch.leave()
			return
		}
		if r.draining {
			r.latch.leave()
			return
		}
		r.log.Warn("registering a stream failed; trying again", r.fields("stream", e.id.String(), "attempt", n+1, "err", err)...)
		r.tryRegister(e, n+1)
	})
}

func (r *run) qualified(id penstock.StreamID) QualifiedStreamID {
	return QualifiedStreamID{Provider: r.provider, StreamID: id}
}

// registrationEnded attaches what registration found at the trigger, and what
// notices named meanwhile at the place that had been read then.
func (r *run) registrationEnded(e *streamEntry, found Roster) {
	e.state = registered
	r.tell(StreamRegistered, Diagnostic{Stream: e.id, Token: e.trigger})
	e.seen = found.Revision
	found.Subscriptions = union(e.implicit, found.Subscriptions)
	now := found.Subscriptions
	if e.notice.Revision > found.Revision {
		e.seen, now = e.notice.Revision, union(e.implicit, e.notice.Subscriptions)
	}
	for _, rec := range now {
		at := Position{Kind: PositionAt, Token: e.trigger}
		known := slices.ContainsFunc(found.Subscriptions, func(f SubscriptionRecord) bool {
			return f.Name == rec.Name && f.Incarnation == rec.Incarnation
		})
		if h, ok := e.heard[rec.Name]; ok && !known && h.incarnation == rec.Incarnation {
			at = h.at
		}
		e.initial++
		r.attach(e, rec, at).initial = true
	}
	e.notice, e.heard = Roster{}, nil
	for _, sub := range e.subs {
		r.requestHandshake(sub)
	}
	r.releasePin(e)
}

// releasePin closes the pin when every initial handshake has ended (OR-63). An
// initial subscription that failed to attach keeps it until it is attached or
// removed (OR-65).
func (r *run) releasePin(e *streamEntry) {
	if e.pin != nil && e.state != registering && e.initial == 0 {
		e.pin.Close()
		e.pin = nil
		r.unstall()
	}
}

func (r *run) initialEnded(sub *subscription) {
	if sub.initial {
		sub.initial = false
		sub.entry.initial--
		r.releasePin(sub.entry)
	}
}

// refresh tells a known stream of new containers.
func (r *run) refresh(e *streamEntry, first penstock.Token, now time.Time) {
	e.activity = now
	r.busy.add(e)
	if e.state == leaving && e.pin == nil {
		// It comes back while it is being unregistered: hold the containers,
		// register when that has ended.
		e.trigger = first
		e.pin = r.open(e.id, Position{Kind: PositionAt, Token: first})
	}
	for _, sub := range e.subs {
		if sub.pin != nil {
			sub.pin.Refresh(first)
		}
		if sub.cursor != nil {
			sub.cursor.Refresh(first)
		}
	}
}

// rosterChanged applies a notice. A stream that is not in the table is
// discovered by its first container (OR-66); a stale notice changes nothing.
func (r *run) rosterChanged(id penstock.StreamID, roster Roster) {
	e := r.streams[id]
	if e == nil || r.draining && e.state != registered || e.state == leaving {
		return
	}
	if e.state == registering {
		r.noteWhileRegistering(e, roster)
		return
	}
	if roster.Revision <= e.seen {
		return
	}
	e.seen = roster.Revision
	roster.Subscriptions = union(e.implicit, roster.Subscriptions)
	for _, sub := range slices.Clone(e.subs) {
		if !slices.ContainsFunc(roster.Subscriptions, func(rec SubscriptionRecord) bool {
			return rec.Name == sub.rec.Name && rec.Incarnation == sub.rec.Incarnation
		}) {
			r.remove(sub)
			r.noMore(sub)
			r.withdrawn(sub.rec)
		}
	}
	for _, rec := range roster.Subscriptions {
		i, found := r.lookup(e, rec.Name)
		switch {
		case !found:
			sub := r.attach(e, rec, r.afterRead())
			r.requestHandshake(sub)
		case e.subs[i].rec.Attached != rec.Attached:
			r.announcedAgain(e.subs[i], rec)
		}
	}
	r.leaveIfUnused(e)
}

func (r *run) noteWhileRegistering(e *streamEntry, roster Roster) {
	if roster.Revision <= e.notice.Revision {
		return
	}
	e.notice = roster
	if e.heard == nil {
		e.heard = map[string]heard{}
	}
	for _, rec := range roster.Subscriptions {
		if h, ok := e.heard[rec.Name]; !ok || h.incarnation != rec.Incarnation {
			e.heard[rec.Name] = heard{incarnation: rec.Incarnation, at: r.afterRead()}
		}
	}
}

// afterRead is strictly after everything read so far (G-3).
func (r *run) afterRead() Position {
	if !r.hasRead {
		return Position{Kind: PositionEarliest}
	}
	return Position{Kind: PositionAfter, Token: r.read}
}

func (r *run) lookup(e *streamEntry, name string) (int, bool) {
	return slices.BinarySearchFunc(e.subs, name, func(s *subscription, name string) int {
		switch {
		case s.rec.Name < name:
			return -1
		case s.rec.Name > name:
			return 1
		}
		return 0
	})
}

// attach puts a subscription into the table. Its pin stands where it starts
// unless its consumer asks for another place.
func (r *run) attach(e *streamEntry, rec SubscriptionRecord, at Position) *subscription {
	r.nextSub++
	sub := &subscription{id: r.nextSub, rec: rec, entry: e, pin: r.open(e.id, at)}
	if r.ledger.size > 0 {
		sub.tries = r.ledger.subs[keyOf(&sub.rec)]
	}
	_, sub.untold = r.places[keyOf(&sub.rec)]
	i, _ := r.lookup(e, rec.Name)
	e.subs = slices.Insert(e.subs, i, sub)
	r.subs++
	r.busy.add(e)
	r.tellOf(sub, SubscriptionAdded, Diagnostic{})
	return sub
}

// leaveIfUnused takes a stream that lost its last subscription out of the
// table (OR-68).
func (r *run) leaveIfUnused(e *streamEntry) {
	if e.state == registered && len(e.subs) == 0 {
		r.drop(e)
	}
}

// sweep drops streams without new containers for the inactivity period, once a
// tenth of it (OR-69 to OR-71).
func (r *run) sweep(now time.Time) {
	if now.Sub(r.lastTick) < r.inactivity/10 {
		return
	}
	r.lastTick = now
	for _, e := range r.streams {
		if e.state == registered && now.Sub(e.activity) >= r.inactivity && !slices.ContainsFunc(e.subs, (*subscription).holdsEntry) {
			r.log.Debug("stream inactive", r.fields("stream", e.id.String())...)
			r.step("stream inactive")
			r.tell(StreamInactive, Diagnostic{Stream: e.id})
			for _, sub := range slices.Clone(e.subs) {
				r.remove(sub)
			}
			r.drop(e)
		}
	}
}

// drop unregisters a stream without subscriptions and then forgets it, unless
// containers came meanwhile: then it is registered again.
func (r *run) drop(e *streamEntry) {
	if !r.latch.enter() {
		return // the shutdown unregisters it
	}
	e.state = leaving
	r.spawn("registry", func(ctx context.Context) error {
		return r.registry.UnregisterProducer(ctx, r.qualified(e.id), r.agent)
	}, func(err error) {
		defer r.latch.leave()
		if err != nil {
			r.log.Warn("unregistering a stream failed", r.fields("stream", e.id.String(), "err", err)...)
		}
		if e.pin == nil {
			delete(r.streams, e.id)
			e.forgotten = true
			r.busy.remove(e)
			return
		}
		if r.draining {
			return // the pin stays: what came is not purged, no progress passes it
		}
		e.pin.Close() // and opened again at the same container
		r.register(e, e.trigger, e.activity)
	})
}
