package remote_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/stream"
	"github.com/penstock/penstock/stream/remote"
)

type Order struct{ ID int }

// ownerOfOrders is the process that owns the queues. It publishes three orders
// and gives the subscription "billing" to whoever connects to the handler.
func ownerOfOrders(ctx context.Context) (h http.Handler, run func() error) {
	topic, err := stream.OpenTopic(queue.Config[stream.Container]{Name: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	p, err := stream.Open(stream.Config{Name: "shop", Factory: topic})
	if err != nil {
		log.Fatal(err)
	}
	orders := stream.Of[Order](p, "orders", "customer-7")

	owner, err := remote.NewOwner(remote.OwnerConfig{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := p.Attach(ctx, orders.ID(), "billing", owner); err != nil {
		log.Fatal(err)
	}
	handler := remote.NewHandler(func(r *http.Request) (*remote.Owner, error) {
		if r.URL.Path != "/billing" {
			return nil, penstock.ErrNotFound
		}
		return owner, nil
	})

	for id := 1; id <= 3; id++ {
		if err := orders.Publish(ctx, Order{ID: id}); err != nil {
			log.Fatal(err)
		}
	}
	return handler, func() error {
		err := p.Run(ctx)
		p.Close()
		topic.Close()
		return err
	}
}

// A subscription whose handler is in another process, over HTTP.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	handler, run := ownerOfOrders(ctx)
	server := httptest.NewServer(handler)
	defer server.Close()
	owned := make(chan error, 1)
	go func() { owned <- run() }() // ends with ctx; waited for below
	address := server.URL + "/billing"

	// In the other process: the handler is the same as for a subscription there.
	bill := func(_ context.Context, b penstock.Batch[Order]) error {
		for _, o := range b.All() {
			fmt.Println(b.Stream(), o.ID)
			if o.ID == 3 {
				cancel() // the end of this example
			}
		}
		return nil
	}
	sub, err := remote.NewSubscriber(remote.SubscriberConfig{
		Dial: remote.DialHTTP(nil, address, nil),
		Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) {
			return stream.NewConsumer(penstock.JSON[Order](), bill)
		},
		Demand: 1000, // events that are here at a time
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := sub.Run(ctx); err != nil { // until ctx ends, then it drains
		log.Fatal(err)
	}
	if err := <-owned; err != nil {
		log.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	// Output:
	// orders/customer-7 1
	// orders/customer-7 2
	// orders/customer-7 3
}
