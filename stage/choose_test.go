package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
)

func open(ns ...int) (of []Candidate) {
	for i, n := range ns {
		of = append(of, Candidate{fmt.Sprint("sink ", i), n})
	}
	return of
}

func TestRoundRobinPassesOverThoseWithoutDemand(t *testing.T) {
	r := &roundRobin[int]{}
	var got []int
	for _, of := range [][]Candidate{open(1, 1, 1), open(1, 1, 1), open(1, 1, 1), open(0, 1, 1), open(1, 0, 0), open(0, 0, 1), open(5), open(1, 1)} {
		got = append(got, r.Choose(nil, of))
	}
	equal(t, "choices", got, []int{0, 1, 2, 1, 0, 2, 0, 1})
}

// A key stays where it is but for the keys of those who come and leave, and all
// get about as many.
func TestConsistentHashMovesOnlyWhatItMust(t *testing.T) {
	r := &rendezvous[uint64]{key: func(v *uint64) uint64 { return *v }, names: map[string]uint64{}}
	before, after := open(1, 1, 1, 1, 1), open(1, 1, 1, 1)
	count := make([]int, 5)
	for k := range uint64(10_000) {
		a, b := r.Choose(&k, before), r.Choose(&k, after)
		if count[a]++; a < 4 && a != b {
			t.Fatalf("key %d went from %d to %d when consumer 4 left", k, a, b)
		}
	}
	for i, n := range count {
		if n < 1_800 || n > 2_200 {
			t.Errorf("consumer %d has %d of 10000 keys", i, n)
		}
	}
}

func TestRoundRobinGivesInTurn(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		src.Dispatch(RoundRobin[int]())
		a, gotA := collector[int]("a")
		b, gotB := collector[int]("b")
		subA := Connect(g, src, a, Manual())
		subB := Connect(g, src, b, Manual())
		start(t, g)
		emit.Push(ints(0, 8)...)
		subA.Ask(3)
		synctest.Wait()
		subB.Ask(1)
		synctest.Wait()
		equal(t, "a", slices.Concat(gotA()...), ints(0, 3)) // b had not asked
		equal(t, "b", slices.Concat(gotB()...), []int{3})
		subB.Ask(9)
		synctest.Wait()
		equal(t, "b has all the rest", slices.Concat(gotB()...), ints(4, 8))
		subA.Ask(9)
		emit.Push(ints(10, 16)...)
		synctest.Wait()
		a1, b1 := slices.Concat(gotA()...), slices.Concat(gotB()...)
		equal(t, "shares", []int{len(a1), len(b1)}, []int{3, 3})
	})
}

func TestConsistentHashKeepsKeysTogether(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src := FromSlice("source", ints(0, 400)).Dispatch(ConsistentHash(func(v *int) uint64 { return uint64(*v % 40) }))
		owner := map[int]int{}
		var all [3]func() [][]int
		for i := range 3 {
			sink, got := collector[int](fmt.Sprint("sink ", i))
			Connect(g, src, sink, Demand(7, 3))
			all[i] = got
		}
		equal(t, "error", g.Run(context.Background()), nil)
		total := 0
		for i, got := range all {
			last := map[int]int{}
			for _, v := range slices.Concat(got()...) {
				total++
				if o, ok := owner[v%40]; ok && o != i {
					t.Fatalf("key %d went to %d and %d", v%40, o, i)
				}
				owner[v%40] = i
				if before, ok := last[v%40]; ok && v <= before {
					t.Fatalf("%d after %d", v, before)
				}
				last[v%40] = v
			}
		}
		equal(t, "events", total, 400)
		checkConservation(t, g)
	})
}

type chooserFunc func(v *int, of []Candidate) int

func (f chooserFunc) Choose(v *int, of []Candidate) int { return f(v, of) }

// Whatever a Chooser does, every event is accounted for.
func TestChooserThatIsWrongFailsItsProducer(t *testing.T) {
	for how, c := range map[string]chooserFunc{
		"too large": func(v *int, of []Candidate) int { return len(of) * (*v / 3) },
		"negative":  func(v *int, of []Candidate) int { return -2 * (*v / 3) },
		"panic":     func(v *int, of []Candidate) int { _ = of[*v/3]; return 0 },
	} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				src := FromSlice("source", ints(0, 9)).Dispatch(Choose(func() Chooser[int] { return c }))
				sink, got := collector[int]("sink")
				Connect(g, src, sink)
				err := g.Run(context.Background())
				var p *penstock.PanicError
				if !errors.Is(err, penstock.ErrInvalid) && !errors.As(err, &p) {
					t.Errorf("error: %v", err)
				}
				equal(t, "delivered before", slices.Concat(got()...), ints(0, 3))
				equal(t, "discarded", only(t, g, "source").Discarded, int64(6))
				checkConservation(t, g)
			})
		})
	}
}

// An event for which there is none now waits, and all behind it.
func TestChooserThatWaitsIsAskedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		src.Dispatch(Choose(func() Chooser[int] {
			return chooserFunc(func(v *int, of []Candidate) int {
				if *v == 2 && len(of) < 2 {
					return -1
				}
				return len(of) - 1
			})
		}))
		a, gotA := collector[int]("a")
		b, gotB := collector[int]("b")
		equal(t, "add", g.Add(src, a, b), nil)
		start(t, g)
		subscribe(t, src, a)
		emit.Push(ints(0, 5)...)
		synctest.Wait()
		equal(t, "a", slices.Concat(gotA()...), ints(0, 2))
		subscribe(t, src, b)
		synctest.Wait()
		equal(t, "b", slices.Concat(gotB()...), ints(2, 5))
		equal(t, "a", len(gotA()), 0)
	})
}

func TestChoosersAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		d    Dispatcher[int]
		from func(*Source[int]) Outleter[int]
	}{
		"no function": {Choose[int](nil), nil},
		"no key":      {ConsistentHash[int](nil), nil},
		"lag":         {Broadcast[int](Slowest(0)), nil},
		"none":        {PartitionTo[int](3, nil), nil},
		"selector":    {RoundRobin[int](), func(s *Source[int]) Outleter[int] { return s.Out().Where(func(int) bool { return true }) }},
		"partition":   {RoundRobin[int](), func(s *Source[int]) Outleter[int] { return s.Out().Partition(0) }},
	} {
		g := NewGraph()
		src := Never[int]("source").Dispatch(c.d)
		sink, _ := collector[int]("sink")
		var from Outleter[int] = src
		if c.from != nil {
			from = c.from(src)
		}
		Connect(g, from, sink)
		if err := g.Start(context.Background()); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
			g.Abort(nil)
			g.Wait()
		}
	}
}

func TestPartitionToLetsGoWhatHasNone(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src := FromSlice("source", ints(0, 30))
		pass := Pass[int]("pass").Dispatch(PartitionTo(2, func(v *int) (int, bool) { return *v % 3, *v%3 < 2 }))
		a, gotA := collector[int]("a")
		b, gotB := collector[int]("b")
		Connect(g, src, pass, Demand(5, 2))
		Connect(g, pass.Out().Partition(0), a, Demand(3, 1))
		Connect(g, pass.Out().Partition(1), b)
		equal(t, "error", g.Run(context.Background()), nil)
		equal(t, "shares", []int{len(slices.Concat(gotA()...)), len(slices.Concat(gotB()...))}, []int{10, 10})
		s := only(t, g, "pass")
		equal(t, "filtered out, discarded, buffered", []int64{s.FilteredOut, s.Discarded, s.Buffered}, []int64{10, 0, 0})
		checkConservation(t, g)
	})
}

func TestImpossiblePartitionIsAnError(t *testing.T) {
	for _, bad := range []int{-1, 2} {
		bubble(t, func(t *testing.T, g *Graph) {
			src := FromSlice("source", ints(0, 9)).Dispatch(PartitionTo(2, func(v *int) (int, bool) {
				if *v == 4 {
					return bad, true
				}
				return *v % 2, true
			}))
			a, gotA := collector[int]("a")
			b, gotB := collector[int]("b")
			Connect(g, src.Out().Partition(0), a)
			Connect(g, src.Out().Partition(1), b)
			err := g.Run(context.Background())
			if !errors.Is(err, ErrPartition) || !strings.Contains(err.Error(), "source") {
				t.Errorf("error: %v", err)
			}
			equal(t, "a", slices.Concat(gotA()...), []int{0, 2})
			equal(t, "b", slices.Concat(gotB()...), []int{1, 3})
			equal(t, "discarded", only(t, g, "source").Discarded, int64(5))
			checkConservation(t, g)
		})
	}
}

func TestSlowestConsumerIsCutOff(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		src.Dispatch(Broadcast[int](Slowest(4)))
		other, more := Push[int]("other")
		fast, gotFast := collector[int]("fast")
		slow, gotSlow := collector[int]("slow")
		late, _ := collector[int]("late")
		quick := Connect(g, src, fast, Manual())
		lagging := Connect(g, src, slow, Manual())
		Connect(g, other, slow)
		equal(t, "add", g.Add(late), nil)
		start(t, g)
		emit.Push(ints(0, 20)...)
		quick.Ask(3)
		synctest.Wait()
		equal(t, "before anybody else has asked", len(gotFast()), 0)
		lagging.Ask(3)
		synctest.Wait()
		equal(t, "both", [][]int{slices.Concat(gotFast()...), slices.Concat(gotSlow()...)}, [][]int{ints(0, 3), ints(0, 3)})
		quick.Ask(4)
		synctest.Wait()
		equal(t, "a lag of four is allowed", only(t, g, "source").CutOff, int64(0))
		quick.Ask(1)
		<-lagging.Done()
		if err := lagging.Err(); !errors.Is(err, ErrTooSlow) {
			t.Errorf("error: %v", err)
		}
		synctest.Wait()
		equal(t, "fast alone", slices.Concat(gotFast()...), ints(3, 8))
		s := only(t, g, "source")
		equal(t, "cut off, consumers", []int64{s.CutOff, int64(s.Consumers)}, []int64{1, 1})
		more.Push(100) // the consumer goes on with its other producer
		synctest.Wait()
		equal(t, "slow", slices.Concat(gotSlow()...), []int{100})
		subscribe(t, src, late, Manual()) // one that has never asked is not slow
		quick.Ask(50)
		synctest.Wait()
		equal(t, "cut off", only(t, g, "source").CutOff, int64(1))
		equal(t, "held by the newcomer", len(gotFast()), 0)
	})
}

// A consumer that is cut off gets what was sent before, and ends with the last of
// its producers.
func TestCutOffComesBehindWhatWasSent(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src := FromSlice("source", ints(0, 100)).Dispatch(Broadcast[int](Slowest(5)))
		fast, gotFast := collector[int]("fast")
		slow := newLockstep[int]("slow")
		Connect(g, src, fast, Demand(10, 5))
		Connect(g, src, slow, Demand(10, 5))
		start(t, g)
		synctest.Wait()
		equal(t, "fast has all", slices.Concat(gotFast()...), ints(0, 100))
		slow.step()
		slow.step()
		equal(t, "slow", slices.Concat(slow.all()...), ints(0, 10))
		equal(t, "error", g.Wait(), nil)
		equal(t, "error of the slow one", slow.Wait(), nil)
		checkConservation(t, g)
	})
}

func TestEqualsAreShuffled(t *testing.T) {
	first := map[string]bool{}
	for range 100 {
		bubble(t, func(t *testing.T, g *Graph) {
			src, emit := Push[int]("source")
			src.Dispatch(GreatestShuffled[int]())
			for i := range 5 {
				name := fmt.Sprint("sink ", i)
				Connect(g, src, NewSink(name, func(context.Context, []int) error { first[name] = true; return nil }))
			}
			start(t, g)
			emit.Push(1)
			synctest.Wait()
		})
	}
	if len(first) < 3 {
		t.Errorf("the first event went to %v only", first)
	}
}

func TestLevelOfDemandIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var levels []int
		src, emit := Push[int]("source", AccumulateDemand())
		src.OnDemand(func(open int) { levels = append(levels, open) })
		sink := newLockstep[int]("sink")
		Connect(g, src, sink, Demand(6, 2))
		start(t, g)
		told := func(what string, want ...int) {
			t.Helper()
			synctest.Wait()
			equal(t, what, levels, want)
			levels = nil
		}
		told("while it holds demand")
		src.ForwardDemand()
		told("the first ask", 6)
		emit.Push(ints(0, 4)...)
		told("what is left", 2)
		emit.Push(ints(4, 9)...)
		told("nothing, and three are buffered", 0)
		sink.step() // four more are asked for, of which three are there
		told("what the buffer leaves", 1)
		sink.step()
		told("nothing has changed")
	})
}

func TestDemandHookThatPanicsFailsTheSource(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, _ := Push[int]("source")
		src.OnDemand(func(int) { panic("boom") })
		sink, _ := collector[int]("sink")
		Connect(g, src, sink)
		var p *penstock.PanicError
		if err := g.Run(context.Background()); !errors.As(err, &p) {
			t.Errorf("error: %v", err)
		}
	})
}
