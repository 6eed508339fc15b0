package stream

import (
	"errors"
	"fmt"
	"time"
)

// reason says in words what holds the queue up: why nothing is read, and whom
// the checkpoint waits for. It is empty when nothing is outstanding. It runs on
// the loop; its cost grows with the number of busy streams.
func (r *run) reason(now time.Time) (Condition, string) {
	p, f := &r.pumping, &r.refusals
	switch {
	case f.forGood:
		return ConditionRefused, "containers were refused by the cache; the checkpoint stays until the provider is run again"
	case len(f.waiting) > 0:
		return ConditionRefused, fmt.Sprintf("the cache can never keep container %s, and it is no dead letter yet: %v", f.waiting[0].c.Token, errors.Join(f.waiting[0].err, f.err))
	case f.unknown != nil:
		return ConditionUnrecovered, fmt.Sprintf("the outcome of a read has not been known for %s, and the receiver has not recovered: %v", since(now, f.since), f.unknown)
	case r.uncertain:
		return ConditionAttaching, "a registration was pending when the drain began; the checkpoint stays"
	case !r.initDone:
		return atWork(now, r.receiverSince, ConditionStarting), "the receiver is being opened"
	case r.readErr != nil:
		return ConditionReadFailing, fmt.Sprintf("reading the queue has failed for %s: %v", since(now, r.readFailed), r.readErr)
	}
	slow := r.slowest()
	if slow == nil {
		return r.quietReason(now)
	}
	c, words := slow.words(now)
	if p.stalled && f.crowded() {
		return max(c, ConditionFull), fmt.Sprintf("%d containers that never were in the cache wait to be reported behind what was read before them: %s", len(f.finished), words)
	}
	if p.stalled && r.cache.Len() > 0 {
		return max(c, ConditionFull), "the cache is full: " + words
	}
	return c, words
}

// quietReason is the reason when no subscription holds anything up.
func (r *run) quietReason(now time.Time) (Condition, string) {
	if n := len(r.pumping.backlog); n > 0 {
		return ConditionFull, fmt.Sprintf("%d containers wait for room in the cache", n)
	}
	if call, from := r.call(); call != "" && now.Sub(from) >= busyAfter {
		return atWork(now, from, ConditionBusy), fmt.Sprintf("the receiver's %s has not returned for %s", call, since(now, from))
	}
	return ConditionIdle, ""
}

// calling notes that the receiver is called, from a time on; "" that it is not.
// Its Wait is noted when it was asked to return: before, it returns when it
// likes, unless it has, and what has come is being read.
func (r *run) calling(what string, from time.Time) {
	r.receiverCall, r.receiverSince = what, from
	r.within.Store(nil)
}

// Methods of a receiver that one turn with it may call.
var callDelivered, callUpdate, callRecover, callRead, callLoad = "Delivered", "Update", "Recover", "Read", "Load"

// call names the method that the receiver is at, as far as that is known, and
// since when; "" for none. A Read that follows a Wait is noted by its worker.
func (r *run) call() (what string, since time.Time) {
	in := r.within.Load()
	switch {
	case in == nil:
		return r.receiverCall, r.receiverSince
	case r.receiverCall == "":
		return *in, time.Unix(0, r.readSince.Load())
	}
	return *in, r.receiverSince
}

// since rounds for reading.
func since(now, t time.Time) time.Duration { return now.Sub(t).Round(time.Millisecond) }

// holder is who holds the checkpoint: a subscription, or a stream whose
// subscriptions are not known yet.
type holder struct {
	entry *streamEntry
	sub   *subscription // nil: the stream
	view  subView
}

// before reports whether h holds the checkpoint further back than o. Who has
// no position holds it altogether.
func (h *holder) before(o *holder) bool {
	if o == nil {
		return true
	}
	known, other := h.known(), o.known()
	switch {
	case known != other:
		return !known
	case known:
		return h.view.safe.Compare(o.view.safe) < 0
	}
	return h.started().Before(o.started())
}

func (h *holder) known() bool {
	return h.sub != nil && h.view.registered && !h.view.unresolved && h.view.hasSafe
}

// started is when it began to wait, as far as that is known.
func (h *holder) started() time.Time {
	if h.sub != nil {
		if d := h.sub.outstanding(); d != nil {
			return d.started
		}
		if !h.sub.asked.IsZero() {
			return h.sub.asked
		}
	}
	return h.entry.activity
}

// slowest finds the holder that is furthest back; nil when there is none.
func (r *run) slowest() *holder {
	var found *holder
	look := func(h holder) {
		if h.before(found) {
			found = &h
		}
	}
	for _, e := range r.busy.list {
		if e.waits() {
			look(holder{entry: e})
		}
		for _, sub := range e.subs {
			if v := sub.view(); !v.registered || v.unresolved || !v.caughtUp {
				look(holder{entry: e, sub: sub, view: v})
			}
		}
	}
	return found
}

// words says who it is and what it waits for.
func (h *holder) words(now time.Time) (Condition, string) {
	if h.sub == nil {
		return atWork(now, h.started(), ConditionAttaching), fmt.Sprintf("stream %s: waiting for the registry for %s", h.entry.id, since(now, h.started()))
	}
	c, text := h.waiting(now)
	return c, fmt.Sprintf("subscription %q of stream %s: ", h.sub.rec.Name, h.entry.id) + text
}

// waiting says what a subscription waits for.
func (h *holder) waiting(now time.Time) (Condition, string) {
	switch d := h.sub.outstanding(); {
	case h.sub.held:
		return ConditionUnattached, "nobody in this process handles it; it waits to be subscribed or removed"
	case h.sub.paused:
		return ConditionRetrying, fmt.Sprintf("its consumer has answered %d deliveries in a row with a rewind; it is asked again after a pause", h.sub.rewinds)
	case h.sub.missed != nil:
		return ConditionLost, h.sub.missed.Error() + "; it waits to be subscribed with a place that is kept"
	case h.sub.pending > 0 && h.sub.refused != nil:
		return atWork(now, h.started(), ConditionRetrying), fmt.Sprintf("could not be attached, and has been asked again for %s: %v", since(now, h.started()), h.sub.refused)
	case h.sub.pending > 0:
		return atWork(now, h.started(), ConditionAttaching), fmt.Sprintf("asked where to start, no answer for %s", since(now, h.started()))
	case h.view.unresolved || !h.view.registered:
		text := "could not be attached; it is asked again at the next poll"
		if h.sub.refused != nil {
			text += ": " + h.sub.refused.Error()
		}
		return ConditionRetrying, text
	case d == nil:
		return ConditionMoving, "has containers that were not delivered yet"
	case d.events() == 0:
		return ConditionMoving, "the filter is busy"
	case d == h.sub.kept && errors.Is(d.err, ErrAway):
		return ConditionRetrying, fmt.Sprintf("%s to be offered again at the next poll: %v", d.count(), d.err)
	case d == h.sub.kept:
		return ConditionRetrying, fmt.Sprintf("%s failed, to be offered again at the next poll: %v", d.count(), d.err)
	case d.err != nil:
		return ConditionRetrying, fmt.Sprintf("%s, attempt %d after %s: %v", d.count(), d.attempts, since(now, d.started), d.err)
	default:
		return atWork(now, d.started, ConditionMoving), fmt.Sprintf("handler is busy with %s for %s", d.count(), since(now, d.started))
	}
}

// count writes the number of events of a delivery.
func (d *delivery) count() string {
	if n := d.events(); n != 1 {
		return fmt.Sprint(n, " events")
	}
	return "1 event"
}
