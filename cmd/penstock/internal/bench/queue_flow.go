package bench

import (
	"context"
	"errors"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/queue"
)

// flowRow: a producer and one consumer per group run together, batch events at
// a time.
func flowRow[T measure.Event](s layout, batch int, swap, batches measure.Goal) func(env) (pair, error) {
	return func(e env) (pair, error) {
		events := measure.Numbered[T](e.events)
		base := func(c *measure.Clock) error {
			chans := channels[T](s.groups, queueEvents)
			err := c.AtOnce(1+s.groups, func(i int) error {
				if i == 0 {
					sendAll(chans, events)
					return nil
				}
				return receive(chans[i-1], len(events))
			})
			c.Stop(s.groups * len(events))
			return err
		}
		p := pair{ours: func(c *measure.Clock) error { return flowTopic(e, c, s, events, batch) }, base: base}
		p.also = []also{{"mutex and swapped slices", swap, swapFlow(s.groups, events, batch)}}
		if batch > 1 {
			p.also = append(p.also, also{"chan of recycled batches", batches, recycledFlow(s.groups, events, batch)})
		}
		return p, nil
	}
}

// flowTopic runs a topic of its own. Allocations are those of a second lap, when
// the topic has what it needs.
func flowTopic[T measure.Event](e env, c *measure.Clock, s layout, events []T, batch int) error {
	t, groups, err := openTopic(s, queue.Config[T]{Capacity: queueEvents}, queue.GroupConfig{BatchMax: batch})
	if err != nil {
		return err
	}
	if c.Allocs {
		err = lap(e, &measure.Clock{}, t, groups, events, batch)
	}
	if err == nil {
		err = lap(e, c, t, groups, events, batch)
	}
	return errors.Join(err, t.Close())
}

// lap produces all events and consumes them with every group.
func lap[T measure.Event](e env, c *measure.Clock, t *queue.Topic[T], groups []*queue.Group[T], events []T, batch int) error {
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	tallies := make([]*measure.Tally, len(groups))
	for i := range tallies {
		tallies[i] = measure.NewTally(c, t.Partitions(), len(events))
	}
	err := c.AtOnce(1+len(groups), func(i int) error {
		if i == 0 {
			return ending(cancel, produceIn(ctx, t, events, batch))
		}
		return ending(cancel, pullTally(ctx, groups[i-1].Consumer(0), tallies[i-1], len(events)))
	})
	c.Stop(len(groups) * len(events))
	for i, g := range groups {
		if err == nil {
			err = errors.Join(tallies[i].Done(len(events)), noMore(g.Consumer(0)))
		}
	}
	return err
}

// ending makes the others end when one failed.
func ending(cancel context.CancelCauseFunc, err error) error {
	if err != nil {
		cancel(err)
	}
	return err
}

// pullTally pulls until so many events came.
func pullTally[T measure.Event](ctx context.Context, consumer *queue.Consumer[T], k *measure.Tally, events int) error {
	for k.Count() < events {
		b, err := consumer.Pull(ctx)
		if err != nil {
			return err
		}
		if vs := b.Values(); !k.Fits(b.Partition(), len(vs), vs[0][0], vs[len(vs)-1][0]) {
			measure.Take(k, b.Partition(), vs)
		}
	}
	return nil
}

// swapFlow: the producer adds batch events at a time, a consumer takes
// everything that is there and looks at it batch events at a time.
func swapFlow[T measure.Event](groups int, events []T, batch int) side {
	swaps, spares := make([]*measure.Swap[T], groups), make([][]T, groups)
	for i := range swaps {
		swaps[i], spares[i] = measure.NewSwap[T](queueEvents), make([]T, 0, queueEvents)
	}
	return func(c *measure.Clock) error {
		tallies := make([]*measure.Tally, groups)
		for i := range tallies {
			tallies[i] = measure.NewTally(c, 1, len(events))
		}
		err := c.AtOnce(1+groups, func(i int) error {
			if i == 0 {
				pushAll(swaps, events, batch)
				return nil
			}
			k, spare := tallies[i-1], spares[i-1]
			for k.Count() < len(events) {
				spare = swaps[i-1].Take(spare)
				for rest := spare; len(rest) > 0; {
					n := min(batch, len(rest))
					if vs := rest[:n]; !k.Fits(0, len(vs), vs[0][0], vs[len(vs)-1][0]) {
						measure.Take(k, 0, vs)
					}
					rest = rest[n:]
				}
			}
			spares[i-1] = spare
			return k.Done(len(events))
		})
		c.Stop(groups * len(events))
		return err
	}
}

func pushAll[T measure.Event](swaps []*measure.Swap[T], events []T, batch int) {
	switch {
	case batch == 1 && len(swaps) == 1:
		s := swaps[0]
		for _, v := range events {
			s.Push(v)
		}
		return
	case batch == 1:
		for _, v := range events {
			for _, s := range swaps {
				s.Push(v)
			}
		}
		return
	}
	for rest := events; len(rest) > 0; {
		n := min(batch, len(rest))
		for _, s := range swaps {
			s.PushAll(rest[:n])
		}
		rest = rest[n:]
	}
}

// recycledFlow: batches go round between the producer and each consumer.
func recycledFlow[T measure.Event](groups int, events []T, batch int) side {
	all := make([]measure.Recycled[T], groups)
	for i := range all {
		all[i] = measure.NewRecycled[T](batch, queueEvents)
	}
	return func(c *measure.Clock) error {
		tallies := make([]*measure.Tally, groups)
		for i := range tallies {
			tallies[i] = measure.NewTally(c, 1, len(events))
		}
		err := c.AtOnce(1+groups, func(i int) error {
			if i == 0 {
				for rest := events; len(rest) > 0; {
					n := min(batch, len(rest))
					for _, r := range all {
						r.Full <- append((<-r.Free)[:0], rest[:n]...)
					}
					rest = rest[n:]
				}
				return nil
			}
			r, k := all[i-1], tallies[i-1]
			for k.Count() < len(events) {
				vs := <-r.Full
				if !k.Fits(0, len(vs), vs[0][0], vs[len(vs)-1][0]) {
					measure.Take(k, 0, vs)
				}
				r.Free <- vs
			}
			return k.Done(len(events))
		})
		c.Stop(groups * len(events))
		return err
	}
}
