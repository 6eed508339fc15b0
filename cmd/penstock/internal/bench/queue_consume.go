package bench

import (
	"errors"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/queue"
)

// consumeRow: what was there before is pulled, batchMax events at most at a
// time; the groups one after the other.
func consumeRow[T measure.Event](s layout, batchMax int, hand, batches measure.Goal) func(env) (pair, error) {
	return func(e env) (pair, error) {
		events := measure.Numbered[T](e.events)
		ours := func(c *measure.Clock) error {
			t, groups, err := openTopic(s, queue.Config[T]{}, queue.GroupConfig{})
			if err != nil {
				return err
			}
			if err := t.Produce(e.ctx, events...); err != nil {
				return errors.Join(err, t.Close())
			}
			if c.Allocs { // the steady state: a first round has made what a consumer needs
				for _, g := range groups {
					err = errors.Join(err, consumeAll(&measure.Clock{}, g.Consumer(0), s.partitions, len(events), batchMax))
				}
				err = errors.Join(err, t.Produce(e.ctx, events...))
			}
			for _, g := range groups {
				err = errors.Join(err, consumeAll(c, g.Consumer(0), s.partitions, len(events), batchMax))
			}
			return errors.Join(err, t.Close())
		}
		chans := channels[T](s.groups, len(events))
		base := func(c *measure.Clock) error {
			sendAll(chans, events)
			for _, ch := range chans {
				c.Start()
				err := receive(ch, len(events))
				c.Stop(len(events))
				if err != nil {
					return err
				}
			}
			return nil
		}
		p := pair{ours: ours, base: base, also: []also{{"mutex and slice", hand, stackConsume(s.groups, events, batchMax)}}}
		if batchMax > 1 {
			p.also = append(p.also, also{"chan of recycled batches", batches, recycledConsume(s.groups, events, batchMax)})
		}
		return p, nil
	}
}

// consumeAll pulls everything inside the clock.
func consumeAll[T measure.Event](c *measure.Clock, consumer *queue.Consumer[T], lanes, events, batchMax int) error {
	k := measure.NewTally(c, lanes, events)
	var err error
	c.Start()
	for k.Count() < events {
		b, ok, pullErr := consumer.TryPull(batchMax)
		if !ok || pullErr != nil {
			err = pullErr
			break
		}
		if vs := b.Values(); !k.Fits(b.Partition(), len(vs), vs[0][0], vs[len(vs)-1][0]) {
			measure.Take(k, b.Partition(), vs)
		}
	}
	c.Stop(max(1, k.Count()))
	return errors.Join(err, k.Done(events), noMore(consumer))
}

func stackConsume[T measure.Event](groups int, events []T, batchMax int) side {
	stacks, out := make([]measure.Stack[T], groups), make([]T, batchMax)
	return func(c *measure.Clock) error {
		for i := range stacks {
			stacks[i].PushAll(events)
		}
		for i := range stacks {
			k := measure.NewTally(c, 1, len(events))
			c.Start()
			for n := stacks[i].Pop(out); n > 0; n = stacks[i].Pop(out) {
				if vs := out[:n]; !k.Fits(0, len(vs), vs[0][0], vs[len(vs)-1][0]) {
					measure.Take(k, 0, vs)
				}
			}
			c.Stop(len(events))
			if err := k.Done(len(events)); err != nil {
				return err
			}
		}
		return nil
	}
}

func recycledConsume[T measure.Event](groups int, events []T, batch int) side {
	all := make([]measure.Recycled[T], groups)
	for i := range all {
		all[i] = measure.NewRecycled[T](batch, len(events))
	}
	return func(c *measure.Clock) error {
		for _, r := range all {
			for rest := events; len(rest) > 0; {
				n := min(batch, len(rest))
				r.Full <- append((<-r.Free)[:0], rest[:n]...)
				rest = rest[n:]
			}
		}
		for _, r := range all {
			k := measure.NewTally(c, 1, len(events))
			c.Start()
			for k.Count() < len(events) {
				vs := <-r.Full
				if !k.Fits(0, len(vs), vs[0][0], vs[len(vs)-1][0]) {
					measure.Take(k, 0, vs)
				}
				r.Free <- vs
			}
			c.Stop(len(events))
			if err := k.Done(len(events)); err != nil {
				return err
			}
		}
		return nil
	}
}
