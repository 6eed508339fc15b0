package bench

import (
	"context"
	"errors"
	"sync"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/queue"
)

// manyRow: several producers and as many consumers as partitions run together.
func manyRow[T measure.Event](producers, partitions, batch int, swap, batches measure.Goal) func(env) (pair, error) {
	return func(e env) (pair, error) {
		m := many[T]{producers: producers, consumers: partitions, each: e.events / producers, batch: batch}
		for p := range producers {
			m.events = append(m.events, measure.By[T](p, m.each))
		}
		p := pair{ours: func(c *measure.Clock) error { return m.topic(e, c) }, base: m.channel}
		p.also = []also{{"mutex and swapped slices", swap, m.swaps()}}
		if batch > 1 {
			p.also = append(p.also, also{"chan of recycled batches", batches, m.recycled})
		}
		return p, nil
	}
}

type many[T measure.Event] struct {
	producers, consumers int
	each                 int // events of a producer
	batch                int
	events               [][]T // by producer
}

func (m many[T]) total() int { return m.producers * m.each }

// run runs everybody inside the clock and checks what the consumers saw. end is
// called after the last producer.
func (m many[T]) run(c *measure.Clock, produce func(p int) error, consume func(i int, w *measure.Crowd) error, end func()) error {
	crowds := make([]*measure.Crowd, m.consumers)
	for i := range crowds {
		crowds[i] = measure.NewCrowd(c, 1, m.producers, m.each)
	}
	var producing sync.WaitGroup
	producing.Add(m.producers)
	err := c.AtOnce(m.producers+m.consumers+1, func(i int) error {
		switch {
		case i < m.producers:
			defer producing.Done()
			return produce(i)
		case i < m.producers+m.consumers:
			return consume(i-m.producers, crowds[i-m.producers])
		}
		producing.Wait()
		end()
		return nil
	})
	c.Stop(m.total())
	if err != nil {
		return err
	}
	return measure.Together(crowds...)
}

// topic: events go round robin, so each consumer knows how many are its own.
func (m many[T]) topic(e env, c *measure.Clock) error {
	t, groups, err := openTopic(layout{m.consumers, 1}, queue.Config[T]{Capacity: queueEvents}, queue.GroupConfig{Consumers: m.consumers, BatchMax: m.batch})
	if err != nil {
		return err
	}
	if c.Allocs {
		err = m.lap(e, &measure.Clock{}, t, groups[0])
	}
	if err == nil {
		err = m.lap(e, c, t, groups[0])
	}
	return errors.Join(err, t.Close())
}

func (m many[T]) lap(e env, c *measure.Clock, t *queue.Topic[T], g *queue.Group[T]) error {
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	share := m.total() / m.consumers
	return m.run(c, func(p int) error {
		return ending(cancel, produceIn(ctx, t, m.events[p], m.batch))
	}, func(i int, w *measure.Crowd) error {
		consumer := g.Consumer(i)
		for w.Count() < share {
			b, err := consumer.Pull(ctx)
			if err != nil {
				return ending(cancel, err)
			}
			measure.Join(w, 0, b.Values())
		}
		return noMore(consumer)
	}, func() {})
}

// channel: one channel for everybody.
func (m many[T]) channel(c *measure.Clock) error {
	ch := make(chan T, queueEvents)
	return m.run(c, func(p int) error {
		for _, v := range m.events[p] {
			ch <- v
		}
		return nil
	}, func(_ int, w *measure.Crowd) error {
		var one [1]T
		for one[0] = range ch {
			measure.Join(w, 0, one[:])
		}
		return nil
	}, func() { close(ch) })
}

// swaps: a slice per consumer; a producer's calls take turns.
func (m many[T]) swaps() side {
	return func(c *measure.Clock) error {
		swaps, spares := make([]*measure.Swap[T], m.consumers), make([][]T, m.consumers)
		for i := range swaps {
			swaps[i], spares[i] = measure.NewSwap[T](queueEvents), make([]T, 0, queueEvents)
		}
		return m.run(c, func(p int) error {
			turn := p
			for rest := m.events[p]; len(rest) > 0; turn++ {
				n := min(m.batch, len(rest))
				if s := swaps[turn%len(swaps)]; n == 1 {
					s.Push(rest[0])
				} else {
					s.PushAll(rest[:n])
				}
				rest = rest[n:]
			}
			return nil
		}, func(i int, w *measure.Crowd) error {
			for vs := swaps[i].Take(spares[i]); len(vs) > 0; vs = swaps[i].Take(vs) {
				for rest := vs; len(rest) > 0; {
					n := min(m.batch, len(rest))
					measure.Join(w, 0, rest[:n])
					rest = rest[n:]
				}
			}
			return nil
		}, func() {
			for _, s := range swaps {
				s.Close()
			}
		})
	}
}

// recycled: one channel of batches for everybody.
func (m many[T]) recycled(c *measure.Clock) error {
	r := measure.NewRecycled[T](m.batch, queueEvents)
	return m.run(c, func(p int) error {
		for rest := m.events[p]; len(rest) > 0; {
			n := min(m.batch, len(rest))
			r.Full <- append((<-r.Free)[:0], rest[:n]...)
			rest = rest[n:]
		}
		return nil
	}, func(_ int, w *measure.Crowd) error {
		for vs := range r.Full {
			measure.Join(w, 0, vs)
			r.Free <- vs
		}
		return nil
	}, func() { close(r.Full) })
}
