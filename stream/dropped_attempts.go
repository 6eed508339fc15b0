package stream

import "context"

// dropped are the entries of subscriptions that are no more, to be taken out of the
// store of attempts; nil while an attempt for the subscription is under way. One
// that is attached under the same key meanwhile has no entries before they are out:
// its attempts count in memory. They belong to the turn of the run, but for those
// that a worker takes out.
//
// Invariant: one is taken out at a time.
type dropped struct {
	entries map[triedKey]*entries
	busy    bool // a worker takes one out
}

// droppedMax bounds what is to be taken out. The entries of more subscriptions stay
// until the checkpoint has passed them, at the start of a run.
const droppedMax = 1024

func (d *dropped) has(key triedKey) bool {
	_, ok := d.entries[key]
	return ok
}

// noMore forgets what was remembered of a subscription that was removed for good:
// that is gone, was unsubscribed, or was faulted. Given back by a reset, its consumer
// is asked for its place, and its events have the attempts that new ones have
// (ADR 0109).
func (r *run) noMore(sub *subscription) {
	r.places.forget(&sub.rec)
	key := keyOf(&sub.rec)
	r.ledger.drop(key)
	sub.tries = nil
	e := sub.stored
	if e == nil {
		e = r.stored[key] // no attempt was made since it was attached
	}
	delete(r.stored, key)
	if e == nil {
		return
	}
	if r.dropped.entries == nil {
		r.dropped.entries = map[triedKey]*entries{}
	}
	r.dropped.entries[key] = nil
	if d := sub.inFlight; d == nil || !d.trying { // else when that has ended
		sub.stored = nil
		r.dropStored(key, e)
	}
}

// dropStored has the entries taken out: no attempt is under way any more.
func (r *run) dropStored(key triedKey, e *entries) {
	switch {
	case e.empty():
		delete(r.dropped.entries, key)
		return
	case len(r.dropped.entries) > droppedMax:
		delete(r.dropped.entries, key)
		r.log.Warn("attempts of a removed subscription stay in the store", r.fields("subscription", key.id.String())...)
		return
	}
	r.dropped.entries[key] = e
	r.dropNext()
}

// dropNext takes out what there is, one subscription after the other. A failure is
// tried again at the next poll.
func (r *run) dropNext() {
	if r.dropped.busy {
		return
	}
	for key, e := range r.dropped.entries {
		if e == nil {
			continue
		}
		if !r.latch.enter() {
			return
		}
		r.dropped.busy = true
		r.spawn("attempts", func(ctx context.Context) error {
			e.clear()
			return e.write(ctx, func(ctx context.Context, x tried) error { return r.storeTried(ctx, key, x) })
		}, func(err error) {
			defer r.latch.leave()
			if r.dropped.busy = false; err != nil {
				r.log.Warn("attempts of a removed subscription not removed; trying again at the next poll", r.fields("err", err)...)
				return
			}
			delete(r.dropped.entries, key)
			r.dropNext()
		})
		return
	}
}
