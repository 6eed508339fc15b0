package stream

import (
	"context"
	"runtime/debug"

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
	// it returns, its payload must not be changed. An error, or a panic,
	// counts in QueueStats.FilterErrors; what becomes of the event is
	// Config.FilterErrors.
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

// sieve is what a filter says to containers.
type sieve struct {
	passed   []Container
	filtered int // events passed over
	errors   int
	err      error // the last one
}

// sieveOf asks the filter about each event until one of its container passes.
// It is a pure function, but for the filter.
func sieveOf(f Filter, p FilterPolicy, data string, cs []Container) (s sieve) {
	var e penstock.Envelope
	for i := range cs {
		c := &cs[i]
		_, pass := c.End() // every subscription hears of the end
		for j := 0; j < c.Events.Len() && !pass; j++ {
			e = c.Events.At(j)
			ok, err := askFilter(f, c.Stream, &e, data)
			if err != nil {
				s.errors++
				s.err = err
				ok = p == DeliverUnfiltered
			}
			pass = ok
		}
		if pass {
			s.passed = append(s.passed, *c)
		} else {
			s.filtered += c.Events.Len()
		}
	}
	return s
}

func askFilter(f Filter, s penstock.StreamID, e *penstock.Envelope, data string) (pass bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &penstock.PanicError{Where: "filter", Value: v, Stack: debug.Stack()}
		}
	}()
	return f.ShouldDeliver(s, e, data)
}

// sift runs the filter over what a delivery has read, on a worker, because it
// is user code.
func (r *run) sift(d *delivery) {
	rec, cs := d.sub.rec, d.rest
	s := sieve{passed: cs, errors: 1}
	r.spawn("filter", func(context.Context) error {
		s = sieveOf(r.filter, r.filterErrors, rec.Filter, cs)
		return nil
	}, func(err error) {
		if err == nil {
			err = s.err
		} else if r.filterErrors == DropUnfiltered { // it has ended its goroutine
			s = sieve{filtered: events(cs), errors: 1}
		}
		if s.errors > 0 {
			r.log.Warn("filter failed", r.about(d.sub, "events", s.errors, "err", err)...)
		}
		r.stats.FilterErrors += uint64(s.errors)
		if !d.current() { // it is sifted again if it is owed
			r.endStale(d)
			return
		}
		r.stats.Filtered += uint64(s.filtered)
		d.rest, d.sifted = s.passed, true
		if len(s.passed) == 0 {
			d.rest = nil
		}
		r.nextGroup(d)
	})
}

func events(cs []Container) (n int) {
	for i := range cs {
		n += cs[i].Events.Len()
	}
	return n
}
