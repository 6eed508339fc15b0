package stage

import (
	"fmt"

	"github.com/penstock/penstock"
)

// Add makes stages a part of the graph that wait for a [Subscribe]: they need no
// [Connect], and go on when they have lost their last producer, unless the mode
// of its subscription ends them. Before the start it returns an error that
// [Graph.Start] returns too. While the graph runs it starts them at once; while
// Start runs Inits, as one of them may try, it adds nothing.
//
// The error matches [penstock.ErrInvalid] when a stage is misbuilt, has a name
// that is taken, or belongs to another graph, and when the graph is being started;
// it is that of the stage's [Init] when that fails, and matches
// [penstock.ErrClosed] when the graph drains, is ending since its last sink has
// ended, or has ended. Stages before the one it is about have been added.
func (g *Graph) Add(stages ...Stage) error {
	started, err := g.add(stages)
	for _, b := range started {
		for _, connect := range b.claims {
			connect()
		}
	}
	return err
}

// add returns the stages that it has started.
func (g *Graph) add(stages []Stage) (started []*base, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.starting {
		return nil, &penstock.FieldError{Field: "Graph", Reason: "is being started"}
	}
	for _, s := range stages {
		b := s.common()
		b.added.Store(true)
		if g.started {
			err := g.initAdded(b)
			if err == nil {
				err = g.addRunning(b, false)
			}
			if err != nil {
				return started, fmt.Errorf("add %q: %w", b.name, err)
			}
			started = append(started, b)
		} else if err := g.enlist(b); err != nil {
			err = fmt.Errorf("add %q: %w", b.name, err)
			g.refuse(err)
			return nil, err
		}
	}
	return started, nil
}

// initAdded runs the Init of a stage that is going to be started, if nothing else
// is wrong with it. The lock is not held while it runs.
func (g *Graph) initAdded(b *base) error {
	if b.init == nil || b.graph() == g {
		return nil
	}
	if err := g.addRunning(b, true); err != nil {
		return err
	}
	ctx := g.callbacks
	b.owner.Store(g) // so that nobody else adds it meanwhile
	g.mu.Unlock()
	err := g.runInits(ctx, []*base{b})
	g.mu.Lock()
	b.owner.Store(nil)
	return err
}

// addRunning starts a stage, or only checks whether it could.
func (g *Graph) addRunning(b *base, only bool) error {
	if g.draining.Load() || g.quitting || g.live == 0 {
		return penstock.ErrClosed
	}
	if b.graph() == g {
		return nil
	}
	before, name := len(g.nodes), b.name
	if err := g.enlist(b); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, n := range g.nodes[:before] {
		seen[n.common().name] = true
	}
	if err := g.checkStage(b, seen); err != nil || only {
		g.nodes = g.nodes[:before:before]
		b.name = name
		b.owner.Store(nil)
		return err
	}
	x := &executor{bell: newDoorbell()}
	x.add(b.self)
	g.countIn(b)
	b.bell.Store(x.bell)
	g.launch(x)
	return nil
}
