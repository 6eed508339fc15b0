// Command quickstart is the program on the first screen of the README.
package main

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	orders, err := queue.Open(queue.Config[string]{Name: "orders", Partitions: 4, Capacity: 1000})
	if err != nil {
		log.Fatal(err)
	}
	billing, err := orders.Group("billing", queue.GroupConfig{Consumers: 2, BatchMax: 500, Linger: 20 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	go func() { // ends after its orders, or with ctx
		for i := range 10_000 {
			_ = orders.Produce(ctx, fmt.Sprint("order ", i)) // waits while the topic is full
		}
	}()
	var handled atomic.Int64
	err = billing.Run(ctx, func(_ context.Context, b penstock.Batch[string]) error {
		fmt.Printf("%d orders of partition %d from %q on\n", b.Len(), b.Partition(), b.Value(0))
		if handled.Add(int64(b.Len())) == 10_000 {
			stop()
		}
		return nil // settles the batch; b.Fail(i, err) retries one event instead
	})
	fmt.Println(handled.Load(), "orders handled, error:", err)
}
