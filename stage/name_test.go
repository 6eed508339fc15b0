package stage

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func TestChainByNamesAlone_STC113(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		numbers, words := NewName[int](g, "numbers"), NewName[string](g, "words")
		in, out := NewName[int](g, "in"), NewName[string](g, "out")
		Connect(g, numbers, in)
		s := Connect(g, words, out, Demand(6, 2))
		equal(t, "names before the start", []string{s.Producer(), s.Consumer()}, []string{"words", "out"})
		s.Ask(1)
		sink, got := collector[string]("sink")
		sink.As(out)
		Map(strconv.Itoa).InAs(in).OutAs(words)
		finite("source", 5, false).As(numbers)
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		equal(t, "events", flat(got()), []string{"0", "1", "2", "3", "4"})
		equal(t, "names after it", []string{s.Producer(), s.Consumer()}, []string{"map#2", "sink"})
	})
}

func TestOrderOfConnectHoldsForNames(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		late := NewName[int](g, "late")
		var w wants
		src := counter(&w, 1)
		first, second := newLockstep[int]("first"), newLockstep[int]("second")
		Connect(g, src, late, Demand(4, 0)) // of equals the first is served first
		Connect(g, src, second, Demand(4, 0))
		first.As(late)
		start(t, g)
		synctest.Wait()
		equal(t, "first", first.all(), [][]int{{0, 1, 2, 3}})
		equal(t, "second", second.all(), [][]int{{4, 5, 6, 7}})
	})
}

func TestNameWithoutAnOwner_STC24(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		nobody := NewName[int](g, "nobody")
		sub := Connect(g, nobody, Discard[int]())
		sub.Cancel()
		err := g.Start(t.Context())
		if !errors.Is(err, ErrProducerNotAlive) {
			t.Errorf("Start: %v, want ErrProducerNotAlive", err)
		}
		equal(t, "the error", err.Error(), `connect "nobody" to "discard": producer not alive: closed`)
	})
	bothWays(t, func(t *testing.T, g *Graph) {
		Connect(g, Never[int]("source"), NewName[int](g, "nobody"))
		if err := g.Start(t.Context()); !errors.Is(err, ErrConsumerNotAlive) {
			t.Errorf("Start: %v, want ErrConsumerNotAlive", err)
		}
	})
	bothWays(t, func(t *testing.T, g *Graph) {
		nobody := NewName[int](g, "nobody")
		sink, src := Discard[int](), Never[int]("source")
		must(t, g.Add(sink, src))
		start(t, g)
		if _, err := Subscribe(t.Context(), nobody, sink); !errors.Is(err, ErrProducerNotAlive) {
			t.Errorf("Subscribe: %v", err)
		}
		if _, err := SubscribeWait(t.Context(), src, nobody); !errors.Is(err, ErrConsumerNotAlive) {
			t.Errorf("SubscribeWait: %v", err)
		}
		if _, err := Count(t.Context(), nobody); !errors.Is(err, ErrProducerNotAlive) {
			t.Errorf("Count: %v", err)
		}
		equal(t, "subscribers", nobody.Out().Subscribers(), 0)
	})
	for name, from := range map[string]func(g *Graph) Outleter[int]{
		"by the stage": func(*Graph) Outleter[int] { return Never[int]("source") },
		"by a name": func(g *Graph) Outleter[int] {
			n := NewName[int](g, "somebody")
			Never[int]("source").As(n)
			return n
		},
	} {
		bothWays(t, func(t *testing.T, g *Graph) {
			Connect(g, from(g), Discard[int](), Demand(6, 6))
			if err := g.Start(t.Context()); !errors.Is(err, ErrInvalidDemand) {
				t.Errorf("%s: Start: %v, want ErrInvalidDemand", name, err)
			}
		})
	}
}

// Whoever sends to a name that nobody has is told, and nothing comes of it: not
// at once, and not when there is an owner.
func TestSendingToNobodyIsHarmless_STC113(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		nobody, box := NewMailbox[int](g, "nobody", 2), NewMailbox[int](g, "box", 2)
		send := func(m *Mailbox[int]) {
			t.Helper()
			for range 5 { // more than there is room for
				_, after := m.After(1, 3)
				_, every := m.Every(1, 4)
				for what, err := range map[string]error{
					"TrySend": m.TrySend(1), "TrySendBehind": m.TrySendBehind(1), "Send": m.Send(t.Context(), 2), "After": after, "Every": every,
				} {
					if !errors.Is(err, ErrStageNotAlive) {
						t.Errorf("%s: %v, want ErrStageNotAlive", what, err)
					}
				}
			}
		}
		send(nobody)
		send(box)
		src, emit := Push[int]("source")
		var handled diary
		OnMessage(src, box, func(_ context.Context, m int, _ *Output[int]) error {
			handled.add("%d", m)
			return nil
		})
		double := Map(func(v int) int { return 2 * v })
		sink, got := collector[int]("sink")
		Connect(g, src, double)
		Connect(g, double, sink)
		start(t, g)
		send(nobody)
		must(t, box.TrySend(5))
		emit.Push(1, 2)
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "handled", handled.all(), []string{"5"})
		emit.Finish()
		must(t, g.Wait())
		send(nobody)
		send(box)
		equal(t, "events", flat(got()), []int{2, 4})
	})
}

func TestClaimedNamesAreRefused_STC113(t *testing.T) {
	for name, c := range map[string]struct {
		build func(g *Graph, n *Name[int])
		want  error
	}{
		"two owners": {func(g *Graph, n *Name[int]) {
			Never[int]("one").As(n)
			Never[int]("two").As(n) // which nothing connects
		}, ErrNameTaken},
		"two inlets": {func(g *Graph, n *Name[int]) {
			Never[int]("source").As(n)
			Discard[int]().As(n)
			Pass[int]("gate").InAs(n)
		}, ErrNameTaken},
		"a name twice":     {func(g *Graph, n *Name[int]) { Never[int]("one").As(n); NewName[string](g, "numbers") }, ErrNameTaken},
		"and of a mailbox": {func(g *Graph, n *Name[int]) { Never[int]("one").As(n); NewMailbox[string](g, "numbers", 0) }, ErrNameTaken},
		"of another graph": {func(g *Graph, n *Name[int]) {
			src := Never[int]("source").As(NewName[int](NewGraph(), "numbers"))
			Connect(g, src, Discard[int]())
			Never[int]("other").As(n)
		}, penstock.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				n := NewName[int](g, "numbers")
				Connect(g, n, Discard[int]())
				c.build(g, n)
				if err := g.Start(t.Context()); !errors.Is(err, c.want) {
					t.Errorf("Start: %v, want %v", err, c.want)
				}
			})
		})
	}
}

// TestNameFindsTheNextOwner has a stage that ended replaced by another with its
// name: the consumers that were declared by the name get its events.
func TestNameFindsTheNextOwner(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		n := NewName[int](g, "numbers")
		sink, got := collector[int]("sink")
		must(t, g.Add(sink))
		Connect(g, n, sink, CancelMode(Temporary), Demand(6, 2))
		first := FromSlice("first", []int{1, 2, 3}).As(n)
		start(t, g)
		synctest.Wait()
		equal(t, "of the first", flat(got()), []int{1, 2, 3})
		<-first.Done()
		must(t, g.Add(FromSlice("second", []int{4, 5}).As(n)))
		synctest.Wait()
		equal(t, "of the second", flat(got()), []int{4, 5})
		next, emit := Push[int]("third")
		must(t, g.Add(next.As(n)))
		synctest.Wait()
		if err := g.Add(Never[int]("fourth").As(n)); !errors.Is(err, ErrNameTaken) {
			t.Errorf("beside an owner: %v", err)
		}
		emit.Push(6)
		synctest.Wait()
		equal(t, "of the third", flat(got()), []int{6})
	})
}

func TestNamesAreOfOneGraph(t *testing.T) {
	for range 2 {
		bubble(t, func(t *testing.T, g *Graph) {
			other := NewGraph()
			NewName[int](other, "numbers")
			n := NewName[int](g, "numbers")
			sink, got := collector[int]("sink")
			Connect(g, n, sink)
			FromSlice("source", []int{1}).As(n)
			if err := g.Run(context.Background()); err != nil {
				t.Error(err)
			}
			equal(t, "events", flat(got()), []int{1})
			equal(t, "name", n.Name(), "numbers")
		})
	}
}
