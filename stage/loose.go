package stage

import (
	"fmt"
	"log/slog"
)

// A looseEnd is a stage that was connected on one side only, or a partition of it
// that nobody is subscribed to: its events wait for a consumer, which is what a
// forgotten Connect looks like.
type looseEnd struct {
	*base
	what string
}

// looseEnds returns those of a graph that is about to start. Stages given to Add
// are meant to wait.
func (g *Graph) looseEnds() (all []looseEnd) {
	for _, n := range g.nodes {
		p, ok := n.(interface{ loose() string })
		if b := n.common(); ok && !b.added.Load() {
			if what := p.loose(); what != "" {
				all = append(all, looseEnd{b, what})
			}
		}
	}
	return all
}

func (l looseEnd) warn() {
	l.logger().Warn("events will wait for a consumer", slog.String("stage", l.name), slog.String("reason", l.what))
}

func (s *Source[T]) loose() string     { return s.out.loose() }
func (g *Gate[In, Out]) loose() string { return g.out.loose() }

// loose says who does not get his events, "" when all do.
func (o *outlet[T]) loose() string {
	if len(o.edges) == 0 {
		return "nobody is subscribed to it"
	}
	r, ok := o.router.(*partition[T])
	if !ok {
		return ""
	}
	none := 0
	for i := range r.parts {
		if r.parts[i].e == nil {
			none++
		}
	}
	if none == 0 {
		return ""
	}
	return fmt.Sprintf("nobody is subscribed to %d of its %d partitions", none, len(r.parts))
}
