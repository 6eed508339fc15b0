package queue

import (
	"context"

	"github.com/penstock/penstock"
)

// Part is what one request added to one partition: the events with offsets
// [First, First+Count).
type Part struct {
	Partition int
	First     penstock.Offset
	Count     int
}

// Ack says what was accepted and how safely. A request that went in slices
// has a Part per slice and partition.
type Ack struct {
	Level penstock.Durability
	Parts []Part
}

// Receipt stands for a request whose events are on their way to their
// durability.
type Receipt struct {
	ack  Ack
	wait func(ctx context.Context) error // nil when the level is reached
}

// Wait blocks until the events have reached the topic's durability and returns
// what was accepted, or an error that matches ctx.Err() and its cause when ctx
// ends first; the request goes on then. It may be called again and from
// several goroutines. In memory it returns at once.
func (r *Receipt) Wait(ctx context.Context) (Ack, error) {
	if r.wait != nil {
		if err := r.wait(ctx); err != nil {
			return Ack{}, err
		}
	}
	return r.ack, nil
}

// add notes a part; a nil receipt notes nothing.
func (r *Receipt) add(p Part) {
	if r != nil {
		r.ack.Parts = append(r.ack.Parts, p)
	}
}

// ProduceAsync appends events like Produce, waiting for capacity like it, but
// not for durability: that is what the receipt is for, so that one goroutine
// too has many requests under way. An error means that nothing was accepted,
// or with a [*penstock.PartialError] only the first slices.
func (t *Topic[T]) ProduceAsync(ctx context.Context, events ...T) (*Receipt, error) {
	return t.produceAsync(ctx, events, nil)
}

// ProduceEventsAsync is to ProduceEvents what ProduceAsync is to Produce.
func (t *Topic[T]) ProduceEventsAsync(ctx context.Context, events ...penstock.Event[T]) (*Receipt, error) {
	values, metas := split(events)
	return t.produceAsync(ctx, values, metas)
}

func (t *Topic[T]) produceAsync(ctx context.Context, values []T, metas []penstock.Meta) (*Receipt, error) {
	r := &Receipt{ack: Ack{Level: t.config.Durability}}
	if err := t.produce(ctx, values, metas, r); err != nil {
		return nil, err
	}
	return r, nil
}
