package stream_test

import (
	"context"
	"fmt"
	"log"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/stream"
)

type Order struct {
	ID    int
	Cents int64
}

// A provider over a topic in memory. With Dir set, the same program keeps its
// containers and its checkpoint on disk.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	topic, err := stream.OpenTopic(queue.Config[stream.Container]{Name: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	p, err := stream.Open(stream.Config{Name: "shop", Factory: topic})
	if err != nil {
		log.Fatal(err)
	}
	orders := stream.Of[Order](p, "orders", "customer-7")

	// Subscribe before Run; the handler is the same as for a topic.
	_, err = orders.Subscribe(ctx, "billing", func(_ context.Context, b penstock.Batch[Order]) error {
		for i, o := range b.All() {
			fmt.Println(b.Stream(), o.ID, "attempt", b.Attempt(i))
			if o.ID == 3 {
				cancel() // the end of this example
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}

	for id := 1; id <= 3; id++ {
		if err := orders.Publish(ctx, Order{ID: id}); err != nil {
			log.Fatal(err)
		}
	}
	if err := p.Run(ctx); err != nil { // until ctx ends, then it drains
		log.Fatal(err)
	}
	if err := p.Close(); err != nil {
		log.Fatal(err)
	}
	if err := topic.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// orders/customer-7 1 attempt 1
	// orders/customer-7 2 attempt 1
	// orders/customer-7 3 attempt 1
}

// A subscription moves only by its own settlements, or where From sends it.
func ExampleFrom() {
	ctx := context.Background()
	topic, err := stream.OpenTopic(queue.Config[stream.Container]{Name: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = topic.Close() }()
	p, err := stream.Open(stream.Config{Name: "shop", Factory: topic})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	handle := func(context.Context, penstock.Batch[Order]) error { return nil }
	orders := stream.Of[Order](p, "orders", "customer-7")

	sub, err := orders.Subscribe(ctx, "audit", handle, stream.From(stream.Earliest))
	fmt.Println(sub.Name(), sub.Stream(), err)

	if err := orders.Publish(ctx, Order{}); err != nil {
		log.Fatal(err)
	}
	token, err := penstock.ParseToken("t1:0:0:0") // as a batch gave it, kept by the application
	if err != nil {
		log.Fatal(err)
	}
	sub, err = orders.Subscribe(ctx, "audit", handle, stream.From(stream.After(token))) // resumes the same subscription
	fmt.Println(sub.Name(), err)
	fmt.Println(sub.Unsubscribe(ctx))
	// Output:
	// audit orders/customer-7 <nil>
	// audit <nil>
	// <nil>
}
