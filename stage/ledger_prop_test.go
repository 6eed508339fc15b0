package stage

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A zoo is a random graph of every kind of source, operator, dispatcher and sink,
// with user code that fails now and then.
type zoo struct {
	*Graph
	emit  []func() // what pushes from outside
	done  map[string]*atomic.Int64
	exact map[string]bool // gates that emit one event for one
	sinks []Stage
}

func drawZoo(t *rapid.T) *zoo {
	z := &zoo{
		Graph: NewGraph(Fuse(rapid.Bool().Draw(t, "fuse")), Logger(slog.New(slog.DiscardHandler)), withPoison(), DrainWithin(200*time.Millisecond)),
		done:  map[string]*atomic.Int64{}, exact: map[string]bool{},
	}
	var outs []*Source[int]
	for i := range rapid.IntRange(1, 3).Draw(t, "sources") {
		outs = append(outs, z.source(t, i))
	}
	var faces []Outlet[int]
	for _, s := range outs {
		d, out := drawDispatcher(t)
		s.Dispatch(d)
		faces = append(faces, out(s.Out())...)
	}
	for l := range rapid.IntRange(0, 2).Draw(t, "layers") {
		var next []Outlet[int]
		for i, f := range faces {
			g := z.gate(t, fmt.Sprintf("gate %d.%d", l, i))
			Connect(z.Graph, f, g, CancelMode(Transient))
			d, out := drawDispatcher(t)
			g.Dispatch(d)
			next = append(next, out(g.Out())...)
		}
		faces = next
	}
	for i, f := range faces {
		z.sink(t, fmt.Sprint("sink ", i), f)
	}
	return z
}

func (z *zoo) source(t *rapid.T, i int) *Source[int] {
	name, n := fmt.Sprint("source ", i), rapid.IntRange(0, 150).Draw(t, "events")
	switch rapid.IntRange(0, 4).Draw(t, "source") {
	case 0:
		return FromSlice(name, ints(0, n))
	case 1:
		return Func(name, func(_ context.Context, yield func(int) bool) error {
			for v := range n {
				if !yield(v) {
					return nil
				}
			}
			return nil
		}, Buffer(n%7, KeepLast))
	case 2: // more than was asked for, and less room than that
		at := 0
		return Pull(name, func(_ context.Context, want int, out *Output[int]) error {
			for range want + n%9 {
				if at++; at > n {
					return Done
				}
				out.Emit(at)
			}
			return nil
		}, Buffer(n%5, KeepFirst), OnDiscard(func(int) {}))
	}
	src, emit := Push[int](name, Buffer(n%23, []Policy{KeepLast, KeepFirst}[n%2]), OnDiscard(func(int) {}))
	if n%3 == 0 {
		src.BufferWeight(n+1, func(v *int) int { return *v })
	}
	wait := rapid.Bool().Draw(t, "waits")
	z.emit = append(z.emit, func() {
		for v := range n {
			if wait {
				emit.PushWait(context.Background(), v)
			} else {
				emit.Push(v, v)
			}
		}
		emit.Finish()
	})
	return src
}

func drawDispatcher(t *rapid.T) (Dispatcher[int], func(Outlet[int]) []Outlet[int]) {
	n := rapid.IntRange(1, 2).Draw(t, "consumers")
	same := func(o Outlet[int]) (outs []Outlet[int]) {
		for range n {
			outs = append(outs, o)
		}
		return outs
	}
	parts := func(o Outlet[int]) (outs []Outlet[int]) {
		for i := range n {
			outs = append(outs, o.Partition(i))
		}
		return outs
	}
	switch rapid.IntRange(0, 6).Draw(t, "dispatcher") {
	case 0:
		return Broadcast[int](), func(o Outlet[int]) []Outlet[int] {
			return append(same(o)[1:], o.Where(func(v int) bool { return v%2 == 0 }))
		}
	case 1:
		return Broadcast[int](Slowest(3)), same
	case 2:
		return Partition(n, func(v int) int { return v }), parts
	case 3:
		return PartitionTo(n, func(v *int) (int, bool) { return *v % n, *v%5 > 0 }), parts
	case 4:
		return RoundRobin[int](), same
	case 5:
		return ConsistentHash(func(v *int) uint64 { return uint64(*v) }), same
	}
	return GreatestShuffled[int](), same
}

func (z *zoo) gate(t *rapid.T, name string) *Gate[int, int] {
	fails := rapid.IntRange(0, 400).Draw(t, "fails at")
	kind := rapid.IntRange(0, 7).Draw(t, "gate")
	z.exact[name] = kind != 0 // the names of helpers are the graph's
	switch kind {
	case 0:
		return NewGate(name, func(_ context.Context, in []int, out *Output[int]) error {
			for _, v := range in {
				if v == fails {
					return errBoom
				}
				out.EmitAll(make([]int, v%3)...)
			}
			return nil
		})
	case 1:
		return Filter(func(v *int) bool { return *v%3 > 0 })
	case 2:
		return Take[int](fails)
	case 3:
		return MapConcurrent(3, func(_ context.Context, v int) (int, error) {
			if v == fails {
				panic("boom")
			}
			return v, nil
		})
	case 4:
		return MapPartitioned(2, func(v *int) int { return *v }, func(_ context.Context, v int) (int, error) { return v, nil })
	case 5:
		return BufferGate[int](1+fails%5, KeepLast, OnDiscard(func(int) {}))
	case 6:
		return Delay[int](time.Millisecond, 1+fails%9)
	}
	return Pass[int](fmt.Sprint("pass ", name))
}

func (z *zoo) sink(t *rapid.T, name string, from Outlet[int]) {
	fails := rapid.IntRange(1, 60).Draw(t, "fails at")
	done := &atomic.Int64{}
	z.done[name] = done
	child := func(_ context.Context, v int) error {
		switch {
		case v%fails > 0:
			done.Add(1)
			return nil
		case v%3 == 0:
			panic("boom")
		case v%3 == 1:
			runtime.Goexit()
		}
		return errBoom
	}
	mode := CancelMode(rapid.SampledFrom([]Mode{Permanent, Transient, Temporary}).Draw(t, "mode"))
	size := Demand(rapid.SampledFrom([][2]int{{1, 0}, {7, 2}, {1000, 750}}).Draw(t, "demand")[0], 0)
	switch rapid.IntRange(0, 3).Draw(t, "sink") {
	case 0:
		s := NewPool(name, 1+fails%4, child).OnFailed(func(int, error) {})
		Connect(z.Graph, from, s, mode)
		z.sinks = append(z.sinks, s)
	case 1:
		s := NewSlots(name, Task(child), ChildRestart(Transient), ChildTolerance(fails%9, time.Second)).OnFailed(func(int, error) {})
		Connect(z.Graph, from, s, mode, size)
		z.sinks = append(z.sinks, s)
	default:
		s := NewSink(name, func(_ context.Context, in []int) error {
			if fails > 40 && in[0] > fails {
				return errBoom
			}
			done.Add(int64(len(in)))
			return nil
		})
		Connect(z.Graph, from, s, mode, size)
		z.sinks = append(z.sinks, s)
	}
}

// TestCountersOfEveryGraphAddUp runs random graphs of everything there is to
// random ends: what every stage took in, it gave out, holds or has counted in one
// other place; and so has the graph as a whole.
func TestCountersOfEveryGraphAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		z := drawZoo(rt)
		how := rapid.SampledFrom([]string{"end", "end", "end", "abort", "drain", "stop a sink"}).Draw(rt, "how")
		z.live(rt, how, rapid.IntRange(0, 300).Draw(rt, "after"))
	})
}

func (z *zoo) live(c *rapid.T, how string, after int) {
	var hung atomic.Bool
	guard := time.AfterFunc(20*time.Second, func() {
		hung.Store(true)
		z.Abort(nil)
	})
	defer guard.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := z.Start(ctx); err != nil {
		c.Errorf("%v", err)
		return
	}
	var pushing sync.WaitGroup
	for _, f := range z.emit {
		pushing.Go(f) // ends when all is pushed, or its source has ended
	}
	for range after {
		runtime.Gosched()
	}
	switch how {
	case "abort":
		z.Abort(errEnding)
	case "drain":
		cancel()
	case "stop a sink":
		z.sinks[0].Stop()
	}
	z.Wait()
	pushing.Wait()
	if hung.Load() {
		c.Fatalf("the graph hangs: %+v", z.Stats())
	}
	checkConservation(c, z.Graph)
	for _, s := range z.Stats() {
		done, isSink := z.done[s.Name]
		switch {
		case isSink && s.In != done.Load()+s.Failed+s.Dropped:
			c.Errorf("%s: %d in, but %d done + %d failed + %d dropped", s.Name, s.In, done.Load(), s.Failed, s.Dropped)
		case s.Kind == KindGate && !z.gateOfMany(s.Name) && s.In != s.Emitted+s.Filtered+s.Dropped+s.Failed:
			c.Errorf("%s: %d in, but %d emitted + %d filtered + %d dropped + %d failed", s.Name, s.In, s.Emitted, s.Filtered, s.Dropped, s.Failed)
		case s.Held != 0 || s.Slots != 0 || s.Buffered != 0:
			c.Errorf("%s holds something at its end: %+v", s.Name, s)
		}
	}
}

// gateOfMany reports whether the gate may emit any number for an event.
func (z *zoo) gateOfMany(name string) bool {
	exact, known := z.exact[name]
	return known && !exact
}
