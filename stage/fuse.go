package stage

// executors makes the executors of the graph and wires every edge to the
// doorbells of its two sides.
//
// A helper joins the executor of the stage after it, if it has one only, over an
// edge that has neither a demand of its own nor Async. It never joins the stage
// before it: while that one's callback blocks, a source's for as long as there
// is nothing, events would wait in the helper for which there is demand. Events
// in a helper can go nowhere but to the stage that it has joined.
//
// No two stages that are not helpers ever share an executor, because only
// helpers join, each one stage.
func (g *Graph) executors() []*executor {
	joined := map[*base]*base{} // the stage whose executor a helper shares
	if g.fuse {
		for _, n := range g.nodes {
			if b := n.common(); b.helper {
				joined[b] = g.host(b)
			}
		}
	}
	of := map[*base]*executor{}
	var all []*executor
	for _, n := range g.flowOrder() {
		b := n.common()
		root := rootOf(b, joined)
		x := of[root]
		if x == nil {
			x = &executor{bell: newDoorbell()}
			of[root] = x
			all = append(all, x)
		}
		x.add(n)
		b.bell.Store(x.bell)
	}
	for _, l := range g.links {
		l.edge.wire(l.from.bell.Load(), l.to.bell.Load())
	}
	return all
}

func rootOf(b *base, joined map[*base]*base) *base {
	for joined[b] != nil {
		b = joined[b]
	}
	return b
}

// host returns the stage whose executor the helper b may share, nil when none.
func (g *Graph) host(b *base) (to *base) {
	for _, l := range g.links {
		if l.from != b {
			continue
		}
		if to != nil || l.demand || l.manual || l.async {
			return nil
		}
		to = l.to
	}
	return to
}

// flowOrder returns the stages so that producers come before their consumers.
// Without its feedback the graph has no cycle.
func (g *Graph) flowOrder() []node {
	var order []node
	seen := map[*base]bool{}
	var visit func(b *base)
	visit = func(b *base) {
		if seen[b] {
			return
		}
		seen[b] = true
		for _, l := range g.links {
			if l.to == b && !l.feedback {
				visit(l.from)
			}
		}
		order = append(order, b.self)
	}
	for _, n := range g.nodes {
		visit(n.common())
	}
	return order
}
