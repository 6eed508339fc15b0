package stage

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
)

// A Start that fails leaves nobody waiting: neither those who wait already nor
// those who come later.
func TestFailedStartEndsWhoWaitsForIt(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		build func(g *Graph, src *Source[int], sink *Sink[int]) *Subscription
		want  error
	}{
		"an option": {func(g *Graph, src *Source[int], sink *Sink[int]) *Subscription {
			must(t, g.Add(NewSink("bad", func(context.Context, []int) error { return nil }, Buffer(1, KeepLast))))
			return Connect(g, src, sink)
		}, penstock.ErrInvalid},
		"demand": {func(g *Graph, src *Source[int], sink *Sink[int]) *Subscription {
			must(t, g.Add(src, sink))
			return Connect(g, src, sink, Demand(6, 6))
		}, ErrInvalidDemand},
		"no owner": {func(g *Graph, src *Source[int], sink *Sink[int]) *Subscription {
			Connect(g, src, NewSink("other", func(context.Context, []int) error { return nil }))
			must(t, g.Add(sink))
			return Connect(g, NewName[int](g, "nobody"), sink)
		}, ErrProducerNotAlive},
		"refused": {func(g *Graph, src *Source[int], sink *Sink[int]) *Subscription {
			return Connect(g, src.Out().Partition(3), sink)
		}, ErrPartition},
		"init": {func(g *Graph, src *Source[int], sink *Sink[int]) *Subscription {
			must(t, g.Add(NewSink("bad", func(context.Context, []int) error { return nil }, Init(func(context.Context) error { return boom }))))
			return Connect(g, src, sink)
		}, boom},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				src, _ := Push[int]("source")
				sink, _ := collector[int]("sink")
				sub := c.build(g, src, sink)
				early := make(chan error, 3)
				// The waiters: end with the Start; the receives below wait.
				go func() { early <- src.Wait() }()
				go func() { early <- sink.Wait() }()
				go func() { <-sub.Done(); early <- sub.Err() }()
				synctest.Wait()
				first := g.Start(t.Context())
				if !errors.Is(first, c.want) {
					t.Fatalf("Start: %v, want %v", first, c.want)
				}
				synctest.Wait()
				for range 2 {
					for range 3 {
						select {
						case err := <-early:
							if !errors.Is(err, c.want) {
								t.Errorf("who waited got %v", err)
							}
						default:
							t.Fatal("somebody still waits")
						}
					}
					if !isOver(src.Done()) || !isOver(sink.Done()) || !isOver(sub.Done()) {
						t.Error("something is not done")
					}
					for what, err := range map[string]error{"Wait": g.Wait(), "Stop": g.Stop(t.Context()), "Start": g.Start(t.Context())} {
						if !errors.Is(err, c.want) || !errors.Is(err, penstock.ErrInvalid) && what != "Start" {
							t.Errorf("%s: %v, want %v", what, err, c.want)
						}
					}
					early <- src.Wait()
					early <- sink.Wait()
					early <- sub.Err()
				}
				s := g.Status()
				says(t, stageNamed(t, s, "source"), Ready, "the graph was not started: ")
				if s.Constraint != s.Stages[0].Why || s.State != Ready {
					t.Errorf("%s: %q", s.State, s.Constraint)
				}
			})
		})
	}
}

// What was missing is added, and the graph is started again.
func TestStartAfterOneThatFailedBeginsANewLife(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		sink, got := collector[int]("sink")
		double := Map(func(v int) int { return 2 * v })
		sub := Connect(g, double, sink)
		numbers := NewName[int](g, "numbers")
		named := Connect(g, numbers, double)
		ended := sink.Done()
		for range 2 {
			if err := g.Start(t.Context()); !errors.Is(err, ErrProducerNotAlive) {
				t.Fatalf("Start: %v, want ErrProducerNotAlive", err)
			}
			if err := sink.Wait(); !errors.Is(err, ErrProducerNotAlive) {
				t.Errorf("Wait: %v", err)
			}
			if !isOver(named.Done()) || !errors.Is(named.Err(), ErrProducerNotAlive) {
				t.Errorf("the subscription without a producer: %v", named.Err())
			}
		}
		src, emit := Push[int]("source")
		src.As(numbers)
		must(t, g.Start(t.Context()))
		for what, done := range map[string]<-chan struct{}{"sink": sink.Done(), "gate": double.Done(), "subscription": sub.Done(), "subscription by name": named.Done()} {
			if isOver(done) {
				t.Errorf("%s: is done while it runs", what)
			}
		}
		if !isOver(ended) || sub.Err() != nil || named.Err() != nil {
			t.Errorf("the life before: %v; errors %v and %v", isOver(ended), sub.Err(), named.Err())
		}
		emit.Push(1, 2, 3)
		emit.Finish()
		for what, err := range map[string]error{"graph": g.Wait(), "sink": sink.Wait(), "source": src.Wait(), "subscription": sub.Err()} {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		equal(t, "events", flat(got()), []int{2, 4, 6})
		if !isOver(sink.Done()) || !isOver(sub.Done()) || !isOver(named.Done()) {
			t.Error("something is not done at the end")
		}
		if err := g.Start(t.Context()); !errors.Is(err, penstock.ErrInvalid) || sink.Wait() != nil {
			t.Errorf("another Start: %v; the sink then ended with %v", err, sink.Wait())
		}
	})
	bubble(t, func(t *testing.T, g *Graph) { // a gate that was forgotten to be connected
		sink, got := collector[int]("sink")
		pass := Pass[int]("pass")
		Connect(g, pass, sink)
		if err := g.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "has no producer") {
			t.Fatalf("Start: %v", err)
		}
		Connect(g, FromSlice("source", []int{1, 2}), pass)
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		equal(t, "events", flat(got()), []int{1, 2})
	})
}

// An option that is nil is an error that says where.
func TestNilOptionIsNamed(t *testing.T) {
	misses := func(t *testing.T, err error, texts ...string) {
		t.Helper()
		if !errors.Is(err, penstock.ErrInvalid) {
			t.Fatalf("error: %v, want ErrInvalid", err)
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("error %q does not say %q", err, text)
			}
		}
	}
	ok := func(context.Context, []int) error { return nil }
	for name, c := range map[string]struct {
		build func() *Graph
		texts []string
	}{
		"graph": {func() *Graph {
			g := NewGraph(quietLog(), nil)
			Connect(g, Never[int]("source"), NewSink("sink", ok))
			return g
		}, []string{"NewGraph", "option 2 of 2 is nil"}},
		"stage": {func() *Graph {
			g := NewGraph(quietLog())
			Connect(g, Never[int]("source"), NewSink("sink", ok, nil, Owned()))
			return g
		}, []string{`"sink"`, "option 1 of 2 is nil"}},
		"subscription": {func() *Graph {
			g := NewGraph(quietLog())
			Connect(g, Never[int]("source"), NewSink("sink", ok), Max(3), nil, Manual())
			return g
		}, []string{`connect "source" to "sink"`, "option 2 of 3 is nil"}},
		"broadcast": {func() *Graph {
			g := NewGraph(quietLog())
			Connect(g, Never[int]("source").Dispatch(Broadcast[int](nil)), NewSink("sink", ok))
			return g
		}, []string{`"source"`, "Broadcast", "option 1 of 1 is nil"}},
	} {
		t.Run(name, func(t *testing.T) { misses(t, c.build().Start(t.Context()), c.texts...) })
	}
	bubble(t, func(t *testing.T, g *Graph) { // while the graph runs
		src, sink := Never[int]("source"), Discard[int]()
		must(t, g.Add(src, sink))
		start(t, g)
		_, err := Subscribe(t.Context(), src, sink, nil)
		misses(t, err, `connect "source" to "discard#2"`, "option 1 of 1 is nil")
		_, err = SubscribeWait(t.Context(), src, sink, nil)
		misses(t, err, "option 1 of 1 is nil")
		misses(t, g.Add(Never[int]("other", nil)), `"other"`, "option 1 of 1 is nil")
		equal(t, "subscribers", src.Out().Subscribers(), 0)
	})
}

func TestChooseWithoutAChooserIsRefused(t *testing.T) {
	for name, d := range map[string]Dispatcher[int]{
		"no function": Choose[int](nil),
		"no chooser":  Choose(func() Chooser[int] { return nil }),
	} {
		g := NewGraph(quietLog())
		Connect(g, FromSlice("source", []int{1}).Dispatch(d), NewSink("sink", func(context.Context, []int) error { return nil }))
		if err := g.Start(t.Context()); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "Choose") || !strings.Contains(err.Error(), `"source"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
