package stage

import (
	"fmt"
	"log/slog"
)

// warnOfLoose warns of stages that were connected on one side only, and of
// partitions that nobody is subscribed to: their events wait for a consumer,
// which is what a forgotten Connect looks like. Those given to Add are meant to.
func (g *Graph) warnOfLoose() {
	for _, n := range g.nodes {
		p, ok := n.(interface{ loose() string })
		if b := n.common(); ok && !b.added.Load() {
			if what := p.loose(); what != "" {
				b.logger().Warn("events will wait for a consumer", slog.String("stage", b.name), slog.String("reason", what))
			}
		}
	}
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
