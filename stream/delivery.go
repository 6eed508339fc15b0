package stream

import (
	"context"
	"errors"
	"time"

	"github.com/penstock/penstock"
)

// delivery is one group of containers on its way to a consumer, over all its
// attempts, each of which is a task. While it exists its containers are
// protected in the cache. The run uses it again when its last group is settled.
type delivery struct {
	run        *run
	sub        *subscription
	generation uint64
	request    uint64 // of the handshake that the position came from
	cursor     Cursor
	containers []Container
	items      []Item      // not settled yet, unless whole
	whole      int         // items were not made yet: all events of containers, so many
	tried      bool        // whole: and they were offered once
	made       bool        // the attempt under way was made: it was not cut before
	rest       []Container // read under the same protection, of groups to come
	batch      []Container // what was read; its memory is used again
	sifted     bool        // rest has been through the filter, or there is none
	filter     string      // the data that it was sifted with
	held       *item       // protected in a cache of this package
	release    func()      // ends the protection in any other one; nil when there is none
	safe       penstock.Token
	hasSafe    bool // safe: everything before the group was processed

	stop     chan struct{} // closed when it is revoked: no further attempt; nil before the second one
	revoked  bool
	redo     bool // revoked, but its group is delivered again
	started  time.Time
	attempts int // since started
	err      error
	failed   []Item // of items: the failure handler is asked about them
	spent    []Item // of items: the last attempt has tried them, and failed
	trying   bool   // a worker makes an attempt
	granted  bool   // it wants one more attempt, whatever their number
	suspect  bool   // a process ended during the last one

	notBefore time.Time // kept: not offered again before

	known *attachment // of the subscription; the worker's while an attempt is under way

	offer      Delivery // of the attempt under way
	answer     Answer   // to it
	unattended bool     // nobody handled it
}

func (d *delivery) current() bool { return !d.sub.removed && d.generation == d.sub.generation }

func (d *delivery) revoke() {
	if !d.revoked {
		d.revoked = true
		if d.stop != nil {
			close(d.stop)
		}
	}
}

// protect keeps what the cursor returns from now on in the cache.
func (d *delivery) protect() {
	if c, ok := d.cursor.(*shelfCursor); ok {
		d.held = c.protect()
	} else {
		d.release = d.cursor.Protect()
	}
}

// unprotect ends the protection; it can be called again.
func (d *delivery) unprotect() {
	if it := d.held; it != nil {
		d.held = nil
		d.cursor.(*shelfCursor).unprotect(it)
	}
	if f := d.release; f != nil {
		d.release = nil
		f()
	}
}

// deliver starts the next delivery of a subscription, if there is something
// and none is under way (OR-86).
func (r *run) deliver(sub *subscription) {
	if !sub.attached || sub.removed || sub.inFlight != nil || sub.kept != nil || sub.missed != nil || sub.paused || r.draining || sub.entry.state != registered {
		return
	}
	next, more := sub.cursor.Peek()
	if !more {
		r.drained(sub)
		return
	}
	d := r.newDelivery(sub)
	d.safe, d.hasSafe, d.sifted = next.Before, next.HasBefore, r.filter == nil
	d.protect()
	for limit := r.scan(); len(d.batch) < limit; {
		c, ok, err := sub.cursor.Next()
		if err != nil && len(d.batch) > 0 {
			break // what was read is delivered first: the cursor has passed it
		}
		if err != nil {
			r.cursorFailed(sub, d, err)
			return
		}
		if !ok {
			break
		}
		d.batch = append(d.batch, c)
	}
	if len(d.batch) == 0 {
		r.cursorFailed(sub, d, errNothing)
		return
	}
	d.rest, sub.moved = d.batch, false
	r.startDelivery(d)
}

// newDelivery returns one that was used before, if there is one.
func (r *run) newDelivery(sub *subscription) (d *delivery) {
	if n := len(r.spare); n > 0 {
		d, r.spare[n-1], r.spare = r.spare[n-1], nil, r.spare[:n-1]
	} else {
		d = &delivery{run: r}
	}
	d.sub, d.cursor = sub, sub.cursor
	return d
}

// itemsKept bounds the memory of items, and of containers, that a delivery
// keeps for its next use. Of those with more than a few of either fewer are kept.
const (
	itemsKept = 4096
	fewItems  = 16
)

// spareMax is how many deliveries without much memory a run keeps: what is read
// at once may begin as many as it has streams.
const spareMax = 512

// reuse takes a delivery that is over: nothing refers to it any more.
func (r *run) reuse(d *delivery) {
	limit := spareMax
	if cap(d.items) > fewItems || cap(d.batch) > fewItems {
		limit = idleMax
	}
	if len(r.spare) >= limit || cap(d.items) > itemsKept || cap(d.batch) > itemsKept {
		return
	}
	items, batch := d.items[:cap(d.items)], d.batch
	clear(items)
	clear(batch) // it was filled once
	*d = delivery{run: r, items: items[:0], batch: batch[:0]}
	r.spare = append(r.spare, d)
}

// startDelivery begins the attempts of a group, or goes on where they were given
// up; the caller has checked that the agent does not drain.
func (r *run) startDelivery(d *delivery) {
	r.latch.enter()
	r.delivering++
	d.sub.inFlight = d
	d.generation = d.sub.generation
	d.request = d.sub.placed
	d.stop, d.revoked, d.redo = nil, false, false
	switch {
	case !d.siftedFor(d.sub.rec.Filter):
		r.sift(d)
	case d.events() == 0:
		r.nextGroup(d)
	default:
		r.firstTry(d)
	}
}

func (r *run) firstTry(d *delivery) {
	d.started, d.attempts, d.err, d.notBefore, d.spent = time.Now(), 0, nil, time.Time{}, nil
	r.tryDeliver(d)
}

// tryDeliver makes one attempt. Attempts are limited in time, checked before
// each (OR-90, OR-91), and in number where Config.MaxAttempts says so; a drain
// does not stop them (OR-140).
func (r *run) tryDeliver(d *delivery) {
	if r.maxAttempts > 0 && !d.granted && r.usedUp(d) {
		return
	}
	if r.attempts != nil && d.sub.stored == nil {
		d.sub.stored = r.storedOf(&d.sub.rec)
	}
	d.granted = false
	d.offer = Delivery{Subscription: d.sub.rec, Queue: r.queue, Request: d.request}
	if d.whole == 0 {
		d.offer.Items = d.items
	}
	d.answer, d.unattended, d.made = Answer{}, false, false
	if d.attempts > 0 && d.stop == nil {
		d.stop = make(chan struct{})
		if d.revoked {
			close(d.stop)
		}
	}
	d.attempts++
	d.known = d.sub.known
	d.sub.offered, d.sub.fresh, d.trying = d.last(), true, true
	r.start(d)
}

func (d *delivery) where() string { return "consumer " + d.offer.Subscription.Name }

// do is one attempt; the turn leaves the items alone meanwhile.
func (d *delivery) do(ctx context.Context, w *worker) error {
	r := d.run
	if n := d.attempts - 1; n > 0 {
		if err := r.backOff(ctx, n-1, d.started, d.stop); err != nil {
			return err
		}
	}
	consumer, err := d.consumer(ctx)
	if err != nil {
		return err
	}
	_, d.unattended = consumer.(dropConsumer)
	d.pack(consumer)
	d.offer.room = w.takeRoom()
	if d.sub.stored == nil {
		d.answer, err = consumer.Deliver(ctx, &d.offer)
	} else {
		d.answer, err = d.deliverStored(ctx, consumer)
	}
	w.room = d.offer.room // unless the handler has panicked: then it is left to it
	for i := range d.answer.Failed {
		f := &d.answer.Failed[i]
		f.Err = sound(d.where(), f.Err)
	}
	return err
}

func (d *delivery) done(r *run, err error) {
	d.sub.known, d.trying = d.known, false
	d.accept(err)
	if d.unattended && d.current() {
		r.stats.Unattended += uint64(d.events())
		r.settled(d)
		return
	}
	r.attemptEnded(d, d.answer, err)
}

func (r *run) attemptEnded(d *delivery, answer Answer, err error) {
	away := errors.Is(err, ErrAway)
	if away && d.made {
		d.untry()
	}
	switch {
	case !d.current(): // an older generation: released, otherwise ignored (OR-94)
		r.rememberFailed(d, answer, err)
		r.endStale(d)
	case errors.Is(err, ErrConsumerGone):
		r.endDelivery(d)
		d.unprotect()
		r.gone(d.sub)
	case away && r.ctx.Err() == nil:
		d.err = err
		r.keep(d)
	case errors.Is(err, errUnattached):
		d.err = err
		r.keep(d)
	case err == nil && answer.Rewind.Kind != PositionNone:
		r.rewound(d, answer.Rewind)
	case err == nil && len(answer.Failed) == 0:
		r.countSettled(d, d.events())
		r.settled(d)
	case errors.Is(err, errExpired):
		r.deliveryFailed(d, d.spent)
	case r.ctx.Err() != nil:
		r.remember(d, d.items)
		r.cut(d)
	default:
		r.attemptFailed(d, answer, err)
	}
}

// untry is for an attempt that was made and does not count.
func (d *delivery) untry() {
	for i := range d.items {
		d.items[i].Attempt--
	}
}

// countSettled counts events that their consumer has settled.
func (r *run) countSettled(d *delivery, n int) {
	r.stats.Delivered += uint64(n)
	d.sub.settled += uint64(n)
	if n > 0 {
		d.sub.rewinds = 0
		if d.sub.untold {
			d.sub.untold = false
			r.places.forget(&d.sub.rec)
		}
		r.tellOf(d.sub, Delivered, Diagnostic{Token: d.sub.offered, Events: n})
	}
}

// endDelivery gives up the place in the latch; the protection stays.
func (r *run) endDelivery(d *delivery) {
	d.sub.inFlight = nil
	r.delivering--
	r.latch.leave()
}

// settled ends a group whose every item is settled or passed.
func (r *run) settled(d *delivery) {
	if d.sub.tries != nil {
		r.forgetTries(d)
	}
	r.over(d)
}

// over ends a group. The next one may have been read with it.
func (r *run) over(d *delivery) {
	if r.filter != nil && d.current() && d.filter != d.sub.rec.Filter {
		d.unsift()
	}
	switch {
	case len(d.rest) == 0:
	case !d.sifted:
		r.pumping.unreported++
		r.sift(d)
		return
	default:
		r.pumping.unreported++
		r.nextGroup(d)
		return
	}
	sub := d.sub
	r.endDelivery(d)
	d.unprotect()
	r.reuse(d)
	r.deliver(sub)
	r.deliveryOver()
}

// keep ends the attempts but not the group: it is offered again before
// anything else, at the next poll or run; progress stays before it.
func (r *run) keep(d *delivery) {
	r.endDelivery(d)
	d.sub.kept = d
	r.retained[d.sub] = struct{}{}
}

// cut is the end of a group when a drain was cut short.
func (r *run) cut(d *delivery) {
	r.left += d.events()
	r.keep(d)
}

// endStale ends a delivery of an older generation.
func (r *run) endStale(d *delivery) {
	sub := d.sub
	r.endDelivery(d)
	switch {
	case sub.removed:
		if e := sub.stored; e != nil {
			sub.stored = nil
			r.dropStored(keyOf(&sub.rec), e)
		}
		d.unprotect()
	case !d.redo:
		d.unprotect()
	case r.draining:
		sub.kept = d // progress stays before it
	default:
		if d.events() > 0 {
			d.unpackAgain()
		}
		if d.events() > 0 && sub.partly {
			d.passHad()
		}
		r.startDelivery(d)
		return
	}
	r.deliver(sub)
	r.deliveryOver()
}
