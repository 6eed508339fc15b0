package stage

import (
	"fmt"
	"slices"

	"github.com/penstock/penstock"
)

// Candidate is a consumer that an event may go to, as a [Chooser] sees it.
type Candidate struct {
	Consumer string // name of the stage
	Open     int    // what it has asked for and was not given yet; 0 when it can take nothing now
}

// Chooser decides which consumer gets an event: it is the core of a [Dispatcher]
// of one's own, see [Choose]. It starts no goroutine and needs no lock: one
// belongs to one producer, which calls it on its goroutine, one call at a time.
// So it is tested by calling it.
type Chooser[T any] interface {
	// Choose returns the index in of of the consumer that is to get *v, or -1
	// for none now. A choice with Open > 0 is carried out, and Open is one less in
	// the next call. Otherwise the event waits, and all behind it: Choose is asked
	// for it again when demand or the consumers have changed. of has the
	// consumers in the order of their subscription, at least one, one of them
	// with Open > 0. Neither v nor of may be kept or changed.
	Choose(v *T, of []Candidate) int
}

// Choose returns a dispatcher that gives each event to the one consumer that a
// Chooser says. make is called once per producer, by Dispatch. The producer is asked for what
// all consumers together have asked for; an event whose consumer has asked for
// no more holds up those behind it, at most the output of one call. The events
// of each consumer stay in order, but for those whose consumer is cancelled at
// the moment it is given them: others get them, behind what they were given in
// the same moment.
//
// An index that does not exist fails the producer, and so does a panic. A nil
// make, or one that returns nil, is an error at Start. [RoundRobin] and [ConsistentHash] are made with it.
func Choose[T any](make1 func() Chooser[T]) Dispatcher[T] {
	d := Dispatcher[T]{make: func() router[T] { return &chosen[T]{core: make1()} }}
	if make1 == nil {
		d.make, d.err = nil, &penstock.FieldError{Field: "Choose", Reason: "the function is nil"}
	}
	return d
}

// RoundRobin returns a dispatcher that gives one event to each consumer in turn,
// in the order of their subscription. One that has asked for no more is passed
// over, and holds nobody up.
func RoundRobin[T any]() Dispatcher[T] {
	return Choose(func() Chooser[T] { return &roundRobin[T]{} })
}

type roundRobin[T any] struct{ next int }

func (r *roundRobin[T]) Choose(_ *T, of []Candidate) int {
	for i := range of {
		if k := (r.next + i) % len(of); of[k].Open > 0 {
			r.next = k + 1
			return k
		}
	}
	return -1
}

// ConsistentHash returns a dispatcher that gives all events of a key to one
// consumer, and spreads the keys evenly. When a consumer comes or leaves, only
// the keys that it gets or had go elsewhere; one that comes back under its name
// gets its keys back. An event whose consumer has asked for no more waits, and
// those behind it; [Partition] has a queue for each instead. The events of each
// key stay in order. key reads *v and must not keep it; nil is an error at Start.
//
// Each key goes to the consumer for which the hash of the key and the consumer's
// name is the largest. The cost of an event grows with the number of consumers.
func ConsistentHash[T any](key func(v *T) uint64) Dispatcher[T] {
	d := Choose(func() Chooser[T] { return &rendezvous[T]{key: key, names: map[string]uint64{}} })
	if key == nil {
		d.err = &penstock.FieldError{Field: "ConsistentHash", Reason: "the function is nil"}
	}
	return d
}

// maxNames bounds the hashes that are kept of names of consumers.
const maxNames = 1024

type rendezvous[T any] struct {
	key   func(*T) uint64
	names map[string]uint64
}

func (r *rendezvous[T]) Choose(v *T, of []Candidate) (best int) {
	k, most := r.key(v), uint64(0)
	for i := range of {
		name, ok := r.names[of[i].Consumer]
		if !ok {
			if len(r.names) == maxNames {
				clear(r.names)
			}
			name = penstock.HashKey(of[i].Consumer)
			r.names[of[i].Consumer] = name
		}
		if h := mix(k ^ name); i == 0 || h > most {
			best, most = i, h
		}
	}
	return best
}

// mix spreads every bit of h over all bits: the steps of SplitMix64.
func mix(h uint64) uint64 {
	h += 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// chosen is the router around a Chooser.
//
// Invariants: again is older than the outlet's pieces, in order of emission, and
// empty but for the time after a consumer has left as it was given events; picks
// and fills are empty between two passes.
type chosen[T any] struct {
	core   Chooser[T]
	of     []Candidate
	picks  []int      // the consumer of each event of a pass
	fills  []*slab[T] // what each consumer gets in a pass; nil: nothing
	failed []bool     // its consumer was cancelled this moment
	again  []T        // events of such
	broken bool       // the core has panicked, or chosen what is not there
}

func (r *chosen[T]) admit(_ *outlet[T], e *edge[T]) error {
	if e.where != nil {
		return errNoSelector
	}
	if e.partition != -1 {
		return errNoPartitions
	}
	return nil
}

func (r *chosen[T]) leave(*outlet[T], *edge[T]) {}

func (r *chosen[T]) want(o *outlet[T]) int { return max(0, o.open()-len(r.again)) }

func (r *chosen[T]) flush(o *outlet[T]) (progress bool) {
	for !r.broken {
		n := 0
		switch {
		case len(r.again) > 0:
			vs := r.again
			r.again = nil
			n = r.pass(o, vs)
			r.again = append(r.again, vs[n:]...)
		case o.n > 0:
			p := &o.pieces[0]
			n = r.pass(o, p.slab.buf[p.from:p.to])
			if p.from += n; p.from == p.to {
				p.slab.dirty = o.clears // nobody else clears it
				o.release(p.slab)
				o.shift()
			}
		}
		if n == 0 {
			break
		}
		progress = true
	}
	return progress
}

// pass gives events of vs, from the front, to the consumers chosen for them, and
// returns how many. Those whose consumer is gone go to again.
func (r *chosen[T]) pass(o *outlet[T], vs []T) (n int) {
	r.of = r.of[:0]
	demand := false
	for _, e := range o.edges {
		open := e.open()
		demand = demand || open > 0
		r.of = append(r.of, Candidate{e.sub.Consumer(), open})
	}
	if !demand {
		return 0
	}
	r.fills = append(r.fills[:0], make([]*slab[T], len(r.of))...)
	r.picks = r.picks[:0]
	r.broken = true // unless choose returns
	o.guard(func() { r.broken = !r.choose(o, vs) })
	r.failed = append(r.failed[:0], make([]bool, len(r.of))...)
	sent, gone := 0, false
	for i, s := range r.fills {
		if s == nil {
			continue
		}
		if k := len(s.buf); o.publish(o.edges[i], packet[T]{slab: s, to: k, whole: true}) {
			sent += k // a consumer may have forwarded the slab by now
		} else {
			gone, r.failed[i] = true, true
			s.dirty = o.clears
			o.release(s)
		}
		r.fills[i] = nil
	}
	if gone {
		for i, k := range r.picks {
			if r.failed[k] {
				r.again = append(r.again, vs[i])
			}
		}
	}
	add(&o.stats.sent, sent)
	add(&o.stats.waiting, -sent)
	return len(r.picks)
}

// choose asks the core for events of vs until it has none for one. It reports
// false when the core has chosen what is not there.
func (r *chosen[T]) choose(o *outlet[T], vs []T) (ok bool) {
	left := 0
	for i := range r.of {
		left = min(left, len(vs)) + min(r.of[i].Open, len(vs))
	}
	for i := range vs {
		if left == 0 {
			return true
		}
		k := r.core.Choose(&vs[i], r.of)
		if k < -1 || k >= len(r.of) {
			o.fail(fmt.Errorf("stage %q: %w: consumer %d of %d was chosen", o.name, penstock.ErrInvalid, k, len(r.of)))
			return false
		}
		if k == -1 || r.of[k].Open == 0 {
			return true
		}
		r.of[k].Open--
		left--
		s := r.fills[k]
		if s == nil {
			s = o.take()
			s.refs = 1
			r.fills[k] = s
		}
		s.buf = append(s.buf, vs[i])
		r.picks = append(r.picks, k)
	}
	return true
}

func (r *chosen[T]) held() int             { return len(r.again) }
func (r *chosen[T]) stuck(*outlet[T]) bool { return r.broken }
func (r *chosen[T]) unsent() []T           { return slices.Clone(r.again) }
func (r *chosen[T]) letGo()                { r.again, r.fills = nil, nil }
