package stage

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// A turnstile sees whether two callbacks of one stage run beside each other.
type turnstile struct {
	inside   atomic.Int32
	calls    int // without a lock: the race detector looks on
	messages int
}

func (s *turnstile) pass(t *testing.T, name string) {
	if s.inside.Add(1) != 1 {
		t.Errorf("%s runs beside another callback of its stage", name)
	}
	s.calls++
	for range 3 {
		runtime.Gosched()
	}
	s.inside.Add(-1)
}

// handle is pass of a message.
func (s *turnstile) handle(t *testing.T) {
	s.pass(t, "message")
	s.messages++
}

// All callbacks of a stage, hooks and messages among them, run one at a time,
// while consumers come and go and somebody pushes and sends (ST-110, ST-156).
func TestCallbacksOfAStageAreSerial(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var ofSource, ofGate, ofSink turnstile
		enough, told := make(chan struct{}), false
		n := 0
		src, emit := Hybrid("source", func(_ context.Context, want int, out *Output[int]) error {
			ofSource.pass(t, "pull")
			for range min(want, 7) {
				out.Emit(n)
				n++
			}
			return nil
		})
		src.Broadcast().OnSubscribers(func(Change) { ofSource.pass(t, "OnSubscribers") })
		odd := src.Out().Where(func(v int) bool {
			ofSource.pass(t, "Where")
			return v%2 == 1
		})
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
			if ofGate.pass(t, "callback"); ofGate.calls >= 50 && !told {
				told = true
				close(enough)
			}
			out.Forward(in)
			return nil
		})
		gate.OnSubscribers(func(Change) { ofGate.pass(t, "OnSubscribers") }).
			OnSubscribed(func(*Subscription) { ofGate.pass(t, "OnSubscribed") }).
			OnCancelled(func(*Subscription, error) error { ofGate.pass(t, "OnCancelled"); return nil }).
			OnEnd(func(*Output[int]) error { ofGate.pass(t, "OnEnd"); return nil })
		sink := NewSink("sink", func(context.Context, []int) error { ofSink.pass(t, "callback"); return nil }).
			OnSubscribed(func(*Subscription) { ofSink.pass(t, "OnSubscribed") }).
			OnCancelled(func(*Subscription, error) error { ofSink.pass(t, "OnCancelled"); return nil })
		boxes := []*Mailbox[int]{NewMailbox[int](g, "to the source", 2), NewMailbox[int](g, "to the gate", 2), NewMailbox[int](g, "to the sink", 2)}
		OnMessage(src, boxes[0], func(context.Context, int, *Output[int]) error { ofSource.handle(t); return nil })
		OnMessage(gate, boxes[1], func(_ context.Context, m int, out *Output[int]) error { ofGate.handle(t); out.Emit(m); return nil })
		OnSinkMessage(sink, boxes[2], func(context.Context, int) error { ofSink.handle(t); return nil })
		Connect(g, odd, gate, Demand(6, 2))
		Connect(g, gate, sink, Demand(4, 1))
		Connect(g, src, sink, Demand(5, 1))
		late := NewSink("late", func(context.Context, []int) error { return nil })
		if err := g.Add(late); err != nil {
			t.Fatal(err)
		}
		if err := g.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		for i := range 30 {
			if err := emit.Push(-i); err != nil {
				t.Error(err)
			}
			sub, err := SubscribeWait(t.Context(), src, late, Demand(3, 1), CancelMode(Temporary))
			if err != nil {
				t.Fatal(err)
			}
			src.Wake()
			for _, box := range boxes {
				must(t, box.Send(t.Context(), i))
			}
			sub.Cancel()
			<-sub.Done()
		}
		<-enough
		if err := g.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		for name, s := range map[string]*turnstile{"source": &ofSource, "gate": &ofGate, "sink": &ofSink} {
			if s.calls < 10 {
				t.Errorf("%s: only %d calls were seen", name, s.calls)
			}
			equal(t, "messages of the "+name, s.messages, 30)
		}
		checkConservation(t, g)
	})
}

// A producer keeps nothing of a consumer that has left: neither its edge nor
// what was on its way there (ST-88).
func TestProducerKeepsNothingOfWhoHasLeft(t *testing.T) {
	for name, d := range map[string]Dispatcher[*int]{
		"greatest": Greatest[*int](), "broadcast": Broadcast[*int](), "partition": Partition(1, func(*int) int { return 0 }),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				src, emit := Push[*int]("source")
				src.Dispatch(d)
				if err := g.Add(src, newLockstep[int]("other")); err != nil { // which keeps the graph
					t.Fatal(err)
				}
				start(t, g)
				out := src.Out()
				if name == "partition" {
					out = out.Partition(0)
				}
				for i := range 5 {
					sink := newLockstep[*int](fmt.Sprint("sink", i)) // holds its first batch until it is let go
					if err := g.Add(sink); err != nil {
						t.Fatal(err)
					}
					sub := subscribe(t, out, sink, Demand(6, 2))
					emit.Push(new(int), new(int), new(int), new(int), new(int), new(int))
					synctest.Wait()
					sub.Cancel()
					sink.step()
					sink.step()
					<-sub.Done()
				}
				src.Wake()
				synctest.Wait()
				for what, edges := range map[string][]*edge[*int]{"edges": src.out.edges, "leaving": src.out.leaving} {
					for _, e := range edges[:cap(edges)] {
						if e != nil {
							t.Errorf("%s: a subscription that is over is kept", what)
						}
					}
				}
				for _, s := range src.out.free {
					for _, v := range s.buf[:cap(s.buf)] {
						if v != nil {
							t.Fatal("a free slab holds an event")
						}
					}
				}
			})
		})
	}
}
