package bench

import (
	"errors"
	"fmt"

	"github.com/penstock/penstock/queue"
)

// numbers returns 0 to n-1.
func numbers(n int) []int {
	v := make([]int, n)
	for i := range v {
		v[i] = i
	}
	return v
}

func openTopic(capacity, batchMax int) (*queue.Topic[int], *queue.Group[int], error) {
	t, err := queue.Open(queue.Config[int]{Name: "bench", Partitions: partitions, Capacity: capacity})
	if err != nil {
		return nil, nil, err
	}
	g, err := t.Group("bench", queue.GroupConfig{AutoCommit: true, BatchMax: batchMax})
	if err != nil {
		return nil, nil, errors.Join(err, t.Close())
	}
	return t, g, nil
}

func produceSingle(e env) (pair, error) {
	return produceRow(e, func(t *queue.Topic[int], events []int) error {
		for _, v := range events {
			if err := t.Produce(e.ctx, v); err != nil {
				return err
			}
		}
		return nil
	})
}

func produceBatch(e env) (pair, error) {
	return produceRow(e, func(t *queue.Topic[int], events []int) error { return t.Produce(e.ctx, events...) })
}

func produceRow(e env, produce func(*queue.Topic[int], []int) error) (pair, error) {
	t, g, err := openTopic(0, 0)
	if err != nil {
		return pair{}, err
	}
	events := numbers(e.events)
	consumer := g.Consumer(0)
	ours := func(c *clock) error {
		c.start()
		err := produce(t, events)
		c.stop(len(events))
		if err != nil {
			return err
		}
		return drainTopic(c, consumer, len(events), 1000)
	}
	ch := make(chan int, queueEvents)
	base := func(c *clock) error {
		for rest := events; len(rest) > 0; {
			part := rest[:min(len(rest), cap(ch))]
			rest = rest[len(part):]
			c.start()
			for _, v := range part {
				ch <- v
			}
			c.stop(len(part))
			for _, v := range part {
				if got := <-ch; got != v {
					return fmt.Errorf("got event %d, want %d", got, v)
				}
			}
		}
		return nil
	}
	return pair{ours, base, t.Close}, nil
}

// drainTopic pulls and checks everything that a topic holds.
func drainTopic(c *clock, consumer *queue.Consumer[int], events, batchMax int) error {
	t := newTally(c, partitions, events)
	for t.count < events {
		b, ok, err := consumer.TryPull(batchMax)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		t.ints(b.Partition(), b.Values())
	}
	return errors.Join(t.done(events), noMore(consumer))
}

// noMore makes sure that a topic is empty.
func noMore(consumer *queue.Consumer[int]) error {
	if b, ok, err := consumer.TryPull(1); ok || err != nil {
		return errors.Join(err, fmt.Errorf("%d events more than were produced", b.Len()))
	}
	return nil
}

func consume(batchMax int) func(e env) (pair, error) {
	return func(e env) (pair, error) {
		events := numbers(e.events)
		ours := func(c *clock) error {
			t, g, err := openTopic(0, 0)
			if err != nil {
				return err
			}
			if err := t.Produce(e.ctx, events...); err != nil {
				return errors.Join(err, t.Close())
			}
			consumer := g.Consumer(0)
			k := newTally(c, partitions, len(events))
			c.start()
			for k.count < len(events) {
				b, ok, pullErr := consumer.TryPull(batchMax)
				if !ok || pullErr != nil {
					err = pullErr
					break
				}
				k.ints(b.Partition(), b.Values())
			}
			c.stop(k.count)
			return errors.Join(err, k.done(len(events)), noMore(consumer), t.Close())
		}
		base := func(c *clock) error {
			ch := make(chan int, len(events))
			for _, v := range events {
				ch <- v
			}
			k := newTally(c, 1, len(events))
			var one [1]int
			c.start()
			for range len(events) {
				one[0] = <-ch
				k.ints(0, one[:])
			}
			c.stop(len(events))
			return k.done(len(events))
		}
		return pair{ours, base, nil}, nil
	}
}

func flow(batch int) func(e env) (pair, error) {
	return func(e env) (pair, error) {
		events := numbers(e.events)
		ours := func(c *clock) error { return flowTopic(e, c, events, batch) }
		base := func(c *clock) error {
			ch := make(chan int, queueEvents)
			k := newTally(c, 1, len(events))
			c.start()
			// The producer: ends after all events; the receives below wait for it.
			go func() {
				for _, v := range events {
					ch <- v
				}
			}()
			var one [1]int
			for range len(events) {
				one[0] = <-ch
				k.ints(0, one[:])
			}
			c.stop(len(events))
			return k.done(len(events))
		}
		return pair{ours, base, nil}, nil
	}
}

func flowTopic(e env, c *clock, events []int, batch int) error {
	t, g, err := openTopic(queueEvents, batch)
	if err != nil {
		return err
	}
	consumer := g.Consumer(0)
	k := newTally(c, partitions, len(events))
	produced := make(chan error, 1)
	c.start()
	// The producer: ends after all events, or when the topic closes; produced
	// waits for it.
	go func() {
		for rest := events; len(rest) > 0; {
			n := min(batch, len(rest))
			if err := t.Produce(e.ctx, rest[:n]...); err != nil {
				produced <- err
				return
			}
			rest = rest[n:]
		}
		produced <- nil
	}()
	for k.count < len(events) {
		b, pullErr := consumer.Pull(e.ctx)
		if pullErr != nil {
			err = pullErr
			break
		}
		k.ints(b.Partition(), b.Values())
	}
	c.stop(k.count)
	if err == nil {
		err = noMore(consumer)
	}
	closeErr := t.Close()
	return errors.Join(err, closeErr, <-produced, k.done(len(events)))
}
