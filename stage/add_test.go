package stage

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
)

// A graph whose last sink has ended takes no stage any more, though some have not
// ended yet: the new one used to keep it alive for ever, with a context that had
// ended.
func TestStageAddedAfterTheLastSinkIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		release := make(chan struct{})
		busy := Pull("busy", func(context.Context, int, *Output[int]) error {
			<-release
			return nil
		})
		Connect(g, FromSlice("slice", ints(0, 3)), NewSink("last", func(context.Context, []int) error { return Done }))
		Connect(g, busy, Pass[int]("gate"))
		start(t, g)
		synctest.Wait()
		if err := g.Add(Discard[int]()); !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("Add: %v", err)
		}
		close(release)
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		checkConservation(t, g)
	})
}

// A stage that an Init adds would be started without its own Init, and without a
// check.
func TestStageAddedByAnInitIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		late := Discard[int](Init(func(context.Context) error {
			t.Error("its Init has run")
			return nil
		}))
		var added error
		Connect(g, FromSlice("slice", ints(0, 3)), Discard[int](Init(func(context.Context) error {
			added = g.Add(late)
			return nil
		})))
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if !errors.Is(added, penstock.ErrInvalid) {
			t.Errorf("Add: %v", added)
		}
		equal(t, "stages", len(g.Stats()), 2)
	})
}
