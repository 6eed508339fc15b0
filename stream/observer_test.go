package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// listening is a scripted consumer that hears what is decided.
type listening struct {
	*scriptConsumer
	rig *rig
}

func (l listening) Notify(_ context.Context, n Notice) {
	l.rig.step(fmt.Sprintf("told: %s %d", n.Kind, n.Token.Lo))
	if n.Kind == NoticeDeliveryFailed {
		panic("what a listener does is ignored")
	}
}

// order rearranges the rig so that every step of a failure is in the trace.
func (g *rig) order(t *testing.T, implicit bool, v Verdict) (c *scriptConsumer, steps func() string) {
	c = &scriptConsumer{}
	c.onDeliver = failing(1)
	g.verdict = func(f Failure) Verdict {
		g.step(fmt.Sprintf("asked %d", f.Items[0].Token.Lo))
		return v
	}
	resolve := g.agent.resolve
	g.agent.resolve = func(ctx context.Context, rec SubscriptionRecord) (Consumer, error) {
		if rec.Name == "sub" {
			return listening{c, g}, nil
		}
		return resolve(ctx, rec)
	}
	if implicit {
		g.agent.implicit = func(s penstock.StreamID) []SubscriptionRecord {
			return []SubscriptionRecord{{Stream: QualifiedStreamID{Provider: "rig", StreamID: s}, Name: "sub", Implicit: true, Incarnation: 1, Attached: 1}}
		}
	}
	g.agent.registry = tracingRegistry{g.registry, g}
	return c, func() string {
		return strings.Join(slices.DeleteFunc(g.steps(), func(s string) bool {
			return !strings.HasPrefix(s, "told") && !strings.HasPrefix(s, "asked") && !strings.HasPrefix(s, "stored") && !strings.HasPrefix(s, "removed")
		}), ", ")
	}
}

type tracingRegistry struct {
	Registry
	rig *rig
}

func (r tracingRegistry) Fault(ctx context.Context, rec SubscriptionRecord) (bool, error) {
	r.rig.step("stored fault")
	return r.Registry.Fault(ctx, rec)
}

func TestOrderOfFaulting_ORC33(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = 50 * time.Millisecond })
		c, steps := g.order(t, false, Fault)
		g.announce("s", "sub")
		g.start()
		defer g.stop()
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		time.Sleep(time.Second)
		g.pump()
		want(t, "steps", steps(), "told: delivery failed 1, asked 1, told: faulted 0, stored fault, removed sub")
		if strings.Contains(c.offered(), "2") {
			t.Error("a faulted subscription was delivered to")
		}
	})
}

func TestImplicitSubscriptionIsNeverFaulted_ORC34(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = 50 * time.Millisecond })
		c, steps := g.order(t, true, Fault)
		g.start()
		defer g.stop()
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		time.Sleep(time.Second)
		g.pump()
		want(t, "steps", steps(), "told: delivery failed 1, asked 1")
		want(t, "settled", c.values(), "2")
		want(t, "skipped", g.stats().Skipped, 1)
		want(t, "faulted", g.stats().Faulted, 0)
	})
}

// A subscription that is removed while its consumer is told that it failed is
// asked about no further (OR-105).
func TestRemovedWhileItIsTold_OR105(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
		_, steps := g.order(t, false, Fault)
		g.agent.resolve = func(context.Context, SubscriptionRecord) (Consumer, error) {
			return removing{rig: g}, nil
		}
		g.announce("s", "sub")
		g.start()
		defer g.stop()
		g.feed(box("s", 1))
		g.pump()
		time.Sleep(10 * time.Millisecond)
		g.pump()
		want(t, "steps", steps(), "told, removed sub")
	})
}

type removing struct{ rig *rig }

func (removing) Handshake(context.Context, Handshake) (Position, error) { return Position{}, nil }
func (removing) Deliver(context.Context, *Delivery) (Answer, error)     { return Answer{}, errBoom }
func (r removing) Notify(ctx context.Context, n Notice) {
	r.rig.step("told")
	r.rig.registry.Unsubscribe(ctx, n.Subscription)
}

func TestOneEventAtATime_ORC29(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		s := Of[string](p, "n", "k")
		var mu sync.Mutex
		var calls, batches []string
		fail := true
		subscribe(t, s, "each", Each(func(_ context.Context, v string, at penstock.Token) error {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, fmt.Sprintf("%s@%d.%d", v, at.Lo, at.Index))
			if v == "c" && fail {
				fail = false
				return errBoom
			}
			return nil
		}))
		subscribe(t, s, "batch", func(_ context.Context, b penstock.Batch[string]) error {
			mu.Lock()
			defer mu.Unlock()
			batches = append(batches, fmt.Sprint(b.Values()))
			return nil
		})
		stop := running(p)
		if err := s.Publish(t.Context(), "a", "b", "c", "d"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		stop()
		want(t, "calls", strings.Join(calls, " "), "a@0.0 b@0.1 c@0.2 c@0.2 d@0.3")
		want(t, "batches", strings.Join(batches, " "), "[a b c d]")
	})
}

// The mark of an end comes in its place: behind the events before it, also
// when those fail at first, and before those behind it.
func TestEndComesInItsPlace_OR111(t *testing.T) {
	for _, group := range []int{1, 4} {
		t.Run(fmt.Sprint("group ", group), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
				defer topic.Close()
				p := openProvider(t, topic, func(c *Config) { c.GroupSize = group })
				defer p.Close()
				s := Of[string](p, "n", "k")
				var r recorder
				ends := 0
				r.fail = func(call int, _ penstock.Batch[string]) error {
					if call == 1 {
						return errBoom
					}
					return nil
				}
				subscribe(t, s, "sub", r.handle, OnEnd(func(_ context.Context, id penstock.StreamID, cause error) error {
					if ends++; ends == 1 {
						return errBoom // a mark that fails comes again
					}
					r.mu.Lock()
					defer r.mu.Unlock()
					r.values = append(r.values, fmt.Sprintf("[%s %v]", id, cause))
					return nil
				}))
				var silent recorder
				subscribe(t, s, "silent", silent.handle)
				publish(t, s, "a", "b")
				if err := s.Complete(t.Context()); err != nil {
					t.Fatal(err)
				}
				publish(t, s, "c")
				if err := s.Fail(t.Context(), errors.New("no more")); err != nil {
					t.Fatal(err)
				}
				stop := running(p)
				time.Sleep(time.Second)
				if err := stop(); err != nil {
					t.Error(err)
				}
				want(t, "got", r.got(), "a b [n/k <nil>] c [n/k stream ended: no more]")
				want(t, "without OnEnd", silent.got(), "a b c")
			})
		})
	}
}

func TestEndMarksOnDiskAndTheirHeader_OR111(t *testing.T) {
	for _, cause := range []string{"", "boom"} {
		c := Container{Stream: penstock.StreamID{Namespace: "n", Key: "k"}, Header: endMark(End{Cause: cause}), Events: EventsOf(penstock.Envelope{})}
		b, err := ContainerCodec().Append(nil, c)
		if err != nil {
			t.Fatal(err)
		}
		var back Container
		if err := ContainerCodec().Decode(b, &back); err != nil {
			t.Fatal(err)
		}
		end, ok := back.End()
		want(t, "cause", fmt.Sprint(end.Cause, ok), cause+"true")
	}
	p := openProvider(t, &fixedFactory{})
	err := Of[string](p, "n", "k").PublishEvents(t.Context(), endMark(End{}), penstock.Event[string]{})
	want(t, "a producer's own mark is refused", errors.Is(err, penstock.ErrInvalid), true)
}
