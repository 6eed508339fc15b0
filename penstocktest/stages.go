package penstocktest

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock/stage"
)

// Stages runs f twice, each time in a testing/synctest bubble of its own and
// with a graph of its own: once with helpers fused into the stage after them,
// and once without ([stage.Fuse]). f builds the graph and starts it with
// [Start], or runs it to its end. In the bubble time passes only while
// everything is parked, so "nothing more comes" is an exact statement, and an
// hour costs nothing; a goroutine that outlives f fails the test. opts are
// options of the graph.
func Stages(t *testing.T, f func(t *testing.T, g *stage.Graph), opts ...stage.GraphOption) {
	t.Helper()
	for _, c := range []struct {
		name string
		fuse bool
	}{{"fused", true}, {"unfused", false}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := stage.NewGraph(append([]stage.GraphOption{stage.Fuse(c.fuse)}, opts...)...)
				f(t, g)
			})
		})
	}
}

// Start starts g, waits until nothing moves any more, and has g aborted and
// waited for at the end of the test or bubble. It must be called in a
// testing/synctest bubble, for example by [Stages].
func Start(t testing.TB, g *stage.Graph) {
	t.Helper()
	if err := g.Start(t.Context()); err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() {
		g.Abort(nil)
		_ = g.Wait() // what the test did not expect, its own checks have seen
	})
	synctest.Wait()
}

// CheckCounts fails the test unless the counters of g add up: what a source or a
// gate emitted was dispatched, had no partition, is buffered or was discarded, and what was sent
// was processed, is on its way, or is counted as undelivered. No event has
// vanished. The graph has ended, or nothing moves in it.
func CheckCounts(t testing.TB, g *stage.Graph) {
	t.Helper()
	if err := addUp(g.Stats(), g.Status().Edges); err != nil {
		t.Error(err)
	}
}

func addUp(stages []stage.Stats, edges []stage.EdgeStatus) (err error) {
	var sent, taken int64
	for _, s := range stages {
		if s.Kind != stage.KindSink && s.Emitted+s.Pushed != s.Dispatched+s.FilteredOut+s.Buffered+s.Discarded {
			err = errors.Join(err, fmt.Errorf("stage %q: %d emitted and %d pushed, but %d dispatched, %d filtered out, %d buffered and %d discarded",
				s.Name, s.Emitted, s.Pushed, s.Dispatched, s.FilteredOut, s.Buffered, s.Discarded))
		}
		sent += s.Sent
		taken += s.In + s.Undelivered
	}
	for _, e := range edges {
		taken += e.Sent - e.Processed
	}
	if sent != taken {
		err = errors.Join(err, fmt.Errorf("%d events were sent, and %d were processed, are on their way or are counted as undelivered", sent, taken))
	}
	return err
}
