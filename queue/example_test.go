package queue_test

import (
	"context"
	"fmt"

	"github.com/penstock/penstock/queue"
)

// A queue in memory, read by a loop that holds its own batches.
func Example() {
	ctx := context.Background()
	orders, err := queue.Open(queue.Config[string]{Name: "orders", Partitions: 2, Capacity: 100})
	if err != nil {
		panic(err)
	}
	defer orders.Close()
	billing, err := orders.Group("billing", queue.GroupConfig{BatchMax: 10})
	if err != nil {
		panic(err)
	}
	if err := orders.Produce(ctx, "tea", "rice", "salt"); err != nil { // waits while the topic is full
		panic(err)
	}
	left := 3
	for b, err := range billing.Consumer(0).Batches(ctx) {
		if err != nil {
			panic(err)
		}
		fmt.Println(b.Partition(), b.Values())
		if err := b.Commit(); err != nil { // without it the batch comes again
			panic(err)
		}
		if left -= b.Len(); left == 0 {
			break
		}
	}
	// Output:
	// 0 [tea salt]
	// 1 [rice]
}
