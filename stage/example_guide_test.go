package stage_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stage"
)

// What the guides to demand, buffers and fan-out show, run. Examples that need
// time, or another goroutine, are tests in a bubble.

func TestQuickStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		var cut *penstock.DrainError // 1000 events are on their way, and 5 take half a second
		if err := quickStart(ctx); !errors.As(err, &cut) {
			t.Error(err)
		}
		if d := time.Since(begin); d < 3*time.Second+stage.DefaultGraphDrain || d > 29*time.Second {
			t.Errorf("it ran for %v", d)
		}
	})
}

func quickStart(ctx context.Context) error {
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
		time.Sleep(500 * time.Millisecond)
		return nil
	})
	g := stage.NewGraph()
	stage.Connect(g, counter, double)
	stage.Connect(g, double, printer, stage.Demand(10, 5))
	err := g.Run(ctx)
	return err
}

func ExampleDemand() {
	pages := stage.FromSlice("pages", []string{"a", "b", "c"})
	render := stage.NewSink("render", func(_ context.Context, in []string) error {
		fmt.Println(in) // a second of work for each
		return nil
	})
	g := stage.NewGraph()
	stage.Connect(g, pages, render, stage.Demand(2, 1)) // one in hands, one ready
	fmt.Println(g.Run(context.Background()))
	// Output:
	// [a]
	// [b]
	// [c]
	// <nil>
}

func ExampleMax() {
	samples := stage.FromSlice("samples", make([]float64, 10_000))
	sum := stage.NewSink("sum", func(_ context.Context, in []float64) error {
		fmt.Println(len(in))
		return nil
	})
	g := stage.NewGraph()
	stage.Connect(g, samples, sum, stage.Max(8000)) // min is 6000: batches of 2000
	fmt.Println(g.Run(context.Background()))
	// Output:
	// 2000
	// 2000
	// 2000
	// 2000
	// 2000
	// <nil>
}

func ExampleDemand_rows() {
	rows := stage.FromSlice("rows", make([]int, 1000))
	insert := stage.NewSink("insert", func(_ context.Context, in []int) error {
		fmt.Println(len(in)) // INSERT INTO ... of 500 rows
		return nil
	})
	g := stage.NewGraph()
	stage.Connect(g, rows, insert, stage.Demand(1000, 500)) // 500 in the call, 500 being made
	fmt.Println(g.Run(context.Background()))
	// Output:
	// 500
	// 500
	// <nil>
}

func ExampleManual() {
	numbers := stage.FromSlice("numbers", []int{1, 2, 3, 4, 5})
	take := stage.NewSink("take", func(ctx context.Context, in []int) error {
		fmt.Println(in)
		return stage.Origin(ctx).Ask(2) // the next two, when these are done
	})
	take.OnSubscribed(func(s *stage.Subscription) { fmt.Println(s.Ask(2)) }) // nothing comes before it
	g := stage.NewGraph()
	stage.Connect(g, numbers, take, stage.Manual())
	fmt.Println(g.Run(context.Background()))
	// Output:
	// <nil>
	// [1 2]
	// [3 4]
	// [5]
	// <nil>
}

func TestStatusSaysWhatIsTooSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ticks := stage.FromSlice("ticks", make([]int, 5000))
		slow := stage.ForEach(func(context.Context, int) error { time.Sleep(time.Second); return nil })
		g := stage.NewGraph()
		stage.Connect(g, ticks, slow, stage.Demand(10, 5))
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3500 * time.Millisecond)
		status := g.Status()
		fmt.Println(status.Constraint)
		for _, e := range status.Edges {
			fmt.Println(e.From, e.To, e.Asked, e.Sent, e.Processed)
		}
		if want := "ticks → foreach#2: foreach#2 has 10 events and asks for no more; foreach#2 has been in its callback for 3.5s"; status.Constraint != want {
			t.Errorf("%q", status.Constraint)
		}
		g.Abort(nil)
		if err := g.Wait(); err == nil {
			t.Error("an aborted graph ended without an error")
		}
	})
}

func ExampleBuffer() {
	dropped := 0
	prices, emit := stage.Push[int]("prices", stage.Buffer(3, stage.KeepLast),
		stage.OnDiscard(func(n int) { dropped += n }))
	for p := range 10 {
		if err := emit.Push(p); err != nil { // never waits
			fmt.Println(err)
		}
	}
	emit.Finish()
	got, err := stage.Collect(context.Background(), prices)
	fmt.Println(got, dropped, err)
	// Output: [7 8 9] 7 <nil>
}

func ExampleSource_OnDiscardEvents() {
	files, emit := stage.Push[string]("files", stage.Buffer(2, stage.KeepFirst))
	files.OnDiscardEvents(func(lost []string) { fmt.Println("close", lost) })
	fmt.Println(emit.Push("a", "b", "c", "d"))
	// Output:
	// close [c d]
	// <nil>
}

func ExampleEmitter_PushWait() {
	ctx := context.Background()
	orders, emit := stage.Push[int]("orders", stage.Buffer(2, stage.KeepFirst))
	// The caller: ends after its orders; the graph below ends with it.
	go func() {
		defer emit.Finish()
		for o := range 5 {
			if err := emit.PushWait(ctx, o); err != nil { // waits while the buffer is full
				return
			}
		}
	}()
	got, err := stage.Collect(ctx, orders, stage.Max(1))
	fmt.Println(got, err)
	// Output: [0 1 2 3 4] <nil>
}

func ExampleEmitter_TryPush() {
	jobs, emit := stage.Push[string]("jobs", stage.Buffer(2, stage.KeepFirst))
	taken, err := emit.TryPush("a", "b", "c")
	if taken < 3 {
		fmt.Println("503 Service Unavailable", taken, err)
	}
	emit.Finish()
	fmt.Println(stage.Collect(context.Background(), jobs))
	// Output:
	// 503 Service Unavailable 2 <nil>
	// [a b] <nil>
}

// Reading is what a sensor sends.
type Reading struct {
	Sensor uint32
	Alarm  bool
}

// A plant has sensors, and what becomes of their readings.
type plant struct {
	dropped atomic.Int64

	mu      sync.Mutex
	written [4][]Reading
	audited []Reading
}

// newWriter returns the writer of shard i.
func (p *plant) newWriter(i int) *stage.Sink[Reading] {
	return stage.NewSink(fmt.Sprint("writer ", i), func(_ context.Context, in []Reading) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.written[i] = append(p.written[i], in...)
		return nil
	})
}

func (p *plant) audit() *stage.Sink[Reading] {
	return stage.NewSink("audit", func(_ context.Context, in []Reading) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.audited = append(p.audited, in...)
		return nil
	})
}

func (p *plant) run(ctx context.Context, feed func(*stage.Emitter[Reading])) error {
	dropped, newWriter, audit := &p.dropped, p.newWriter, p.audit()
	readings, emit := stage.Push[Reading]("readings", stage.Buffer(50_000, stage.KeepLast),
		stage.OnDiscard(func(n int) { dropped.Add(int64(n)) }))
	hub := stage.Pass[Reading]("hub").Broadcast()
	shards := stage.Pass[Reading]("shards").Dispatch(stage.Partition(4, func(r Reading) int { return int(r.Sensor) }))
	g := stage.NewGraph(stage.RestForOne(stage.Backoff(100*time.Millisecond, 10*time.Second, 0.2)))
	stage.Connect(g, readings, hub)
	stage.Connect(g, hub, shards)
	stage.Connect(g, hub.Out().Where(func(r Reading) bool { return r.Alarm }), audit, stage.CancelMode(stage.Temporary))
	for i := range 4 {
		stage.Connect(g, shards.Out().Partition(i), newWriter(i), stage.Max(200))
	}
	go feed(emit) // emit.PushWait(ctx, batch...) gives backpressure to the feeder
	err := g.Run(ctx)
	return err
}

func TestReadingsAreSplitAndAlarmsAudited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p plant
		const events = 100_000 // twice what the buffer holds
		err := p.run(t.Context(), func(emit *stage.Emitter[Reading]) {
			defer emit.Finish()
			for i := range events / 100 {
				batch := make([]Reading, 100)
				for k := range batch {
					n := 100*i + k
					batch[k] = Reading{Sensor: uint32(n % 10), Alarm: n%1000 == 0}
				}
				if err := emit.PushWait(t.Context(), batch...); err != nil {
					t.Error(err)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		all := len(slices.Concat(p.written[:]...))
		if all != events || len(p.audited) != events/1000 || p.dropped.Load() != 0 {
			t.Errorf("%d written, %d audited, %d dropped", all, len(p.audited), p.dropped.Load())
		}
		for i, w := range p.written {
			for _, r := range w {
				if int(r.Sensor)%4 != i {
					t.Fatalf("writer %d got %+v", i, r)
				}
			}
		}
	})
}

func ExampleGreatest() {
	jobs := stage.FromSlice("jobs", make([]int, 100))
	var done atomic.Int64
	g := stage.NewGraph()
	for i := range 4 { // whoever has asked for more gets the next
		stage.Connect(g, jobs, stage.NewSink(fmt.Sprint("worker ", i), func(_ context.Context, in []int) error {
			done.Add(int64(len(in)))
			return nil
		}), stage.Max(1))
	}
	fmt.Println(g.Run(context.Background()), done.Load())
	// Output: <nil> 100
}

func ExampleMerge() {
	a := stage.FromSlice("a", []int{1, 2, 3})
	b := stage.FromSlice("b", []int{4, 5, 6})
	g := stage.NewGraph()
	both := stage.Merge(g, "both", a, b) // one chunk of each in turn
	sum := 0
	stage.Connect(g, both, stage.ForEach(func(_ context.Context, v int) error { sum += v; return nil }))
	fmt.Println(g.Run(context.Background()), sum)
	// Output: <nil> 21
}

func ExampleSubscribe() {
	ctx := context.Background()
	prices, emit := stage.Push[int]("prices")
	prices.Broadcast()
	g := stage.NewGraph()
	if err := g.Add(prices); err != nil {
		fmt.Println(err)
	}
	if err := g.Start(ctx); err != nil {
		fmt.Println(err)
	}
	screen := stage.NewSink("screen", func(_ context.Context, in []int) error {
		fmt.Println(in)
		return nil
	})
	if err := g.Add(screen); err != nil {
		fmt.Println(err)
	}
	sub, err := stage.SubscribeWait(ctx, prices, screen, stage.CancelMode(stage.Temporary))
	if err != nil { // not running, subscribed already, refused by the dispatcher
		fmt.Println(err)
		return
	}
	fmt.Println(emit.Push(1, 2, 3))
	emit.Finish()
	<-sub.Done() // sub.Cancel() ends it earlier, behind what was sent
	fmt.Println(sub.Err(), g.Stop(ctx))
	// Unordered output:
	// [1 2 3]
	// <nil>
	// <nil> <nil>
}
