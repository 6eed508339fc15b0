package stage

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
)

// lockLooker is a handler of logs that uses the graph which logs.
type lockLooker struct {
	slog.Handler
	look func()
}

func (l lockLooker) Handle(context.Context, slog.Record) error {
	l.look()
	return nil
}

// The logger may look at the graph that warns of a forgotten Connect.
func TestLoggerMayUseTheGraphThatStarts(t *testing.T) {
	var g *Graph
	var told atomic.Int32
	log := slog.New(lockLooker{slog.NewTextHandler(t.Output(), nil), func() {
		if !g.mu.TryLock() { // else Status would wait for ever
			t.Error("the graph's lock is held")
			return
		}
		g.mu.Unlock()
		told.Add(1)
	}})
	g = NewGraph(Logger(log))
	Connect(g, FromSlice("slice", ints(0, 3)), Pass[int]("gate"))
	must(t, g.Start(t.Context()))
	equal(t, "warnings", told.Load(), int32(1))
	g.Abort(nil)
	_ = g.Wait()
}
