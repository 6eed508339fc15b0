package stage_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stage"
)

// A source that is pushed to ends by Finish; Stop ends a graph with a deadline
// of its own.
func ExampleGraph_Stop() {
	readings, emit := stage.Push[float64]("readings")
	alarm := stage.ForEach(func(_ context.Context, v float64) error {
		fmt.Println("alarm", v)
		return nil
	})
	g := stage.NewGraph()
	stage.Connect(g, readings, alarm)
	if err := g.Start(context.Background()); err != nil {
		fmt.Println(err) // a stage was misbuilt: the error says which, and how
		return
	}
	_ = emit.Push(20.5, 99) // from anywhere, at any time

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := g.Stop(ctx) // delivers what is on its way, for 5 s at most
	var cut *penstock.DrainError
	if errors.As(err, &cut) {
		fmt.Println("not delivered:", cut)
	}
	fmt.Println(err)
	// Output:
	// alarm 20.5
	// alarm 99
	// <nil>
}
