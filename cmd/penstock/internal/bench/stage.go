package bench

import (
	"context"
	"fmt"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/stage"
)

// defaultBatch is max - min of a subscription's defaults.
const defaultBatch = 250

// A shape is an event type for the batch rows: how to number an event, how the
// gate changes it, and how the sink reads its number afterwards.
type shape[T any] struct {
	set    func(v *T, n int)
	change func(v *T)
	number func(v *T) int
	key    func(v T) int // number, as a dispatcher asks for it
}

var narrow = shape[int64]{
	set:    func(v *int64, n int) { *v = int64(n) },
	change: func(v *int64) { *v += 7 },
	number: func(v *int64) int { return int(*v - 7) },
	key:    func(v int64) int { return int(v - 7) },
}

type words [wideBytes / 8]int64

var wide = shape[words]{
	set:    func(v *words, n int) { v[0], v[7] = int64(n), 1 },
	change: func(v *words) { v[7]++ },
	number: func(v *words) int { return int(v[0] * (v[7] - 1)) },
	key:    func(v words) int { return int(v[0] * (v[7] - 1)) },
}

func linearBatch[T any](s shape[T], d subscribed) func(e env) (pair, error) {
	return func(e env) (pair, error) {
		ours := func(c *measure.Clock) error { return stagedBatch(e, c, s, d) }
		base := func(c *measure.Clock) error { return recycledBatch(e, c, s, d.batch) }
		return pair{ours: ours, base: base}, nil
	}
}

func stagedBatch[T any](e env, c *measure.Clock, s shape[T], d subscribed) error {
	source, gate := numbers(s, e.events), changing(s)
	k := measure.NewTally(c, 1, e.events)
	sink := stage.NewSink("sink", func(_ context.Context, in []T) error {
		k.Batch(0, len(in), func(i int) int { return s.number(&in[i]) })
		return nil
	})
	g := stage.NewGraph()
	stage.Connect(g, source, gate, d.opts...)
	stage.Connect(g, gate, sink, d.opts...)
	return runGraph(e, c, g, k)
}

func doneAt(next, events int) error {
	if next == events {
		return stage.Done
	}
	return nil
}

func runGraph(e env, c *measure.Clock, g *stage.Graph, k *measure.Tally) error {
	c.Start()
	err := g.Run(e.ctx)
	c.Stop(e.events)
	if err != nil {
		return err
	}
	return k.Done(e.events)
}

// recycledBatch is the pipeline that one would write by hand: batches go round.
func recycledBatch[T any](e env, c *measure.Clock, s shape[T], size int) error {
	ahead := hopCapacity / size // as many batches as max holds
	free, a, b := make(chan []T, ahead+1), make(chan []T, ahead), make(chan []T, ahead)
	for range cap(free) {
		free <- make([]T, size)
	}
	k := measure.NewTally(c, 1, e.events)
	c.Start()
	go func() { // source: ends after its events; the gate waits for it
		defer close(a)
		for next := 0; next < e.events; {
			vs := (<-free)[:min(size, e.events-next)]
			for i := range vs {
				s.set(&vs[i], next)
				next++
			}
			a <- vs
		}
	}()
	go func() { // gate: ends with a; the sink below waits for it
		defer close(b)
		for vs := range a {
			for i := range vs {
				s.change(&vs[i])
			}
			b <- vs
		}
	}()
	for vs := range b {
		k.Batch(0, len(vs), func(i int) int { return s.number(&vs[i]) })
		free <- vs[:cap(vs)]
	}
	c.Stop(e.events)
	return k.Done(e.events)
}

// perEvent is the staged side of the per-event rows: an Emit per event in the
// source, function calls per event in the helpers, a loop in the sink.
func perEvent(e env, c *measure.Clock, connect func(g *stage.Graph, from *stage.Source[int], to *stage.Sink[int])) error {
	next := 0
	source := stage.Pull("source", func(_ context.Context, want int, out *stage.Output[int]) error {
		for range min(want, e.events-next) {
			out.Emit(next)
			next++
		}
		return doneAt(next, e.events)
	})
	k := measure.NewTally(c, 1, e.events)
	sum := 0
	sink := stage.NewSink("sink", func(_ context.Context, in []int) error {
		for _, v := range in {
			sum += v
		}
		k.Batch(0, len(in), func(i int) int { return in[i] - 1 })
		return nil
	})
	g := stage.NewGraph()
	connect(g, source, sink)
	if err := runGraph(e, c, g, k); err != nil {
		return err
	}
	return checkSum(sum, e.events)
}

// plusOne is what the gates of the per-event rows do.
func plusOne(v int) int { return v + 1 }

// passes is what their filters say; all events do.
func passes(v *int) bool { return *v > 0 }

func linearEvent(e env) (pair, error) {
	ours := func(c *measure.Clock) error {
		return perEvent(e, c, func(g *stage.Graph, from *stage.Source[int], to *stage.Sink[int]) {
			gate := stage.Map(plusOne)
			stage.Connect(g, from, gate, stage.Async())
			stage.Connect(g, gate, to, stage.Async())
		})
	}
	base := func(c *measure.Clock) error {
		return byHand(e, c, func(in <-chan int) <-chan int { return hop(in, func(v int) (int, bool) { return plusOne(v), true }) })
	}
	return pair{ours: ours, base: base}, nil
}

func fusedEvent(e env) (pair, error) {
	ours := func(c *measure.Clock) error {
		return perEvent(e, c, func(g *stage.Graph, from *stage.Source[int], to *stage.Sink[int]) {
			gate, filter := stage.Map(plusOne), stage.Filter(passes)
			stage.Connect(g, from, gate)
			stage.Connect(g, gate, filter)
			stage.Connect(g, filter, to)
		})
	}
	base := func(c *measure.Clock) error {
		return byHand(e, c, func(in <-chan int) <-chan int {
			changed := hop(in, func(v int) (int, bool) { return plusOne(v), true })
			return hop(changed, func(v int) (int, bool) { return v, passes(&v) })
		})
	}
	return pair{ours: ours, base: base}, nil
}

const hopCapacity = 1000 // the default max

// hop is one goroutine of a hand-written pipeline: it ends with its input, and
// whoever reads its output waits for it.
func hop(in <-chan int, f func(int) (int, bool)) <-chan int {
	out := make(chan int, hopCapacity)
	go func() { // a hop: ends with its input; the reader of out waits for it
		defer close(out)
		for v := range in {
			if w, ok := f(v); ok {
				out <- w
			}
		}
	}()
	return out
}

func byHand(e env, c *measure.Clock, hops func(<-chan int) <-chan int) error {
	k := measure.NewTally(c, 1, e.events)
	sum := 0
	c.Start()
	first := make(chan int, hopCapacity)
	go func() { // source: ends after its events; the first hop waits for it
		defer close(first)
		for i := range e.events {
			first <- i
		}
	}()
	var one [1]measure.Word
	for v := range hops(first) {
		sum += v
		one[0][0] = v - 1
		measure.Take(k, 0, one[:])
	}
	c.Stop(e.events)
	if err := k.Done(e.events); err != nil {
		return err
	}
	return checkSum(sum, e.events)
}

func demandOne(e env) (pair, error) {
	ours := func(c *measure.Clock) error {
		next := 0
		source := stage.Pull("source", func(_ context.Context, want int, out *stage.Output[int]) error {
			for range min(want, e.events-next) {
				out.Emit(next)
				next++
			}
			return doneAt(next, e.events)
		})
		gate := stage.NewGate("gate", func(_ context.Context, in []int, out *stage.Output[int]) error {
			for _, v := range in {
				out.Emit(plusOne(v))
			}
			return nil
		})
		k := measure.NewTally(c, 1, e.events)
		sink := stage.NewSink("sink", func(_ context.Context, in []int) error {
			k.Batch(0, len(in), func(i int) int { return in[i] - 1 })
			return nil
		})
		g := stage.NewGraph()
		stage.Connect(g, source, gate, stage.Demand(1, 0))
		stage.Connect(g, gate, sink, stage.Demand(1, 0))
		return runGraph(e, c, g, k)
	}
	return pair{ours: ours, base: func(c *measure.Clock) error { return askedByHand(e, c) }}, nil
}

// askedByHand is stop and wait with channels: an ask and an event per hop.
func askedByHand(e env, c *measure.Clock) error {
	askSource, fromSource := make(chan struct{}), make(chan int)
	askGate, fromGate := make(chan struct{}), make(chan int)
	k := measure.NewTally(c, 1, e.events)
	c.Start()
	go func() { // source: ends with the asks; the gate waits for it
		defer close(fromSource)
		next := 0
		for range askSource {
			fromSource <- next
			next++
		}
	}()
	go func() { // gate: ends with the asks; the sink below waits for it
		defer close(fromGate)
		for range askGate {
			askSource <- struct{}{}
			fromGate <- plusOne(<-fromSource)
		}
		close(askSource)
		<-fromSource
	}()
	var one [1]measure.Word
	for range e.events {
		askGate <- struct{}{}
		one[0][0] = <-fromGate - 1
		measure.Take(k, 0, one[:])
	}
	close(askGate)
	<-fromGate
	c.Stop(e.events)
	return k.Done(e.events)
}

// checkSum checks the sum of the events 1 to n.
func checkSum(sum, n int) error {
	if want := n * (n + 1) / 2; sum != want {
		return fmt.Errorf("the events add up to %d, want %d", sum, want)
	}
	return nil
}
