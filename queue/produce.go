package queue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/penstock/penstock"
)

// Produce appends events in order. It returns nil when all of them are
// accepted at the topic's durability.
//
// With WhenFull Wait it blocks while the topic is full, until commits have
// made room for the whole request, first come, first served; a request larger
// than Capacity goes in slices of Capacity, and when it is interrupted between
// them the error is a [*penstock.PartialError]. With WhenFull Fail it returns
// [penstock.ErrFull] at once and accepts nothing. With WhenFull DropOldest it
// moves groups past the oldest events. It returns an error that
// matches ctx.Err() and its cause when ctx ends first, and [penstock.ErrClosed]
// after Close. Other errors match [penstock.ErrTooLarge], for an event above
// MaxEvent, CapacityBytes or what the disk takes at once, [penstock.ErrInvalid],
// for a partition that the router does not have, [penstock.ErrDiskFull],
// [penstock.ErrUnknownOutcome], when a write or sync failed, [penstock.ErrCorrupt]
// while the partition is stopped by damage (a request that goes by turns has then
// had its turn: the next one begins at the next partition), or a [*penstock.PanicError], for user
// code that panics, or are those of the codec.
//
// A handler that produces into the topic it consumes can wait for itself: when
// the topic is full, only its own return would make room. With the context that
// the handler was given, or one made from it, the call then fails after about
// 100 ms with [ErrWaitsForItself]. That is told only when it is certain: not
// while another group, consumer or worker could still make room. A goroutine
// that has this context counts as the handler, which is taken to wait for it.
// It is not seen with another context, in a pull loop, and across topics whose handlers
// wait for each other; use a deadline there, WhenFull Fail or an unbounded
// topic.
//
// The slice is not kept. Producing one event allocates nothing.
func (t *Topic[T]) Produce(ctx context.Context, events ...T) error {
	if len(events) != 1 {
		return t.produce(ctx, events, nil, nil)
	}
	// The short way of one event in memory, in turn: the turn is free, there is
	// capacity in advance, no batch is under way, and the slot and its time are
	// there. What is rare is left to functions that nothing follows, so that
	// little is kept on the stack for them: a locked instruction waits for all
	// stores before it (ADR 0084).
	one := &events[0]
	if ctx.Err() == nil && t.plain.Load() && t.turn.TryLock() {
		if t.credit > 0 && t.joined { // looked at first: the log belongs to the turn only then
			p := t.next
			log := p.log
			if slot := log.Slot(); slot != nil {
				*slot = *one
				log.Filled()
				t.credit--
				t.next = p.next
				dirty, bit := p.alone.Mark()
				if t.turn.Release() || dirty.Load()&bit == 0 { // else nobody else is to be woken, and this one need not be
					t.published(p)
				}
				return nil
			}
		}
		t.turn.Unlock()
	}
	return t.produceSlow(ctx, one)
}

// published wakes who waits for the turn, and who waits for events of the
// partition.
func (t *Topic[T]) published(p *partition[T]) {
	t.turn.Wake()
	p.notify()
}

// produceSlow is Produce of one event, with every step.
func (t *Topic[T]) produceSlow(ctx context.Context, one *T) error {
	if !t.plain.Load() {
		return t.produce(ctx, []T{*one}, nil, nil)
	}
	if ctx.Err() != nil {
		return penstock.ContextError(ctx)
	}
	return t.produceNext(ctx, *one)
}

// TryProduce is Produce, except that fullness with WhenFull Fail is told by
// false and no error. With WhenFull Wait it waits like Produce and never
// returns false without an error.
func (t *Topic[T]) TryProduce(ctx context.Context, events ...T) (bool, error) {
	return t.tried(t.Produce(ctx, events...))
}

func (t *Topic[T]) tried(err error) (bool, error) {
	if err == t.full { // not errors.Is: user code may return an ErrFull of another topic
		return false, nil
	}
	return err == nil, err
}

// ProduceSeq collects the sequence, then produces it as one request.
// Nothing of it is read when ctx has ended or the topic is closed.
func (t *Topic[T]) ProduceSeq(ctx context.Context, events iter.Seq[T]) error {
	if err := t.open(ctx); err != nil {
		return err
	}
	return t.Produce(ctx, slices.Collect(events)...)
}

// TryProduceSeq is to TryProduce what ProduceSeq is to Produce.
func (t *Topic[T]) TryProduceSeq(ctx context.Context, events iter.Seq[T]) (bool, error) {
	return t.tried(t.ProduceSeq(ctx, events))
}

// ProduceEvents produces events with what is known of them: id, time, key,
// headers, origin. When the topic routes by key, a key given with an event is
// used instead of the selector. Otherwise it is as Produce. Headers belong to
// the topic from then on.
func (t *Topic[T]) ProduceEvents(ctx context.Context, events ...penstock.Event[T]) error {
	values, metas := split(events)
	return t.produce(ctx, values, metas, nil)
}

// split takes events apart. metas is nil when no event has any.
func split[T any](events []penstock.Event[T]) ([]T, []penstock.Meta) {
	values := make([]T, len(events))
	metas := make([]penstock.Meta, len(events))
	bare := true
	for i := range events {
		values[i], metas[i] = events[i].Value, events[i].Meta
		bare = bare && metas[i].IsBare()
	}
	if bare {
		return values, nil
	}
	return values, metas
}

// open returns why nothing can be produced, nil when it can.
func (t *Topic[T]) open(ctx context.Context) error {
	if ctx.Err() != nil {
		return penstock.ContextError(ctx)
	}
	if t.closed.Load() {
		return penstock.ErrClosed
	}
	return nil
}

// produce accepts a request: slice by slice, each admitted whole, then routed,
// appended and published (BQ-39, BQ-42). receipt may be nil.
func (t *Topic[T]) produce(ctx context.Context, values []T, metas []penstock.Meta, receipt *Receipt) error {
	if err := t.open(ctx); err != nil {
		return err
	}
	if len(values) == 1 && metas == nil && receipt == nil && !t.slow && t.config.Router != nil {
		return t.produceKeyed(ctx, values[0])
	}
	size := len(values)
	if limit := t.config.Capacity; limit > 0 && size > limit {
		if t.config.WhenFull == Fail {
			return t.refuse(size)
		}
		size = limit
	}
	if size > maxSlice && (t.config.Router != nil || t.disk != nil) {
		return fmt.Errorf("topic %q: a request of %d events is above the %d that can be routed at once: %w",
			t.config.Name, size, maxSlice, penstock.ErrTooLarge)
	}
	var m *measured
	if t.measured {
		m = t.measures.Get().(*measured)
		defer t.putMeasured(m)
		if err := t.measure(m, values, metas); err != nil {
			return err
		}
		if t.config.WhenFull == Fail && m.cut(0, len(values), t.config.CapacityBytes) < len(values) {
			return t.refuse(len(values))
		}
	}
	return t.produceSlices(ctx, values, metas, m, size, receipt)
}

// produceSlices cuts a request into slices of at most size events and of
// CapacityBytes.
func (t *Topic[T]) produceSlices(ctx context.Context, values []T, metas []penstock.Meta, m *measured, size int, receipt *Receipt) error {
	for from, to := 0, 0; from < len(values); from = to {
		to = m.cut(from, min(from+size, len(values)), t.config.CapacityBytes)
		if m != nil {
			m.from = from
		}
		var some []penstock.Meta
		if metas != nil {
			some = metas[from:to]
		}
		if from > 0 { // no slice begins after the end of ctx (BQ-20)
			if err := t.open(ctx); err != nil {
				return &penstock.PartialError{Accepted: from, Err: err}
			}
		}
		if err := t.produceSlice(ctx, values[from:to], some, m, receipt); err != nil {
			if from > 0 {
				return &penstock.PartialError{Accepted: from, Err: err}
			}
			return err
		}
	}
	return nil
}

func (t *Topic[T]) produceSlice(ctx context.Context, values []T, metas []penstock.Meta, m *measured, receipt *Receipt) (err error) {
	n, bytes := len(values), m.bytes(len(values))
	if t.budget != nil && !t.budget.TryAcquire(n, bytes) {
		if err := t.admit(ctx, n, bytes); err != nil {
			return err
		}
	}
	if t.budget != nil {
		defer func() { // also when user code ends the goroutine (BQ-23)
			if n > 0 {
				t.budget.Release(n, bytes)
			}
		}()
		err = t.appendSlice(ctx, values, metas, m, receipt)
		if kept, ok := errors.AsType[*keptCapacity](err); ok { // a part is on disk: commits give it back
			n, bytes = n-kept.n, bytes-kept.bytes
		} else if err == nil {
			n = 0
		}
		return err
	}
	return t.appendSlice(ctx, values, metas, m, receipt)
}

func (t *Topic[T]) appendSlice(ctx context.Context, values []T, metas []penstock.Meta, m *measured, receipt *Receipt) error {
	switch {
	case t.config.Router != nil:
		return t.appendRouted(ctx, values, metas, m, receipt)
	case t.disk != nil:
		return t.appendTurns(ctx, values, metas, m, receipt)
	}
	t.appendRange(values, metas, m, receipt)
	return nil
}
