package stream

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/penstock/penstock"
)

// Attempt is an entry of an [AttemptStore]: a subscription was offered the
// events of its stream with a token in [First, End) N times, and has not settled
// all of them. Subscription, Incarnation and First name the entry.
type Attempt struct {
	Subscription SubscriptionID
	Incarnation  uint64
	First, End   penstock.Token
	// N is the number of the last attempt. StoreAttempt with 0 removes the entry.
	N int
	// Open says that the last attempt was begun and has no answer: when it is
	// loaded so, the process ended during it.
	Open bool
}

// AttemptStore keeps attempts over the end of a process, for queues that can be
// rewound; others count themselves (Container.Attempts). An agent stores each
// attempt before it makes it, and again when it has an answer, so an event that
// ends the process each time is counted: with Config.MaxAttempts it is given up.
//
// A subscription has an entry for what it is being offered, and one for each range
// of events during which a process has ended, in all at most 16, and 32 while they
// change and when the process has ended within that. An agent removes each of them:
// when its events are settled, when its subscription is removed or faulted, or at
// the start of a run when the checkpoint has passed them. Package penstocktest has
// a suite for implementations.
//
// Implementations must be safe for concurrent use. Entries of one Subscription and
// Incarnation are stored one after the other. Every method must return soon after
// its ctx has ended. An entry should outlive the process; it need not outlive a
// loss of power. When a store fails, events are delivered all the same, and
// counted in memory only.
type AttemptStore interface {
	// LoadAttempts returns all entries of a queue, in any order. It is called at the start of
	// each run of its agent, and returns before anything is stored in it.
	LoadAttempts(ctx context.Context, provider string, q QueueID) ([]Attempt, error)
	// StoreAttempt stores a in place of the entry of the same name; other entries
	// stay, also those with events of a. To remove what there is not is no error.
	StoreAttempt(ctx context.Context, provider string, q QueueID, a Attempt) error
}

// suspectWait bounds how long an event during which a process has ended waits
// for others of its kind.
const suspectWait = time.Minute

// suspects has those deliveries of a provider during which a process has ended
// made one at a time: the next end is then held against one of them only. It
// is safe for concurrent use; nil does nothing.
type suspects chan struct{}

// enter waits for the turn, for suspectWait at most; leave gives it back.
func (s suspects) enter(ctx context.Context) (leave func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	limit := time.NewTimer(suspectWait)
	defer limit.Stop()
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-limit.C: // one that hangs does not hold the others for ever
		return func() {}, nil
	case <-ctx.Done():
		return nil, penstock.ContextError(ctx)
	}
}

// deliverStored is an attempt that is stored before it is made. It runs on a
// worker.
func (d *delivery) deliverStored(ctx context.Context, consumer Consumer) (answer Answer, err error) {
	r := d.run
	if d.suspect {
		leave, err := r.suspects.enter(ctx)
		if err != nil {
			d.unmake()
			return Answer{}, err
		}
		defer leave()
	}
	e := d.sub.stored
	events := d.offered()
	put := e.begin(events)
	d.store(ctx, e)
	returned := false
	defer func() {
		for i := range events {
			events[i].open = false
		}
		switch {
		case !returned: // it panicked: that is an answer
			e.settle(put, events)
		case err == nil && answer.Rewind.Kind == PositionResume: // nor this, but what it has is settled
			e.resume(events, answer.Rewind.Token)
		case err == nil && answer.Rewind.Kind != PositionNone, err != nil && errors.Is(sound(d.where(), err), ErrAway):
			// No attempt: what was held before is held again.
		case err == nil:
			e.settle(put, d.failedOf(answer, e))
		default:
			e.settle(put, events)
		}
		if ctx.Err() != nil { // a drain was cut; the answer is one all the same
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateStore)
			defer cancel()
			ctx = late
		}
		d.store(ctx, e)
	}()
	answer, err = consumer.Deliver(ctx, &d.offer)
	returned = true
	return answer, err
}

// lateStore bounds how long an answer is stored whose attempt has lost its context.
const lateStore = time.Second

// offered describes the attempt that the offer is made for.
func (d *delivery) offered() []tried {
	if cs := d.offer.whole; cs != nil {
		x := tried{first: containerToken(cs[0].Token), end: after(lastToken(cs)), open: true}
		for i := range cs {
			x.n = max(x.n, cs[i].Attempts+1)
		}
		return []tried{x}
	}
	var out []tried
	for x := range ranges(d.offer.Items, d.containers) {
		x.open = true
		out = append(out, x)
	}
	return out
}

// untried marks events that an answer has failed and not tried.
const untried = math.MaxInt

// failedOf describes what an answer has failed of the offer: all of it, when it
// names what was not offered (see keepFailed). What was not tried is held as it was
// before the attempt.
func (d *delivery) failedOf(answer Answer, e *entries) (out []tried) {
	if len(answer.Failed) == 0 {
		return nil
	}
	items := d.offer.Items
	if d.offer.whole != nil {
		items = itemsOf(nil, d.offer.whole, 1)
	}
	failed, err := pick(items, answer.Failed)
	if err != nil {
		failed = items
	} else {
		for i, f := range answer.Failed {
			if errors.Is(sound(d.where(), f.Err), ErrAway) {
				failed[i].Attempt = untried
			}
		}
	}
	for x := range ranges(failed, d.containers) {
		if x.n == untried {
			out = append(out, e.before(x)...)
		} else {
			out = append(out, x)
		}
	}
	return out
}

func (d *delivery) store(ctx context.Context, e *entries) {
	rec := &d.offer.Subscription
	key := keyOf(rec)
	if err := e.write(ctx, func(ctx context.Context, x tried) error { return d.run.storeTried(ctx, key, x) }); err != nil {
		d.run.log.Warn("attempt not stored", d.run.fields("stream", rec.Stream.StreamID.String(), "subscription", rec.Name, "err", err)...)
	}
}
