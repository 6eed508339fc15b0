package bench

import (
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/queue"
)

// The rows of this file repeat the shapes of BufferQueue's own benchmark:
// 8192 numbers, and as many producers, consumers and partitions as processors.

// seedProduce: inside the clock, opening a topic, starting the producers, one
// part of the events each, and their end.
func seedProduce(bounded, batch bool) func(env) (pair, error) {
	return func(e env) (pair, error) {
		n := runtime.GOMAXPROCS(0)
		each := (e.events + n - 1) / n
		events := make([][]measure.Word, n)
		for p := range events {
			events[p] = measure.By[measure.Word](p, each)
		}
		per, config := 1, queue.Config[measure.Word]{}
		if batch {
			per = each
		}
		if bounded {
			config.Capacity = n * each
		}
		ours := func(c *measure.Clock) error {
			c.Start()
			t, _, err := openTopic(layout{partitions: n}, config, queue.GroupConfig{})
			if err != nil {
				return err
			}
			err = atOnce(n, func(p int) error { return produceIn(e.ctx, t, events[p], per) })
			c.Stop(n * each)
			g, groupErr := t.Group("late", queue.GroupConfig{AutoCommit: true})
			if groupErr != nil {
				return errors.Join(err, groupErr, t.Close())
			}
			return errors.Join(err, pullCrowd(c, g.Consumer(0), n, n, each), t.Close())
		}
		base := func(c *measure.Clock) error {
			var ch chan measure.Word
			c.Start()
			ch = make(chan measure.Word, n*each)
			err := atOnce(n, func(p int) error {
				for _, v := range events[p] {
					select {
					case ch <- v:
					default:
						return errors.New("the channel is full")
					}
				}
				return nil
			})
			c.Stop(n * each)
			w := measure.NewCrowd(c, 1, n, each)
			var one [1]measure.Word
			for range n * each {
				one[0] = <-ch
				measure.Join(w, 0, one[:])
			}
			return errors.Join(err, measure.Together(w))
		}
		return pair{ours: ours, base: base}, nil
	}
}

// seedConsume: what was produced before, one by one, is pulled by as many
// consumers as processors; inside the clock are their start and their end.
func seedConsume(bounded bool, batchMax int) func(env) (pair, error) {
	return func(e env) (pair, error) {
		n := runtime.GOMAXPROCS(0)
		each := (e.events + n - 1) / n
		events := measure.Numbered[measure.Word](n * each)
		config := queue.Config[measure.Word]{}
		if bounded {
			config.Capacity = len(events)
		}
		ours := func(c *measure.Clock) error {
			t, groups, err := openTopic(layout{n, 1}, config, queue.GroupConfig{Consumers: n})
			if err != nil {
				return err
			}
			if err := produceSingles(e.ctx, t, events); err != nil {
				return errors.Join(err, t.Close())
			}
			crowds := newCrowds(c, n, len(events))
			c.Start()
			err = atOnce(n, func(i int) error {
				consumer, w := groups[0].Consumer(i), crowds[i]
				for w.Count() < each {
					b, ok, err := consumer.TryPull(batchMax)
					if !ok || err != nil {
						return err
					}
					measure.Join(w, 0, b.Values())
				}
				return nil
			})
			c.Stop(len(events))
			return errors.Join(err, measure.Together(crowds...), t.Close())
		}
		p := pair{ours: ours, base: seedReceive(n, each, events, true)}
		p.also = []also{{"chan without the countdown", measure.Goal{}, seedReceive(n, each, events, false)}}
		return p, nil
	}
}

// seedReceive: tasks take events out of one channel. In the original they
// count down together, one shared step per event, to know when to end; without
// it each takes its part.
func seedReceive(n, each int, events []measure.Word, countdown bool) side {
	ch := make(chan measure.Word, len(events))
	return func(c *measure.Clock) error {
		for _, v := range events {
			ch <- v
		}
		crowds := newCrowds(c, n, len(events))
		var left atomic.Int64
		left.Store(int64(len(events)))
		c.Start()
		err := atOnce(n, func(i int) error {
			w := crowds[i]
			var one [1]measure.Word
			for countdown || w.Count() < each {
				select {
				case one[0] = <-ch:
					measure.Join(w, 0, one[:])
				default:
					return nil
				}
				if countdown && left.Add(-1) == 0 {
					return nil
				}
			}
			return nil
		})
		c.Stop(len(events))
		return errors.Join(err, measure.Together(crowds...))
	}
}

func newCrowds(c *measure.Clock, n, events int) []*measure.Crowd {
	crowds := make([]*measure.Crowd, n)
	for i := range crowds {
		crowds[i] = measure.NewCrowd(c, 1, 1, events)
	}
	return crowds
}
