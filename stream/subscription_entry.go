package stream

import (
	"context"
	"errors"
	"time"

	"github.com/penstock/penstock"
)

// subscription is one attachment of a subscription to a run. Its life is
// attaching -> idle <-> delivering -> (failing) -> idle, or removed; besides
// it, its position may be unresolved (G-2).
//
// Invariants: at most one delivery is in flight; cursor is nil until the first
// handshake has completed; only a result whose request is the latest one may
// change the cursor or resolve the position; only a result of the present
// generation may change progress.
type subscription struct {
	entry      *streamEntry // those up to rec are needed for each delivery
	cursor     Cursor
	inFlight   *delivery // started and not ended, of whatever generation
	kept       *delivery // failed, to be offered again before anything else
	missed     error     // its place is no longer in the cache, and it stays there
	attached   bool      // a handshake has completed
	removed    bool
	unresolved bool // the latest one has not completed, or has failed
	moved      bool // a policy has moved it, and nothing was delivered since
	fresh      bool // it was given something since the end of its cursor was told
	initial    bool // counted in entry.initial
	again      bool // ask anew at the first poll that is not before notBefore
	paused     bool // after rewinds in a row; nothing is delivered before pauseEnds
	held       bool // nobody in this process handles it; it waits to be announced
	partly     bool // of the container of had, events up to it are settled
	untold     bool // it asked for a place, and has settled nothing from there

	pending    int            // handshakes in flight, superseded ones too
	generation uint64         // of the position; rises with each completed handshake and each rewind
	placed     uint64         // id of the handshake that the position came from
	known      *attachment    // its consumer, found for the delivery before; nil for none
	settled    uint64         // events that its consumer settled since it was attached
	tries      *tries         // attempts of what it was offered and has not settled; nil for none
	stored     *entries       // what the store of attempts holds of it; nil before its first attempt
	offered    penstock.Token // of the last event that was given to its consumer
	had        penstock.Token // with partly

	rec SubscriptionRecord

	id        uint64 // of this attachment, never used again in the run
	pin       Cursor // where it starts unless its consumer asks for another place
	back      Cursor // where the delivery began that was under way when it was asked anew; nil for none
	request   uint64 // id of the latest handshake requested
	supersede func() // stops the latest one; nil when none is in flight
	notBefore time.Time
	asked     time.Time // when the latest one was requested
	refused   error     // why the handshake that ended last has not placed it; nil when it has

	rewinds   int // answers in a row, since something was settled
	pauseEnds time.Time
}

// holdsEntry reports whether the subscription keeps its stream in the table
// through the inactivity sweep (OR-70).
func (s *subscription) holdsEntry() bool {
	if !s.attached || s.pending > 0 || s.unresolved || s.inFlight != nil || s.kept != nil {
		return true
	}
	_, more := s.cursor.Peek()
	return more
}

// closeCursors gives up everything that the subscription holds in the cache,
// except the protection of a delivery in flight.
func (s *subscription) closeCursors() {
	if s.cursor != nil {
		s.cursor.Close()
	}
	if s.pin != nil {
		s.pin.Close()
		s.pin = nil
	}
	s.letGo()
	if s.kept != nil {
		s.kept.unprotect()
		s.kept = nil
	}
}

// letGo gives up the place that it could be asked to go back to.
func (s *subscription) letGo() {
	if s.back != nil {
		s.back.Close()
		s.back = nil
	}
}

// announcedAgain is a notice for a known subscription: its consumer is asked
// anew. An answer of "latest" then means after what has been read by now.
func (r *run) announcedAgain(sub *subscription, rec SubscriptionRecord) {
	sub.rec = rec
	if sub.attached {
		if sub.pin != nil {
			sub.pin.Close()
		}
		sub.pin = r.open(sub.entry.id, r.afterRead())
	}
	r.requestHandshake(sub)
}

// requestHandshake starts a handshake that supersedes every earlier one
// (OR-78).
func (r *run) requestHandshake(sub *subscription) {
	r.busy.add(sub.entry)
	r.requests++
	sub.request = r.requests
	sub.unresolved = true
	sub.again, sub.notBefore, sub.missed, sub.moved = false, time.Time{}, nil, false
	sub.paused, sub.rewinds = false, 0
	if sub.supersede != nil {
		sub.supersede()
		sub.supersede = nil
	}
	if !r.latch.enter() {
		return // the position stays unresolved, so the checkpoint stays too
	}
	if d := sub.inFlight; d != nil && d.current() && sub.back == nil {
		// Its own handler may have asked for it to be given again. The cache keeps
		// it until there is an answer, although it may be settled before.
		sub.back = r.open(sub.entry.id, Position{Kind: PositionAt, Token: d.first()})
	}
	sub.pending++
	sub.asked = time.Now()
	stop := make(chan struct{})
	sub.supersede = func() { close(stop) }
	r.tryHandshake(&handshake{sub: sub, request: sub.request, stop: stop, started: time.Now()})
}

// handshake is one request for a position, over all its attempts.
type handshake struct {
	sub      *subscription
	request  uint64
	stop     chan struct{} // closed when it is superseded or revoked
	started  time.Time
	attempts int
	err      error // of the last attempt
	refused  bool  // err says that the place that was asked for cannot be had
}

func (h *handshake) current() bool { return !h.sub.removed && h.request == h.sub.request }

// tryHandshake makes one attempt. The number of attempts is not limited, their
// time is (OR-73); the limit is checked before each (OR-91).
func (r *run) tryHandshake(h *handshake) {
	var at Position
	rec, n, placed := h.sub.rec, h.attempts, h.sub.placed
	if placed == 0 {
		placed = r.places[keyOf(&rec)]
	}
	h.attempts++
	r.spawn("consumer "+rec.Name, func(ctx context.Context) error {
		if n > 0 {
			if err := r.backOff(ctx, n-1, h.started, h.stop); err != nil {
				return err
			}
		}
		consumer, err := r.resolve(ctx, rec)
		if err != nil {
			return err
		}
		at, err = consumer.Handshake(ctx, Handshake{Subscription: rec, Queue: r.queue, Request: h.request, Placed: placed})
		return err
	}, func(err error) { r.handshakeEnded(h, at, err) })
}

// errExpired says that the time for attempts was used up before one was made.
var errExpired = errors.New("time for attempts used up")

func (r *run) expired(started time.Time) bool {
	return r.maxDelivery >= 0 && time.Since(started) > r.maxDelivery
}

// about adds the subscription to the fields of a log line.
func (r *run) about(sub *subscription, more ...any) []any {
	return append(r.fields("stream", sub.rec.Stream.StreamID.String(), "subscription", sub.rec.Name), more...)
}
