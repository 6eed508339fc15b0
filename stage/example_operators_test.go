package stage_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/penstock/penstock/stage"
)

func ExampleFunc() {
	// Anything that blocks can feed a source: it runs beside the stages, and its
	// context ends when it is time to stop.
	next := readings()
	src := stage.Func("sensor", func(ctx context.Context, yield func(float64) bool) error {
		for {
			v, err := next(ctx)
			if err != nil {
				return err // stage.Done ends the source normally
			}
			if !yield(v) { // waits until somebody asks for the next
				return nil
			}
		}
	})
	highest, err := stage.Fold(context.Background(), src, 0, func(h, v float64) float64 { return max(h, v) })
	fmt.Println(highest, err)
	// Output: 21.5 <nil>
}

// readings stands for a device.
func readings() func(context.Context) (float64, error) {
	values := []float64{19, 21.5, 20}
	return func(context.Context) (float64, error) {
		if len(values) == 0 {
			return 0, stage.Done
		}
		v := values[0]
		values = values[1:]
		return v, nil
	}
}

func ExampleBatchWithin() {
	rows := stage.Lines("rows", strings.NewReader("a\nb\nc\nd\ne\n"))
	batch := stage.BatchWithin[string](2, 50*time.Millisecond) // 2 rows, or what came in 50 ms
	insert := stage.ForEach(func(ctx context.Context, rows []string) error {
		fmt.Println(len(rows) <= 2) // INSERT INTO ...
		return nil
	})
	g := stage.NewGraph()
	stage.Connect(g, rows, batch)
	stage.Connect(g, batch, insert, stage.Demand(2, 1)) // one batch in hands, one ready
	fmt.Println(g.Run(context.Background()))
	// Unordered output:
	// true
	// true
	// true
	// <nil>
}

func ExampleThrottleCost() {
	limit, err := stage.NewLimiter(stage.LimiterConfig{Events: 100, Per: time.Second, Burst: 3})
	if err != nil {
		fmt.Println(err)
		return
	}
	calls := stage.FromSlice("calls", []string{"a", "b", "c", "d"})
	slow := stage.ThrottleCost(limit, func(c *string) int { return len(*c) }) // gates may share a limiter
	g := stage.NewGraph()
	stage.Connect(g, calls, slow)
	stage.Connect(g, slow, stage.ForEach(func(_ context.Context, c string) error {
		fmt.Println(c)
		return nil
	}))
	fmt.Println(g.Run(context.Background()))
	// Output:
	// a
	// b
	// c
	// d
	// <nil>
}

func ExampleMapConcurrent() {
	urls := stage.FromSlice("urls", []string{"/a", "/b", "/c"})
	fetch := stage.MapConcurrent(8, func(ctx context.Context, url string) (int, error) {
		return len(url), nil // http.Get
	})
	g := stage.NewGraph()
	stage.Connect(g, urls, fetch)
	stage.Connect(g, fetch, stage.ForEach(func(_ context.Context, size int) error {
		fmt.Println(size)
		return nil
	}))
	fmt.Println(g.Run(context.Background()))
	// Output:
	// 2
	// 2
	// 2
	// <nil>
}

func ExampleOutlet_All() {
	ctx := context.Background()
	n := 0
	numbers := stage.Pull("numbers", func(_ context.Context, want int, out *stage.Output[int]) error {
		for range want {
			out.Emit(n)
			n++
		}
		return nil
	})
	for v, err := range numbers.Out().All(ctx) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if v == 3 {
			break // cancels the subscription, and leaves nothing behind
		}
		fmt.Println(v)
	}
	// Output:
	// 0
	// 1
	// 2
}

func ExampleBufferGate() {
	// Nobody takes the metrics fast enough: the newest hundred are what counts.
	metrics, emit := stage.Push[int]("metrics")
	latest := stage.BufferGate[int](100, stage.KeepLast, stage.OnDiscard(func(int) {}))
	g := stage.NewGraph()
	stage.Connect(g, metrics, latest)
	stage.Connect(g, latest, stage.Discard[int](), stage.Max(10))
	for i := range 5 {
		if err := emit.PushWait(context.Background(), i); err != nil {
			fmt.Println(err)
		}
	}
	emit.Finish()
	fmt.Println(g.Run(context.Background()))
	// Output: <nil>
}

func ExampleWireTap() {
	orders := stage.FromSlice("orders", []int{7, 8, 9})
	audit, copies := stage.Push[int]("audit", stage.Buffer(1000, stage.KeepLast))
	tap := stage.WireTap(copies)
	g := stage.NewGraph()
	stage.Connect(g, orders, tap)
	stage.Connect(g, tap, stage.Discard[int]())
	stage.Connect(g, audit, stage.ForEach(func(_ context.Context, o int) error {
		fmt.Println("audit", o) // may be as slow as it likes
		return nil
	}))
	fmt.Println(g.Run(context.Background()))
	// Output:
	// audit 7
	// audit 8
	// audit 9
	// <nil>
}

func ExampleFold() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	sum, err := stage.Fold(ctx, stage.FromSlice("numbers", []int{1, 2, 3}), 0, func(sum, v int) int { return sum + v })
	switch {
	case errors.Is(err, stage.ErrProducerFailed): // and the producer's own error
	case errors.Is(err, context.DeadlineExceeded): // the sum of what came in a minute
	case err != nil: // it could not start, or be subscribed to
	}
	fmt.Println(sum)
	// Output: 6
}
