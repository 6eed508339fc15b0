package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/queue"
)

// pace is the time between two events of the latency rows.
const pace = time.Millisecond

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
	ours := func(c *measure.Clock) error {
		return beat(e, c, arrived, func() error { return t.Produce(ctx, time.Since(epoch)) })
	}
	base := func(c *measure.Clock) error {
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
	return pair{ours: ours, base: base, close: closeAll}, nil
}

// latencySpin compares consumers that look again and again instead of waiting:
// one with TryPull, one that polls a channel. They run in their side's
// iterations only.
func latencySpin(e env) (pair, error) {
	t, err := queue.Open(queue.Config[time.Duration]{Name: "bench", Partitions: partitions})
	if err != nil {
		return pair{}, err
	}
	g, err := t.Group("bench", queue.GroupConfig{AutoCommit: true})
	if err != nil {
		return pair{}, errors.Join(err, t.Close())
	}
	epoch := time.Now()
	consumer := g.Consumer(0)
	ours := func(c *measure.Clock) error {
		return spinning(e, c, epoch, func() (time.Duration, bool, error) {
			b, ok, err := consumer.TryPull(1)
			if !ok || err != nil {
				return 0, false, err
			}
			return b.Value(0), true, nil
		}, func() error { return t.Produce(e.ctx, time.Since(epoch)) })
	}
	polled := make(chan time.Duration, 1)
	base := func(c *measure.Clock) error {
		return spinning(e, c, epoch, func() (time.Duration, bool, error) {
			select {
			case born := <-polled:
				return born, true, nil
			default:
				return 0, false, nil
			}
		}, func() error { polled <- time.Since(epoch); return nil })
	}
	return pair{ours: ours, base: base, close: t.Close}, nil
}

// spinning runs beat beside a goroutine that looks for events without a pause.
func spinning(e env, c *measure.Clock, epoch time.Time, look func() (time.Duration, bool, error), send func() error) error {
	arrived := make(chan time.Duration, 1)
	var stop atomic.Bool
	var failed error
	var spinner sync.WaitGroup
	spinner.Go(func() { // ends with stop; Wait below waits for it
		for !stop.Load() {
			born, ok, err := look()
			if err != nil {
				failed = err
				return
			}
			if ok {
				arrived <- time.Since(epoch) - born
			}
		}
	})
	err := beat(e, c, arrived, send)
	stop.Store(true)
	spinner.Wait()
	return errors.Join(err, failed)
}

// beat sends one event per millisecond and notes how long each took. An event
// that does not come within a second is lost.
func beat(e env, c *measure.Clock, arrived <-chan time.Duration, send func() error) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	lost := time.NewTimer(time.Minute)
	defer lost.Stop()
	for i := range e.events {
		<-tick.C
		c.Start()
		if err := send(); err != nil {
			return err
		}
		lost.Reset(time.Second)
		select {
		case d := <-arrived:
			if i >= e.events/4 { // the first quarter warms up
				c.Samples = append(c.Samples, d)
			}
		case <-lost.C:
			return fmt.Errorf("event %d did not arrive within a second", i)
		}
		c.Stop(1)
	}
	select {
	case <-arrived:
		return errors.New("an event arrived twice")
	default:
		return nil
	}
}
