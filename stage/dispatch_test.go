package stage

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
)

func TestDifferentMaxIsWarnedOfOnce_STC80(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		log, written := logTo()
		g.log = log
		src, _ := Push[int]("push")
		Connect(g, src, newLockstep[int]("a"), Demand(6, 2))
		Connect(g, src, newLockstep[int]("b"), Demand(10, 2))
		third := newLockstep[int]("c")
		if err := g.Add(third); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		subscribe(t, src, third, Demand(12, 2))
		equal(t, "subscribers", src.Out().Subscribers(), 3)
		if n := strings.Count(written(), "level=WARN"); n != 1 || !strings.Contains(written(), "stage=push") {
			t.Errorf("%d warnings: %q", n, written())
		}
	})
}

func TestDemandOfOneWhoLeftIsNotCounted_STC81(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("push")
		a, _ := collector[int]("a")
		b, got := collector[int]("b")
		subA := Connect(g, src, a, Manual(), CancelMode(Temporary))
		subB := Connect(g, src, b, Manual())
		start(t, g)
		subA.Ask(6)
		synctest.Wait()
		subA.Cancel()
		synctest.Wait()
		emit.Push(ints(1, 11)...)
		synctest.Wait()
		equal(t, "events without demand", got(), [][]int(nil))
		subB.Ask(6)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{ints(1, 7)})
		subB.Ask(4)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{ints(7, 11)})
		subB.Ask(4)
		synctest.Wait()
		equal(t, "open demand that the producer sees", src.out.want(), 4)
		emit.Push(11, 12)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{{11, 12}})
	})
}

func TestBroadcastGoesAtThePaceOfTheSlowest_STC83(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		src := counter(&w, 1).Broadcast()
		a, gotA := collector[int]("a")
		b, gotB := collector[int]("b")
		subA := Connect(g, src, a, Manual())
		subB := Connect(g, src, b, Manual())
		start(t, g)
		subA.Ask(4)
		synctest.Wait()
		equal(t, "batches before all have asked", gotA(), [][]int(nil))
		equal(t, "wants before all have asked", w.all(), []int(nil))
		subB.Ask(4)
		synctest.Wait()
		equal(t, "a", gotA(), [][]int{{0, 1, 2, 3}})
		equal(t, "b", gotB(), [][]int{{0, 1, 2, 3}})
		equal(t, "wants", w.all(), []int{4})
	})
}

func TestSelectorCostsNoDemand_STC84(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		src := counter(&w, 1).Broadcast()
		a, gotA := collector[int]("a")
		b, gotB := collector[int]("b")
		subA := Connect(g, src, a, Manual())
		subB := Connect(g, src.Out().Where(func(v int) bool { return v%2 == 0 }), b, Manual())
		start(t, g)
		subA.Ask(4)
		subB.Ask(4)
		synctest.Wait()
		equal(t, "a", gotA(), [][]int{{0, 1, 2, 3}})
		equal(t, "b", gotB(), [][]int{{0, 2}})
		equal(t, "open demand of a", src.out.edges[0].open(), 0)
		equal(t, "open demand of b", src.out.edges[1].open(), 2)
		equal(t, "want", src.out.want(), 0)
		subA.Ask(3)
		synctest.Wait()
		equal(t, "a", gotA(), [][]int{{4, 5}, {6}}) // as far as b has asked, then what is left of the ask
		equal(t, "b", gotB(), [][]int{{4}, {6}})
		equal(t, "wants", w.all(), []int{4, 2, 1})
	})
}

// A selector that rejects everything cannot keep the stage from being stopped.
func TestSelectorThatRejectsEverythingDoesNotHoldTheStage(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		src := counter(&w, 1).Broadcast()
		none, got := collector[int]("none")
		seen := make(chan struct{})
		n := 0
		Connect(g, src.Out().Where(func(int) bool {
			if n++; n == 5000 {
				close(seen)
			}
			return false
		}), none, Demand(6, 2))
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-seen
		if err := g.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		equal(t, "batches", got(), [][]int(nil))
		checkConservation(t, g)
	})
}

func TestSlowestThatLeavesReleasesTheOthers_STC87(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		src := counter(&w, 1).Broadcast()
		fast, gotFast := collector[int]("fast")
		slow, gotSlow := collector[int]("slow")
		subFast := Connect(g, src, fast, Manual())
		subSlow := Connect(g, src, slow, Manual(), CancelMode(Temporary))
		start(t, g)
		subFast.Ask(6)
		subSlow.Ask(2)
		synctest.Wait()
		equal(t, "fast", gotFast(), [][]int{{0, 1}})
		equal(t, "slow", gotSlow(), [][]int{{0, 1}})
		subSlow.Cancel()
		synctest.Wait()
		equal(t, "fast", gotFast(), [][]int{{2, 3, 4, 5}})
		equal(t, "slow", gotSlow(), [][]int(nil))
	})
}

// Public bug: a broadcaster repeated its demand when consumers joined one after
// the other. A newcomer begins with no demand, holds the flow until it asks,
// and gets nothing from before.
func TestBroadcastNewcomerAsksForNothingTwice(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		src := counter(&w, 1).Broadcast()
		a, gotA := collector[int]("a")
		b, gotB := collector[int]("b")
		subA := Connect(g, src, a, Manual())
		if err := g.Add(b); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		subA.Ask(3)
		synctest.Wait()
		equal(t, "a", gotA(), [][]int{{0, 1, 2}})
		subB := subscribe(t, src, b, Manual())
		subA.Ask(5)
		synctest.Wait()
		equal(t, "a while the newcomer has not asked", gotA(), [][]int(nil))
		subB.Ask(2)
		synctest.Wait()
		equal(t, "a", gotA(), [][]int{{3, 4}})
		equal(t, "b", gotB(), [][]int{{3, 4}})
		subB.Ask(9)
		synctest.Wait()
		equal(t, "a", gotA(), [][]int{{5, 6, 7}})
		equal(t, "b", gotB(), [][]int{{5, 6, 7}})
		equal(t, "wants", w.all(), []int{3, 2, 3})
	})
}

func TestConsumersOfABroadcastDoNotSeeEachOther_STC75(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[*int]("push")
		src.Broadcast()
		spoil := NewGate("spoil", func(_ context.Context, in []*int, out *Output[*int]) error {
			clear(in)
			out.Forward(in)
			return nil
		})
		keep := Filter(func(v **int) bool { return **v%2 == 0 }) // works in place
		spoilt, gotSpoilt := collector[*int]("spoilt")
		kept, gotKept := collector[*int]("kept")
		plain, gotPlain := collector[*int]("plain")
		Connect(g, src, spoil)
		Connect(g, spoil, spoilt)
		Connect(g, src, keep)
		Connect(g, keep, kept)
		Connect(g, src, plain)
		for i := range 600 {
			emit.Push(&i)
		}
		emit.Finish()
		if err := g.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, v := range flat(gotPlain()) {
			if v == nil || *v != i {
				t.Fatalf("event %d is %v", i, v)
			}
		}
		for i, v := range flat(gotKept()) {
			if v == nil || *v != 2*i {
				t.Fatalf("kept event %d is %v", i, v)
			}
		}
		if s := flat(gotSpoilt()); len(s) != 600 || s[0] != nil {
			t.Errorf("the gate has passed on %d events", len(s))
		}
		checkConservation(t, g)
	})
}

// byParity is a source of two partitions, and how its consumers subscribe.
func byParity(w *wants) *Source[int] {
	return counter(w, 1).Dispatch(Partition(2, func(v int) int { return v }))
}

func TestPartitionsWaitInTheirQueues_STC91(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		src := byParity(&w)
		even, gotEven := collector[int]("even")
		odd, gotOdd := collector[int]("odd")
		subEven := Connect(g, src.Out().Partition(0), even, Manual())
		subOdd := Connect(g, src.Out().Partition(1), odd, Manual())
		start(t, g)
		subEven.Ask(2)
		synctest.Wait()
		equal(t, "even", gotEven(), [][]int{{0}})
		equal(t, "odd", gotOdd(), [][]int(nil))
		equal(t, "buffered", g.Stats()[0].Buffered, int64(1))
		subOdd.Ask(2)
		synctest.Wait()
		equal(t, "even", gotEven(), [][]int{{2}})
		equal(t, "odd", flat(gotOdd()), []int{1, 3})
		equal(t, "wants", w.all(), []int{2, 2})
	})
}

func TestPartitionThatCannotBeIsRefused_STC92(t *testing.T) {
	refusals := map[string]struct {
		pick func(o Outlet[int]) Outlet[int]
		want error
	}{
		"missing":      {func(o Outlet[int]) Outlet[int] { return o }, ErrPartition},
		"out of range": {func(o Outlet[int]) Outlet[int] { return o.Partition(2) }, ErrPartition},
		"negative":     {func(o Outlet[int]) Outlet[int] { return o.Partition(-1) }, ErrPartition},
		"taken":        {func(o Outlet[int]) Outlet[int] { return o.Partition(0) }, ErrPartitionTaken},
		"selector":     {func(o Outlet[int]) Outlet[int] { return o.Partition(1).Where(func(int) bool { return true }) }, penstock.ErrInvalid},
	}
	for name, c := range refusals {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				var w wants
				src := byParity(&w)
				holder, got := collector[int]("holder")
				sink, waiting := newLockstep[int]("sink"), newLockstep[int]("waiting")
				sub := Connect(g, src.Out().Partition(0), holder, Manual())
				if err := g.Add(sink, waiting); err != nil {
					t.Fatal(err)
				}
				start(t, g)
				refused := subscribe(t, c.pick(src.Out()), sink)
				if !isOver(refused.Done()) || !errors.Is(refused.Err(), c.want) {
					t.Errorf("the subscription ended with %v, want %v", refused.Err(), c.want)
				}
				if err := sink.Wait(); !errors.Is(err, c.want) {
					t.Errorf("the Permanent sink ended with %v", err)
				}
				if _, err := SubscribeWait(t.Context(), c.pick(src.Out()), waiting); !errors.Is(err, c.want) {
					t.Errorf("SubscribeWait: %v", err)
				}
				synctest.Wait()
				if isOver(waiting.Done()) {
					t.Error("a refusal that was returned has ended the sink")
				}
				sub.Ask(2)
				synctest.Wait()
				equal(t, "the holder", got(), [][]int{{0}})
			})
			g := NewGraph() // declared: before anything starts
			var w wants
			src := byParity(&w)
			a, b := newLockstep[int]("a"), newLockstep[int]("b")
			Connect(g, src.Out().Partition(0), a)
			Connect(g, c.pick(src.Out()), b)
			for range 2 {
				if err := g.Start(t.Context()); !errors.Is(err, c.want) {
					t.Errorf("Start: %v, want %v", err, c.want)
				}
			}
		})
	}
	for name, d := range map[string]Dispatcher[int]{"none": Partition(0, func(int) int { return 0 }), "nil": Partition[int](2, nil), "nil pointer": PartitionPtr[int](2, nil)} {
		g := NewGraph()
		var w wants
		Connect(g, counter(&w, 1).Dispatch(d).Out().Partition(0), newLockstep[int]("sink"))
		if err := g.Start(t.Context()); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "Partition") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		pick func(o Outlet[int]) Outlet[int]
		want error
	}{"partition": {func(o Outlet[int]) Outlet[int] { return o.Partition(0) }, ErrPartition},
		"selector": {func(o Outlet[int]) Outlet[int] { return o.Where(func(int) bool { return true }) }, penstock.ErrInvalid}} {
		g := NewGraph()
		var w wants
		Connect(g, c.pick(counter(&w, 1).Out()), newLockstep[int]("sink"))
		if err := g.Start(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s of a producer without: %v", name, err)
		}
	}
}

func TestNegativePartitionsCountFromTheEnd_STC93(t *testing.T) {
	negative(t, Partition(2, func(int) int { return -3 }))
	negative(t, PartitionPtr(2, func(*int) int { return -3 }))
	for n := 1; n < 9; n++ { // also where no division is needed
		r := partition[int]{by: func(v int) int { return v }, parts: make([]part[int], n)}
		vs := ints(-20, 20)
		r.route(&outlet[int]{}, &piece[int]{slab: &slab[int]{buf: vs}, to: len(vs)})
		for k, q := range r.parts {
			for _, v := range q.buf {
				if ((v%n)+n)%n != k {
					t.Errorf("%d of %d partitions got %d", k, n, v)
				}
			}
		}
	}
}

func negative(t *testing.T, d Dispatcher[int]) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("push")
		src.Dispatch(d)
		one, got := collector[int]("one")
		zero, none := collector[int]("zero")
		Connect(g, src.Out().Partition(1), one)
		Connect(g, src.Out().Partition(0), zero)
		emit.Push(7, 8)
		emit.Finish()
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		equal(t, "partition 1", flat(got()), []int{7, 8})
		equal(t, "partition 0", none(), [][]int(nil))
	})
}

// Queued events count against demand: a partition that nobody takes from cannot
// grow past the sum of max (ST-106), and its queue goes to the next consumer.
func TestHotPartitionIsBoundedAndOutlivesItsConsumer(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		n := 0
		src := Pull("hot", func(_ context.Context, want int, out *Output[int]) error {
			w.add(want)
			for range want {
				out.Emit(n)
				n++
			}
			return nil
		}).Dispatch(Partition(2, func(v int) int { return min(v%10, 1) })) // nine of ten to 1
		cold, _ := collector[int]("cold")
		hot, next := newLockstep[int]("hot sink"), newLockstep[int]("next")
		Connect(g, src.Out().Partition(0), cold, Demand(20, 10))
		sub := Connect(g, src.Out().Partition(1), hot, Demand(20, 10), CancelMode(Temporary))
		if err := g.Add(next); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		synctest.Wait()
		queued := g.Stats()[0].Buffered
		if queued == 0 || queued > 40 {
			t.Errorf("%d events queued, want some and at most the sum of max", queued)
		}
		sub.Cancel()
		for range 2 {
			hot.step()
		}
		equal(t, "events of the first consumer", flat(hot.all()), keysOf(1, 20))
		equal(t, "queued after it has left", g.Stats()[0].Buffered, queued)
		subscribe(t, src.Out().Partition(1), next, Demand(20, 10))
		for range 3 {
			next.step()
		}
		got := flat(next.all())
		equal(t, "events of the next consumer", got, keysOf(1, 20+len(got))[20:])
		if len(got) <= int(queued) {
			t.Errorf("%d events, want those that were queued and more", len(got))
		}
	})
}

// keysOf returns the first n numbers of partition p in TestHotPartition.
func keysOf(p, n int) (vs []int) {
	for v := 0; len(vs) < n; v++ {
		if min(v%10, 1) == p {
			vs = append(vs, v)
		}
	}
	return vs
}

// A source that ends delivers to those who are there; what waits for nobody is
// counted, and does not hold up the end.
func TestPartitionWithoutConsumerDoesNotHoldUpTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("push")
		src.Dispatch(Partition(2, func(v int) int { return v }))
		even, got := collector[int]("even")
		Connect(g, src.Out().Partition(0), even, Demand(4, 2))
		emit.Push(ints(0, 100)...)
		emit.Finish()
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		equal(t, "events", len(flat(got())), 50)
		equal(t, "discarded", g.Stats()[0].Discarded, int64(50))
		checkConservation(t, g)
	})
}

func TestOneConsumerMayHoldSeveralPartitions(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("push")
		src.Dispatch(Partition(3, func(v int) int { return v }))
		sink, got := collector[int]("sink")
		Connect(g, src.Out().Partition(0), sink, CancelMode(Transient))
		Connect(g, src.Out().Partition(2), sink, CancelMode(Transient))
		other, _ := collector[int]("other")
		Connect(g, src.Out().Partition(1), other)
		emit.Push(ints(0, 9)...)
		emit.Finish()
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		equal(t, "number of events", len(flat(got())), 6)
	})
}

func TestSubscribersAreCounted(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		var seen []Change
		gate := Map(func(v int) int { return v }).OnSubscribers(func(c Change) { seen = append(seen, c) })
		a, b := newLockstep[int]("a"), newLockstep[int]("b")
		Connect(g, counter(&w, 1), gate)
		subA := Connect(g, gate, a, Manual(), CancelMode(Temporary))
		if err := g.Add(b); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		subB := subscribe(t, gate, b, Manual(), CancelMode(Temporary))
		subA.Cancel()
		synctest.Wait()
		subB.Cancel()
		synctest.Wait()
		equal(t, "changes", seen, []Change{{true, 1}, {true, 2}, {false, 1}, {false, 0}})
	})
}
