package stage

// executors makes the executors of the graph and wires every edge to the
// doorbells of its two sides.
//
// A helper joins the executor of one neighbour: of the stage after it, or else
// of the stage before it, in each case only over an edge that is the only one
// of its producer and that has neither a demand of its own nor Async. After it
// is preferred, because a source's callback may block for long, and events that
// wait in a helper then would wait with it.
//
// No two stages that are not helpers ever share an executor: a helper links at
// most two executors, itself and one neighbour's, so a group is a tree of links
// with at most one stage that made none, and only helpers make links.
func (g *Graph) executors() []*executor {
	joined := map[*base]*base{} // the neighbour whose executor a helper shares
	if g.fuse {
		for _, n := range g.nodes {
			if b := n.common(); b.helper {
				if to := g.neighbour(b, joined); to != nil {
					joined[b] = to
				}
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
		l.wire(l.from.bell.Load(), l.to.bell.Load())
	}
	return all
}

func rootOf(b *base, joined map[*base]*base) *base {
	for joined[b] != nil {
		b = joined[b]
	}
	return b
}

// neighbour returns the stage whose executor the helper b may share.
func (g *Graph) neighbour(b *base, joined map[*base]*base) *base {
	for _, l := range g.links {
		if l.from == b && g.fusible(l) && rootOf(l.to, joined) != b {
			return l.to
		}
	}
	for _, l := range g.links {
		if l.to == b && g.fusible(l) && rootOf(l.from, joined) != b {
			return l.from
		}
	}
	return nil
}

func (g *Graph) fusible(l *link) bool {
	if l.sub.demand || l.sub.async {
		return false
	}
	for _, other := range g.links {
		if other != l && other.from == l.from {
			return false
		}
	}
	return true
}

// flowOrder returns the stages so that producers come before their consumers.
// The graph has no cycle.
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
			if l.to == b {
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
