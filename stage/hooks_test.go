package stage

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// crashes are the ways in which user code does not return.
var crashes = map[string]func(){"panic": func() { panic("hook") }, "goexit": runtime.Goexit}

func TestHookThatCrashesAtTheEndIsReportedAndCountsStay(t *testing.T) {
	for name, crash := range crashes {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				src, emit := Push[int]("push")
				src.OnDiscardEvents(func([]int) { crash() })
				Connect(g, src, newLockstep[int]("lockstep"), Demand(2, 0))
				emit.Push(ints(0, 10)...)
				start(t, g)
				synctest.Wait()
				stop := errors.New("stop")
				g.Abort(stop)
				err := g.Wait()
				var p *penstock.PanicError
				var d *penstock.DrainError
				if !errors.Is(err, stop) || !errors.As(err, &p) || !errors.As(err, &d) {
					t.Fatalf("Wait: %v, want the cause, the crash and what was left", err)
				}
				if d.Left != 10 { // 2 in the interrupted callback, 8 in the buffer
					t.Errorf("%d events left, want 10", d.Left)
				}
				checkConservation(t, g)
			})
		})
	}
}

func TestHookThatCrashesAtTheEndIsJoinedBehindTheCause(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		boom := errors.New("boom")
		src, emit := Push[int]("push")
		src.OnDiscardEvents(func([]int) { panic("hook") })
		Connect(g, src, newLockstep[int]("lockstep"), Demand(2, 0))
		emit.Push(ints(0, 10)...)
		emit.Fail(boom)
		start(t, g)
		synctest.Wait()
		g.Abort(nil)
		err := g.Wait()
		var p *penstock.PanicError
		if !errors.Is(err, boom) || !errors.As(err, &p) || !strings.Contains(err.Error(), `stage "push": boom`) {
			t.Errorf("Wait: %v, want the failure with its stage, and the crash", err)
		}
	})
}

// The source's own surplus overflows when its emitter has finished already.
func TestHookThatCrashesAfterFinishFailsTheSource(t *testing.T) {
	for name, crash := range crashes {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				var emit *Emitter[int]
				var src *Source[int]
				src, emit = Hybrid("hybrid", func(_ context.Context, want int, out *Output[int]) error {
					emit.Finish()
					out.EmitAll(ints(0, want+5)...)
					return nil
				}, Buffer(0, KeepLast), OnDiscard(func(int) { crash() }))
				sink, batches := collector[int]("sink")
				Connect(g, src, sink)
				var p *penstock.PanicError
				if err := g.Run(context.Background()); !errors.As(err, &p) {
					t.Errorf("Run: %v, want the crash", err)
				}
				if n := len(flat(batches())); n != 1000 {
					t.Errorf("%d events arrived, want the 1000 that were asked for", n)
				}
				checkConservation(t, g)
			})
		})
	}
}

// A callback may run a graph of its own and return that graph's failure.
func TestReturnedPanicErrorOfAnotherIsAPlainError(t *testing.T) {
	inner := &penstock.PanicError{Where: "elsewhere", Value: "v"}
	bubble(t, func(t *testing.T, g *Graph) {
		gate := NewGate("outer", func(_ context.Context, in []int, out *Output[int]) error {
			out.EmitAll(in...)
			return inner
		})
		sink, batches := collector[int]("sink")
		Connect(g, finite("source", 3, false), gate)
		Connect(g, gate, sink)
		err := g.Run(context.Background())
		if !errors.Is(err, inner) || !strings.Contains(err.Error(), `stage "outer"`) {
			t.Errorf("Run: %v, want the error with the name of the stage", err)
		}
		equal(t, "emitted before the error", flat(batches()), ints(0, 3))
	})
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("pushed")
		emit.Fail(inner)
		sink, _ := collector[int]("sink")
		Connect(g, src, sink)
		if err := g.Run(context.Background()); !errors.Is(err, inner) || !strings.Contains(err.Error(), `stage "pushed"`) {
			t.Errorf("Run: %v, want the error with the name of the stage", err)
		}
	})
}

// A log handler may look at the graph that logs.
func TestDrainDeadlineIsLoggedWithoutALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g *Graph
		seen := 0
		g = NewGraph(Logger(slog.New(handlerFunc(func(r slog.Record) {
			if r.Message == "drain deadline passed" {
				seen = len(g.Stats())
			}
		}))), DrainWithin(time.Second))
		Connect(g, finite("source", 3, false), newLockstep[int]("lockstep"))
		ctx, cancel := context.WithCancel(t.Context())
		if err := g.Start(ctx); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		var d *penstock.DrainError
		if err := g.Wait(); !errors.As(err, &d) || seen != 2 {
			t.Errorf("Wait: %v after the log saw %d stages, want a DrainError and 2", err, seen)
		}
	})
}

type handlerFunc func(slog.Record)

func (f handlerFunc) Enabled(context.Context, slog.Level) bool      { return true }
func (f handlerFunc) Handle(_ context.Context, r slog.Record) error { f(r); return nil }
func (f handlerFunc) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f handlerFunc) WithGroup(string) slog.Handler                 { return f }

func TestBufferBeforeAGateWithoutConsumerDoesNotHoldUpADrain(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("push")
		Connect(g, src, Map(func(v int) int { return v }), Demand(6, 2))
		start(t, g)
		emit.Push(ints(0, 100)...)
		synctest.Wait()
		begin := time.Now()
		if err := g.Stop(t.Context()); err != nil || time.Since(begin) != 0 {
			t.Errorf("Stop: %v after %v, want nil at once", err, time.Since(begin))
		}
		checkConservation(t, g)
	})
}

func TestStageOfAnotherGraphDoesNotTakeItsNeighbourAlong(t *testing.T) {
	sink, _ := collector[int]("sink")
	Connect(NewGraph(), finite("other", 1, false), sink)
	src := finite("source", 1, false)
	wrong := NewGraph()
	Connect(wrong, src, sink)
	var field *penstock.FieldError
	if err := wrong.Start(t.Context()); !errors.As(err, &field) || !strings.Contains(err.Error(), `"sink" belongs to another graph`) {
		t.Errorf("Start: %v", err)
	}
	own, _ := collector[int]("own")
	right := NewGraph()
	Connect(right, src, own)
	if err := right.Run(t.Context()); err != nil {
		t.Errorf("Run of a graph with the other stage: %v", err)
	}
}

// Callbacks and hooks run without a lock: they may use the graph that they are
// part of, but for waiting for it.
func TestCallbacksMayUseTheirOwnGraph(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var emit *Emitter[int]
		var src *Source[int]
		use := func() {
			g.Stats()
			src.Wake()
			src.Buffered()
			if n := g.Stats()[0].Pushed; n < 200 {
				emit.TryPush(int(n))
				emit.Push(int(n), int(n)+1)
			} else {
				emit.Finish()
			}
		}
		src, emit = Hybrid("source", func(context.Context, int, *Output[int]) error { use(); return nil },
			Buffer(3, KeepLast), OnDiscard(func(int) { g.Stats(); src.Wake() }))
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error { use(); out.Forward(in); return nil }).
			OnEnd(func(*Output[int]) error { use(); return nil })
		sink := NewSink("sink", func(context.Context, []int) error { use(); return nil })
		Connect(g, src, gate, Demand(2, 0))
		Connect(g, gate, sink, Demand(2, 0))
		if err := g.Run(t.Context()); err != nil {
			t.Errorf("Run: %v", err)
		}
		checkConservation(t, g)
	})
	for name, connect := range map[string]func(g *Graph){
		"hook": func(g *Graph) {
			src, emit := Push[int]("source", Buffer(0, KeepLast), OnDiscard(func(int) { g.Abort(io.EOF) }))
			Connect(g, src, NewSink("sink", func(context.Context, []int) error { emit.Push(1, 2, 3); return nil }), Demand(1, 0))
			emit.Push(1)
			src.in.open = 1 // as if the graph had asked: the event starts it all
			emit.Push(1)
		},
		"sink": func(g *Graph) {
			Connect(g, finite("source", 5, false), NewSink("sink", func(context.Context, []int) error { g.Abort(io.EOF); return nil }))
		},
		"end": func(g *Graph) {
			gate := Filter(func(*int) bool { return true }).OnEnd(func(*Output[int]) error { g.Abort(io.EOF); return nil })
			Connect(g, finite("source", 5, false), gate)
			sink, _ := collector[int]("sink")
			Connect(g, gate, sink)
		},
	} {
		t.Run("abort in "+name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				connect(g)
				if err := g.Run(t.Context()); !errors.Is(err, io.EOF) {
					t.Errorf("Run: %v, want %v", err, io.EOF)
				}
			})
		})
	}
}
