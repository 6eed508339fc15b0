package stage

import (
	"fmt"

	"github.com/penstock/penstock"
)

// Partition returns a dispatcher that divides events among n partitions, each
// with at most one consumer, which subscribes by [Outlet.Partition]. An event
// goes to partition by(event) modulo n, which is never negative. by runs on the
// producer's goroutine, one call at a time.
//
// The events of one partition stay in order. What its consumer has not asked
// for, or what has no consumer, waits in the partition's queue; the queue
// outlives the consumer and goes to the next. Queued events count against
// demand: the producer is asked only for what all consumers together have asked
// for beyond what is queued, so that all queues together hold no more than the
// sum of the subscriptions' max, and the output of one call. A partition that
// nobody takes from so holds up the others in the end.
//
// [PartitionTo] may say that there is no partition for an event.
//
// n must be positive and by not nil: Start fails otherwise. A subscription
// without a partition, to one that does not exist ([ErrPartition]) or that has
// a consumer ([ErrPartitionTaken]) is refused.
func Partition[T any](n int, by func(T) int) Dispatcher[T] {
	return partitioned(n, by != nil, func() *partition[T] { return &partition[T]{by: by} })
}

// PartitionPtr is [Partition] without a copy of each event: by reads *v, and must
// neither change nor keep it. For a large T it costs less.
func PartitionPtr[T any](n int, by func(v *T) int) Dispatcher[T] {
	return partitioned(n, by != nil, func() *partition[T] { return &partition[T]{byPtr: by} })
}

func partitioned[T any](n int, given bool, make1 func() *partition[T]) Dispatcher[T] {
	d := Dispatcher[T]{make: func() router[T] {
		r := make1()
		r.parts = make([]part[T], min(max(n, 0), mostPartitions))
		return r
	}}
	switch {
	case n <= 0 || n > mostPartitions:
		d.err = &penstock.FieldError{Field: "Partition", Reason: fmt.Sprintf("%d partitions, not in [1, %d]", n, mostPartitions)}
	case !given:
		d.err = &penstock.FieldError{Field: "Partition", Reason: "the function is nil"}
	}
	return d
}

// mostPartitions bounds what a dispatcher makes room for.
const mostPartitions = 1 << 20

// partition routes by a function.
//
// Invariant: queued is the sum of the queues.
type partition[T any] struct {
	by     func(T) int
	byPtr  func(*T) int         // or this one
	to     func(*T) (int, bool) // or this one
	parts  []part[T]
	queued int
	broken bool // by has panicked: nothing more is routed
}

// part is one partition and its queue: first the head, of which a part may be
// with the consumer already, then the events of fill, of which none is.
type part[T any] struct {
	e    *edge[T] // nil: no consumer
	head piece[T]
	fill *slab[T] // nil: nothing
	buf  []T      // the events of fill, which has the array alone meanwhile
}

func (q *part[T]) queued() int { return q.head.len() + len(q.buf) }

// advance makes the head of what was filled.
func (q *part[T]) advance() {
	q.fill.buf = q.buf
	q.head = piece[T]{slab: q.fill, to: len(q.buf)}
	q.fill, q.buf = nil, nil
}

func (r *partition[T]) admit(o *outlet[T], e *edge[T]) error {
	switch i := e.partition; {
	case e.where != nil:
		return errNoSelector
	case i == -1:
		return fmt.Errorf("%w: none was chosen", ErrPartition)
	case i < 0 || i >= len(r.parts):
		return fmt.Errorf("%w: %d of %d", ErrPartition, i, len(r.parts))
	case r.parts[i].e != nil:
		return fmt.Errorf("partition %d: %w", i, ErrPartitionTaken)
	}
	r.parts[e.partition].e = e
	return nil
}

func (r *partition[T]) leave(_ *outlet[T], e *edge[T]) { r.parts[e.partition].e = nil }

// want does not count what waits for nobody when the stage ends: it must not
// keep the rest from those who are there.
func (r *partition[T]) want(o *outlet[T]) int {
	queued := r.queued
	if o.phase == ending {
		queued -= r.ownerless()
	}
	return max(0, o.open()-queued)
}

func (r *partition[T]) ownerless() (events int) {
	for i := range r.parts {
		if q := &r.parts[i]; q.e == nil {
			events += q.queued()
		}
	}
	return events
}

func (r *partition[T]) flush(o *outlet[T]) (progress bool) {
	for o.n > 0 && !r.broken {
		p := &o.pieces[0]
		if r.broken = true; o.guard(func() { r.route(o, p) }) || p.from < p.to {
			break
		}
		r.broken = false
		p.slab.dirty = o.clears // nobody else clears it
		o.release(p.slab)
		o.shift()
		progress = true
	}
	if r.queued == 0 {
		return progress
	}
	for i := range r.parts {
		if q := &r.parts[i]; q.e != nil && r.serve(o, q) {
			progress = true
		}
	}
	return progress
}

// route distributes the events of p. p.from is behind the last that was, also
// when by panics.
func (r *partition[T]) route(o *outlet[T], p *piece[T]) {
	if r.to != nil {
		r.routeTo(o, p)
		return
	}
	from := p.from
	defer func() { r.queued += p.from - from }()
	parts, vs := r.parts, p.slab.buf[:p.to]
	n := len(parts)
	mask := -1 // of a number of partitions that is a power of two
	if n&(n-1) == 0 {
		mask = n - 1
	}
	for i := p.from; i < len(vs); i++ {
		var k int
		if r.byPtr != nil {
			k = r.byPtr(&vs[i])
		} else {
			k = r.by(vs[i])
		}
		if k &= mask; uint(k) >= uint(n) {
			if k %= n; k < 0 {
				k += n
			}
		}
		q := &parts[k]
		if q.fill == nil {
			q.fill = o.take()
			q.fill.refs = 1
			q.buf = q.fill.buf
		}
		q.buf = append(q.buf, vs[i])
		p.from = i + 1
	}
}

// serve gives the consumer of q what it has asked for.
func (r *partition[T]) serve(o *outlet[T], q *part[T]) (progress bool) {
	for {
		if q.head.len() == 0 {
			if q.fill == nil {
				return progress
			}
			q.advance()
		}
		n := min(q.e.open(), q.head.len())
		if n == 0 {
			return progress
		}
		before := q.head.from
		o.send(q.e, &q.head, n)
		if q.head.from == before { // cancelled this moment
			return progress
		}
		r.queued -= n
		progress = true
		if q.head.len() == 0 {
			q.head = piece[T]{}
		}
	}
}

func (r *partition[T]) held() int { return r.queued }

func (r *partition[T]) stuck(o *outlet[T]) bool {
	return r.broken || o.n == 0 && r.queued > 0 && r.ownerless() == r.queued
}

func (r *partition[T]) unsent() (vs []T) {
	for i := range r.parts {
		q := &r.parts[i]
		if q.head.len() > 0 {
			vs = append(vs, q.head.slab.buf[q.head.from:q.head.to]...)
		}
		vs = append(vs, q.buf...)
	}
	return vs
}

func (r *partition[T]) letGo() {
	for i := range r.parts {
		q := &r.parts[i]
		q.head, q.fill, q.buf = piece[T]{}, nil, nil
	}
	r.queued = 0
}
