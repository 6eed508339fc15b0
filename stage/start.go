package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// prepare does what may keep the graph from being started. The lock is not held
// while Inits run.
func (g *Graph) prepare(ctx context.Context) error {
	if g.done == nil {
		return &penstock.FieldError{Field: "Graph", Reason: "was not made by NewGraph"}
	}
	if err := g.check(g.resolve()); err != nil {
		return err
	}
	if err := g.initAll(ctx); err != nil {
		return err
	}
	return g.admitAll()
}

// resolve connects what was declared by names, in the order of Connect, and
// returns what has no owner yet.
func (g *Graph) resolve() (missing []error) {
	if len(g.pending) == 0 {
		return nil
	}
	var left []late
	for _, l := range g.pending {
		if err := l.connect(); err != nil {
			missing = append(missing, err)
			left = append(left, l)
		}
	}
	g.pending = left
	slices.SortStableFunc(g.links, func(a, b *Subscription) int { return a.seq - b.seq })
	return missing
}

// admitAll gives every declared subscription to its producer, before the first
// ask: so no event goes out before all are there (ST-39).
func (g *Graph) admitAll() error {
	var errs []error
	for _, l := range g.links {
		if err := l.admit(); err != nil {
			errs = append(errs, l.where(err))
		}
	}
	g.refused = append(g.refused, errs...) // a graph is not started after that
	return errors.Join(errs...)
}

// A late subscription was declared by a name that had no owner yet.
type late struct {
	sub     *Subscription
	connect func() error // refuses it for want of an owner, or lists it
}

// lives returns the lives that a Start begins, or ends. The graph's lock is held.
func (g *Graph) lives() (all []*atomic.Pointer[life]) {
	for _, n := range g.nodes {
		all = append(all, &n.common().life)
	}
	for _, l := range g.links {
		all = append(all, &l.life)
	}
	for _, l := range g.pending {
		all = append(all, &l.sub.life)
	}
	return all
}

// revive begins the lives anew that a Start before has ended.
func (g *Graph) revive() {
	if g.unstarted == nil {
		return
	}
	g.unstarted = nil
	for _, l := range g.lives() {
		if l.Load().isOver() {
			l.Store(newLife())
		}
	}
}

// failStart ends all lives with the error of a Start.
func (g *Graph) failStart(err error) {
	g.unstarted = err
	for _, l := range g.lives() {
		l.Load().end(err)
	}
}

// runs returns why nobody can wait for the graph, if it does not run.
func (g *Graph) runs() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch err := (&penstock.FieldError{Field: "Graph", Reason: "was not started"}); {
	case g.started:
		return nil
	case g.unstarted != nil:
		return fmt.Errorf("%w: %w", err, g.unstarted)
	default:
		return err
	}
}
