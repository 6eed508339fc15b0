package queue_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/stage"
)

// arrivals collects the values that come to a sink.
type arrivals struct {
	mu     sync.Mutex
	values []int
}

func (a *arrivals) add(in []queue.Message[int]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range in {
		a.values = append(a.values, m.Value)
	}
}

// sorted returns what came since the last call.
func (a *arrivals) sorted() []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	vs := a.values
	a.values = nil
	slices.Sort(vs)
	return vs
}

func startGraph(t *testing.T, from stage.Outleter[queue.Message[int]], to stage.Inleter[queue.Message[int]], opts ...stage.SubOption) *stage.Graph {
	t.Helper()
	g := stage.NewGraph(stage.Logger(quiet()))
	stage.Connect(g, from, to, opts...)
	if err := g.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Abort(nil)
		g.Wait()
	})
	return g
}

func lag(g *queue.Group[int]) int { return int(g.Stats().Lag) }

var errSink = errors.New("the sink fails")

func TestSourceDeliversAndCommitsWhatTheSinkHasSettled(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 4})
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, BatchMax: 7})
		produce(t, topic, seq(0, 100)...)
		var got arrivals
		graph := startGraph(t, g.Source("source"), queue.Settle("sink", func(_ context.Context, in []queue.Message[int]) error {
			got.add(in)
			return nil
		}), stage.Max(10))
		synctest.Wait()
		if vs := got.sorted(); !slices.Equal(vs, seq(0, 100)) {
			t.Errorf("got %v", vs)
		}
		if n := lag(g); n != 0 {
			t.Errorf("%d events are not committed", n)
		}
		produce(t, topic, seq(100, 105)...)
		synctest.Wait()
		began := time.Now()
		if err := graph.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("the drain took %v", d)
		}
		if vs := got.sorted(); !slices.Equal(vs, seq(100, 105)) {
			t.Errorf("got %v", vs)
		}
		if n := lag(g); n != 0 {
			t.Errorf("%d events are not committed", n)
		}
	})
}

// What the sink has not settled comes again, to the next graph, and so do the
// settled events of the same batch.
func TestSourceDeliversAgainWhatWasNotSettled(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 10})
		produce(t, topic, seq(0, 25)...)
		var got arrivals
		first := startGraph(t, g.Source("source"), queue.Settle("sink", func(_ context.Context, in []queue.Message[int]) error {
			got.add(in)
			if slices.ContainsFunc(in, func(m queue.Message[int]) bool { return m.Value == 15 }) {
				return errSink
			}
			return nil
		}), stage.Demand(5, 0))
		if err := first.Wait(); !errors.Is(err, errSink) {
			t.Errorf("Wait returned %v", err)
		}
		// How many come with the 15th in one call is a matter of time: at most five.
		if vs := got.sorted(); len(vs) < 16 || !slices.Equal(vs, seq(0, min(len(vs), 20))) {
			t.Errorf("first got %v", vs)
		}
		if n := lag(g); n != 15 { // the first ten were settled as a whole
			t.Errorf("%d events are not committed", n)
		}
		startGraph(t, g.Source("source"), queue.Settle("sink", func(_ context.Context, in []queue.Message[int]) error {
			got.add(in)
			return nil
		}))
		synctest.Wait()
		if vs := got.sorted(); !slices.Equal(vs, seq(10, 25)) {
			t.Errorf("second got %v", vs)
		}
		if n := lag(g); n != 0 {
			t.Errorf("%d events are not committed", n)
		}
	})
}

// Nothing is committed before the last event of a batch is settled, and a
// second Done counts once.
func TestSourceWaitsForTheLastOfABatch(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 4})
		produce(t, topic, seq(0, 6)...)
		var mu sync.Mutex
		var in []queue.Message[int]
		startGraph(t, g.Source("source"), stage.NewSink("sink", func(_ context.Context, ms []queue.Message[int]) error {
			mu.Lock()
			defer mu.Unlock()
			in = append(in, ms...)
			return nil
		}))
		synctest.Wait()
		mu.Lock()
		batch := slices.Clone(in)
		mu.Unlock()
		if len(batch) != 4 {
			t.Fatalf("%d events before anything was settled", len(batch))
		}
		for _, i := range []int{3, 1, 0, 1, 3, 3} {
			if err := batch[i].Done(); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if n := lag(g); n != 6 {
			t.Errorf("%d events are not committed before the last is settled", n)
		}
		if err := queue.With(batch[2], "other").Done(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := lag(g); n != 2 {
			t.Errorf("%d events are not committed", n)
		}
	})
}

// A drain lets go what a stage gathers: the source ends, the batch comes out,
// and its last Done commits.
func TestSourceIsDrainedThroughABatcher(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, seq(0, 6)...)
		batch, un := stage.BatchWithin[queue.Message[int]](1000, time.Hour), stage.Unbatch[queue.Message[int]]()
		var got arrivals
		graph := stage.NewGraph(stage.Logger(quiet()))
		stage.Connect(graph, g.Source("source"), batch)
		stage.Connect(graph, batch, un)
		stage.Connect(graph, un, queue.Settle("sink", func(_ context.Context, in []queue.Message[int]) error {
			got.add(in)
			return nil
		}))
		if err := graph.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		began := time.Now()
		if err := graph.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("the drain took %v", d)
		}
		if vs := got.sorted(); !slices.Equal(vs, seq(0, 6)) {
			t.Errorf("got %v", vs)
		}
		if n := lag(g); n != 0 {
			t.Errorf("%d events are not committed", n)
		}
	})
}

// A Done that comes after another source has pulled the events again commits
// nothing.
func TestLateDoneOfAnEarlierSourceCommitsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, 1)
		hand := make(chan queue.Message[int], 2)
		keep := func() *stage.Sink[queue.Message[int]] {
			return stage.NewSink("sink", func(_ context.Context, in []queue.Message[int]) error {
				hand <- in[0]
				return nil
			})
		}
		first := startGraph(t, g.Source("source"), keep())
		old := <-hand
		first.Abort(errSink)
		first.Wait()
		startGraph(t, g.Source("source"), keep())
		again := <-hand
		if err := old.Done(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := lag(g); n != 1 {
			t.Errorf("%d events are not committed", n)
		}
		if err := again.Done(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := lag(g); n != 0 {
			t.Errorf("%d events are not committed", n)
		}
	})
}

func TestOneSourceRunsAGroup(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{})
		sink := func() *stage.Sink[queue.Message[int]] {
			return queue.Settle("sink", func(context.Context, []queue.Message[int]) error { return nil })
		}
		startGraph(t, g.Source("source"), sink())
		synctest.Wait()
		if err := startGraph(t, g.Source("source"), sink()).Wait(); !errors.Is(err, penstock.ErrExists) {
			t.Errorf("the second source ended with %v", err)
		}
		if err := g.Run(t.Context(), func(context.Context, penstock.Batch[int]) error { return nil }); !errors.Is(err, penstock.ErrExists) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// A source goes on with the consumers that its group has.
func TestSourceFollowsResize(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 4})
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, BatchMax: 3})
		var got arrivals
		startGraph(t, g.Source("source"), queue.Settle("sink", func(_ context.Context, in []queue.Message[int]) error {
			got.add(in)
			return nil
		}))
		for i, n := range []int{4, 1, 3} {
			synctest.Wait()
			if err := g.Resize(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			produce(t, topic, seq(100*i, 100*i+40)...)
			synctest.Wait()
			if vs := slices.Compact(got.sorted()); !slices.Equal(vs, seq(100*i, 100*i+40)) {
				t.Errorf("%d consumers: got %v", n, vs)
			}
			if n := lag(g); n != 0 {
				t.Errorf("%d events are not committed", n)
			}
		}
	})
}

func TestSourceEndsWhenItsTopicIsClosed(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{})
		graph := startGraph(t, g.Source("source"), queue.Settle("sink", func(context.Context, []queue.Message[int]) error { return nil }))
		synctest.Wait()
		if err := topic.Close(); err != nil {
			t.Error(err)
		}
		if err := graph.Wait(); !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("Wait returned %v", err)
		}
	})
}

func TestSourceOfAGroupWithAutoCommitSettlesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 3, AutoCommit: true})
		produce(t, topic, seq(0, 10)...)
		var got arrivals
		startGraph(t, g.Source("source"), stage.NewSink("sink", func(_ context.Context, in []queue.Message[int]) error {
			got.add(in)
			return in[0].Done()
		}))
		synctest.Wait()
		if vs := got.sorted(); !slices.Equal(vs, seq(0, 10)) {
			t.Errorf("got %v", vs)
		}
	})
}

// From one topic into another: nothing is lost, also when the graph is aborted
// on the way, and the second waits while the third is full.
func TestGroupIntoATopic(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		from := open(t, s, queue.Config[int]{Name: "from", Partitions: 2})
		to := open(t, s, queue.Config[int]{Name: "to", Capacity: 20})
		g := group(t, from, "g", queue.GroupConfig{Consumers: 2, BatchMax: 8})
		out := group(t, to, "out", queue.GroupConfig{})
		produce(t, from, seq(0, 60)...)
		double := func() *stage.Gate[queue.Message[int], queue.Message[int]] {
			return stage.Map(func(m queue.Message[int]) queue.Message[int] { return queue.With(m, m.Value*2) })
		}
		run := func() *stage.Graph {
			graph, gate := stage.NewGraph(stage.Logger(quiet())), double()
			stage.Connect(graph, g.Source("source"), gate)
			stage.Connect(graph, gate, queue.ProduceTo("sink", to), stage.Max(4))
			if err := graph.Start(context.Background()); err != nil {
				t.Fatal(err)
			}
			return graph
		}
		first := run()
		synctest.Wait()
		first.Abort(errSink)
		first.Wait()
		second := run()
		seen := map[int]bool{}
		for len(seen) < 60 {
			b, err := out.Consumer(0).Pull(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range b.Values() {
				seen[v] = true
			}
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		for v := range seq(0, 60) {
			if !seen[v*2] {
				t.Errorf("%d did not arrive", v*2)
			}
		}
		synctest.Wait()
		for { // doubles of the abort
			b, ok, err := out.Consumer(0).TryPull(100)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if n := lag(g); n != 0 {
			t.Errorf("%d events are not committed", n)
		}
		if err := second.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestTopicSinkProduces(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		graph := stage.NewGraph(stage.Logger(quiet()))
		stage.Connect(graph, stage.FromSlice("source", seq(0, 1000)), topic.Sink("sink"))
		if err := graph.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if got := contents(t, topic); !slices.Equal(got[0], seq(0, 1000)) {
			t.Errorf("got %d events", len(got[0]))
		}
	})
}
