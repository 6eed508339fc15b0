package main

import (
	"context"
	"errors"

	"github.com/samber/ro"
	"github.com/sourcegraph/conc/stream"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/stage"
)

const (
	// perPipeline is how many times as many events a pipeline moves as a queue
	// is given: it begins and ends inside the clock.
	perPipeline = 16
	// aheadOf is how many events may be between two parts of a pipeline: stage's
	// default demand.
	aheadOf   = 1000
	batchSize = 250 // stage's default batch
)

// A pipe runs a pipeline of n events from start to end: a source makes the
// numbers from 0 on, a function adds one, a sink looks at each and gives it to k
// less one.
type pipe func(k *order, n int) error

// pipelines are all that move events through functions, the hand-written ones
// first.
var pipelines = []peer{
	{name: "chan", lacks: "several producers and consumers per stage, failures, a drain, counters; an operation per event", pipe: chanPerEvent},
	{name: "chan of fresh batches", lacks: "the same; a batch is allocated each time", pipeBatch: chanOfBatches(false)},
	{name: "chan of recycled batches", lacks: "the same; the code that makes and returns batches is the user's", pipeBatch: chanOfBatches(true)},
	{
		name: "conc/stream", module: "github.com/sourcegraph/conc", lacks: "demand, sources, sinks, several stages, errors (a panic ends Wait): ordered results of concurrent calls, which are closures",
		pipe: concPerEvent, pipeBatch: concOfBatches,
	},
	{
		name: "ro", module: "github.com/samber/ro", lacks: "demand, batches, a drain, counters: reactive operators that push, with a channel where two goroutines are asked for",
		pipe: roPerEvent, pipeBatch: roOfBatches,
	},
}

// staged is penstock in the workloads of pipelines.
var staged = peer{name: "penstock", module: ours.module, pipe: stagedPerEvent, pipeBatch: stagedOfBatches}

func stagedPerEvent(k *order, n int) error {
	next := 0
	source := stage.Pull("source", func(_ context.Context, want int, out *stage.Output[int]) error {
		for range min(want, n-next) {
			out.Emit(next)
			next++
		}
		return doneAt(next, n)
	})
	add := stage.Map(func(v int) int { return v + 1 })
	sink := stage.NewSink("sink", func(_ context.Context, in []int) error {
		for _, v := range in {
			k.see(v - 1)
		}
		return nil
	})
	return runGraph(source, add, sink)
}

func stagedOfBatches(k *order, n int) error {
	next := 0
	source := stage.Pull("source", func(_ context.Context, want int, out *stage.Output[int]) error {
		next = fill(out.Grow(min(want, n-next)), next)
		return doneAt(next, n)
	})
	add := stage.NewGate("add", func(_ context.Context, in []int, out *stage.Output[int]) error {
		addOne(in)
		out.Forward(in)
		return nil
	})
	sink := stage.NewSink("sink", func(_ context.Context, in []int) error { k.run(seen(in)); return nil })
	return runGraph(source, add, sink)
}

func doneAt(next, n int) error {
	if next == n {
		return stage.Done
	}
	return nil
}

func runGraph(from *stage.Source[int], through *stage.Gate[int, int], to *stage.Sink[int]) error {
	g := stage.NewGraph()
	stage.Connect(g, from, through)
	stage.Connect(g, through, to)
	return g.Run(context.Background())
}

// fill numbers events from next on and returns the number behind the last.
func fill(vs []int, next int) int {
	for i := range vs {
		vs[i] = next + i
	}
	return next + len(vs)
}

func addOne(vs []int) {
	for i := range vs {
		vs[i]++
	}
}

// seen takes the one from each event again, for the check.
func seen(vs []int) []int {
	for i := range vs {
		vs[i]--
	}
	return vs
}

func chanPerEvent(k *order, n int) error {
	a, b := make(chan int, aheadOf), make(chan int, aheadOf)
	go func() { // source: ends after its events; the loop below waits for it
		defer close(a)
		for i := range n {
			a <- i
		}
	}()
	go func() { // map: ends with a; the loop below waits for it
		defer close(b)
		for v := range a {
			b <- v + 1
		}
	}()
	for v := range b {
		k.see(v - 1)
	}
	return nil
}

func chanOfBatches(again bool) pipe {
	return func(k *order, n int) error {
		const ahead = aheadOf / batchSize
		free, a, b := make(chan []int, ahead+1), make(chan []int, ahead), make(chan []int, ahead)
		for range cap(free) {
			free <- make([]int, batchSize)
		}
		go func() { // source: ends after its events; the loop below waits for it
			defer close(a)
			for next := 0; next < n; {
				vs := <-free
				if !again {
					vs = make([]int, batchSize)
				}
				vs = vs[:min(batchSize, n-next)]
				next = fill(vs, next)
				a <- vs
			}
		}()
		go func() { // map: ends with a; the loop below waits for it
			defer close(b)
			for vs := range a {
				addOne(vs)
				b <- vs
			}
		}()
		for vs := range b {
			k.run(seen(vs))
			free <- vs[:cap(vs)]
		}
		return nil
	}
}

// concurrent is how many calls conc runs at a time: as many as there are
// goroutines in the pipelines beside it, less the one that starts them.
const concurrent = 2

func concPerEvent(k *order, n int) error {
	s := stream.New().WithMaxGoroutines(concurrent)
	for i := range n {
		s.Go(func() stream.Callback { // a call: ends by itself; Wait below waits for it
			v := i + 1
			return func() { k.see(v - 1) }
		})
	}
	s.Wait()
	return nil
}

func concOfBatches(k *order, n int) error {
	s := stream.New().WithMaxGoroutines(concurrent)
	for next := 0; next < n; {
		vs := make([]int, min(batchSize, n-next))
		next = fill(vs, next)
		s.Go(func() stream.Callback { // a call: ends by itself; Wait below waits for it
			addOne(vs)
			return func() { k.run(seen(vs)) }
		})
	}
	s.Wait()
	return nil
}

// roPerEvent has the source in one goroutine, the map and the sink in another,
// as penstock has by default.
func roPerEvent(k *order, n int) error {
	source := ro.NewUnsafeObservable(func(to ro.Observer[int]) ro.Teardown {
		for i := range n {
			to.Next(i)
		}
		to.Complete()
		return nil
	})
	p := ro.Pipe2(source, ro.SubscribeOn[int](aheadOf), ro.Map(func(v int) int { return v + 1 }))
	return observe(p, func(v int) { k.see(v - 1) })
}

func roOfBatches(k *order, n int) error {
	source := ro.NewUnsafeObservable(func(to ro.Observer[[]int]) ro.Teardown {
		for next := 0; next < n; {
			vs := make([]int, min(batchSize, n-next))
			next = fill(vs, next)
			to.Next(vs)
		}
		to.Complete()
		return nil
	})
	p := ro.Pipe3(source, ro.SubscribeOn[[]int](aheadOf/batchSize), ro.Map(func(vs []int) []int { addOne(vs); return vs }), ro.SubscribeOn[[]int](aheadOf/batchSize))
	return observe(p, func(vs []int) { k.run(seen(vs)) })
}

// observe runs an observable to its end.
func observe[T any](o ro.Observable[T], f func(T)) error {
	var failed error
	over := make(chan struct{})
	sub := o.Subscribe(ro.NewObserver(f, func(err error) { failed = err; close(over) }, func() { close(over) }))
	<-over
	sub.Unsubscribe()
	return failed
}

// pipeSide runs a pipeline per event or in batches.
func pipeSide(batches bool) func(p peer, n int) (*contestant, error) {
	return func(p peer, n int) (*contestant, error) {
		run := p.pipe
		if batches {
			run = p.pipeBatch
		}
		if run == nil {
			return nil, nil
		}
		n *= perPipeline
		return &contestant{run: func(c *measure.Clock) error {
			k := newOrder(inSequence, c.Every, n)
			c.Start()
			err := run(k, n)
			c.Stop(n)
			return errors.Join(err, together(n, k))
		}}, nil
	}
}
