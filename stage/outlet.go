package stage

import (
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
)

// Outlet is the face of a source or a gate that events leave by. It is a small
// handle; copies name the same face.
type Outlet[T any] struct {
	o         *outlet[T]
	where     func(T) bool
	partition int      // 0: none; partition i is i + 1
	name      *Name[T] // in place of o, when not nil
}

// Out returns o itself, so that a handle can be given to [Connect].
func (o Outlet[T]) Out() Outlet[T] { return o }

// Where returns a handle by which a subscription gets only the events for which
// keep returns true; the others cost it no demand. The producer must be one
// that broadcasts: elsewhere an event that one consumer does not want would
// have to wait for another. keep runs on the producer's goroutine, one call at
// a time. A second Where narrows the first.
func (o Outlet[T]) Where(keep func(T) bool) Outlet[T] {
	if before := o.where; before != nil {
		o.where = func(v T) bool { return before(v) && keep(v) }
	} else {
		o.where = keep
	}
	return o
}

// Partition returns a handle by which a subscription gets the events of
// partition i, in [0, n), of a producer that dispatches by [Partition].
func (o Outlet[T]) Partition(i int) Outlet[T] {
	o.partition = i + 1
	if i < 0 {
		o.partition = i // refused like every other that does not exist, and not taken for none
	}
	return o
}

// Subscribers returns the number of subscriptions that the producer serves now.
// Safe for concurrent use.
func (o Outlet[T]) Subscribers() int {
	from := o.resolve("Subscribers")
	if from == nil {
		return 0
	}
	return int(from.subscribers.Load())
}

// Outleter is what events can come from: [*Source], [*Gate], [Outlet], [*Name].
type Outleter[T any] interface{ Out() Outlet[T] }

// A Change says that a subscription has arrived or left, and how many the
// producer then has.
type Change struct {
	Arrived     bool
	Subscribers int
}

// outlet is the producing half of a stage. All of it belongs to the stage's
// goroutine.
//
// Invariants: pieces are in order of emission, and while there is one, nothing
// newer is emitted to an edge. Every slab of the stage's domain is in exactly
// one of these places: free, a piece or packets (refs > 0), or a consumed slot.
// leaving holds the edges that were cancelled and whose consumer still works on
// what it got: they have no demand.
type outlet[T any] struct {
	*base
	edges   []*edge[T] // in order of subscription (ties of the dispatcher)
	leaving []*edge[T]
	router  router[T] // nil: to the greatest demand
	free    []*slab[T]
	pieces  [3]piece[T] // at most one forwarded and one emitted part of one call, and one of messages
	n       int         // pieces in use
	pushed  int64       // events that were ever in a piece
	clears  bool
	copies  bool // the router gives one event to several
	poison  bool // tests: every free slab is cleared, so that use after return shows
	once    bool // every slab is used once, see Poison
	retired []*slab[T]
	warned  bool // of subscriptions with different max
	shuffle bool // edges, before the first dispatch

	subscribers   atomic.Int32 // len(edges), for others to look at
	onSubscribers func(Change)
}

func newOutlet[T any](b *base) outlet[T] { return outlet[T]{base: b, clears: holdsPointers[T]()} }

func (o *outlet[T]) snapshot() Stats {
	st := o.base.snapshot()
	st.Consumers = int(o.subscribers.Load())
	if o.copies {
		st.Dispatched = o.stats.dispatched.Load()
	}
	return st
}

// want returns the demand that nothing the outlet holds will meet.
func (o *outlet[T]) want() int {
	if o.router != nil {
		return o.router.want(o)
	}
	return o.open()
}

// open returns the demand of all subscribers that can be met now.
func (o *outlet[T]) open() int {
	sum := 0
	for _, e := range o.edges {
		n := e.open()
		sum = min(sum, math.MaxInt-n) + n
	}
	return sum
}

// ready reports whether more output may be made: nothing waits for demand, or
// there is demand that what waits cannot meet (ST-64).
func (o *outlet[T]) ready() bool {
	return o.n == 0 && (o.router == nil || o.router.held() == 0 || o.router.want(o) > 0)
}

// empty reports whether nothing waits for demand.
func (o *outlet[T]) empty() bool { return o.n == 0 && (o.router == nil || o.router.held() == 0) }

// stuck reports whether what waits cannot be delivered to anybody who is there.
func (o *outlet[T]) stuck() bool {
	return len(o.edges) == 0 || o.router != nil && o.n == 0 && o.router.stuck(o)
}

// flush gives what waits to the subscribers as far as they have asked. Unless a
// router says otherwise, the one with the greatest open demand comes first, up
// to all of its demand; of equals the one that subscribed first.
func (o *outlet[T]) flush() (progress bool) {
	if o.router != nil {
		return o.router.flush(o)
	}
	for o.n > 0 {
		p := &o.pieces[0]
		for p.from < p.to {
			e, open := o.greatest()
			if e == nil {
				return progress
			}
			o.send(e, p, min(open, p.len()))
			progress = true
		}
		o.shift()
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

// send publishes the first n events of p to e. The last packet takes over the
// piece's own reference. When e was cancelled this moment, nothing changes.
func (o *outlet[T]) send(e *edge[T], p *piece[T], n int) {
	last := p.from+n == p.to
	if !last {
		p.slab.refs++
	}
	if !o.publish(e, packet[T]{slab: p.slab, from: p.from, to: p.from + n, whole: last && p.slab.refs == 1}) {
		if !last {
			p.slab.refs--
		}
		return
	}
	p.from += n
	add(&o.stats.sent, n)
	add(&o.stats.waiting, -n)
}

func (o *outlet[T]) publish(e *edge[T], p packet[T]) bool {
	if e.tail.Load()-e.reclaimed == uint64(len(e.ring)) {
		o.reclaim(e)
	}
	return e.publish(p)
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
		if p.spoilt {
			p.slab.spoilt, p.spoilt = true, false
		}
		if o.once {
			p.slab.users.add(e.sub.to.name)
		}
		o.release(p.slab)
		p.slab = nil
	}
}

// release drops one reference; with the last one the slab becomes free.
func (o *outlet[T]) release(s *slab[T]) {
	s.refs--
	if s.refs > 0 || s.spoilt {
		return
	}
	if o.once {
		o.retire(s)
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

// adopt takes in a subscription, or says why the dispatcher refuses it.
func (o *outlet[T]) adopt(e *edge[T]) error {
	if err := o.admit(e); err != nil {
		return err
	}
	o.edges = append(o.edges, e)
	o.subscribers.Store(int32(len(o.edges)))
	return nil
}

func (o *outlet[T]) admit(e *edge[T]) error {
	if o.router != nil {
		return o.router.admit(o, e)
	}
	if e.where != nil {
		return errNoSelector
	}
	if e.partition != -1 {
		return errNoPartitions
	}
	return nil
}

// greet tells the hook of a subscription that was adopted, when there are count.
func (o *outlet[T]) greet(count int) {
	o.warnOfMax()
	if o.onSubscribers != nil {
		o.guard(func() { o.onSubscribers(Change{Arrived: true, Subscribers: count}) })
	}
}

// warnOfMax warns, once, when a producer that serves the greatest demand first
// has consumers of which some can never have it (ST-97).
func (o *outlet[T]) warnOfMax() {
	if o.warned || o.router != nil || len(o.edges) < 2 {
		return
	}
	first := o.edges[0].window.Max()
	for _, e := range o.edges[1:] {
		if other := e.window.Max(); other != first {
			o.warned = true
			o.logger().Warn("subscriptions with different max", slog.String("stage", o.name), slog.Int("max", first), slog.Int("other", other))
			return
		}
	}
}

// begin greets the declared subscriptions.
func (o *outlet[T]) begin() {
	if o.shuffle {
		rand.Shuffle(len(o.edges), func(i, j int) { o.edges[i], o.edges[j] = o.edges[j], o.edges[i] })
	}
	for n := range len(o.edges) {
		o.greet(n + 1)
	}
}

// prune drops the edges whose subscription was cancelled or whose consumer has
// left: their demand counts no more. From the latter it takes the slabs back
// and counts what was not processed (ST-88).
func (o *outlet[T]) prune() (progress bool) {
	if len(o.leaving) > 0 {
		o.leaving = slices.DeleteFunc(o.leaving, func(e *edge[T]) bool { return e.left.Load() && o.abandon(e) })
	}
	kept := o.edges[:0]
	for _, e := range o.edges {
		switch {
		case e.left.Load():
			o.abandon(e)
		case e.cancelled(), e.cut:
			o.leaving = append(o.leaving, e)
		default:
			kept = append(kept, e)
			continue
		}
		progress = true
		if o.router != nil {
			o.router.leave(o, e)
		}
	}
	if !progress {
		return false
	}
	gone := len(o.edges) - len(kept)
	clear(o.edges[len(kept):])
	o.edges = kept
	o.subscribers.Store(int32(len(kept)))
	if o.onSubscribers != nil {
		for n := gone - 1; n >= 0; n-- {
			o.guard(func() { o.onSubscribers(Change{Subscribers: len(kept) + n}) })
		}
	}
	if o.untilLeft && len(kept) == 0 {
		o.finishWith(nil)
	}
	return true
}

// abandon takes an edge back that its consumer has left.
func (o *outlet[T]) abandon(e *edge[T]) bool {
	if n := e.count(); n > 0 {
		o.lost(n)
	}
	o.reclaim(e)
	for tail := e.tail.Load() &^ cancelBit; e.reclaimed < tail; e.reclaimed++ {
		p := e.slot(e.reclaimed)
		if p.spoilt {
			p.slab.spoilt, p.spoilt = true, false
		}
		if !e.spoilt { // else this first one is for the collector
			p.slab.dirty = o.clears
			o.release(p.slab)
		}
		e.spoilt = false
		p.slab = nil
	}
	return true
}

// end tells every subscriber that nothing more comes.
func (o *outlet[T]) end(err error) {
	for _, e := range slices.Concat(o.edges, o.leaving) {
		e.end(err)
		if e.left.Load() { // the one who leaves last counts
			if n := e.count(); n > 0 {
				o.lost(n)
			}
		}
	}
}
