package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// attemptFailed keeps the items that failed and tries them again. When none of
// them was tried they wait for the next poll: that is no failed attempt.
func (r *run) attemptFailed(d *delivery, answer Answer, err error) {
	before := len(d.items)
	d.spent = d.items
	if err == nil {
		d.spent, err = d.keepFailed(answer.Failed)
	}
	d.err = err
	r.remember(d, d.spent)
	r.countSettled(d, before-len(d.items))
	tried := len(d.spent)
	if tried == 0 {
		r.keep(d)
		return
	}
	r.stats.Failed += uint64(tried)
	r.tellOf(d.sub, DeliveryFailed, Diagnostic{Token: d.spent[0].Token, Events: tried, Err: d.err})
	r.log.Warn("delivery failed; trying again", r.about(d.sub, "attempt", d.attempts, "events", tried,
		"token", d.spent[0].Token.String(), "err", d.err)...)
	r.tryDeliver(d)
}

// deliveryFailed tells the consumer of items whose time or attempts are used up, asks the
// failure handler what becomes of them, and, for dead letters, hands them over.
// The subscription waits.
func (r *run) deliveryFailed(d *delivery, items []Item) {
	d.failed = items
	n := Notice{Kind: NoticeDeliveryFailed, Token: items[0].Token, Events: len(items), Err: d.err}
	r.notify(d.sub, n, func() {
		switch {
		case !d.current():
			r.endStale(d)
		case r.ctx.Err() != nil:
			r.cut(d)
		default:
			r.decide(d)
		}
	})
}

func (r *run) decide(d *delivery) {
	f := Failure{Queue: r.queue, Subscription: d.sub.rec, Items: d.failed, Err: d.err}
	decided := Decision{Verdict: Retry}
	r.spawn("failure handler", func(ctx context.Context) error {
		v := r.failure.DeliveryFailed(ctx, f)
		if v.Verdict == DeadLetter {
			if r.deadLetter == nil {
				return &penstock.FieldError{Field: "DeadLetter", Reason: "is not configured, but the verdict was dead letter"}
			}
			if err := r.deadLetter(ctx, r.deadLetters(f, v.Reason)...); err != nil {
				return err
			}
		}
		decided = v
		return nil
	}, func(err error) { r.verdictCame(d, decided, err) })
}

// deadLetters makes events of their own of the failed items: with stream,
// attempts, origin and cause.
func (r *run) deadLetters(f Failure, reason string) []penstock.Envelope {
	out := make([]penstock.Envelope, len(f.Items))
	now := time.Now()
	for i, it := range f.Items {
		e := penstock.Envelope{Meta: it.meta(), Value: it.Value()}
		e.Stream = f.Subscription.Stream.StreamID
		e.Attempt = it.Attempt
		e.Origin = &penstock.Origin{
			Topic:     r.provider,
			Partition: r.queue.Number,
			Offset:    penstock.Offset(it.Token.Lo),
			Group:     f.Subscription.Name,
			Cause:     cause(reason, f.Err),
			Time:      now,
		}
		out[i] = e
	}
	return out
}

// maxCause bounds the text of a cause, which must fit an envelope.
const maxCause = 4 << 10

func cause(reason string, err error) string {
	s := reason
	if err != nil {
		if s != "" {
			s += ": "
		}
		s += err.Error()
	}
	return s[:min(len(s), maxCause)]
}

// verdictCame applies a verdict, if the delivery is still the current one
// (OR-105).
func (r *run) verdictCame(d *delivery, decided Decision, err error) {
	switch {
	case !d.current():
		r.endStale(d)
		return
	case r.ctx.Err() != nil && err != nil:
		r.cut(d)
		return
	case err != nil:
		r.log.Error("failure handler failed; the events are kept and offered again", r.about(d.sub, "events", len(d.failed), "err", err)...)
		r.keep(d)
		return
	}
	r.log.Error("delivery given up", r.about(d.sub, "verdict", decided.Verdict.String(), "events", len(d.failed),
		"token", d.failed[0].Token.String(), "attempts", d.failed[0].Attempt, "reason", decided.Reason, "err", d.err)...)
	r.tellOf(d.sub, DeliveryGivenUp, Diagnostic{Token: d.failed[0].Token, Events: len(d.failed), Err: d.err})
	switch decided.Verdict {
	case Skip:
		r.skip(d)
	case DeadLetter:
		r.stats.DeadLettered += uint64(len(d.failed))
		r.passedOver(d)
	case Fault:
		if d.sub.rec.Implicit { // never faulted (OR-106)
			r.skip(d)
			return
		}
		r.fault(d.sub, d.current, d.err, func(done bool) {
			switch {
			case done:
				r.endDelivery(d)
				d.unprotect()
				r.unstall()
			case !d.current(): // a handshake overlapped: its answer may owe the group
				r.endStale(d)
			default:
				r.keep(d)
			}
		})
	default:
		d.notBefore, d.granted = time.Now().Add(decided.After), true
		r.keep(d)
	}
}

func (r *run) skip(d *delivery) {
	r.stats.Skipped += uint64(len(d.failed))
	r.markFailed(d)
	r.passedOver(d)
}

// markFailed keeps the containers of skipped items out of the purge list, so
// that a queue with acknowledgements does not get one for them (OR-109).
func (r *run) markFailed(d *delivery) {
	for i := range d.failed {
		if i > 0 && d.failed[i].From == d.failed[i-1].From {
			continue
		}
		if err := d.cursor.Fail(d.failed[i].From.Token); err != nil {
			r.log.Warn("container not marked as failed", r.about(d.sub, "err", err)...)
		}
	}
}

// meta returns the event's metadata with the container's header behind its
// own, and the container's time where it has none.
func (it *Item) meta() penstock.Meta { return it.From.meta(it.Index) }

// meta is that of event i.
func (c *Container) meta(i int) penstock.Meta {
	m := c.Events.Meta(i)
	if m.Time.IsZero() {
		m.Time = c.Time
	}
	if h := c.Header; len(h) > 0 {
		m.Header = append(append(make(penstock.Header, 0, len(m.Header)+len(h)), m.Header...), h...)
	}
	return m
}

// keepFailed reduces the items to the failed ones, and returns those of them that
// were tried, and the last error of these.
// An answer that names an item that was not offered, or names them out of
// order, is an error that fails all of them.
func (d *delivery) keepFailed(failed []ItemFailure) (tried []Item, err error) {
	kept, err := pick(d.items, failed)
	if err != nil {
		return d.items, err
	}
	var away error
	for i, f := range failed {
		if errors.Is(f.Err, ErrAway) {
			kept[i].Attempt--
			away = f.Err
		} else {
			err = f.Err
			tried = append(tried, kept[i])
		}
	}
	d.items = kept
	switch {
	case len(tried) == 0:
		err = away
	case err == nil:
		err = errNoReason
	}
	return tried, err
}

// pick returns those of items that an answer has failed.
func pick(items []Item, failed []ItemFailure) ([]Item, error) {
	last := -1
	kept := make([]Item, 0, len(failed))
	for _, f := range failed {
		if f.Index <= last || f.Index >= len(items) {
			return nil, fmt.Errorf("consumer failed item %d of %d: %w", f.Index, len(items), penstock.ErrInvalid)
		}
		last = f.Index
		kept = append(kept, items[f.Index])
	}
	return kept, nil
}

var errNoReason = errors.New("failed without a reason")
