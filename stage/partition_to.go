package stage

import "fmt"

// PartitionTo is [PartitionPtr] by a function that says the partition itself, in
// [0, n), or that there is none for the event: with ok false the event is let go
// and counted in [Stats].FilteredOut. A partition that does not exist is an
// error, which matches [ErrPartition] and fails the producer: what was routed
// before goes out, the event and what is behind it is discarded.
func PartitionTo[T any](n int, to func(v *T) (partition int, ok bool)) Dispatcher[T] {
	return partitioned(n, to != nil, func() *partition[T] { return &partition[T]{to: to} })
}

// routeTo distributes the events of p as route does, by a function that may say
// none.
func (r *partition[T]) routeTo(o *outlet[T], p *piece[T]) {
	none := 0
	from := p.from
	defer func() {
		r.queued += p.from - from - none
		add(&o.stats.filteredOut, none)
		add(&o.stats.waiting, -none)
	}()
	vs := p.slab.buf[:p.to]
	for i := p.from; i < len(vs); i++ {
		k, ok := r.to(&vs[i])
		if !ok {
			none++
			p.from = i + 1
			continue
		}
		if k < 0 || k >= len(r.parts) {
			o.fail(fmt.Errorf("stage %q: %w: %d of %d", o.name, ErrPartition, k, len(r.parts)))
			return
		}
		q := &r.parts[k]
		if q.fill == nil {
			q.fill = o.take()
			q.fill.refs = 1
			q.buf = q.fill.buf
		}
		q.buf = append(q.buf, vs[i])
		p.from = i + 1
	}
}
