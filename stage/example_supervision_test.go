package stage_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock/stage"
)

func ExampleRestForOne() {
	var sum int
	total := stage.NewGate("total", func(_ context.Context, in []int, out *stage.Output[int]) error {
		for _, v := range in {
			if v < 0 {
				return fmt.Errorf("%d is negative", v)
			}
			sum += v
			out.Emit(sum)
		}
		return nil
	}, stage.Init(func(context.Context) error { // at the start, and before each restart
		sum = 0
		return nil
	}))
	printer := stage.ForEach(func(_ context.Context, v int) error {
		fmt.Println(v)
		return nil
	})
	g := stage.NewGraph(stage.RestForOne(stage.Backoff(100*time.Millisecond, 10*time.Second, 0.2)))
	numbers := stage.FromSlice("numbers", []int{1, 2, -1, 10, 20})
	stage.Connect(g, numbers, total, stage.Demand(1, 0))
	stage.Connect(g, total, printer)
	if err := g.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 1
	// 3
	// 10
	// 30
}

func ExampleOnError() {
	parse := stage.MapConcurrent(2, func(_ context.Context, s string) (n int, err error) {
		_, err = fmt.Sscan(s, &n)
		return n, err
	}, stage.OnError(stage.Resume)) // a word that is no number is lost, and counted

	g := stage.NewGraph()
	stage.Connect(g, stage.FromSlice("words", []string{"1", "two", "3"}), parse)
	stage.Connect(g, parse, stage.ForEach(func(_ context.Context, n int) error {
		fmt.Println(n)
		return nil
	}))
	if err := g.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	fmt.Println("failed:", g.Stats()[1].Failed)
	// Output:
	// 1
	// 3
	// failed: 1
}

func ExampleRestartError() {
	writer := stage.NewSink("writer", func(context.Context, []int) error {
		return errors.New("no route to host")
	}, stage.RestartBy(stage.Backoff(time.Millisecond, time.Second, 0).AtMost(2, time.Minute)))

	g := stage.NewGraph()
	stage.Connect(g, stage.FromSlice("numbers", []int{1, 2, 3, 4}), writer, stage.Demand(1, 0))
	err := g.Run(context.Background())

	var given *stage.RestartError
	if errors.As(err, &given) {
		fmt.Println(given.Stage, "was restarted", given.Restarts, "times; at first:", given.First)
	}
	// Output:
	// writer was restarted 2 times; at first: stage "writer": no route to host
}

func ExampleMailbox() {
	type command struct{ Rate int }

	g := stage.NewGraph()
	control := stage.NewMailbox[command](g, "control", 0)
	rate := 1
	src, emit := stage.Push[int]("source")
	stage.OnMessage(src, control, func(_ context.Context, c command, _ *stage.Output[int]) error {
		rate = c.Rate // serial with the callbacks of the source
		fmt.Println("rate", rate)
		return stage.Done
	})
	stage.Connect(g, src, stage.ForEach(func(_ context.Context, v int) error {
		fmt.Println(v)
		return nil
	}))
	if err := g.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	_ = emit.Push(1)
	_ = control.SendBehind(context.Background(), command{Rate: 5}) // behind the 1
	if err := g.Wait(); err != nil {
		fmt.Println(err)
	}
	// Unordered output:
	// 1
	// rate 5
}

func ExampleName() {
	g := stage.NewGraph()
	numbers := stage.NewName[int](g, "numbers")
	printer := stage.ForEach(func(_ context.Context, v int) error {
		fmt.Println(v)
		return nil
	})
	stage.Connect(g, numbers, printer)                   // there is no such stage yet
	stage.FromSlice("slice", []int{1, 2, 3}).As(numbers) // now there is
	if err := g.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 1
	// 2
	// 3
}
