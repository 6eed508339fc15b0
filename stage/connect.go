package stage

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock"
)

// Connect declares that the consumer to subscribes to the producer from. It
// must come before the graph starts, and panics afterwards. What is wrong with
// a subscription (its demand, a pair that is connected already, a gate
// connected to itself) is reported by [Graph.Start], before any event moves.
//
// A producer with several consumers gives each event to one of them: to the
// one with the greatest open demand, and of equals to the one that was
// connected first. A consumer with several producers takes from each in turn.
func Connect[T any](g *Graph, from Outleter[T], to Inleter[T], opts ...SubOption) {
	o, i := from.Out().o, to.In().i
	if o == nil || i == nil {
		panic("stage: Connect: a zero Outlet or Inlet")
	}
	sub := newSubscription(opts)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.started {
		panic("stage: Connect after the graph was started")
	}
	if err := g.admit(o.base, i.base, sub); err != nil {
		g.refuse(err)
		return
	}
	o.poison = g.poison
	e := newEdge[T](sub, o.clears)
	o.edges = append(o.edges, e)
	i.edges = append(i.edges, e)
	g.links = append(g.links, &link{
		from: o.base, to: i.base, sub: sub,
		wire: func(producer, consumer *doorbell) { e.producer, e.consumer = producer, consumer },
		lost: func() int {
			n := e.undelivered()
			if !e.abandoned {
				add(&o.stats.undelivered, n)
			}
			return n
		},
	})
}

// admit checks one subscription and registers both stages.
func (g *Graph) admit(from, to *base, sub subscription) error {
	where := fmt.Sprintf("connect %q to %q", from.name, to.name)
	if from == to {
		return fmt.Errorf("%s: %w", where, ErrSelfSubscription)
	}
	if sub.err != nil {
		return fmt.Errorf("%s: %w", where, sub.err)
	}
	for _, b := range []*base{from, to} { // before either is taken in
		if owner := b.graph(); owner != nil && owner != g {
			return fmt.Errorf("%s: %w", where, errForeign(b))
		}
	}
	for _, b := range []*base{from, to} {
		if b.owner.CompareAndSwap(nil, g) {
			g.name(b)
			g.nodes = append(g.nodes, b.self)
		} else if b.graph() != g {
			return fmt.Errorf("%s: %w", where, errForeign(b))
		}
	}
	if slices.ContainsFunc(g.links, func(l *link) bool { return l.from == from && l.to == to }) {
		return fmt.Errorf("%s: %w", where, ErrAlreadySubscribed)
	}
	return nil
}

func errForeign(b *base) error {
	return &penstock.FieldError{Field: "stage", Reason: fmt.Sprintf("%q belongs to another graph", b.name)}
}

// check returns everything that is wrong with the graph.
func (g *Graph) check() error {
	if g.done == nil {
		return &penstock.FieldError{Field: "Graph", Reason: "was not made by NewGraph"}
	}
	errs := slices.Clone(g.refused)
	if len(g.nodes) == 0 && len(errs) == 0 {
		errs = append(errs, &penstock.FieldError{Field: "Graph", Reason: "has no stages"})
	}
	seen := map[string]bool{}
	for _, n := range g.nodes {
		b := n.common()
		switch {
		case b.name == "":
			errs = append(errs, &penstock.FieldError{Field: "name", Reason: fmt.Sprintf("a %s has none", b.kind)})
		case seen[b.name]:
			errs = append(errs, &penstock.FieldError{Field: "name", Reason: fmt.Sprintf("two stages are called %q", b.name)})
		}
		seen[b.name] = true
		if b.kind != KindSource && !slices.ContainsFunc(g.links, func(l *link) bool { return l.to == b }) && len(g.refused) == 0 {
			errs = append(errs, fmt.Errorf("stage %q: %w", b.name, &penstock.FieldError{Field: "In", Reason: "has no producer"}))
		}
		if b.err != nil {
			errs = append(errs, fmt.Errorf("stage %q: %w", b.name, b.err))
		}
	}
	if name, found := g.cycle(); found {
		errs = append(errs, fmt.Errorf("%w through stage %q", ErrCycle, name))
	}
	return errors.Join(errs...)
}

// cycle looks for a stage that can reach itself.
func (g *Graph) cycle() (name string, found bool) {
	const open, closed = 1, 2
	state := map[*base]int{}
	var visit func(b *base) bool
	visit = func(b *base) bool {
		state[b] = open
		for _, l := range g.links {
			if l.from != b || state[l.to] == closed {
				continue
			}
			if state[l.to] == open || visit(l.to) {
				return true
			}
		}
		state[b] = closed
		return false
	}
	for _, n := range g.nodes {
		if b := n.common(); state[b] == 0 && visit(b) {
			return b.name, true
		}
	}
	return "", false
}
