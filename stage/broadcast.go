package stage

import (
	"fmt"
	"math"

	"github.com/penstock/penstock"
)

// Broadcast returns a dispatcher that gives each event to every consumer, at
// the pace of the slowest: no more events go out at a time than everybody has
// asked for. A consumer that subscribes later gets what is emitted from then
// on, and holds the others until it asks. One that leaves holds them no more.
// By [Outlet.Where] a consumer gets a part of the events; the rest costs it no
// demand. Without a consumer, events wait.
//
// The consumers read one batch, which goes back to the producer when the last
// of them is done with it: nothing is copied. A gate whose input and output are
// of one type may change its input, and gets a copy of it; what it changes the
// others do not see. Everybody else reads only, as [NewSink] says.
func Broadcast[T any](opts ...BroadcastOption) Dispatcher[T] {
	var s slowest
	var missing error
	for i, o := range opts {
		if o == nil {
			missing = nilOption("Broadcast", i, len(opts))
			continue
		}
		o(&s)
	}
	d := Dispatcher[T]{make: func() router[T] { return &broadcast[T]{slowest: s} }, err: missing}
	if s.bad {
		d.err = &penstock.FieldError{Field: "Slowest", Reason: fmt.Sprintf("a lag of %d events", s.lag)}
	}
	return d
}

// broadcast holds no events of its own: what the slowest has not asked for
// waits in the outlet.
type broadcast[T any] struct {
	slowest
	broken bool       // a selector has panicked: nothing more goes out
	chosen []*slab[T] // what the selectors took of one offer, by edge; nil without selector
}

func (r *broadcast[T]) admit(_ *outlet[T], e *edge[T]) error {
	if e.partition != -1 {
		return errNoPartitions
	}
	return nil
}

func (r *broadcast[T]) leave(*outlet[T], *edge[T]) {}

func (r *broadcast[T]) want(o *outlet[T]) int {
	if len(o.edges) == 0 || r.broken {
		return 0
	}
	least := math.MaxInt
	for _, e := range o.edges {
		least = min(least, e.open())
	}
	return least
}

func (r *broadcast[T]) flush(o *outlet[T]) (progress bool) {
	if r.lag > 0 && len(o.edges) > 1 {
		r.cutOff(o)
	}
	for o.n > 0 {
		p := &o.pieces[0]
		for p.from < p.to {
			n := min(r.want(o), p.len())
			if n == 0 || !r.offer(o, p, n) {
				return progress
			}
			progress = true
		}
		o.release(p.slab)
		o.shift()
	}
	return progress
}

// offer gives the first n events of p to everybody.
func (r *broadcast[T]) offer(o *outlet[T], p *piece[T], n int) bool {
	if !r.choose(o, p.slab.buf[p.from:p.from+n]) {
		return false
	}
	sent := 0
	for i, e := range o.edges {
		pack := packet[T]{slab: p.slab, from: p.from, to: p.from + n, shared: true}
		if e.where != nil {
			pack = packet[T]{slab: r.chosen[i], to: len(r.chosen[i].buf), whole: true}
			r.chosen[i] = nil
		} else {
			p.slab.refs++
			p.slab.dirty = o.clears // no consumer clears what it shares
		}
		if pack.from < pack.to && o.publish(e, pack) {
			sent += pack.to - pack.from
		} else { // nothing for it, or it was cancelled this moment
			pack.slab.dirty = o.clears
			o.release(pack.slab)
		}
	}
	p.from += n
	add(&o.stats.sent, sent)
	add(&o.stats.dispatched, n)
	add(&o.stats.waiting, -n)
	return true
}

// choose asks the selectors which of vs their consumers want. When one panics,
// the stage fails and nobody gets them.
func (r *broadcast[T]) choose(o *outlet[T], vs []T) bool {
	r.chosen = r.chosen[:0]
	any := false
	for _, e := range o.edges {
		var s *slab[T]
		if e.where != nil {
			s = o.take()
			s.refs = 1
			any = true
		}
		r.chosen = append(r.chosen, s)
	}
	if !any {
		return true
	}
	if r.broken = true; o.guard(func() { r.selectFrom(o, vs) }) {
		return false
	}
	r.broken = false
	return true
}

func (r *broadcast[T]) selectFrom(o *outlet[T], vs []T) {
	for i, e := range o.edges {
		if e.where == nil {
			continue
		}
		s := r.chosen[i]
		for _, v := range vs {
			if e.where(v) {
				s.buf = append(s.buf, v)
			}
		}
	}
}

func (r *broadcast[T]) held() int             { return 0 }
func (r *broadcast[T]) stuck(*outlet[T]) bool { return r.broken }
func (r *broadcast[T]) unsent() []T           { return nil }
func (r *broadcast[T]) letGo()                { r.chosen = nil }
