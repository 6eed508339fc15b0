package stage

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// calls watches how many calls go on.
type calls struct{ now, most atomic.Int64 }

func (c *calls) enter() {
	n := c.now.Add(1)
	for m := c.most.Load(); n > m && !c.most.CompareAndSwap(m, n); m = c.most.Load() {
	}
}

func TestMapConcurrentKeepsOrderAndItsBound_STC161(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var c calls
		gate := MapConcurrent(4, func(ctx context.Context, v int) (int, error) {
			c.enter()
			defer c.now.Add(-1)
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
			return v * 2, nil
		})
		out := through(t, g, ints(0, 200), gate, Demand(7, 3))
		for i, v := range out {
			if v != i*2 {
				t.Fatalf("event %d is %d", i, v)
			}
		}
		equal(t, "events", len(out), 200)
		equal(t, "calls at a time", c.most.Load(), int64(4))
		s := stat(t, g, 1)
		equal(t, "in", s.In, s.Emitted)
	})
}

func TestMapConcurrentUnorderedGivesWhatIsThere(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var c calls
		gate := MapConcurrentUnordered(3, func(ctx context.Context, v int) (int, error) {
			c.enter()
			defer c.now.Add(-1)
			if v == 0 {
				time.Sleep(time.Hour)
			}
			time.Sleep(time.Second)
			return v, nil
		})
		began := time.Now()
		out := through(t, g, ints(0, 20), gate)
		equal(t, "time", time.Since(began), time.Hour+time.Second)
		equal(t, "last", out[len(out)-1], 0)
		slices.Sort(out)
		equal(t, "events", out, ints(0, 20))
		equal(t, "calls at a time", c.most.Load(), int64(3))
	})
}

func TestMapPartitionedKeepsTheOrderOfAKey(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var mu sync.Mutex
		busy := map[int]bool{}
		var c calls
		gate := MapPartitioned(4, func(v *int) int { return *v % 10 }, func(ctx context.Context, v int) (int, error) {
			c.enter()
			defer c.now.Add(-1)
			mu.Lock()
			if busy[v%10] {
				t.Errorf("two events of key %d are in calls", v%10)
			}
			busy[v%10] = true
			mu.Unlock()
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
			mu.Lock()
			busy[v%10] = false
			mu.Unlock()
			return v, nil
		})
		out := through(t, g, ints(0, 300), gate, Demand(9, 4))
		last := map[int]int{}
		for _, v := range out {
			if before, ok := last[v%10]; ok && v <= before {
				t.Fatalf("key %d: %d after %d", v%10, v, before)
			}
			last[v%10] = v
		}
		equal(t, "events", len(out), 300)
		if c.most.Load() > 4 {
			t.Errorf("%d calls at a time", c.most.Load())
		}
	})
}

// One slow key holds back its lane, not the others.
func TestMapPartitionedGoesOnBesideASlowKey(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		hold := make(chan struct{})
		gate := MapPartitioned(8, func(v *int) int { return *v }, func(ctx context.Context, v int) (int, error) {
			if v == 0 {
				<-hold
			}
			return v, nil
		})
		src, emit := Push[int]("source")
		sink, got := collector[int]("sink")
		Connect(g, src, gate)
		Connect(g, gate, sink)
		start(t, g)
		emit.Push(0)
		emit.Push(ints(1, 7)...) // some may share the lane of 0
		emit.Push(0)
		synctest.Wait()
		others := len(slices.Concat(got()...))
		if others < 2 {
			t.Errorf("%d others passed", others)
		}
		close(hold)
		synctest.Wait()
		equal(t, "the rest", others+len(slices.Concat(got()...)), 8)
	})
}

// A failure takes its place in the order; what came before it goes out, and
// what is in hands is counted.
func TestMapConcurrentFailsInOrder(t *testing.T) {
	for how, fail := range map[string]func() error{
		"error": func() error { return errBoom },
		"panic": func() error { panic("boom") },
		"exit":  func() error { runtime.Goexit(); return nil },
		"done":  func() error { return Done },
	} {
		t.Run(how, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				gate := MapConcurrent(4, func(ctx context.Context, v int) (int, error) {
					if v == 5 {
						return 0, fail()
					}
					select {
					case <-time.After(time.Second):
						return v, nil
					case <-ctx.Done():
						return 0, ctx.Err()
					}
				})
				sink, got := collector[int]("sink")
				Connect(g, FromSlice("source", ints(0, 20)), gate)
				Connect(g, gate, sink)
				err := g.Run(context.Background())
				var p *penstock.PanicError
				switch how {
				case "error":
					equal(t, "boom", errors.Is(err, errBoom), true)
				case "done":
					equal(t, "error", err, nil)
				default:
					equal(t, "panic", errors.As(err, &p), true)
				}
				equal(t, "out", slices.Concat(got()...), ints(0, 5))
				s := stat(t, g, 1)
				equal(t, "in", s.In, s.Emitted+s.Failed+s.Filtered+s.Dropped)
				checkConservation(t, g)
			})
		})
	}
}

func TestMapConcurrentIsDrained(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		gate := MapConcurrent(3, func(ctx context.Context, v int) (int, error) {
			time.Sleep(time.Second)
			return v, nil
		})
		src, emit := Push[int]("source")
		sink, got := collector[int]("sink")
		Connect(g, src, gate)
		Connect(g, gate, sink)
		start(t, g)
		emit.Push(ints(0, 9)...)
		synctest.Wait()
		if s := stat(t, g, 1); !s.InCallback {
			t.Error("its workers do not count as user code")
		}
		equal(t, "error", g.Stop(context.Background()), nil)
		equal(t, "out", slices.Concat(got()...), ints(0, 9))
	})
}

// Run returns when the calls have, and what they held is counted.
func TestAbortEndsTheCallsOfMapConcurrent(t *testing.T) {
	for name, of := range map[string]func(f func(context.Context, int) (int, error)) *Gate[int, int]{
		"ordered":   func(f func(context.Context, int) (int, error)) *Gate[int, int] { return MapConcurrent(3, f) },
		"unordered": func(f func(context.Context, int) (int, error)) *Gate[int, int] { return MapConcurrentUnordered(3, f) },
		"partitioned": func(f func(context.Context, int) (int, error)) *Gate[int, int] {
			return MapPartitioned(3, func(v *int) int { return *v }, f)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				var c calls
				gate := of(func(ctx context.Context, v int) (int, error) {
					c.enter()
					defer c.now.Add(-1)
					<-ctx.Done()
					time.Sleep(time.Second)
					return 0, ctx.Err()
				})
				src, emit := Push[int]("source")
				sink, _ := collector[int]("sink")
				Connect(g, src, gate)
				Connect(g, gate, sink)
				start(t, g)
				emit.Push(ints(0, 10)...)
				synctest.Wait()
				g.Abort(errBoom)
				err := g.Wait()
				equal(t, "calls left", c.now.Load(), int64(0))
				equal(t, "left", left(err), 10)
				equal(t, "dropped", stat(t, g, 1).Dropped, int64(10))
				checkConservation(t, g)
			})
		})
	}
}

// Demand holds the calls back: not more results than one poll gathers wait.
func TestMapConcurrentWaitsForDemand(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var c calls
		var began atomic.Int64
		gate := MapConcurrent(2, func(ctx context.Context, v int) (int, error) {
			began.Add(1)
			c.enter()
			defer c.now.Add(-1)
			return v, nil
		})
		sink := newLockstep[int]("sink")
		Connect(g, counter(&wants{}, 1), gate, Demand(4, 2))
		Connect(g, gate, sink, Demand(1, 0))
		start(t, g)
		synctest.Wait()
		if n := began.Load(); n > 8 {
			t.Errorf("%d calls began while the sink has its first event in hands", n)
		}
	})
}

// Which batch a gate has taken last says nothing about the event of a call.
func TestOriginIsUnknownInAConcurrentCall(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		hold := make(chan struct{})
		type key struct{}
		gate := MapConcurrent(4, func(ctx context.Context, v int) (int, error) {
			<-hold
			if s := Origin(ctx); s != nil {
				t.Errorf("%d is said to come from %s", v, s.Producer())
			}
			equal(t, "value of the graph's context", ctx.Value(key{}), any("value"))
			return v, nil
		})
		a, emitA := Push[int]("a")
		b, emitB := Push[int]("b")
		Connect(g, a, gate)
		Connect(g, b, gate)
		Connect(g, gate, Discard[int]())
		must(t, g.Start(context.WithValue(t.Context(), key{}, "value")))
		must(t, emitA.Push(1))
		synctest.Wait()
		must(t, emitB.Push(2))
		synctest.Wait()
		close(hold)
		emitA.Finish()
		emitB.Finish()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}
