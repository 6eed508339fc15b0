package stage

import "testing"

// A consumer that lives as long as one of its producers does ends with the last
// that is no feedback, although the circle still stands.
func TestCircleEndsWithItsLastProducerFromOutside(t *testing.T) {
	for _, mode := range []Mode{Permanent, Transient, Temporary} {
		bothWays(t, func(t *testing.T, g *Graph) {
			gate := Pass[int]("gate").Broadcast()
			sink, got := collector[int]("sink")
			Connect(g, finite("source", 10, false), gate, CancelMode(mode))
			Feedback(g, gate.Out().Where(func(v int) bool { return v < 0 }), gate, 5, KeepLast, CancelMode(mode))
			Connect(g, gate, sink)
			must(t, g.Run(t.Context()))
			equal(t, "events", len(flat(got())), 10)
			conserved(t, g)
		})
	}
}
