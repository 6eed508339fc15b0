package stage

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

var errEnding = errors.New("ended by the test")

// TestRandomEndingsCountEverything ends random graphs at a random event, from
// inside a callback and from outside, in every way there is, while others push
// and look: Run returns, and every event is accounted for.
func TestRandomEndingsCountEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSketch(t)
		b := s.build(t)
		how := rapid.SampledFrom([]string{"abort", "cancel", "stop", "stop at once", "fail", "goexit"}).Draw(t, "how")
		outside := rapid.Bool().Draw(t, "outside")
		goesOn := rapid.Bool().Draw(t, "goes on") // the sink that has ended the graph
		at := int64(rapid.IntRange(0, 150).Draw(t, "at"))
		pushes := rapid.IntRange(0, 3).Draw(t, "pushers")

		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		var callers sync.WaitGroup // of the graph's methods
		act := map[string]func(){
			"abort":        func() { b.Abort(errEnding) },
			"cancel":       func() { cancel(errEnding) },
			"stop":         func() { b.Stop(context.Background()) },
			"stop at once": func() { c, end := context.WithCancelCause(context.Background()); end(errEnding); b.Stop(c) },
		}[how]
		src, emit := Push[ev]("pushed", Buffer(20, KeepLast), OnDiscard(func(int) {}))
		seen, acted := int64(0), false
		last := NewSink("last", func(_ context.Context, in []ev) error {
			if seen += int64(len(in)); seen < at || acted {
				return nil
			}
			acted = true
			switch {
			case how == "fail":
				return errEnding
			case how == "goexit":
				runtime.Goexit()
			case outside || how == "stop" || how == "stop at once":
				callers.Go(act)
			default:
				act()
			}
			if goesOn {
				return nil
			}
			return Done
		})
		Connect(b.Graph, src, Filter(func(*ev) bool { return true }), Demand(5, 1))
		filter := b.links[len(b.links)-1].to.self.(*Gate[ev, ev])
		Connect(b.Graph, filter, last, CancelMode(Transient))
		for i := range pushes {
			callers.Go(func() { push(b, emit, i) })
		}
		if err := b.Start(ctx); err != nil {
			t.Fatal(err)
		}
		callers.Go(func() { // keeps the ending coming where nobody pushes
			for emit.PushWait(ctx, ev{pad: padding}) == nil {
				b.Stats()
			}
		})
		err := b.Wait()
		callers.Wait()
		if bad := b.bad.Load(); bad != nil {
			t.Fatal(*bad)
		}
		checkConservation(t, b.Graph)
		checkLeft(t, b.Graph, src, err)
		if err == nil && goesOn && (how == "stop" || how == "cancel") {
			checkDrained(t, b.Graph, src)
		}
	})
}

// push feeds the source until it is closed.
func push(b *built, emit *Emitter[ev], kind int) {
	for n := range 1000 {
		var err error
		switch kind {
		case 0:
			err = emit.Push(ev{pad: padding}, ev{n: n, pad: padding})
		case 1:
			_, err = emit.TryPush(ev{pad: padding}, ev{n: n, pad: padding})
		case 2:
			err = emit.PushWait(context.Background(), ev{pad: padding}, ev{n: n, pad: padding})
		}
		if errors.Is(err, penstock.ErrClosed) {
			return
		}
		if err != nil {
			b.fault("push: %v", err)
		}
		runtime.Gosched()
	}
}

// checkLeft compares what a DrainError says with the counters.
func checkLeft(t *rapid.T, g *Graph, drops *Source[ev], err error) {
	var d *penstock.DrainError
	if !errors.As(err, &d) {
		return
	}
	left := int64(drops.out.left)
	for _, s := range g.Stats() {
		if s.Name != drops.out.name { // its discarded events are dropped ones too
			left += s.Undelivered + s.Discarded
		}
	}
	if int64(d.Left) != left {
		t.Fatalf("%v, but %d are counted", err, left)
	}
}

// checkDrained checks that a full drain has lost nothing.
func checkDrained(t *rapid.T, g *Graph, drops *Source[ev]) {
	for _, s := range g.Stats() {
		if s.Undelivered > 0 || s.Discarded > 0 && s.Name != drops.out.name {
			t.Fatalf("after a full drain: %+v", s)
		}
	}
	if drops.out.left > 0 {
		t.Fatalf("after a full drain: %d events of the pushed ones were left", drops.out.left)
	}
}
