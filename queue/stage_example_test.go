package queue_test

import (
	"context"
	"fmt"

	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/stage"
)

func ExampleGroup_Source() {
	ctx := context.Background()
	orders, _ := queue.Open(queue.Config[int]{Name: "orders"})
	prices, _ := queue.Open(queue.Config[int]{Name: "prices"})
	defer orders.Close()
	defer prices.Close()
	readers, _ := orders.Group("readers", queue.GroupConfig{})
	look, _ := prices.Group("look", queue.GroupConfig{})
	if err := orders.Produce(ctx, 1, 2, 3); err != nil {
		fmt.Println(err)
	}

	double := stage.Map(func(m queue.Message[int]) queue.Message[int] { return queue.With(m, m.Value*2) })
	g := stage.NewGraph()
	stage.Connect(g, readers.Source("orders"), double)
	stage.Connect(g, double, queue.ProduceTo("prices", prices))
	if err := g.Start(ctx); err != nil {
		fmt.Println(err)
	}
	var seen []int
	for len(seen) < 3 {
		b, err := look.Consumer(0).Pull(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		seen = append(seen, b.Values()...)
		if err := b.Commit(); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(seen)
	fmt.Println(g.Stop(ctx))
	fmt.Println(readers.Stats().Lag)
	// Output:
	// [2 4 6]
	// <nil>
	// 0
}
