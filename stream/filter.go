package stream

import (
	"context"
	"runtime/debug"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// Filter decides which events a subscription gets. A provider has at most one;
// each subscription has data of its own for it (see [WithFilter]), which is
// empty for implicit ones. A container is delivered whole when any of its
// events passes; one that is passed over counts as processed.
// Implementations must be safe for concurrent use and should not block: the
// subscription waits.
type Filter interface {
	// ShouldDeliver reports whether the event passes. The event is valid until
	// it returns, its payload must not be changed. An error, a panic, or the
	// end of its goroutine counts in QueueStats.FilterErrors; what becomes of
	// the event is Config.FilterErrors.
	ShouldDeliver(s penstock.StreamID, e *penstock.Envelope, data string) (bool, error)
}

// FilterFunc is a [Filter] of one function.
type FilterFunc func(s penstock.StreamID, e *penstock.Envelope, data string) (bool, error)

// ShouldDeliver calls f.
func (f FilterFunc) ShouldDeliver(s penstock.StreamID, e *penstock.Envelope, data string) (bool, error) {
	return f(s, e, data)
}

// FilterPolicy says what becomes of an event whose filter fails.
type FilterPolicy uint8

const (
	// DeliverUnfiltered delivers it: nothing is withheld by mistake.
	DeliverUnfiltered FilterPolicy = iota
	// DropUnfiltered passes over it: nothing is shown by mistake.
	DropUnfiltered
)

// filterScan is how many containers are looked at in one go.
const filterScan = 64

// sieve asks a filter about containers, and keeps what it says. It is used by
// one goroutine at a time. A filter that ends its goroutine leaves the sieve at
// the event that it was asked about; see failed.
type sieve struct {
	filter Filter
	policy FilterPolicy
	data   string

	rest     []Container // not decided yet
	event    int         // of the first of them, that is asked about next
	passed   []Container
	filtered int // events passed over
	errors   int
	err      error // the last one
}

// ask asks about each event until one of its container passes. When ctx has
// ended it stops between two events.
func (s *sieve) ask(ctx context.Context) error {
	var e penstock.Envelope
	for len(s.rest) > 0 {
		c := &s.rest[0]
		_, pass := c.End() // every subscription hears of the end
		for s.event < c.Events.Len() && !pass {
			if err := penstock.ContextError(ctx); err != nil {
				return err
			}
			e = c.Events.At(s.event)
			ok, err := askFilter(s.filter, c.Stream, &e, s.data)
			if err != nil {
				ok = s.failed(err)
			} else {
				s.event++
			}
			pass = ok
		}
		s.decide(pass)
	}
	return nil
}

// failed takes a failure at the event that was asked about, and reports whether
// it passes.
func (s *sieve) failed(err error) (pass bool) {
	s.errors++
	s.err = err
	s.event++
	return s.policy == DeliverUnfiltered
}

// left takes the end of the goroutine that asked.
func (s *sieve) left(err error) {
	if s.failed(err) {
		s.decide(true)
	}
}

// decide passes the first container, or passes over it.
func (s *sieve) decide(pass bool) {
	c := s.rest[0]
	s.rest, s.event = s.rest[1:], 0
	if pass {
		s.passed = append(s.passed, c)
	} else {
		s.filtered += c.Events.Len()
	}
}

func askFilter(f Filter, s penstock.StreamID, e *penstock.Envelope, data string) (pass bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &penstock.PanicError{Where: "filter", Value: v, Stack: debug.Stack()}
		}
	}()
	pass, err = f.ShouldDeliver(s, e, data)
	return pass, sound("filter", err)
}

// sift runs the filter over what a delivery has read, on a worker, because it
// is user code.
func (r *run) sift(d *delivery) {
	d.started = time.Now()
	r.siftOn(d, &sieve{filter: r.filter, policy: r.filterErrors, data: d.sub.rec.Filter, rest: d.rest})
}

// siftOn goes on with a sieve.
func (r *run) siftOn(d *delivery, s *sieve) {
	stopped := false
	r.spawn("filter", func(ctx context.Context) error {
		stopped = s.ask(ctx) != nil
		return nil
	}, func(err error) {
		if err != nil {
			s.left(err)
			if d.current() {
				r.siftOn(d, s)
				return
			}
		}
		if s.errors > 0 {
			r.log.Warn("filter failed", r.about(d.sub, "events", s.errors, "err", s.err)...)
		}
		r.stats.FilterErrors += uint64(s.errors)
		switch {
		case !d.current(): // it is sifted again if it is owed
			r.endStale(d)
			return
		case stopped: // by the end of a drain; the next run sifts again
			r.left += events(d.rest)
			r.keep(d)
			return
		case s.data != d.sub.rec.Filter:
			r.sift(d)
			return
		}
		r.stats.Filtered += uint64(s.filtered)
		d.rest, d.sifted, d.filter = s.passed, true, s.data
		r.nextGroup(d)
	})
}

// siftedFor reports whether the filter has been asked, with that data. What it
// has said to other data, from the group on, is taken back.
func (d *delivery) siftedFor(data string) bool {
	if !d.sifted || d.run.filter == nil || d.filter == data {
		return d.sifted
	}
	if len(d.containers) > 0 {
		first := d.containers[0].Token
		d.rest = d.batch[slices.IndexFunc(d.batch, func(c Container) bool { return c.Token == first }):]
	}
	d.containers, d.items, d.whole, d.sifted = nil, d.items[:0], 0, false
	return false
}

// unsift takes back what the filter has said to other data about what was read
// with a group that is over, and behind it.
func (d *delivery) unsift() {
	if n := len(d.containers); n > 0 {
		last := d.containers[n-1].Token
		d.safe, d.hasSafe = last, true
		d.rest = d.batch[slices.IndexFunc(d.batch, func(c Container) bool { return c.Token == last })+1:]
	}
	d.containers, d.items, d.whole, d.sifted = nil, d.items[:0], 0, false
}

func events(cs []Container) (n int) {
	for i := range cs {
		n += cs[i].Events.Len()
	}
	return n
}
