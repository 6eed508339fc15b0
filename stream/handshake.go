package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// handshakeEnded takes the result of one attempt. A superseded or revoked one
// changes nothing, in whatever order the answers come (OR-80, OR-83).
func (r *run) handshakeEnded(h *handshake, at Position, err error) {
	if !h.current() {
		r.endHandshake(h)
		return
	}
	switch {
	case err == nil:
		if err = r.reposition(h.sub, at); err == nil {
			r.places.note(h, at)
			r.handshakeDone(h)
			return
		}
		if errors.Is(err, errUnloaded) {
			r.askAgain(h, err)
			return
		}
		h.err, h.refused = err, true
		r.subscribeFailed(h)
	case errors.Is(err, ErrConsumerGone):
		r.gone(h.sub)
		r.endHandshake(h)
	case errors.Is(err, errUnattached):
		r.hold(h)
	case errors.Is(err, ErrAway) && r.ctx.Err() == nil:
		r.askAgain(h, err)
	case r.ctx.Err() != nil: // a drain was cut: the position stays unresolved
		r.endHandshake(h)
	case errors.Is(err, errExpired):
		r.subscribeFailed(h)
	default:
		h.err, h.sub.refused = err, err
		r.log.Warn("handshake failed; trying again", r.about(h.sub, "attempt", h.attempts, "err", err)...)
		r.tryHandshake(h)
	}
}

// endHandshake gives up the work's place in the latch.
func (r *run) endHandshake(h *handshake) {
	h.sub.pending--
	if h.request == h.sub.request {
		h.sub.supersede = nil
		h.sub.letGo()
	}
	r.latch.leave()
}

// handshakeDone makes the position the current one (OR-79); reposition has set
// it.
func (r *run) handshakeDone(h *handshake) {
	sub := h.sub
	sub.unresolved, sub.attached, sub.placed, sub.held, sub.refused = false, true, h.request, false, nil
	sub.paused, sub.rewinds, sub.pauseEnds = false, 0, time.Time{}
	delete(r.retained, sub)
	if sub.kept != nil {
		r.retained[sub] = struct{}{}
	}
	r.endHandshake(h)
	r.initialEnded(sub)
	r.step("attached " + sub.rec.Name)
	r.tellOf(sub, SubscriptionAttached, Diagnostic{})
	r.deliver(sub)
	r.unstall()
}

// reposition moves a subscription to where its consumer wants to go on. The
// new place is opened before the old one is given up, so that a refusal
// changes nothing. Deliveries under way belong to an older generation from
// then on; when the cursor stays, their group is delivered again (OR-85).
func (r *run) reposition(sub *subscription, at Position) error {
	next, err := r.cursorAt(sub, at)
	if err != nil {
		return err
	}
	stays := next == sub.cursor
	sub.generation++
	if d := sub.inFlight; d != nil {
		d.revoke()
		d.redo = d.cursor == next // not when an earlier move has left its place
	}
	if !stays {
		if sub.cursor != nil {
			sub.cursor.Close()
		}
		if sub.kept != nil {
			sub.kept.unprotect()
			sub.kept = nil
		}
		sub.cursor = next
		sub.had, sub.partly = at.Token, at.Kind == PositionResume && next != sub.pin
	}
	if sub.pin == next {
		sub.pin = nil
	} else if sub.pin != nil {
		sub.pin.Close()
		sub.pin = nil
	}
	r.busy.add(sub.entry)
	return nil
}

// rewound moves the subscription to where the consumer wants to go on; nothing
// of the group counts as processed. When that place cannot be had the group
// stays, as after an attempt that failed (OR-93).
func (r *run) rewound(d *delivery, at Position) {
	resume, has := at.Kind == PositionResume, at.Token
	partly := false
	if resume { // where it is: before this group, or behind what it has of it
		at.Kind, at.Token = PositionAt, d.containers[0].Token
		if c := containerToken(has); c.Compare(at.Token) >= 0 {
			at.Token, partly = c, true
		}
	}
	if err := r.reposition(d.sub, at); err != nil {
		if d.err = fmt.Errorf("rewind to %s: %w", at, err); resume {
			r.resumeInPlace(d, has)
		} else if !r.rewindWaits(d, err) {
			r.attemptFailed(d, Answer{}, d.err)
		}
		return
	}
	if resume {
		r.countSettled(d, d.upTo(has))
		r.forgetUpTo(d, has)
	}
	d.sub.had, d.sub.partly = has, partly
	d.rest = nil // read again from there
	if d.sub.rewinds++; d.sub.rewinds > 1 {
		r.pauseRewinds(d)
		return
	}
	r.over(d)
}

// resumeInPlace is for a consumer that has events up to and including has, where
// that place cannot be asked for: the adapter cannot rewind, or the queue never
// gave the token out. What it has of the group is settled, as it says; the rest
// is offered again.
func (r *run) resumeInPlace(d *delivery, has penstock.Token) {
	n := d.upTo(has)
	left := slices.Clone(d.items[n:])
	if n == 0 { // it takes nothing, and says that it has nothing
		r.attemptFailed(d, Answer{}, d.err)
		return
	}
	r.log.Warn("consumer goes on in the middle of a delivery, behind a place that cannot be asked for", r.about(d.sub, "token", has.String(), "events", n, "err", d.err)...)
	r.countSettled(d, n)
	r.forgetUpTo(d, has)
	if len(left) == 0 {
		r.settled(d)
		return
	}
	d.items, d.err = left, nil
	r.firstTry(d)
}

// cursorAt opens the place that a consumer asked for (OR-74 to OR-77). Only
// what lies above the checkpoint, and is in the cache, can be asked for: below
// it the queue may keep nothing.
func (r *run) cursorAt(sub *subscription, at Position) (Cursor, error) {
	id := sub.entry.id
	switch at.Kind {
	case PositionNone:
		if sub.cursor != nil {
			return sub.cursor, nil
		}
		return sub.pin, nil
	case PositionResume:
		return r.resumeAt(sub, at.Token)
	case PositionLatest:
		if sub.pin != nil {
			return sub.pin, nil
		}
		at = r.afterRead()
	case PositionEarliest:
		if r.hasFloor {
			c, err := r.cache.Cursor(id, Position{Kind: PositionAfter, Token: r.floor})
			if err == nil || !errors.Is(err, ErrCacheMiss) {
				return c, err
			} // the cache keeps less than the checkpoint allows
		}
	case PositionAtTime:
		return r.cursorAtTime(id, at.Time)
	case PositionAt, PositionAfter:
		if err := r.checkToken(id, at); err != nil {
			return nil, err
		}
	default:
		return nil, &penstock.FieldError{Field: "Position", Reason: at.String() + " is unknown"}
	}
	return r.cache.Cursor(id, at)
}

// resumeAt is the cursor of an attached subscription, or the pin of a new one
// moved to the container that its consumer has a part of, perhaps all: what it
// has is passed over there (subscription.partly). Tokens of an adapter that
// cannot rewind mean nothing in another run, so there the pin stays.
func (r *run) resumeAt(sub *subscription, has penstock.Token) (Cursor, error) {
	if sub.cursor != nil {
		return sub.cursor, nil
	}
	next, more := sub.pin.Peek()
	ahead := more && next.Token.Compare(has) <= 0 || !more && (!r.hasRead || containerToken(has).Compare(r.read) > 0)
	if !r.rewindable || !ahead {
		return sub.pin, nil
	}
	if err := r.tokenCheck(has); err != nil {
		r.log.Warn("consumer has what the queue never had; it gets everything above the checkpoint", r.about(sub, "token", has.String(), "err", err)...)
		return sub.pin, nil
	}
	return r.open(sub.entry.id, Position{Kind: PositionAt, Token: containerToken(has)}), nil
}

func (r *run) checkToken(id penstock.StreamID, at Position) error {
	if !r.rewindable {
		return &unsupportedError{what: "position " + at.String() + ": the adapter of provider " + r.provider + " cannot rewind"}
	}
	if err := r.tokenCheck(at.Token); err != nil {
		return err
	}
	if !r.hasFloor {
		return nil
	}
	order := containerToken(at.Token).Compare(r.floor)
	if order < 0 || order == 0 && at.Kind == PositionAt {
		return &CacheMissError{Stream: id, Requested: at.Token, Low: r.floor, High: r.read, Checkpoint: true}
	}
	return nil
}

// subscribeFailed asks the failure handler what becomes of a subscription that
// could not be attached.
func (r *run) subscribeFailed(h *handshake) {
	sub := h.sub
	sub.refused = h.err
	f := Failure{Queue: r.queue, Subscription: sub.rec, Err: h.err, refused: h.refused}
	r.log.Error("subscription not attached", r.about(sub, "attempts", h.attempts, "err", h.err)...)
	r.tellOf(sub, SubscriptionFailed, Diagnostic{Err: h.err})
	r.notify(sub, Notice{Kind: NoticeAttachFailed, Err: h.err}, func() {
		if !h.current() {
			r.endHandshake(h)
			return
		}
		decided := Decision{Verdict: Retry}
		r.spawn("failure handler", func(ctx context.Context) error {
			decided = r.failure.SubscribeFailed(ctx, f)
			return nil
		}, func(err error) {
			if err != nil {
				r.log.Error("failure handler failed; the subscription is tried again", r.about(sub, "err", err)...)
				decided = Decision{Verdict: Retry}
			}
			r.subscribeDecided(h, decided)
		})
	})
}

// subscribeDecided applies the decision, if the handshake is still the latest
// one. An implicit subscription is never faulted (OR-106): it starts without an
// answer.
func (r *run) subscribeDecided(h *handshake, decided Decision) {
	sub := h.sub
	switch {
	case !h.current():
		r.endHandshake(h)
	case decided.Verdict != Skip && decided.Verdict != Fault: // a dead letter there is not
		sub.again, sub.notBefore = true, time.Now().Add(decided.After)
		r.retained[sub] = struct{}{}
		r.endHandshake(h)
	case decided.Verdict == Skip || sub.rec.Implicit:
		if r.reposition(sub, Position{}) == nil { // never refused
			r.handshakeDone(h)
		}
	default:
		r.fault(sub, h.current, h.err, func(bool) { r.endHandshake(h) })
	}
}

// fault gives a subscription up for good: its consumer is told, then the
// registry, then it is removed here (OR-104). Valid is asked before the registry
// is; what it has allowed is completed, whatever overlaps it (OR-84). Then is
// told whether it was done.
func (r *run) fault(sub *subscription, valid func() bool, cause error, then func(done bool)) {
	rec := sub.rec
	r.notify(sub, Notice{Kind: NoticeFaulted, Err: fmt.Errorf("%w: %w", ErrFaulted, cause)}, func() {
		if !valid() {
			then(false)
			return
		}
		known := false
		r.spawn("registry", func(ctx context.Context) (err error) {
			known, err = r.registry.Fault(ctx, rec)
			return err
		}, func(err error) { r.faultStored(sub, known, err, then) })
	})
}

func (r *run) faultStored(sub *subscription, known bool, err error, then func(done bool)) {
	if err != nil {
		r.log.Error("faulting a subscription failed; trying again at the next poll", r.about(sub, "err", err)...)
		if !sub.removed {
			sub.again = true
			sub.unresolved = true
			r.retained[sub] = struct{}{}
		}
		then(false)
		return
	}
	if known {
		r.stats.Faulted++
		r.tellOf(sub, SubscriptionFaulted, Diagnostic{})
		r.log.Error("subscription faulted", r.about(sub)...)
	} else if !sub.removed { // elsewhere it is, and the notice has not come
		r.withdrawn(sub.rec)
	}
	if !sub.removed {
		r.remove(sub)
		r.noMore(sub)
	}
	r.leaveIfUnused(sub.entry)
	then(true)
}

// gone ends the subscription of a consumer that does not exist any more: here
// at once, then in the registry (OR-104, step 1).
func (r *run) gone(sub *subscription) {
	rec := sub.rec
	r.log.Warn("consumer is gone; its subscription is removed", r.about(sub)...)
	r.remove(sub)
	r.noMore(sub)
	r.leaveIfUnused(sub.entry)
	if rec.Implicit || !r.latch.enter() {
		return
	}
	r.spawn("registry", func(ctx context.Context) error { return r.registry.Unsubscribe(ctx, rec) }, func(err error) {
		defer r.latch.leave()
		if err != nil && !errors.Is(err, penstock.ErrNotFound) {
			r.log.Warn("unregistering a subscription failed", r.about(sub, "err", err)...)
		} else if r.forget != nil {
			r.forget(rec)
		}
	})
}

// remove takes a subscription out of the table and revokes its handshakes and
// its delivery: late results release what they hold and change nothing
// (OR-83).
func (r *run) remove(sub *subscription) {
	if sub.removed {
		return
	}
	sub.removed = true
	if sub.supersede != nil {
		sub.supersede()
		sub.supersede = nil
	}
	if sub.inFlight != nil {
		sub.inFlight.revoke()
	}
	sub.closeCursors()
	e := sub.entry
	e.subs = slices.DeleteFunc(e.subs, func(s *subscription) bool { return s == sub })
	r.subs--
	r.keepStored(sub)
	delete(r.retained, sub)
	r.initialEnded(sub)
	r.step("removed " + sub.rec.Name)
	r.tellOf(sub, SubscriptionRemoved, Diagnostic{})
	r.unstall()
}
