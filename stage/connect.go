package stage

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock"
)

// Connect declares that the consumer to subscribes to the producer from. It
// must come before the graph starts, and panics afterwards: see [Subscribe].
// What is wrong with a subscription (its demand, a pair that is connected
// already, a gate connected to itself, a partition that does not exist) is
// reported by [Graph.Start], before any event moves. The subscription returned
// may be cancelled, and asked on when it is [Manual], from then on. A [Name] may
// stand for either side, before a stage has claimed it.
//
// A producer with several consumers gives each event to one of them, unless it
// was given another [Dispatcher]: to the one with the greatest open demand, and
// of equals to the one that was connected first. A consumer with several
// producers takes from each in turn.
func Connect[T any](g *Graph, from Outleter[T], to Inleter[T], opts ...SubOption) *Subscription {
	f, t := from.Out(), to.In()
	o, i := f.resolve("Connect"), t.resolve("Connect")
	s := newSubscription(opts)
	s.graph, s.names = g, [2]string{f.called(o), t.called(i)}
	if f.name != nil {
		f.name.declared(f, t, opts)
	}
	if t.name != nil && t.name != f.name {
		t.name.declared(f, t, opts)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.started || g.starting {
		panic("stage: Connect after the graph was started")
	}
	s.seq = g.declared
	g.declared++
	if o != nil && i != nil {
		return connect(g, s, f, o, i)
	}
	g.pending = append(g.pending, late{s, func() error {
		switch o, i := f.resolve("Connect"), t.resolve("Connect"); {
		case o == nil:
			return s.where(ErrProducerNotAlive)
		case i == nil:
			return s.where(ErrConsumerNotAlive)
		default:
			connect(g, s, f, o, i)
			return nil
		}
	}})
	return s
}

// connect lists a subscription whose two sides are known. The graph's lock is
// held.
func connect[T any](g *Graph, s *Subscription, f Outlet[T], o *outlet[T], i *inlet[T]) *Subscription {
	s.from, s.to = o.base, i.base
	rule := i.rule(&s.subscription)
	e := newEdge(f, o, i, s)
	err := g.admit(s, e.partition)
	if err == nil && rule != nil {
		err = s.where(rule)
	}
	if err != nil {
		g.refuse(err)
		s.life.Load().end(err)
		return s
	}
	o.poison = g.poison
	o.once = g.once
	e.clears = e.clears || g.once
	s.edge = e
	s.admit = func() error { return o.adopt(e) }
	s.adopt = func() { i.adopt(e) }
	s.ready.Store(true)
	g.links = append(g.links, s)
	return s
}

func (s *Subscription) where(err error) error {
	names := s.names
	if s.from != nil && s.to != nil {
		names = [2]string{s.from.name, s.to.name}
	}
	return fmt.Errorf("connect %q to %q: %w", names[0], names[1], err)
}

// admit checks one declared subscription and registers both stages.
func (g *Graph) admit(s *Subscription, part int) error {
	if s.from == s.to {
		return s.where(ErrSelfSubscription)
	}
	if err := s.subscription.err; err != nil {
		return s.where(err)
	}
	for _, b := range []*base{s.from, s.to} { // before either is taken in
		if owner := b.graph(); owner != nil && owner != g {
			return s.where(errForeign(b))
		}
	}
	for _, b := range []*base{s.from, s.to} {
		if err := g.enlist(b); err != nil {
			return s.where(err)
		}
	}
	return g.single(s, part)
}

// enlist makes a stage one of the graph's, if it is not yet.
func (g *Graph) enlist(b *base) error {
	if b.owner.CompareAndSwap(nil, g) {
		g.name(b)
		g.nodes = append(g.nodes, b.self)
	} else if b.graph() != g {
		return errForeign(b)
	}
	return nil
}

// single refuses a second subscription of a pair, or to the same partition
// (ST-7).
func (g *Graph) single(s *Subscription, part int) error {
	if slices.ContainsFunc(g.links, func(l *Subscription) bool {
		return l.from == s.from && l.to == s.to && l.edge.part() == part
	}) {
		return s.where(ErrAlreadySubscribed)
	}
	return nil
}

func (g *Graph) unlist(s *Subscription) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.links, s); i >= 0 {
		g.links = slices.Delete(g.links, i, i+1)
	}
}

func errForeign(b *base) error {
	return &penstock.FieldError{Field: "stage", Reason: fmt.Sprintf("%q belongs to another graph", b.name)}
}

// check returns everything that is wrong with the graph; missing is what could
// not be connected.
func (g *Graph) check(missing []error) error {
	errs := append(slices.Clone(g.refused), missing...)
	sound := len(errs) == 0
	if len(g.nodes) == 0 && len(errs) == 0 {
		errs = append(errs, &penstock.FieldError{Field: "Graph", Reason: "has no stages"})
	}
	seen := map[string]bool{}
	for _, n := range g.nodes {
		b := n.common()
		if err := g.checkStage(b, seen); err != nil {
			errs = append(errs, err)
		}
		if b.kind != KindSource && !b.added.Load() && sound &&
			!slices.ContainsFunc(g.links, func(l *Subscription) bool { return l.to == b }) {
			errs = append(errs, fmt.Errorf("stage %q: %w", b.name, &penstock.FieldError{Field: "In", Reason: "has no producer"}))
		}
	}
	if name, found := cycle(g.links); found {
		errs = append(errs, fmt.Errorf("%w through stage %q", ErrCycle, name))
	}
	return errors.Join(errs...)
}

// checkStage returns what is wrong with one stage; seen are the names before.
func (g *Graph) checkStage(b *base, seen map[string]bool) error {
	var errs []error
	switch {
	case b.name == "":
		errs = append(errs, &penstock.FieldError{Field: "name", Reason: fmt.Sprintf("a %s has none", b.kind)})
	case seen[b.name]:
		errs = append(errs, &penstock.FieldError{Field: "name", Reason: fmt.Sprintf("two stages are called %q", b.name)})
	}
	seen[b.name] = true
	if b.err != nil {
		errs = append(errs, fmt.Errorf("stage %q: %w", b.name, b.err))
	}
	if b.named != nil && b.named != g {
		errs = append(errs, fmt.Errorf("stage %q: %w", b.name, &penstock.FieldError{Field: "As", Reason: "the name belongs to another graph"}))
	}
	if b.mail != nil {
		if err := b.mail.invalid(); err != nil {
			errs = append(errs, fmt.Errorf("stage %q: %w", b.name, err))
		}
		if b.mail.graph() != g {
			errs = append(errs, fmt.Errorf("stage %q: %w", b.name, &penstock.FieldError{Field: "mailbox", Reason: "belongs to another graph"}))
		}
	}
	return errors.Join(errs...)
}

// cycle looks for a stage that can reach itself.
func cycle(links []*Subscription) (name string, found bool) {
	const open, closed = 1, 2
	state := map[*base]int{}
	var visit func(b *base) bool
	visit = func(b *base) bool {
		state[b] = open
		for _, l := range links {
			if l.from != b || l.feedback || state[l.to] == closed {
				continue
			}
			if state[l.to] == open || visit(l.to) {
				return true
			}
		}
		state[b] = closed
		return false
	}
	for _, l := range links {
		if state[l.from] == 0 && visit(l.from) {
			return l.from.name, true
		}
	}
	return "", false
}
