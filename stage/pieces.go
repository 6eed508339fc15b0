package stage

// A piece is output that waits for demand: the events [from, to) of a slab.
type piece[T any] struct {
	slab     *slab[T]
	from, to int
}

func (p *piece[T]) len() int { return p.to - p.from }

// waiting returns the number of events that wait for demand.
func (o *outlet[T]) waiting() (events int) {
	for _, p := range o.pieces[:o.n] {
		events += p.len()
	}
	if o.router != nil {
		events += o.router.held()
	}
	return events
}

// push adds output behind what waits. It takes over the piece's reference.
func (o *outlet[T]) push(p piece[T]) {
	o.pieces[o.n] = p
	o.n++
	o.pushed += int64(p.len())
	add(&o.stats.waiting, p.len())
}

// join is push for output that nobody has asked for. Where nobody else refers
// to the last piece's slab it grows that one, so there are never more than
// three pieces: only the first can have been sent in part.
func (o *outlet[T]) join(s *slab[T]) {
	if o.n > 0 {
		if last := &o.pieces[o.n-1]; last.slab.refs == 1 && last.to == len(last.slab.buf) {
			last.slab.buf = append(last.slab.buf, s.buf...)
			last.to = len(last.slab.buf)
			o.pushed += int64(len(s.buf))
			add(&o.stats.waiting, len(s.buf))
			s.dirty = o.clears
			o.release(s)
			return
		}
	}
	o.push(piece[T]{slab: s, to: len(s.buf)})
}

// emitted and gone are those of a holder.
func (o *outlet[T]) emitted() int64 { return o.pushed }

func (o *outlet[T]) gone() int64 {
	n := o.pushed
	for _, p := range o.pieces[:o.n] {
		n -= int64(p.len())
	}
	return n
}

// shift forgets the first piece, whose reference is gone.
func (o *outlet[T]) shift() {
	o.n--
	copy(o.pieces[:], o.pieces[1:])
	o.pieces[o.n] = piece[T]{}
}

// unsent returns a copy of the events that wait for demand.
func (o *outlet[T]) unsent() (vs []T) {
	if o.router != nil {
		vs = o.router.unsent()
	}
	for _, p := range o.pieces[:o.n] {
		vs = append(vs, p.slab.buf[p.from:p.to]...)
	}
	return vs
}

// letGo forgets what waits for demand, at the end of the stage or when it begins
// anew. Its slabs are left to the collector.
func (o *outlet[T]) letGo() {
	o.pieces, o.n = [3]piece[T]{}, 0
	if o.router != nil {
		o.router.letGo()
	}
	o.stats.waiting.Store(0)
}
