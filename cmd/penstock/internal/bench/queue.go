package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/queue"
)

// A layout is what the variants of a queue row differ in, besides the size of
// an event.
type layout struct{ partitions, groups int }

// openTopic opens a topic with the groups of a layout, whose consumers commit
// automatically.
func openTopic[T measure.Event](s layout, c queue.Config[T], g queue.GroupConfig) (*queue.Topic[T], []*queue.Group[T], error) {
	c.Name, c.Partitions = "bench", s.partitions
	t, err := queue.Open(c)
	if err != nil {
		return nil, nil, err
	}
	g.AutoCommit = true
	var groups []*queue.Group[T]
	for i := range s.groups {
		group, err := t.Group(fmt.Sprint("group ", i), g)
		if err != nil {
			return nil, nil, errors.Join(err, t.Close())
		}
		groups = append(groups, group)
	}
	return t, groups, nil
}

// produceSingles calls Produce once per event.
func produceSingles[T measure.Event](ctx context.Context, t *queue.Topic[T], events []T) error {
	for _, v := range events {
		if err := t.Produce(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// produceIn calls Produce with n events at a time.
func produceIn[T measure.Event](ctx context.Context, t *queue.Topic[T], events []T, n int) error {
	if n == 1 {
		return produceSingles(ctx, t, events)
	}
	for rest := events; len(rest) > 0; {
		part := rest[:min(n, len(rest))]
		rest = rest[len(part):]
		if err := t.Produce(ctx, part...); err != nil {
			return err
		}
	}
	return nil
}

// pullAll pulls and checks everything that a topic holds for a consumer.
func pullAll[T measure.Event](c *measure.Clock, consumer *queue.Consumer[T], lanes, events int) error {
	k := measure.NewTally(c, lanes, events)
	for k.Count() < events {
		b, ok, err := consumer.TryPull(1000)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		measure.Take(k, b.Partition(), b.Values())
	}
	return errors.Join(k.Done(events), noMore(consumer))
}

// noMore makes sure that nothing is left for a consumer.
func noMore[T measure.Event](consumer *queue.Consumer[T]) error {
	if b, ok, err := consumer.TryPull(1); ok || err != nil {
		return errors.Join(err, fmt.Errorf("%d events more than were produced", b.Len()))
	}
	return nil
}

// channels returns n channels with room for as many events as a topic's rows
// move at most.
func channels[T measure.Event](n, capacity int) []chan T {
	all := make([]chan T, n)
	for i := range all {
		all[i] = make(chan T, capacity)
	}
	return all
}

// sendAll sends each event to each channel.
func sendAll[T measure.Event](chans []chan T, events []T) {
	if len(chans) == 1 {
		ch := chans[0]
		for _, v := range events {
			ch <- v
		}
		return
	}
	for _, v := range events {
		for _, ch := range chans {
			ch <- v
		}
	}
}

// receive takes the events 0 to n-1 out of a channel.
func receive[T measure.Event](ch <-chan T, n int) error {
	for i := range n {
		if v := <-ch; v[0] != i {
			return fmt.Errorf("got event %d, want %d", v[0], i)
		}
	}
	return nil
}

// atOnce runs f(0) to f(n-1) at the same time, one of them in the caller's
// goroutine, and returns what went wrong after all have ended. Their start is a
// part of what is measured, as in BufferQueue's benchmark; everywhere else
// [measure.Clock.AtOnce] leaves it out.
func atOnce(n int, f func(i int) error) error {
	errs := make(chan error, n)
	for i := range n - 1 {
		go func() { errs <- f(i) }() // ends with f; the receives below wait for it
	}
	err := f(n - 1)
	for range n - 1 {
		err = errors.Join(err, <-errs)
	}
	return err
}
