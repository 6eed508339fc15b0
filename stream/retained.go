package stream

import (
	"context"
	"time"
)

// resumeRetained offers again what was kept, asks again where a handshake failed,
// and ends pauses, unless that is to wait longer. Whoever has something to wait
// for afterwards, perhaps since this very turn, stays retained.
func (r *run) resumeRetained() {
	now := time.Now()
	for sub := range r.retained {
		if sub.again && !now.Before(sub.notBefore) {
			r.requestHandshake(sub)
		}
		if d := sub.kept; d != nil && sub.inFlight == nil && !now.Before(d.notBefore) {
			sub.kept = nil
			r.startDelivery(d)
		}
		if sub.paused && !sub.pauseEnds.IsZero() && !now.Before(sub.pauseEnds) {
			sub.paused = false
			r.deliver(sub)
		}
		if !sub.again && sub.kept == nil && !sub.paused {
			delete(r.retained, sub)
		}
	}
}

// pauseRewinds is for a consumer that has answered a delivery with a rewind once
// more, and has settled nothing since the last one: its subscription, which has
// gone back already, is delivered to after a pause, at a poll.
func (r *run) pauseRewinds(d *delivery) {
	sub, n := d.sub, d.sub.rewinds
	r.endDelivery(d)
	d.unprotect()
	r.reuse(d)
	sub.paused, sub.pauseEnds = true, time.Time{}
	if !r.latch.enter() {
		return // nothing is delivered any more
	}
	place := sub.generation
	var pause time.Duration
	r.spawn("DeliveryBackoff", func(context.Context) error {
		pause = r.pause("DeliveryBackoff", r.deliveryBackoff, n-2)
		return nil
	}, func(error) {
		defer r.latch.leave()
		if sub.removed || !sub.paused || sub.generation != place {
			return // the pause has ended; if there is one, it is a later one
		}
		sub.pauseEnds = time.Now().Add(pause)
		r.retained[sub] = struct{}{}
		r.log.Warn("consumer answers each delivery with a rewind; it is asked again after a pause", r.about(sub, "rewinds", n, "pause", pause)...)
	})
	r.deliveryOver()
}
