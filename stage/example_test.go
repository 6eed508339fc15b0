package stage_test

import (
	"context"
	"fmt"

	"github.com/penstock/penstock/stage"
)

func Example() {
	n := 0
	counter := stage.Pull("counter", func(_ context.Context, want int, out *stage.Output[int]) error {
		for range want {
			out.Emit(n)
			n++
		}
		return nil
	})
	double := stage.Map(func(v int) int { return v * 2 })
	printer := stage.NewSink("printer", func(_ context.Context, in []int) error {
		fmt.Println(in)
		if in[len(in)-1] >= 20 {
			return stage.Done
		}
		return nil
	})
	g := stage.NewGraph()
	stage.Connect(g, counter, double)
	stage.Connect(g, double, printer, stage.Demand(10, 5)) // max, min
	if err := g.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// [0 2 4 6 8]
	// [10 12 14 16 18]
	// [20 22 24 26 28]
}

func ExampleGate_OnEnd() {
	words, emit := stage.Push[string]("words")
	line := ""
	join := stage.NewGate("join", func(_ context.Context, in []string, out *stage.Output[string]) error {
		for _, w := range in {
			if line += w + " "; len(line) > 12 {
				out.Emit(line)
				line = ""
			}
		}
		return nil
	}).OnEnd(func(out *stage.Output[string]) error {
		out.Emit(line)
		return nil
	})
	lines := stage.NewSink("lines", func(_ context.Context, in []string) error {
		for _, l := range in {
			fmt.Printf("%q\n", l)
		}
		return nil
	})
	g := stage.NewGraph()
	stage.Connect(g, words, join)
	stage.Connect(g, join, lines)
	if err := emit.PushWait(context.Background(), "water", "flows", "down,", "demand", "up"); err != nil {
		fmt.Println(err)
	}
	emit.Finish()
	if err := g.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// "water flows down, "
	// "demand up "
}
