package queue_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// A group that is pushed to. The handler fails one event, which is tried twice
// and then given up; usually it goes to another topic then, with
// queue.DeadLetter(dead.ProduceEvents).
func ExampleGroup_Run() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	orders, err := queue.Open(queue.Config[string]{Name: "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer orders.Close()
	giveUp := func(_ context.Context, events ...penstock.Event[string]) error {
		for _, e := range events {
			fmt.Printf("%q, offset %d of %s, is given up after %d attempts: %s\n",
				e.Value, e.Origin.Offset, e.Origin.Topic, e.Attempt, e.Origin.Cause)
		}
		stop() // the example ends here; a service runs until it is stopped
		return nil
	}
	billing, err := orders.Group("billing", queue.GroupConfig{
		BatchMax: 100,
		Linger:   10 * time.Millisecond,
		Retry:    settle.Policy{Attempts: 2, Backoff: settle.Backoff{Min: time.Millisecond}},
	}, queue.DeadLetter(giveUp))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := orders.Produce(ctx, "tea", "???", "salt"); err != nil {
		fmt.Println(err)
		return
	}
	err = billing.Run(ctx, func(_ context.Context, b penstock.Batch[string]) error {
		for i, order := range b.Values() {
			fmt.Printf("attempt %d: %s\n", b.Attempt(i), order)
			if order == "???" {
				b.Fail(i, errors.New("no such product"))
			}
		}
		return nil // the others are settled
	})
	fmt.Println("Run:", err)
	// Output:
	// attempt 1: tea
	// attempt 1: ???
	// attempt 1: salt
	// attempt 2: ???
	// "???", offset 1 of orders, is given up after 2 attempts: no such product
	// Run: <nil>
}
