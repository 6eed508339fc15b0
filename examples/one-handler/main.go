// Command one-handler runs one handler (handler.go) on three carriers: a topic
// in memory, a topic on disk, and a stream subscription.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/stream"
)

const orders = 100

func main() {
	dir, err := os.MkdirTemp("", "one-handler")
	if err != nil {
		log.Fatal(err)
	}
	err = run(context.Background(), dir)
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		log.Fatal(err)
	}
}

// run sends the same orders over each carrier to the same handler.
func run(ctx context.Context, dir string) error {
	for _, c := range []struct {
		name string
		run  func(context.Context, *ledger) error
	}{
		{"topic in memory", func(ctx context.Context, l *ledger) error {
			return onTopic(ctx, l, queue.Config[order]{Name: "orders", Partitions: 4})
		}},
		{"topic on disk", func(ctx context.Context, l *ledger) error {
			return onTopic(ctx, l, queue.Config[order]{Name: "orders", Partitions: 4, Dir: dir, Codec: penstock.JSON[order]()})
		}},
		{"stream", onStream},
	} {
		l := newLedger(orders)
		if err := c.run(ctx, l); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		n, cents := l.booked()
		fmt.Printf("%-16s %d orders, %d cents\n", c.name, n, cents)
	}
	return nil
}

// onTopic produces the orders into a topic and runs the handler on a group.
func onTopic(ctx context.Context, l *ledger, c queue.Config[order]) error {
	topic, err := queue.Open(c)
	if err != nil {
		return err
	}
	defer func() { _ = topic.Close() }()
	group, err := topic.Group("ledger", queue.GroupConfig{Consumers: 2})
	if err != nil {
		return err
	}
	return until(ctx, l, func(ctx context.Context) error { return group.Run(ctx, l.handle) }, func(o order) error {
		return topic.Produce(ctx, o)
	})
}

// onStream publishes the orders to a stream over a topic and subscribes the
// handler to it.
func onStream(ctx context.Context, l *ledger) error {
	topic, err := stream.OpenTopic(queue.Config[stream.Container]{Name: "shop", Partitions: 2})
	if err != nil {
		return err
	}
	defer func() { _ = topic.Close() }()
	provider, err := stream.Open(stream.Config{Name: "shop", Factory: topic, Queues: 2, DeliveryBackoff: stream.Fixed(time.Millisecond)})
	if err != nil {
		return err
	}
	defer func() { _ = provider.Close() }()
	s := stream.Of[order](provider, "orders", "customer-1")
	if _, err := s.Subscribe(ctx, "ledger", l.handle, stream.From(stream.Earliest)); err != nil {
		return err
	}
	return until(ctx, l, provider.Run, func(o order) error { return s.Publish(ctx, o) })
}

// until runs a carrier, sends the orders, and stops when all are booked.
func until(ctx context.Context, l *ledger, run func(context.Context) error, send func(order) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	// Carries until stop; until waits for it below.
	go func() { ended <- run(ctx) }()
	for i := range orders {
		if err := send(order{ID: i, Cents: int64(100 + i)}); err != nil {
			return err
		}
	}
	select {
	case <-l.done:
		stop()
		return <-ended
	case err := <-ended:
		return fmt.Errorf("ended before all orders were booked: %w", err)
	}
}
