package stage

import "slices"

// Priority has the consumer take from this producer before those of its
// subscriptions with a lower n, whenever there is something to take: one chunk,
// and then it looks again. Among equals it takes in turn. Without it n is 0. A
// producer that always has something so keeps those below it waiting for good.
func Priority(n int) SubOption { return func(s *subscription) { s.rank = n } }

// MergePreferred is [Merge] where each producer has priority over those behind it
// in from, see [Priority].
func MergePreferred[T any](g *Graph, name string, from ...Outleter[T]) *Gate[T, T] {
	to := Pass[T](name)
	for k, f := range from {
		Connect(g, f, to, CancelMode(Transient), Priority(-k))
	}
	return to
}

// place adds a subscription behind those of its priority.
func (i *inlet[T]) place(e *edge[T]) {
	at := len(i.edges)
	for at > 0 && i.edges[at-1].sub.rank < e.sub.rank {
		at--
	}
	i.edges = slices.Insert(i.edges, at, e)
	i.ranked = i.edges[0].sub.rank != i.edges[len(i.edges)-1].sub.rank
}

// turnRanked is turn with priorities: it calls process for one chunk of the first
// edge that has one. That edge then goes behind its equals, so that each of them
// has its turn whatever those of other priorities do in between.
func (i *inlet[T]) turnRanked(ready func() bool, process func(at int, e *edge[T], p *packet[T])) (progress bool) {
	edges := i.edges
	for from, to := 0, 0; from < len(edges); from = to {
		for to < len(edges) && edges[to].sub.rank == edges[from].sub.rank {
			to++
		}
		for at := from; at < to; at++ {
			e := edges[at]
			if e.done {
				continue
			}
			if i.phase != running || i.paused != 0 || ready != nil && !ready() {
				return progress
			}
			p, over := e.next()
			switch {
			case p != nil:
				process(at, e, p)
				copy(edges[at:to], edges[at+1:to])
				edges[to-1] = e
				return true
			case over:
				i.takeEnd(e)
				progress = true
			}
		}
	}
	return progress
}
