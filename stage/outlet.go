package stage

import "math"

// Outlet is the face of a source or a gate that events leave by. It is a small
// handle; copies name the same face.
type Outlet[T any] struct{ o *outlet[T] }

// Out returns o itself, so that a handle can be given to [Connect].
func (o Outlet[T]) Out() Outlet[T] { return o }

// Outleter is what events can come from: [*Source], [*Gate], [Outlet].
type Outleter[T any] interface{ Out() Outlet[T] }

// A piece is output that waits for demand: the events [from, to) of a slab.
type piece[T any] struct {
	slab     *slab[T]
	from, to int
}

// outlet is the producing half of a stage. All of it belongs to the stage's
// goroutine.
//
// Invariants: pieces are in order of emission, and while there is one, nothing
// newer is emitted to an edge. Every slab of the stage's domain is in exactly
// one of these places: free, a piece or packets (refs > 0), or a consumed slot.
type outlet[T any] struct {
	*base
	edges  []*edge[T] // in order of subscription (ties of the dispatcher)
	free   []*slab[T]
	pieces [2]piece[T] // at most one forwarded and one emitted part of one call
	n      int         // pieces in use
	clears bool
	poison bool // tests: every free slab is cleared, so that use after return shows
}

func newOutlet[T any](b *base) outlet[T] { return outlet[T]{base: b, clears: holdsPointers[T]()} }

// open returns the demand of all subscribers that can be met now.
func (o *outlet[T]) open() int {
	sum := 0
	for _, e := range o.edges {
		n := e.open()
		sum = min(sum, math.MaxInt-n) + n
	}
	return sum
}

// empty reports whether nothing waits for demand.
func (o *outlet[T]) empty() bool { return o.n == 0 }

// waiting returns the number of events that wait for demand.
func (o *outlet[T]) waiting() (events int) {
	for _, p := range o.pieces[:o.n] {
		events += p.to - p.from
	}
	return events
}

// push adds output behind what waits. It takes over the piece's reference.
func (o *outlet[T]) push(p piece[T]) {
	o.pieces[o.n] = p
	o.n++
	add(&o.stats.waiting, p.to-p.from)
}

// flush gives what waits to the subscribers as far as they have asked. The
// one with the greatest open demand comes first, up to all of its demand; of
// equals the one that subscribed first.
func (o *outlet[T]) flush() (progress bool) {
	for o.n > 0 {
		p := &o.pieces[0]
		for p.from < p.to {
			e, open := o.greatest()
			if e == nil {
				return progress
			}
			o.send(e, p, min(open, p.to-p.from))
			progress = true
		}
		o.pieces[0], o.pieces[1] = o.pieces[1], piece[T]{}
		o.n--
	}
	return progress
}

func (o *outlet[T]) greatest() (best *edge[T], open int) {
	for _, e := range o.edges {
		if n := e.open(); n > open {
			best, open = e, n
		}
	}
	return best, open
}

// send publishes the first n events of p to e.
func (o *outlet[T]) send(e *edge[T], p *piece[T], n int) {
	if e.tail.Load()-e.reclaimed == uint64(len(e.ring)) {
		o.reclaim(e)
	}
	last := p.from+n == p.to
	if !last {
		p.slab.refs++ // the last packet takes over the piece's own reference
	}
	e.publish(packet[T]{slab: p.slab, from: p.from, to: p.from + n, whole: last && p.slab.refs == 1})
	p.from += n
	add(&o.stats.sent, n)
	add(&o.stats.waiting, -n)
}

// take returns an empty slab: one that is free, one that its consumer is done
// with, or, when all are on their way, a new one.
func (o *outlet[T]) take() *slab[T] {
	if len(o.free) == 0 {
		for _, e := range o.edges {
			o.reclaim(e)
		}
	}
	if n := len(o.free); n > 0 {
		s := o.free[n-1]
		o.free = o.free[:n-1]
		return s
	}
	return &slab[T]{}
}

// reclaim takes back the slabs of all packets that e's consumer has finished.
func (o *outlet[T]) reclaim(e *edge[T]) {
	for head := e.head.Load(); e.reclaimed < head; e.reclaimed++ {
		p := e.slot(e.reclaimed)
		o.release(p.slab)
		p.slab = nil
	}
}

// release drops one reference; with the last one the slab becomes free.
func (o *outlet[T]) release(s *slab[T]) {
	s.refs--
	if s.refs > 0 {
		return
	}
	if s.dirty || o.poison {
		clear(s.buf)
		s.dirty = false
	}
	s.refs = 0
	s.buf = s.buf[:0]
	o.free = append(o.free, s)
}

// prune drops the edges whose consumer has left, counts what it had not
// processed, and takes its slabs back (ST-88).
func (o *outlet[T]) prune() (progress bool) {
	kept := o.edges[:0]
	for _, e := range o.edges {
		if !e.cancelled.Load() {
			kept = append(kept, e)
			continue
		}
		progress = true
		o.abandon(e)
	}
	clear(o.edges[len(kept):])
	o.edges = kept
	return progress
}

func (o *outlet[T]) abandon(e *edge[T]) {
	e.abandoned, e.lost = true, e.unprocessed()
	add(&o.stats.undelivered, e.lost)
	o.reclaim(e)
	for tail := e.tail.Load(); e.reclaimed < tail; e.reclaimed++ {
		p := e.slot(e.reclaimed)
		p.slab.dirty = o.clears
		o.release(p.slab)
		p.slab = nil
	}
}

// unsent returns a copy of the events that wait for demand.
func (o *outlet[T]) unsent() (vs []T) {
	for _, p := range o.pieces[:o.n] {
		vs = append(vs, p.slab.buf[p.from:p.to]...)
	}
	return vs
}

// letGo forgets what waits for demand. Its slabs are lost to the stage, which
// has to be at its end.
func (o *outlet[T]) letGo() {
	o.pieces, o.n = [2]piece[T]{}, 0
	o.stats.waiting.Store(0)
}

// end tells every subscriber that nothing more comes.
func (o *outlet[T]) end(err error) {
	for _, e := range o.edges {
		e.end(err)
	}
}
