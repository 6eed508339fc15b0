package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

// SequenceError refuses a request of a [Producer]: an older one than its last,
// or one behind a gap.
type SequenceError = segfile.SequenceError

// ProducersMax is how many producers each partition of a topic on disk
// remembers: the ones that appended last.
const ProducersMax = segfile.ProducersMax

// Producer appends requests that are numbered, so that one whose outcome is not
// known, after an error, a crash or a restart, can be repeated and is appended
// once. It is safe for concurrent use; one request of a producer is at work at a
// time.
//
// The numbers of a producer begin with 1 and have no gaps. Its last request can
// be repeated any number of times, with the same events: what is there is
// answered with where it is, and what is missing, because the request was torn
// between partitions, is appended. An older one is refused, and one behind a gap
// too, with a [*SequenceError].
//
// What is remembered is as safe as the events: at level synced it survives
// power loss, at level written the death of the process. It outlives the
// events: retention does not touch it. Each partition remembers the last
// [ProducersMax] producers that appended to it; one that is forgotten begins
// again with 1, under a number of its own choice. Of a request that was spread
// over partitions, some may have forgotten it and others not: then a repetition
// is refused with [penstock.ErrUnknownOutcome], unless each of its partitions
// still knows the producer.
//
// Events take the partition that the topic's router says, which must say the
// same for a repetition. Where partitions would take turns, event by event
// ([penstock.Event] without Config.Key) or by [BatchRouter], all events of a
// producer take one partition, which follows from its number.
type Producer[T any] struct {
	topic *Topic[T]
	id    uint32
	own   int           // its partition where partitions take turns
	turn  chan struct{} // holds a value while a request is at work

	// Capacity of what the request at work has not appended. Who has the turn owns it.
	held      int
	heldBytes penstock.Bytes
}

// Producer returns the producer with a number from 1 to [penstock.MaxProducer];
// the same one at every call. Who has which number is the application's to
// decide: two that share one refuse each other's requests. The topic keeps some
// 200 bytes for each number that was asked for. The error matches
// [penstock.ErrInvalid] for another number and in memory, where nothing
// outlives the process, and [penstock.ErrClosed] after Close.
func (t *Topic[T]) Producer(id uint32) (*Producer[T], error) {
	switch {
	case id == 0 || id > penstock.MaxProducer:
		return nil, fmt.Errorf("topic %q: %w", t.config.Name,
			&penstock.FieldError{Field: "id", Reason: fmt.Sprintf("%d is outside [1, %d]", id, penstock.MaxProducer)})
	case t.disk == nil:
		return nil, fmt.Errorf("topic %q: %w", t.config.Name, &penstock.FieldError{Field: "Dir", Reason: "is empty; numbered requests are for topics on disk"})
	case t.closed.Load():
		return nil, penstock.ErrClosed
	}
	t.disk.producersMu.Lock()
	defer t.disk.producersMu.Unlock()
	p := t.disk.producers[id]
	if p == nil {
		own := penstock.HashKey("producer " + strconv.FormatUint(uint64(id), 10))
		p = &Producer[T]{topic: t, id: id, own: int(own % uint64(len(t.parts))), turn: make(chan struct{}, 1)}
		if t.disk.producers == nil {
			t.disk.producers = make(map[uint32]*Producer[T])
		}
		t.disk.producers[id] = p
	}
	return p, nil
}

// ID returns the producer's number.
func (p *Producer[T]) ID() uint32 { return p.id }

// Last returns the number of the producer's last request of which something was
// appended, 0 when none is known. After a crash that request may be torn: repeat
// it, or know that it was acknowledged, before the next.
func (p *Producer[T]) Last() uint64 {
	last := uint64(0)
	for i := range p.topic.parts {
		sequence, _, _, _ := p.topic.disk.log.Partition(i).LastOf(p.id)
		last = max(last, sequence)
	}
	return last
}

// Produce appends the events as the request with a number, which is that of
// Last, or the next one. It returns when they have reached the topic's
// durability, and tells where they are. It waits for capacity as
// [Topic.Produce] does, for an earlier request of the producer, and both waits
// end with ctx.
//
// After any error the same request can be repeated. Errors are those of
// [Topic.Produce] and, with nothing appended: a [*SequenceError];
// [penstock.ErrTooLarge] for a request that is larger than the capacity, as it
// would go in slices; [penstock.ErrInvalid] for one without events, and for a
// repetition with another number of events in a partition.
func (p *Producer[T]) Produce(ctx context.Context, sequence uint64, events ...T) (Ack, error) {
	return p.produce(ctx, sequence, events, nil)
}

// ProduceEvents is to Produce what [Topic.ProduceEvents] is to [Topic.Produce].
func (p *Producer[T]) ProduceEvents(ctx context.Context, sequence uint64, events ...penstock.Event[T]) (Ack, error) {
	values, metas := split(events)
	return p.produce(ctx, sequence, values, metas)
}

func (p *Producer[T]) produce(ctx context.Context, sequence uint64, values []T, metas []penstock.Meta) (Ack, error) {
	ack, err := p.take(ctx, sequence, values, metas)
	if err != nil {
		return Ack{}, fmt.Errorf("topic %q: producer %d, request %d: %w", p.topic.config.Name, p.id, sequence, err)
	}
	return ack, nil
}

func (p *Producer[T]) take(ctx context.Context, sequence uint64, values []T, metas []penstock.Meta) (Ack, error) {
	t := p.topic
	if err := t.open(ctx); err != nil {
		return Ack{}, err
	}
	tag, err := penstock.NewProducerTag(p.id, sequence)
	switch {
	case err != nil:
		return Ack{}, err
	case len(values) == 0:
		return Ack{}, &penstock.FieldError{Field: "events", Reason: "there are none"}
	case t.config.Capacity > 0 && len(values) > t.config.Capacity || len(values) > maxSlice:
		return Ack{}, fmt.Errorf("%d events are above what is admitted at once: %w", len(values), penstock.ErrTooLarge)
	}
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return Ack{}, penstock.ContextError(ctx)
	}
	defer func() {
		p.letGo()
		<-p.turn
	}()
	if last := p.Last(); sequence < max(last, 1) || sequence > last+1 {
		return Ack{}, &SequenceError{Producer: p.id, Sequence: sequence, Last: last}
	}
	ack, err := p.appendBounded(ctx, tag, values, metas)
	if errors.Is(err, penstock.ErrDiskFull) { // a repetition, after what is consumed has made room
		t.disk.reclaim()
		if ack, err = p.append(ctx, tag, values, metas, p.hand); errors.Is(err, penstock.ErrDiskFull) {
			t.disk.full.Store(true)
		}
	}
	return ack, err
}

// appendBounded is append that waits for disk space, if the topic is bounded in
// it. What was appended is not appended again.
func (p *Producer[T]) appendBounded(ctx context.Context, tag penstock.ProducerTag, values []T, metas []penstock.Meta) (ack Ack, err error) {
	if p.topic.disk.line == nil {
		return p.append(ctx, tag, values, metas, p.hand)
	}
	hold := func() error {
		_, err := p.append(ctx, tag, values, metas, p.hold)
		return err
	}
	err = p.topic.disk.bounded(ctx, len(values), hold, func() (err error) {
		ack, err = p.append(ctx, tag, values, metas, p.hand)
		return err
	})
	return ack, err
}

// append gives what is missing of a request to hand or to hold.
func (p *Producer[T]) append(ctx context.Context, tag penstock.ProducerTag, values []T, metas []penstock.Meta, missing func(context.Context, *request, Ack) (Ack, error)) (Ack, error) {
	t, e := p.topic, p.topic.disk
	var m *measured
	if t.measured {
		m = t.measures.Get().(*measured)
		defer t.putMeasured(m)
		if err := t.measure(m, values, metas); err != nil {
			return Ack{}, err
		}
		if m.cut(0, len(values), t.config.CapacityBytes) < len(values) {
			return Ack{}, fmt.Errorf("%d bytes are above the capacity: %w", m.bytes(len(values)), penstock.ErrTooLarge)
		}
	}
	pl := t.plans.Get().(*plan)
	defer t.plans.Put(pl)
	if err := p.plan(pl, values, metas); err != nil {
		return Ack{}, err
	}
	r := e.requests.Get().(*request)
	defer func() {
		r.drop()
		r.reset()
		e.requests.Put(r)
	}()
	if err := e.encode(r, values, metas, m, pl); err != nil {
		return Ack{}, err
	}
	e.place(r, len(values), m, pl)
	ack := Ack{Level: t.config.Durability}
	torn := p.Last() == tag.Sequence() // a repetition: some of it is there
	for i := range r.parts {
		x := &r.parts[i]
		if err := e.log.Partition(x.index).Check(x.frame); err != nil {
			return Ack{}, err
		}
		x.frame.SetTag(tag)
		sequence, first, count, known := e.log.Partition(x.index).LastOf(p.id)
		switch {
		case !known && torn && e.log.Partition(x.index).Forgets():
			return Ack{}, fmt.Errorf("partition %d has forgotten the producer, and another one has this request: whether it was appended there is not known: %w", x.index, penstock.ErrUnknownOutcome)
		case !known || sequence < tag.Sequence():
			continue
		case count != x.count:
			return Ack{}, &penstock.FieldError{Field: "events", Reason: fmt.Sprintf("%d are for partition %d, which has %d of this request", x.count, x.index, count)}
		}
		ack.Parts = append(ack.Parts, Part{Partition: x.index, First: first, Count: count})
		x.frame.Release()
		x.frame = nil
	}
	r.parts = slices.DeleteFunc(r.parts, func(x part) bool { return x.frame == nil })
	if len(r.parts) == 0 {
		return ack, nil
	}
	return missing(ctx, r, ack)
}

// plan says where the events go.
func (p *Producer[T]) plan(pl *plan, values []T, metas []penstock.Meta) error {
	t := p.topic
	pl.begin(len(values), len(t.parts))
	_, whole := t.config.Router.(wholeRouter)
	for i := range values {
		at := p.own
		if t.config.Router != nil && !whole {
			key, err := "", error(nil)
			if metas != nil {
				key = metas[i].Key
			}
			if at, err = t.route(values[i], key); err != nil {
				return err
			}
		}
		pl.set(i, at)
	}
	pl.group()
	return nil
}

// hold takes capacity for the parts of the request, which stays with the producer
// until they are appended or the request is over. What it holds of an earlier try
// it keeps.
func (p *Producer[T]) hold(ctx context.Context, r *request, ack Ack) (Ack, error) {
	t := p.topic
	n, bytes := 0, penstock.Bytes(0)
	for i := range r.parts {
		n, bytes = n+r.parts[i].count, bytes+r.parts[i].bytes
		if err := t.disk.log.Partition(r.parts[i].index).Fault(); err != nil {
			return Ack{}, err
		}
	}
	if t.budget == nil || n == p.held && bytes == p.heldBytes {
		return ack, nil
	}
	p.letGo() // another part is missing than before
	if !t.budget.TryAcquire(n, bytes) {
		if err := t.admit(ctx, n, bytes); err != nil {
			return Ack{}, &notAdmitted{err}
		}
	}
	p.held, p.heldBytes = n, bytes
	return ack, nil
}

// letGo gives back the capacity of what was not appended.
func (p *Producer[T]) letGo() {
	if p.held > 0 {
		p.topic.budget.Release(p.held, p.heldBytes)
		p.held, p.heldBytes = 0, 0
	}
}

// hand hands the parts of the request, which hold their capacity, to their
// partitions.
func (p *Producer[T]) hand(ctx context.Context, r *request, ack Ack) (Ack, error) {
	e := p.topic.disk
	if _, err := p.hold(ctx, r, ack); err != nil {
		return Ack{}, err
	}
	if err := e.reserve(ctx, r); err != nil {
		return Ack{}, err
	}
	for i := range r.parts {
		e.handOver(ctx, i, &r.parts[i])
		if err := r.parts[0].err; err != nil {
			return Ack{}, err
		}
	}
	var failed error
	for i := range r.parts {
		x := &r.parts[i]
		first := penstock.Offset(0)
		if x.err == nil {
			first, x.err = x.receipt.Wait(context.Background()) // what is on its way is not torn by ctx
		}
		if x.err != nil {
			failed = errors.Join(failed, x.err)
			continue
		}
		ack.Parts = append(ack.Parts, Part{Partition: x.index, First: first, Count: x.count})
		if p.topic.budget != nil {
			p.held, p.heldBytes = p.held-x.count, p.heldBytes-x.bytes
		}
	}
	if failed != nil {
		return Ack{}, failed
	}
	slices.SortFunc(ack.Parts, func(a, b Part) int { return a.Partition - b.Partition })
	return ack, nil
}
