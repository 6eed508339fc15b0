package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// every is the time between two events of the latency rows.
const every = time.Millisecond

// latencyParked compares a handler that a queue wakes with a goroutine that a
// channel wakes. An event is its own time of birth, in nanoseconds since the
// row was opened, and arrived gets how long it took.
func latencyParked(e env) (pair, error) {
	t, err := queue.Open(queue.Config[time.Duration]{Name: "bench", Partitions: partitions})
	if err != nil {
		return pair{}, err
	}
	g, err := t.Group("bench", queue.GroupConfig{})
	if err != nil {
		return pair{}, errors.Join(err, t.Close())
	}
	epoch := time.Now()
	arrived := make(chan time.Duration, 1)
	ctx, stop := context.WithCancel(e.ctx)
	ended := make(chan error, 1)
	// The group's run: ends with ctx; close waits for it.
	go func() {
		ended <- g.Run(ctx, func(_ context.Context, b penstock.Batch[time.Duration]) error {
			now := time.Since(epoch)
			for _, born := range b.Values() {
				arrived <- now - born
			}
			return nil
		})
	}()
	parked := make(chan time.Duration)
	// The baseline's handler: ends when the channel closes; close waits for it.
	go func() {
		for born := range parked {
			arrived <- time.Since(epoch) - born
		}
		close(arrived)
	}()
	ours := func(c *clock) error {
		return beat(e, c, arrived, func() error { return t.Produce(ctx, time.Since(epoch)) })
	}
	base := func(c *clock) error {
		return beat(e, c, arrived, func() error { parked <- time.Since(epoch); return nil })
	}
	closeAll := func() error {
		stop()
		err := <-ended
		close(parked)
		for range arrived {
			err = errors.Join(err, errors.New("an event came that was not waited for"))
		}
		return errors.Join(err, t.Close())
	}
	return pair{ours, base, closeAll}, nil
}

// beat sends one event per millisecond and notes how long each took. An event
// that does not come within a second is lost.
func beat(e env, c *clock, arrived <-chan time.Duration, send func() error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	lost := time.NewTimer(time.Minute)
	defer lost.Stop()
	for i := range e.events {
		<-tick.C
		c.start()
		if err := send(); err != nil {
			return err
		}
		lost.Reset(time.Second)
		select {
		case d := <-arrived:
			if i >= e.events/4 { // the first quarter warms up
				c.samples = append(c.samples, d)
			}
		case <-lost.C:
			return fmt.Errorf("event %d did not arrive within a second", i)
		}
		c.stop(1)
	}
	select {
	case <-arrived:
		return errors.New("an event arrived twice")
	default:
		return nil
	}
}
