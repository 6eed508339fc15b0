package stream

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// The handler of a binding that fails with an error that a consumer may say of
// itself has failed, and nothing else: it gets every event.
func TestErrorOfABoundHandlerSaysNothingAboutItsConsumer(t *testing.T) {
	for _, said := range []error{ErrConsumerGone, ErrAway, fmt.Errorf("far: %w", ErrConsumerGone)} {
		for _, at := range []string{"handler", "end", "recover"} {
			t.Run(at+"/"+said.Error(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := openShop(t, nil)
					calls := map[string]int{}
					fails := func(where string) error {
						if calls[where]++; where == at && calls[where] < 3 {
							return said
						}
						return nil
					}
					var got, attempts []int
					err := Bind(p, "sub", EveryNamespace(), func(_ context.Context, b penstock.Batch[int]) error {
						if err := fails("handler"); err != nil {
							return err
						}
						got, attempts = append(got, b.Values()...), append(attempts, b.Attempt(0))
						return nil
					}, OnEnd(func(context.Context, penstock.StreamID, error) error { return fails("end") }),
						Recover(func(context.Context, penstock.StreamID) (penstock.Token, bool, error) {
							return penstock.Token{}, false, fails("recover")
						}))
					if err != nil {
						t.Fatal(err)
					}
					stop := keepRunning(t, p)
					s := Of[int](p, "n", "k")
					if err := errors.Join(s.Publish(t.Context(), 1), s.Complete(t.Context()), s.Publish(t.Context(), 2)); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Minute)
					stop()
					want(t, "got", fmt.Sprint(got), "[1 2]")
					want(t, "calls", calls[at] >= 3, true)
					if at == "handler" {
						want(t, "attempts", fmt.Sprint(attempts), "[3 1]")
					}
				})
			})
		}
	}
}

// An error of the hook for unattached subscriptions is tried again, whatever it
// says: it is not the word of a consumer.
func TestErrorOfTheUnattachedHookSaysNothingAboutTheConsumer(t *testing.T) {
	for _, said := range []error{ErrConsumerGone, ErrAway, penstock.ErrInvalid} {
		t.Run(said.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				registry := NewMemoryRegistry()
				calls := 0
				var got []int
				var p *Provider
				p = openShop(t, func(c *Config) {
					c.Registry = registry
					c.OnUnattached = func(ctx context.Context, r SubscriptionRecord) error {
						if calls++; calls < 200 { // longer than Config.MaxDeliveryTime
							return fmt.Errorf("hook: %w", said)
						}
						_, err := Of[int](p, "n", "k").Subscribe(ctx, r.Name, func(_ context.Context, b penstock.Batch[int]) error {
							got = append(got, b.Values()...)
							return nil
						})
						return err
					}
					c.DeliveryBackoff = Fixed(time.Second)
				})
				if _, err := registry.Subscribe(t.Context(), SubscriptionRecord{Stream: p.qualified(penstock.StreamID{Namespace: "n", Key: "k"}), Name: "stored"}); err != nil {
					t.Fatal(err)
				}
				stop := keepRunning(t, p)
				if err := Of[int](p, "n", "k").Publish(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Minute)
				stop()
				want(t, "got", fmt.Sprint(got), "[1]")
			})
		})
	}
}

// A consumer that cannot say where it wants to start is asked again, whatever
// its error matches: only a place that cannot be had faults its subscription.
func TestHandshakeThatFailsIsNoLostPlace(t *testing.T) {
	for _, said := range []error{penstock.ErrInvalid, penstock.ErrUnsupported, penstock.ErrOffsetOutOfRange, ErrCacheMiss} {
		t.Run(said.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.deliveryBackoff = Fixed(time.Second) })
				g.start()
				defer g.stop()
				c := g.subscribe("s", "sub")
				c.onShake = func(n int) (Position, error) {
					if n < 100 { // longer than Config.MaxDeliveryTime
						return Position{}, fmt.Errorf("its database: %w", said)
					}
					return Position{}, nil
				}
				g.feed(box("s", 1))
				g.pump()
				for range 3 {
					time.Sleep(2 * time.Minute)
					g.pump()
				}
				want(t, "delivered", c.values(), "1")
				faulted, err := g.registry.Faulted(t.Context(), g.qualified("s"))
				if len(faulted) > 0 || err != nil {
					t.Errorf("faulted %v, %v", faulted, err)
				}
			})
		})
	}
}

// What a read returns beside an error was taken from the queue: it is delivered.
func TestReadThatReturnsContainersBesideAnErrorLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		g.script = func(call, _ int) ([]Container, error) {
			switch call {
			case 1:
				return boxes("s", 1, 2), errBoom
			case 2:
				return boxes("s", 3, 4), nil
			}
			return nil, nil
		}
		g.start()
		c := g.subscribe("s", "sub")
		g.pump()
		time.Sleep(time.Second)
		g.pump()
		want(t, "delivered", c.values(), "1 2 3 4")
		want(t, "failures", g.stats().ReadFailures, 1)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "checkpoint", g.marks.at(), 4)
	})
}

// An incarnation that the registry does not know any more is not faulted: it is
// not counted, and nobody is told so.
func TestFaultOfARemovedIncarnationIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.verdict = func(Failure) Verdict { return Fault }
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{}, errBoom }
		g.agent.registry = removedBeforeFault{g.registry}
		g.feed(box("s", 1))
		g.pump()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		want(t, "faulted", g.stats().Faulted, 0)
		want(t, "subscriptions", g.stats().Subscriptions, 0)
	})
}

// removedBeforeFault has every subscription removed elsewhere right before it is
// faulted.
type removedBeforeFault struct{ *scriptRegistry }

func (r removedBeforeFault) Fault(ctx context.Context, rec SubscriptionRecord) (bool, error) {
	if err := r.Unsubscribe(ctx, rec); err != nil {
		return false, err
	}
	return r.scriptRegistry.Fault(ctx, rec)
}

// A consumer that goes on behind what it has, in the middle of its delivery, has
// settled what is before that: it counts.
func TestResumeInsideADeliveryCountsWhatItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.groupSize = 3 })
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, d *Delivery) (Answer, error) {
			if n == 1 {
				return Answer{Rewind: Position{Kind: PositionResume, Token: d.Items[3].Token}}, nil
			}
			return Answer{}, nil
		}
		g.feed(boxOf("s", 1, "a", "b"), boxOf("s", 2, "c", "d", "e"), boxOf("s", 3, "f"))
		g.pump()
		g.pump()
		want(t, "settled", c.values(), "e f")
		want(t, "delivered", g.stats().Delivered, 6)
	})
}
