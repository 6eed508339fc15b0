package stage

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func TestInitsRunInTheOrderOfTheFlowBeforeTheStart(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		type key struct{}
		var d diary
		init := func(name string) Option {
			return Init(func(ctx context.Context) error {
				d.add("%s %v", name, ctx.Value(key{}))
				g.Status() // no lock is held
				return nil
			})
		}
		sink := NewSink("sink", func(_ context.Context, in []int) error { d.add("%v", in); return nil }, init("sink"))
		double := Map(func(v int) int { return 2 * v }, init("double"))
		src := FromSlice("source", []int{1, 2}, init("source"))
		Connect(g, double, sink)
		Connect(g, src, double)
		if err := g.Run(context.WithValue(t.Context(), key{}, 7)); err != nil {
			t.Error(err)
		}
		equal(t, "order", d.all(), []string{"source 7", "double 7", "sink 7", "[2 4]"})
	})
}

func TestInitThatFailsFailsTheStart(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		init func(ctx context.Context) error
		want func(error) bool
	}{
		"by an error": {func(context.Context) error { return boom }, func(err error) bool { return errors.Is(err, boom) }},
		"by a panic": {func(context.Context) error { panic("boom") }, func(err error) bool {
			var p *penstock.PanicError
			return errors.As(err, &p) && p.Value == "boom"
		}},
		"in time": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, func(err error) bool {
			return errors.Is(err, ErrStartTimeout) && errors.Is(err, context.DeadlineExceeded)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				var d diary
				sink := NewSink("sink", func(context.Context, []int) error { return nil }, Init(c.init))
				src := Pull("source", func(_ context.Context, _ int, _ *Output[int]) error { d.add("called"); return Done },
					Init(func(context.Context) error { d.add("init"); return nil }))
				Connect(g, src, sink)
				began := time.Now()
				err := g.Start(t.Context())
				if !c.want(err) {
					t.Errorf("Start: %v", err)
				}
				if name == "in time" {
					equal(t, "waited", time.Since(began), DefaultStart)
				}
				synctest.Wait()
				equal(t, "what ran", d.all(), []string{"init"})
				if err := g.Start(t.Context()); err == nil {
					t.Error("a second Start went well")
				}
				equal(t, "what ran then", d.all(), []string(nil))
			})
		})
	}
}

func TestStartDoesNotWaitForAnInitThatIgnoresItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		release := make(chan struct{})
		sink := NewSink("deaf", func(context.Context, []int) error { return nil }, Init(func(context.Context) error { <-release; return nil }))
		Connect(g, Never[int]("source"), sink)
		err := g.Start(t.Context())
		if !errors.Is(err, ErrStartTimeout) {
			t.Errorf("Start: %v", err)
		}
		equal(t, "error", err.Error(), `stage "deaf": init: start: context deadline exceeded`)
		close(release)
	}, StartWithin(time.Second))
}

func TestAddedStageIsInitialised(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		must(t, g.Add(Discard[int]()))
		start(t, g)
		boom := errors.New("boom")
		n := 0
		fails := NewSink("one", func(context.Context, []int) error { return nil }, Init(func(context.Context) error { n++; return boom }))
		if err := g.Add(fails); !errors.Is(err, boom) {
			t.Errorf("Add: %v", err)
		}
		equal(t, "stages", len(g.Stats()), 1)
		sink := NewSink("one", func(context.Context, []int) error { return nil }, Init(func(context.Context) error { n++; return nil }))
		must(t, g.Add(sink))
		twin := NewSink("one", func(context.Context, []int) error { return nil }, Init(func(context.Context) error { n++; return nil }))
		if err := g.Add(twin); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("Add of a second one: %v", err)
		}
		equal(t, "calls", n, 2)
	})
}

func TestAbortOnCancelDoesNotDrain(t *testing.T) {
	for _, abort := range []bool{false, true} {
		t.Run(fmt.Sprint(abort), func(t *testing.T) {
			var opts []GraphOption
			if abort {
				opts = append(opts, AbortOnCancel())
			}
			bubble(t, func(t *testing.T, g *Graph) {
				ctx, cancel := context.WithCancelCause(t.Context())
				sink := newLockstep[int]("sink")
				Connect(g, FromSlice("source", ints(0, 10)), sink, Demand(4, 2))
				must(t, g.Start(ctx))
				synctest.Wait()
				why := errors.New("why")
				cancel(why)
				synctest.Wait()
				if !abort {
					for range 2 { // what was sent is processed
						sink.step()
					}
				}
				err := g.Wait()
				if abort != errors.Is(err, why) || abort != errors.Is(err, context.Canceled) {
					t.Errorf("Wait: %v", err)
				}
			}, opts...)
		})
	}
}

// Also while it drains because a stage was given up.
func TestAbortOnCancelAbortsAGivenUpGraph(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		bad, emit := Push[int]("bad")
		slow := newLockstep[int]("slow")
		gate := NewGate("gate", func(context.Context, []int, *Output[int]) error { return errBoom }, RestartBy(Restarts{}.AtMost(-1, 0)))
		Connect(g, bad, gate)
		Connect(g, gate, Discard[int]())
		Connect(g, FromSlice("slice", ints(0, 3)), slow)
		must(t, g.Start(ctx))
		synctest.Wait() // slow has a batch
		must(t, emit.Push(1))
		synctest.Wait()
		equal(t, "state", g.Status().State, Draining)
		began := time.Now()
		cancel()
		if err := g.Wait(); !errors.Is(err, errBoom) || !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		equal(t, "waited", time.Since(began), time.Duration(0))
	}, AbortOnCancel())
}
