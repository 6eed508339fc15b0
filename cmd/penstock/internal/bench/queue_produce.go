package bench

import (
	"errors"
	"fmt"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/queue"
)

// produceRow: one producer, in calls of one event or in one of all.
func produceRow[T measure.Event](s layout, batch bool, hand measure.Goal) func(env) (pair, error) {
	return func(e env) (pair, error) {
		t, groups, err := openTopic(s, queue.Config[T]{}, queue.GroupConfig{})
		if err != nil {
			return pair{}, err
		}
		events := measure.Numbered[T](e.events)
		per := 1
		if batch {
			per = len(events)
		}
		ours := func(c *measure.Clock) error {
			c.Start()
			err := produceIn(e.ctx, t, events, per)
			c.Stop(len(events))
			for _, g := range groups {
				err = errors.Join(err, pullAll(c, g.Consumer(0), s.partitions, len(events)))
			}
			return err
		}
		chans := channels[T](s.groups, len(events))
		base := func(c *measure.Clock) error {
			c.Start()
			sendAll(chans, events)
			c.Stop(len(events))
			var err error
			for _, ch := range chans {
				err = errors.Join(err, receive(ch, len(events)))
			}
			return err
		}
		stack := also{"mutex and slice", hand, stackProduce(s.groups, events, batch)}
		return pair{ours: ours, base: base, also: []also{stack}, close: t.Close}, nil
	}
}

func stackProduce[T measure.Event](groups int, events []T, batch bool) side {
	stacks, out := make([]measure.Stack[T], groups), make([]T, len(events))
	return func(c *measure.Clock) error {
		c.Start()
		switch {
		case batch:
			for i := range stacks {
				stacks[i].PushAll(events)
			}
		case groups == 1:
			s := &stacks[0]
			for _, v := range events {
				s.Push(v)
			}
		default:
			for _, v := range events {
				for i := range stacks {
					stacks[i].Push(v)
				}
			}
		}
		c.Stop(len(events))
		for i := range stacks {
			k := measure.NewTally(c, 1, len(events))
			if n := stacks[i].Pop(out); n > 0 {
				measure.Take(k, 0, out[:n])
			}
			if err := k.Done(len(events)); err != nil {
				return err
			}
		}
		return nil
	}
}

// produceShared: producers of one topic with a capacity, each in a goroutine of
// its own.
func produceShared[T measure.Event](producers, partitions int) func(env) (pair, error) {
	return func(e env) (pair, error) {
		each := e.events / producers
		t, groups, err := openTopic(layout{partitions, 1}, queue.Config[T]{Capacity: each * producers}, queue.GroupConfig{})
		if err != nil {
			return pair{}, err
		}
		events := make([][]T, producers)
		for p := range events {
			events[p] = measure.By[T](p, each)
		}
		ours := func(c *measure.Clock) error {
			err := c.AtOnce(producers, func(p int) error { return produceSingles(e.ctx, t, events[p]) })
			c.Stop(each * producers)
			return errors.Join(err, pullCrowd(c, groups[0].Consumer(0), partitions, producers, each))
		}
		ch := make(chan T, each*producers)
		base := func(c *measure.Clock) error {
			return crowdOf(c, producers, each, func(p int) {
				for _, v := range events[p] {
					ch <- v
				}
			}, func(out []T) int {
				for i := range out {
					out[i] = <-ch
				}
				return len(out)
			})
		}
		var stack measure.Stack[T]
		hand := func(c *measure.Clock) error {
			return crowdOf(c, producers, each, func(p int) {
				for _, v := range events[p] {
					stack.Push(v)
				}
			}, stack.Pop)
		}
		return pair{ours: ours, base: base, also: []also{{"mutex and slice", measure.Goal{}, hand}}, close: t.Close}, nil
	}
}

// crowdOf runs producers inside the clock, and then takes out and checks what
// they made.
func crowdOf[T measure.Event](c *measure.Clock, producers, each int, produce func(p int), take func(out []T) int) error {
	err := c.AtOnce(producers, func(p int) error { produce(p); return nil })
	c.Stop(each * producers)
	w := measure.NewCrowd(c, 1, producers, each)
	out := make([]T, each*producers)
	if n := take(out); n > 0 {
		measure.Join(w, 0, out[:n])
	}
	return errors.Join(err, measure.Together(w))
}

// pullCrowd pulls and checks everything that several producers made.
func pullCrowd[T measure.Event](c *measure.Clock, consumer *queue.Consumer[T], lanes, producers, each int) error {
	w := measure.NewCrowd(c, lanes, producers, each)
	for w.Count() < producers*each {
		b, ok, err := consumer.TryPull(1000)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%d events came out of %d", w.Count(), producers*each)
		}
		measure.Join(w, b.Partition(), b.Values())
	}
	return errors.Join(measure.Together(w), noMore(consumer))
}
