package stream

import (
	"context"
	"errors"
	"time"

	"github.com/penstock/penstock"
)

// Attempt is what an [AttemptStore] holds for one subscription: it was offered
// the events of its stream with a token in [First, End) N times, and has not
// settled all of them.
type Attempt struct {
	Subscription SubscriptionID
	Incarnation  uint64
	First, End   penstock.Token
	// N is the number of the last attempt. StoreAttempt with 0 removes what is
	// held for the subscription.
	N int
	// Open says that the last attempt was begun and has no answer: when it is
	// loaded so, the process ended during it.
	Open bool
}

// AttemptStore keeps attempts over the end of a process, for queues that can be
// rewound; others count themselves (Container.Attempts). An agent stores each
// attempt before it makes it, and again when it has an answer, so an event that
// ends the process each time is counted: with Config.MaxAttempts it is given up.
// Each subscription has one entry.
//
// Implementations must be safe for concurrent use. Entries of one subscription are
// stored one after the other, but for the last answer of one that was removed and
// subscribed again meanwhile: it has a lower Incarnation, and an entry with a
// higher one must stay. Every method must return soon after its ctx
// has ended. An entry should outlive the process; it need not outlive a loss of
// power. When a store fails, events are delivered all the same, and counted in
// memory only.
type AttemptStore interface {
	// LoadAttempts returns all entries of a queue. It is called at the start of
	// each run of its agent, and returns before anything is stored in it.
	LoadAttempts(ctx context.Context, provider string, q QueueID) ([]Attempt, error)
	// StoreAttempt stores a in place of the subscription's entry.
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

// storedAttempts returns what the store has of events above the checkpoint, and
// removes the rest. It runs on a worker.
func (r *run) storedAttempts(ctx context.Context, mark penstock.Token, marked bool) ([]Attempt, error) {
	all, err := r.attempts.LoadAttempts(ctx, r.provider, r.queue)
	if err != nil {
		return nil, err
	}
	kept := make([]Attempt, 0, len(all))
	for _, a := range all {
		if a.N > 0 && a.First.Compare(a.End) < 0 && !(marked && containerToken(a.End).Compare(containerToken(mark)) <= 0) {
			kept = append(kept, a)
			continue
		}
		a.N, a.Open = 0, false
		if err := r.attempts.StoreAttempt(ctx, r.provider, r.queue, a); err != nil {
			r.log.Warn("attempt not removed", r.fields("err", err)...)
		}
	}
	return kept, nil
}

// loadAttempts takes over what was stored, unless the agent knows better. It has
// the turn.
func (r *run) loadAttempts(all []Attempt) {
	for _, a := range all {
		key := triedKey{a.Subscription, a.Incarnation}
		if t := r.ledger.subs[key]; t != nil {
			if from, to := t.between(a.First, a.End); from < to {
				continue
			}
		}
		if _, ok := r.ledger.note(key, tried{a.First, a.End, a.N, a.Open}, r.passed); !ok {
			r.log.Warn("more stored attempts than are remembered; some events count anew", r.fields("ranges", r.ledger.size)...)
			return
		}
	}
}

// deliverStored is an attempt that is stored before it is made. It runs on a
// worker.
func (d *delivery) deliverStored(ctx context.Context, consumer Consumer) (answer Answer, err error) {
	r := d.run
	if d.suspect {
		leave, err := r.suspects.enter(ctx)
		if err != nil {
			return Answer{}, err
		}
		defer leave()
	}
	a := d.attempt()
	r.storeAttempt(ctx, d, a)
	returned := false
	defer func() {
		a.Open = false
		switch {
		case !returned: // it panicked: that is an answer
		case err == nil && answer.Rewind.Kind != PositionNone: // no attempt
			a.N--
		case err == nil && len(answer.Failed) == 0:
			a.N = 0
		case err != nil && errors.Is(sound(d.where(), err), ErrAway):
			a.N--
		}
		if ctx.Err() != nil { // a drain was cut; the answer is one all the same
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateStore)
			defer cancel()
			ctx = late
		}
		r.storeAttempt(ctx, d, a)
	}()
	answer, err = consumer.Deliver(ctx, &d.offer)
	returned = true
	return answer, err
}

// lateStore bounds how long an answer is stored whose attempt has lost its context.
const lateStore = time.Second

// attempt describes the attempt that the offer is made for.
func (d *delivery) attempt() Attempt {
	a := Attempt{Subscription: d.offer.Subscription.ID(), Incarnation: d.offer.Subscription.Incarnation, Open: true}
	if cs := d.offer.whole; cs != nil {
		a.First, a.End = containerToken(cs[0].Token), after(lastToken(cs))
		for i := range cs {
			a.N = max(a.N, cs[i].Attempts+1)
		}
		return a
	}
	items := d.offer.Items
	a.First, a.End = items[0].Token, after(items[len(items)-1].Token)
	for i := range items {
		a.N = max(a.N, items[i].Attempt)
	}
	return a
}

func (r *run) storeAttempt(ctx context.Context, d *delivery, a Attempt) {
	if err := r.attempts.StoreAttempt(ctx, r.provider, r.queue, a); err != nil {
		rec := &d.offer.Subscription
		r.log.Warn("attempt not stored", r.fields("stream", rec.Stream.StreamID.String(), "subscription", rec.Name, "err", err)...)
	}
}
