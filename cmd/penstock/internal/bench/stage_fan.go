package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/stage"
)

// fanOut is how many sinks the rows of fan-out have.
const fanOut = 4

// numbers makes the source of a row: the events 0 to n-1, in the batches that
// it is asked for.
func numbers[T any](s shape[T], n int) *stage.Source[T] {
	next := 0
	return stage.Pull("source", func(_ context.Context, want int, out *stage.Output[T]) error {
		vs := out.Grow(min(want, n-next))
		for i := range vs {
			s.set(&vs[i], next)
			next++
		}
		return doneAt(next, n)
	})
}

// changing makes the gate of a row: it changes its input in place.
func changing[T any](s shape[T]) *stage.Gate[T, T] {
	return stage.NewGate("gate", func(_ context.Context, in []T, out *stage.Output[T]) error {
		for i := range in {
			s.change(&in[i])
		}
		out.Forward(in)
		return nil
	})
}

// subscribed says what demand the edges of a row have.
type subscribed struct {
	opts  []stage.SubOption
	batch int // max - min
}

var (
	byDefault = subscribed{batch: defaultBatch}
	minHalf   = subscribed{opts: []stage.SubOption{stage.Demand(1000, 500)}, batch: 500}
)

// broadcastRow: source, gate, and four sinks that see every event. An event is
// one of the source's.
func broadcastRow[T any](s shape[T], d subscribed) func(env) (pair, error) {
	return func(e env) (pair, error) {
		ours := func(c *measure.Clock) error {
			source, gate := numbers(s, e.events), changing(s).Broadcast()
			g := stage.NewGraph()
			stage.Connect(g, source, gate, d.opts...)
			tallies := make([]*measure.Tally, fanOut)
			for i := range tallies {
				k := measure.NewTally(c, 1, e.events)
				tallies[i] = k
				stage.Connect(g, gate, stage.NewSink(fmt.Sprint("sink", i), func(_ context.Context, in []T) error {
					k.Batch(0, len(in), func(i int) int { return s.number(&in[i]) })
					return nil
				}), d.opts...)
			}
			return runFan(e, c, g, tallies)
		}
		return pair{ours: ours, base: func(c *measure.Clock) error { return broadcastByHand(e, c, s, d.batch) }}, nil
	}
}

func runFan(e env, c *measure.Clock, g *stage.Graph, tallies []*measure.Tally) error {
	c.Start()
	err := g.Run(e.ctx)
	c.Stop(e.events)
	for _, k := range tallies {
		err = errors.Join(err, k.Done(e.events))
	}
	return err
}

// A sharedBatch goes to several consumers; the last one gives it back.
type sharedBatch[T any] struct {
	vs   []T
	left atomic.Int32
}

// broadcastByHand shares each batch among the sinks, which count it down.
func broadcastByHand[T any](e env, c *measure.Clock, s shape[T], size int) error {
	ahead := hopCapacity / size
	free, a := make(chan *sharedBatch[T], 2*ahead+1), make(chan *sharedBatch[T], ahead)
	for range cap(free) {
		free <- &sharedBatch[T]{vs: make([]T, size)}
	}
	var outs [fanOut]chan *sharedBatch[T]
	var tallies [fanOut]*measure.Tally
	for i := range outs {
		outs[i], tallies[i] = make(chan *sharedBatch[T], ahead), measure.NewTally(c, 1, e.events)
	}
	c.Start()
	go func() { // source: ends after its events; the gate waits for it
		defer close(a)
		for next := 0; next < e.events; {
			b := <-free
			b.vs = b.vs[:min(size, e.events-next)]
			for i := range b.vs {
				s.set(&b.vs[i], next)
				next++
			}
			a <- b
		}
	}()
	go func() { // gate: ends with a; the sinks wait for it
		for b := range a {
			for i := range b.vs {
				s.change(&b.vs[i])
			}
			b.left.Store(fanOut)
			for _, out := range outs {
				out <- b
			}
		}
		for _, out := range outs {
			close(out)
		}
	}()
	var sinks sync.WaitGroup
	for i, out := range outs {
		sinks.Go(func() { // a sink: ends with its channel; Wait below waits for it
			for b := range out {
				tallies[i].Batch(0, len(b.vs), func(i int) int { return s.number(&b.vs[i]) })
				if b.left.Add(-1) == 0 {
					b.vs = b.vs[:cap(b.vs)]
					free <- b
				}
			}
		})
	}
	sinks.Wait()
	c.Stop(e.events)
	var err error
	for _, k := range tallies {
		err = errors.Join(err, k.Done(e.events))
	}
	return err
}

// partitionRow: source, gate, and four sinks; each gets the events whose number
// has its remainder. perEvent adds what one writes first.
func partitionRow[T any](s shape[T], d subscribed, perEvent bool) func(env) (pair, error) {
	return func(e env) (pair, error) {
		ours := func(c *measure.Clock) error {
			source := numbers(s, e.events)
			gate := changing(s).Dispatch(stage.Partition(fanOut, s.key))
			g := stage.NewGraph()
			stage.Connect(g, source, gate, d.opts...)
			tallies := newPartTallies(c, e.events)
			for i := range tallies {
				stage.Connect(g, gate.Out().Partition(i), stage.NewSink(fmt.Sprint("sink", i), func(_ context.Context, in []T) error {
					takePart(tallies[i], s, i, in)
					return nil
				}), d.opts...)
			}
			c.Start()
			err := g.Run(e.ctx)
			c.Stop(e.events)
			return errors.Join(err, partsDone(tallies, e.events))
		}
		p := pair{ours: ours, base: func(c *measure.Clock) error { return partitionByHand(e, c, s, d.batch) }}
		if perEvent {
			p.also = []also{{"chan per event", measure.Goal{Goal: 3}, func(c *measure.Clock) error { return partitionPerEvent(e, c) }}}
		}
		return p, nil
	}
}

// newPartTallies returns a tally per sink of a partition: sink i gets the events
// i, i+4, i+8 and so on, which its tally sees as 0, 1, 2.
func newPartTallies(c *measure.Clock, events int) []*measure.Tally {
	tallies := make([]*measure.Tally, fanOut)
	for i := range tallies {
		tallies[i] = measure.NewTally(c, 1, partOf(events, i))
	}
	return tallies
}

func partOf(events, i int) int { return (events - i + fanOut - 1) / fanOut }

// takePart checks a batch of a sink; an event of another's makes a number that
// does not fit.
func takePart[T any](k *measure.Tally, s shape[T], sink int, in []T) {
	k.Batch(0, len(in), func(i int) int {
		n := s.number(&in[i]) - sink
		if n%fanOut != 0 {
			return -1
		}
		return n / fanOut
	})
}

func partsDone(tallies []*measure.Tally, events int) (err error) {
	for i, k := range tallies {
		err = errors.Join(err, k.Done(partOf(events, i)))
	}
	return err
}

// partitionByHand has the gate fill a recycled batch per sink, and send it when
// it is full or, so that no event waits for others to come, with the input that
// it came by.
func partitionByHand[T any](e env, c *measure.Clock, s shape[T], size int) error {
	ahead := hopCapacity / size
	free, a := make(chan []T, ahead+1), make(chan []T, ahead)
	for range cap(free) {
		free <- make([]T, size)
	}
	outs := make([]measure.Recycled[T], fanOut)
	for i := range outs {
		outs[i] = measure.NewRecycled[T](size, hopCapacity)
	}
	tallies := newPartTallies(c, e.events)
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
	go func() { // gate: ends with a; the sinks wait for it
		divide(s, a, free, outs)
		for _, out := range outs {
			close(out.Full)
		}
	}()
	var sinks sync.WaitGroup
	for i, out := range outs {
		sinks.Go(func() { // a sink: ends with its channel; Wait below waits for it
			for vs := range out.Full {
				takePart(tallies[i], s, i, vs)
				out.Free <- vs[:0]
			}
		})
	}
	sinks.Wait()
	c.Stop(e.events)
	return partsDone(tallies, e.events)
}

// divide changes the events of a and sends each to its part.
func divide[T any](s shape[T], a, free chan []T, outs []measure.Recycled[T]) {
	var parts [fanOut][]T
	for vs := range a {
		for i := range vs {
			s.change(&vs[i])
			p := s.key(vs[i]) % fanOut
			if parts[p] == nil {
				parts[p] = <-outs[p].Free
			}
			if parts[p] = append(parts[p], vs[i]); len(parts[p]) == cap(parts[p]) {
				outs[p].Full <- parts[p]
				parts[p] = nil
			}
		}
		free <- vs[:cap(vs)]
		for p := range parts {
			if len(parts[p]) > 0 {
				outs[p].Full <- parts[p]
				parts[p] = nil
			}
		}
	}
}

// partitionPerEvent is what one writes first: a channel per hop and sink, an
// event per operation.
func partitionPerEvent(e env, c *measure.Clock) error {
	tallies := newPartTallies(c, e.events)
	c.Start()
	first := make(chan int, hopCapacity)
	go func() { // source: ends after its events; the gate waits for it
		defer close(first)
		for i := range e.events {
			first <- i
		}
	}()
	var outs [fanOut]chan int
	for i := range outs {
		outs[i] = make(chan int, hopCapacity)
	}
	go func() { // gate: ends with its input; the sinks wait for it
		for v := range first {
			v = plusOne(v)
			outs[(v-1)%fanOut] <- v
		}
		for _, out := range outs {
			close(out)
		}
	}()
	var sinks sync.WaitGroup
	for i, out := range outs {
		sinks.Go(func() { // a sink: ends with its channel; Wait below waits for it
			var one [1]measure.Word
			for v := range out {
				one[0][0] = (v - 1 - i) / fanOut
				measure.Take(tallies[i], 0, one[:])
			}
		})
	}
	sinks.Wait()
	c.Stop(e.events)
	return partsDone(tallies, e.events)
}
