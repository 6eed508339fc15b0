package queue_test

import (
	"context"
	"fmt"
	"log"

	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/stage"
)

// A graph that ends in a topic: while the topic is full the graph waits.
func ExampleTopic_Sink() {
	ctx := context.Background()
	prices, err := queue.Open(queue.Config[int]{Name: "prices"})
	if err != nil {
		log.Fatal(err)
	}
	double := stage.Map(func(v int) int { return v * 2 })
	g := stage.NewGraph()
	stage.Connect(g, stage.FromSlice("numbers", []int{1, 2, 3}), double)
	stage.Connect(g, double, prices.Sink("prices"))
	if err := g.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(prices.Stats().Produced)
	if err := prices.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: 3
}
