package queue_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/queue"
)

// TestGroupIsClosedAndOpenedAgainWhileOthersPull: a group comes and goes while
// events come and others pull them. Each of those sees every event once and in
// the order of its partition, the one that comes and goes in that order too.
func TestGroupIsClosedAndOpenedAgainWhileOthersPull(t *testing.T) {
	const partitions, batch = 3, 10
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: partitions, Capacity: 60})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		fail := func(format string, args ...any) {
			t.Errorf(format, args...)
			cancel()
		}
		rounds := int64(50)
		if s.name != "memory" {
			rounds = 5 // every event is on disk before the next one
		}
		var total, visits atomic.Int64 // total is set before the last request
		var stay, guest sync.WaitGroup
		for consumers := 1; consumers <= 2; consumers++ {
			g := group(t, topic, fmt.Sprint(consumers), queue.GroupConfig{Consumers: consumers})
			all, done := context.WithCancel(ctx)
			defer done()
			var seen atomic.Int64
			var next [partitions]atomic.Int64
			for i := range consumers {
				stay.Go(func() { // ends when its group has seen all, or after a failure; waited for below
					for b, err := range g.Consumer(i).Batches(all) {
						if err == nil {
							err = inTurn(b, next[:])
						}
						if err == nil {
							err = b.Commit()
						}
						if err != nil && all.Err() == nil {
							fail("group %d: %v", consumers, err)
							return
						}
						if seen.Add(int64(b.Len())) == total.Load() {
							done()
						}
					}
				})
			}
		}
		guest.Go(func() { // ends with ctx; waited for below
			var next [partitions]atomic.Int64
			unknown(next[:])
			for ; ctx.Err() == nil; visits.Add(1) {
				if err := visit(topic, next[:], s.name == "memory"); err != nil {
					fail("visit %d: %v", visits.Load(), err)
				}
			}
		})
		for i, last := 0, false; !last; i += batch {
			if last = visits.Load() >= rounds; last {
				total.Store(int64(i + batch))
			}
			if err := topic.Produce(ctx, seq(i, i+batch)...); err != nil {
				fail("produce: %v", err)
				break
			}
		}
		stay.Wait()
		cancel()
		guest.Wait()
	})
}

// inTurn returns an error when the events of a batch, which went round the
// partitions, are not those that come next in theirs.
func inTurn(b queue.Batch[int], next []atomic.Int64) error {
	p := &next[b.Partition()]
	for i, v := range b.All() {
		if want := int(p.Load())*len(next) + b.Partition(); v != want {
			return fmt.Errorf("partition %d: event %d at offset %d, want %d", b.Partition(), v, b.Offset(i), want)
		}
		p.Add(1)
	}
	return nil
}

// unknown says that a group is to tell where it begins.
func unknown(next []atomic.Int64) {
	for i := range next {
		next[i].Store(-1)
	}
}

// visit opens a group, pulls what is there, and closes it. A group that is closed
// is forgotten in memory: the next one of its name begins where the others are.
func visit(topic *queue.Topic[int], next []atomic.Int64, forgotten bool) error {
	g, err := topic.Group("guest", queue.GroupConfig{Consumers: 2})
	if err != nil {
		return err
	}
	if forgotten {
		unknown(next)
	}
	for i := range 2 {
		c := g.Consumer(i)
		for {
			b, ok, err := c.TryPull(7)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			next[b.Partition()].CompareAndSwap(-1, int64(b.Offset(0)))
			if err := inTurn(b, next); err != nil {
				return err
			}
			if err := b.Commit(); err != nil {
				return err
			}
		}
	}
	return g.Close()
}
