package stage

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// shift is user code that blocks until the test lets it go, event by event.
type shift struct {
	mu      sync.Mutex
	began   []int
	pending map[int]chan error
}

func newShift() *shift { return &shift{pending: map[int]chan error{}} }

// work begins v and returns what end says, or when ctx ends.
func (s *shift) work(ctx context.Context, v int) error {
	c := make(chan error, 1)
	s.mu.Lock()
	s.began = append(s.began, v)
	s.pending[v] = c
	s.mu.Unlock()
	select {
	case err := <-c:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// all returns the events that have begun since the last call, in order of value:
// goroutines begin as they like.
func (s *shift) all() []int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.began
	s.began = nil
	slices.Sort(b)
	return b
}

// end ends v, and returns what has begun by that.
func (s *shift) end(v int, err error) []int {
	synctest.Wait()
	s.mu.Lock()
	c := s.pending[v]
	s.mu.Unlock()
	c <- err
	return s.all()
}

// only returns the stats of the stage of that name.
func only(t *testing.T, g *Graph, name string) Stats {
	t.Helper()
	for _, s := range g.Stats() {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no stage %q", name)
	return Stats{}
}

func TestPoolBeginsOneEventPerCompletion_STC114(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		s := newShift()
		pool := NewPool("pool", 2, s.work)
		Connect(g, counter(&w, 1), pool)
		start(t, g)
		equal(t, "begun", s.all(), []int{0, 1})
		equal(t, "wants", w.all(), []int{2})
		time.Sleep(time.Hour)
		equal(t, "begun meanwhile", s.all(), []int(nil))
		equal(t, "begun by one completion", s.end(0, nil), []int{2})
		equal(t, "wants by one completion", w.all(), []int{1})
		equal(t, "begun by another", s.end(2, nil), []int{3})
		equal(t, "in hands", only(t, g, "pool").Held, int64(2))
		equal(t, "workers", only(t, g, "pool").Slots, 2)
	})
}

func TestPoolGoesOnAfterACrash_STC115(t *testing.T) {
	for how, crash := range map[string]func() error{
		"error": func() error { return errBoom },
		"panic": func() error { panic("boom") },
		"exit":  func() error { runtime.Goexit(); return nil },
	} {
		t.Run(how, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				log, lines := logTo()
				g.log = log
				var ran []int // by one worker at a time
				pool := NewPool("pool", 1, func(_ context.Context, v int) error {
					if ran = append(ran, v); v == 0 {
						return crash()
					}
					return nil
				})
				Connect(g, FromSlice("source", ints(0, 4)), pool)
				equal(t, "error", g.Run(context.Background()), nil)
				equal(t, "ran", ran, ints(0, 4))
				s := only(t, g, "pool")
				equal(t, "in, failed, held", []int64{s.In, s.Failed, s.Held}, []int64{4, 1, 0})
				if text := lines(); strings.Count(text, "events not processed") != 1 || !strings.Contains(text, "events=1") {
					t.Errorf("log: %s", text)
				}
				checkConservation(t, g)
			})
		})
	}
}

// A storm of failures is one warning at once and one sum per second.
func TestPoolSumsUpItsWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, lines := logTo()
		g := NewGraph(Logger(log))
		pool := NewPool("pool", 3, func(context.Context, int) error { return errBoom })
		Connect(g, FromSlice("source", ints(0, 1000)), pool)
		equal(t, "error", g.Run(context.Background()), nil)
		text := lines()
		if strings.Count(text, "events not processed") != 2 || !strings.Contains(text, "events=1 ") || !strings.Contains(text, "events=999 ") {
			t.Errorf("log: %s", text)
		}
	})
}

func TestPoolTellsItsHookOfFailures(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var failed []int
		pool := NewPool("pool", 1, func(_ context.Context, v int) error {
			if v%2 == 0 {
				return errBoom
			}
			return nil
		}).OnFailed(func(v int, err error) {
			if !errors.Is(err, errBoom) {
				t.Errorf("%d: %v", v, err)
			}
			failed = append(failed, v)
		})
		Connect(g, FromSlice("source", ints(0, 6)), pool)
		equal(t, "error", g.Run(context.Background()), nil)
		equal(t, "failed", failed, []int{0, 2, 4})
	})
}

// A hook that panics, or calls Goexit, fails the pool; every event is counted.
func TestFailureHookThatPanicsFailsThePool(t *testing.T) {
	for how, crash := range map[string]func(){"panic": func() { panic("boom") }, "exit": runtime.Goexit} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				pool := NewPool("pool", 4, func(context.Context, int) error { return errBoom }).OnFailed(func(int, error) { crash() })
				Connect(g, FromSlice("source", ints(0, 50)), pool)
				var p *penstock.PanicError
				if err := g.Run(context.Background()); !errors.As(err, &p) {
					t.Errorf("error: %v", err)
				}
				s := only(t, g, "pool")
				equal(t, "in", s.In, s.Failed+s.Dropped)
				checkConservation(t, g)
			})
		})
	}
}

// Each subscription has n workers of its own.
func TestPoolHasItsWorkersPerSubscription(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var wa wants
		s := newShift()
		a, b := counter(&wa, 1), Map(func(v int) int { return v + 100 })
		src := Pull("other", func(_ context.Context, want int, out *Output[int]) error {
			for i := range want {
				out.Emit(i)
			}
			return nil
		})
		pool := NewPool("pool", 2, s.work)
		Connect(g, a, pool)
		Connect(g, src, b)
		Connect(g, b, pool)
		start(t, g)
		equal(t, "begun", s.all(), []int{0, 1, 100, 101})
		equal(t, "workers", only(t, g, "pool").Slots, 4)
		equal(t, "by one completion", s.end(1, nil), []int{2})
	})
}

func TestStagesThatAskByRulesOfTheirOwnRefuseOthers_STC124(t *testing.T) {
	idle := func(context.Context, int) error { return nil }
	for name, c := range map[string]struct {
		sink func() Inleter[int]
		opts []SubOption
	}{
		"pool, manual":  {func() Inleter[int] { return NewPool("sink", 2, idle) }, []SubOption{Manual()}},
		"pool, demand":  {func() Inleter[int] { return NewPool("sink", 2, idle) }, []SubOption{Max(10)}},
		"slots, manual": {func() Inleter[int] { return NewSlots("sink", Task(idle)) }, []SubOption{Manual()}},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				src, _ := Push[int]("source")
				Connect(g, src, c.sink(), c.opts...)
				if err := g.Start(context.Background()); !errors.Is(err, ErrUnsupportedDemandMode) {
					t.Errorf("declared: %v", err)
				}
			})
			bothWays(t, func(t *testing.T, g *Graph) {
				src, _ := Push[int]("source")
				sink := c.sink()
				equal(t, "add", errors.Join(g.Add(src), g.Add(sink.(Stage))), nil)
				start(t, g)
				if _, err := Subscribe(context.Background(), src, sink, c.opts...); !errors.Is(err, ErrUnsupportedDemandMode) {
					t.Errorf("while it runs: %v", err)
				}
				equal(t, "subscribers", src.Out().Subscribers(), 0)
			})
		})
	}
}

func TestAskFromOutsideChangesNothingForSlots_STC124(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		s := newShift()
		sub := Connect(g, counter(&w, 1), NewSlots("slots", Task(s.work)), Demand(2, 0))
		start(t, g)
		equal(t, "begun", s.all(), []int{0, 1})
		if err := sub.Ask(5); !errors.Is(err, ErrAutomatic) {
			t.Errorf("Ask: %v", err)
		}
		equal(t, "begun by Ask", s.all(), []int(nil))
		equal(t, "wants", w.all(), []int{2})
	})
}

func TestPoolsAndSlotsAreCheckedAtStart(t *testing.T) {
	f := func(context.Context, int) error { return nil }
	for name, sink := range map[string]Inleter[int]{
		"no workers":         NewPool("sink", 0, f),
		"no function":        NewPool[int]("sink", 1, nil),
		"no starter":         NewSlots[int]("sink", nil),
		"no task":            NewSlots("sink", Task[int](nil)),
		"permanent":          NewSlots("sink", Task(f), ChildRestart(Permanent)),
		"negative tolerance": NewSlots("sink", Task(f), ChildTolerance(-1, time.Second)),
		"no span":            NewSlots("sink", Task(f), ChildTolerance(1, 0)),
		"negative shutdown":  NewSlots("sink", Task(f), ChildShutdown(-1)),
		"restart in a pool":  NewPool("sink", 1, f, ChildRestart(Transient)),
		"children of a sink": NewSink("sink", func(context.Context, []int) error { return nil }, ChildShutdown(1)),
		"buffer":             NewPool("sink", 1, f, Buffer(1, KeepLast)),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewGraph()
			Connect(g, Never[int]("source"), sink)
			err := g.Start(context.Background())
			var field *penstock.FieldError
			if !errors.Is(err, penstock.ErrInvalid) || !errors.As(err, &field) {
				t.Errorf("error: %v", err)
				g.Abort(nil)
				g.Wait()
			}
		})
	}
}

// Done of one call ends the pool; the others come to their end.
func TestDoneOfACallEndsThePool(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		s := newShift()
		pool := NewPool("pool", 3, s.work)
		Connect(g, counter(&w, 1), pool)
		start(t, g)
		s.all()
		equal(t, "begun after Done", s.end(1, Done), []int(nil))
		s.end(0, nil)
		select {
		case <-pool.Done():
			t.Error("it ended before its calls")
		default:
		}
		s.end(2, nil)
		equal(t, "error", g.Wait(), nil)
		st := only(t, g, "pool")
		equal(t, "in, failed", []int64{st.In, st.Failed}, []int64{3, 0})
		checkConservation(t, g)
	})
}

func TestPoolIsDrained(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var done atomic.Int64
		pool := NewPool("pool", 3, func(context.Context, int) error {
			time.Sleep(time.Second)
			done.Add(1)
			return nil
		})
		src, emit := Push[int]("source")
		id := Map(func(v int) int { return v })
		Connect(g, src, id)
		Connect(g, id, pool)
		start(t, g)
		emit.Push(ints(0, 9)...)
		synctest.Wait()
		if s := only(t, g, "pool"); !s.InCallback {
			t.Error("its calls do not count as user code")
		}
		equal(t, "error", g.Stop(context.Background()), nil)
		equal(t, "done", done.Load(), int64(9))
		checkConservation(t, g)
	})
}

// Run returns when the calls have, and what they had is counted.
func TestAbortEndsTheCallsOfAPool(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var c calls
		pool := NewPool("pool", 3, func(ctx context.Context, v int) error {
			c.enter()
			defer c.now.Add(-1)
			<-ctx.Done()
			time.Sleep(time.Second)
			return ctx.Err()
		})
		src, emit := Push[int]("source")
		Connect(g, src, pool)
		start(t, g)
		emit.Push(ints(0, 10)...)
		synctest.Wait()
		g.Abort(errBoom)
		err := g.Wait()
		equal(t, "calls left", c.now.Load(), int64(0))
		equal(t, "left", left(err), 10)
		s := only(t, g, "pool")
		equal(t, "in, dropped, abandoned", []int64{s.In, s.Dropped, s.Abandoned}, []int64{3, 3, 0})
		checkConservation(t, g)
	})
}

// The subscription of an event is in the context of its call.
func TestOriginInACallOfAPool(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var wrong atomic.Int64
		pool := NewPool("pool", 2, func(ctx context.Context, v string) error {
			if Origin(ctx).Producer() != v {
				wrong.Add(1)
			}
			return nil
		})
		Connect(g, FromSlice("a", []string{"a", "a", "a"}), pool, CancelMode(Transient))
		Connect(g, FromSlice("b", []string{"b", "b", "b"}), pool, CancelMode(Transient))
		equal(t, "error", g.Run(context.Background()), nil)
		equal(t, "wrong", wrong.Load(), int64(0))
		equal(t, "in", only(t, g, "pool").In, int64(6))
	})
}

func TestPoolAllocatesNothingPerEvent(t *testing.T) {
	run := func(n int) float64 {
		return testing.AllocsPerRun(3, func() {
			i := 0
			g := NewGraph()
			src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
				for range want {
					if i++; i > n {
						return Done
					}
					out.Emit(i)
				}
				return nil
			})
			Connect(g, src, NewPool("pool", 4, func(context.Context, int) error { return nil }))
			if err := g.Run(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	few, many := run(1_000), run(21_000)
	if more := many - few; more > 200 {
		t.Errorf("%v allocations for 20,000 events", more)
	}
}

// A failure overtakes the events before it in a pool too.
func TestFailFastReachesAPool(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		hold := make(chan struct{})
		var began atomic.Int32
		pool := NewPool("pool", 3, func(_ context.Context, v int) error {
			if v == 0 {
				return errBoom
			}
			began.Add(1)
			return nil
		}).OnFailed(func(int, error) { <-hold })
		fast, emit := Push[int]("fast")
		other, emitOther := Push[int]("other")
		Connect(g, fast, pool, FailFast())
		Connect(g, other, pool, CancelMode(Temporary))
		start(t, g)
		must(t, emitOther.Push(0))
		synctest.Wait() // the pool is in its hook
		must(t, emit.Push(1, 2))
		emit.Fail(errBoom)
		synctest.Wait()
		close(hold)
		emitOther.Finish()
		if err := g.Wait(); !errors.Is(err, errBoom) {
			t.Error(err)
		}
		equal(t, "begun", began.Load(), int32(0))
		equal(t, "undelivered", stat(t, g, 0).Undelivered+stat(t, g, 1).Undelivered, int64(2))
		conserved(t, g)
	})
}
