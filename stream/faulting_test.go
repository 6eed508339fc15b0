package stream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// gatedFault is a registry whose Fault waits, and then succeeds.
type gatedFault struct {
	unheard
	gate chan struct{}
}

func (b gatedFault) Fault(ctx context.Context, rec SubscriptionRecord) (bool, error) {
	<-b.gate
	return b.scriptRegistry.Fault(ctx, rec)
}

// A fault that was asked for while it was valid is completed, although a handshake
// overlaps the registry's work: the subscription leaves the table, also when the
// notice of that does not come, and nothing is delivered to it.
func TestFaultIsCompletedDuringAHandshake_OR84(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			gate := make(chan struct{})
			var off atomic.Bool
			g := newRig(t, func(g *rig, c *agentConfig) {
				c.registry, c.maxDelivery = gatedFault{unheard{g.registry, &off}, gate}, 0
			})
			g.verdict = func(Failure) Verdict { return Fault }
			g.start()
			c := g.subscribe("s", "sub")
			c.onDeliver = failing(1)
			g.feed(boxes("s", 1, 2)...)
			g.pump()
			time.Sleep(5 * time.Millisecond)
			shakes := c.handshakes
			if quiet {
				c.set(func(c *scriptConsumer) { c.shakeGate = make(chan struct{}) })
			}
			g.announce("s", "sub")
			want(t, "asked anew meanwhile", c.handshakes, shakes+1)
			before := c.offered()
			off.Store(quiet)
			close(gate)
			synctest.Wait()
			want(t, "subscriptions", g.stats().Subscriptions, 0)
			if quiet {
				close(c.shakeGate)
			}
			g.pump()
			faulted, err := g.registry.Faulted(t.Context(), g.qualified("s"))
			want(t, "faulted", names(faulted), "sub")
			want(t, "error", err, nil)
			want(t, "subscriptions at the end", g.stats().Subscriptions, 0)
			want(t, "counted", g.stats().Faulted, 1)
			want(t, "offered afterwards", strings.TrimPrefix(c.offered(), before), "")
			want(t, "cached", g.stats().Cached, 0)
			if err := g.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A consumer that is gone is told nothing, nor is the failure handler: its
// subscription is removed.
func TestGoneConsumerIsToldNothing_OR104(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, when := range []string{"delivery", "handshake"} {
			g := newRig(t)
			c, steps := g.order(t, false, Fault)
			if when == "delivery" {
				c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{}, ErrConsumerGone }
			} else {
				c.onShake = func(int) (Position, error) { return Position{}, ErrConsumerGone }
			}
			g.announce("s", "sub")
			g.start()
			g.feed(box("s", 1))
			g.pump()
			time.Sleep(time.Second)
			g.pump()
			want(t, when, steps(), "removed sub")
			subs, _ := g.registry.Subscriptions(t.Context(), g.qualified("s"))
			want(t, when+": registered", len(subs), 0)
			if err := g.stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

// The order of a failed attachment is that of a failed delivery.
func TestOrderOfAFailedAttachment_OR104(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = 50 * time.Millisecond })
		c, steps := g.order(t, false, Fault)
		c.onShake = func(int) (Position, error) { return Position{}, errBoom }
		g.subFailed = func(f Failure) Verdict {
			g.step(fmt.Sprint("asked ", f.Subscription.Name, " of ", f.Subscription.Stream.Provider, " ", len(f.Items)))
			return Fault
		}
		g.announce("s", "sub")
		g.start()
		g.feed(box("s", 1))
		g.pump()
		time.Sleep(time.Second)
		g.pump()
		want(t, "steps", steps(), "told: attaching failed 0, asked sub of rig 0, told: faulted 0, stored fault, removed sub")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// departing is a consumer whose subscription is removed at one step of its failure.
type departing struct {
	*scriptConsumer
	rig *rig
	at  string
}

func (l departing) Notify(ctx context.Context, n Notice) {
	l.step(ctx, n.Kind.String(), n.Subscription)
}

func (l departing) step(ctx context.Context, name string, rec SubscriptionRecord) {
	l.rig.step("told: " + name)
	if name == l.at {
		l.rig.registry.Unsubscribe(ctx, rec)
	}
}

// Each step of a failure asks first whether it is still about the present
// subscription: one that was removed meanwhile ends it there.
func TestEachStepOfAFailureAsksWhetherItIsCurrent_OR105(t *testing.T) {
	for at, wanted := range map[string]string{
		"delivery failed": "told: delivery failed, removed sub",
		"verdict":         "told: delivery failed, asked 1, removed sub",
		"faulted":         "told: delivery failed, asked 1, told: faulted, removed sub",
		"nothing":         "told: delivery failed, asked 1, told: faulted, stored fault, removed sub",
	} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
				c, steps := g.order(t, false, Fault)
				l := departing{c, g, at}
				asked := g.verdict
				g.verdict = func(f Failure) Verdict {
					v := asked(f)
					if at == "verdict" {
						g.registry.Unsubscribe(context.Background(), f.Subscription)
					}
					return v
				}
				g.agent.resolve = func(context.Context, SubscriptionRecord) (Consumer, error) { return l, nil }
				g.announce("s", "sub")
				g.start()
				g.feed(box("s", 1))
				g.pump()
				time.Sleep(10 * time.Millisecond)
				g.pump()
				want(t, "steps", steps(), wanted)
				want(t, "counted", g.stats().Faulted, map[bool]uint64{true: 1}[at == "nothing"])
				if err := g.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A verdict that does not ask for it removes nothing.
func TestOnlyAFaultRemovesTheSubscription_OR105(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, v := range []Verdict{Skip, Retry} {
			g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
			_, steps := g.order(t, false, v)
			g.announce("s", "sub")
			g.start()
			g.feed(boxes("s", 1, 2)...)
			g.pump()
			time.Sleep(time.Second)
			want(t, v.String(), steps(), "told: delivery failed 1, asked 1")
			want(t, "subscriptions", g.stats().Subscriptions, 1)
			if err := g.stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Where tokens mean nothing in another run, what a consumer says that it has is
// compared with nothing: it gets all that the new run reads.
func TestTokensOfAnotherRunAreNotCompared_OR98(t *testing.T) {
	for _, rewindable := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, func(_ *rig, c *agentConfig) { c.rewindable = rewindable })
			c := g.subscribe("s", "sub")
			c.onShake = func(int) (Position, error) { return Position{Kind: PositionResume, Token: penstock.Token{Lo: 2}}, nil }
			g.start()
			g.feed(boxes("s", 1, 3)...)
			g.pump()
			want(t, fmt.Sprintf("rewindable=%t", rewindable), c.values(), map[bool]string{false: "1 2 3", true: "3"}[rewindable])
			if err := g.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Refresh moves no cursor that stands somewhere, none that waits for a later
// token, and none back.
func TestRefreshOnlyGoesForward_OR127(t *testing.T) {
	for name, cache := range map[string]func() Cache{
		"simple": func() Cache { return newCache(t, DefaultCapacity) },
		"log":    func() Cache { return newLogCache(t, LogCacheConfig{}) },
	} {
		t.Run(name, func(t *testing.T) {
			c := cache()
			mustAdd(t, c, boxes("s", 1, 4)...)
			set := cursorOf(t, c, "s", at(PositionAt, 2))
			set.Refresh(penstock.Token{Lo: 4})
			set.Refresh(penstock.Token{})
			want(t, "one that stands somewhere", drainCursor(t, set), "2 3 4")
			waiting := cursorOf(t, c, "s", at(PositionAt, 8))
			mustAdd(t, c, boxes("s", 5, 6)...)
			waiting.Refresh(penstock.Token{Lo: 5})
			want(t, "one that waits", drainCursor(t, waiting), "")
			idle := cursorOf(t, c, "s", at(PositionAfter, 6))
			idle.Refresh(penstock.Token{})
			idle.Refresh(penstock.Token{Lo: 3})
			want(t, "an idle one goes back", drainCursor(t, idle), "")
			mustAdd(t, c, boxes("s", 7, 9)...)
			for _, cur := range []Cursor{waiting, idle, set} {
				cur.Refresh(penstock.Token{Lo: 7})
			}
			want(t, "one that waited", drainCursor(t, waiting), "8 9")
			want(t, "an idle one", drainCursor(t, idle), "7 8 9")
			want(t, "one at the end", drainCursor(t, set), "5 6 7 8 9")
		})
	}
}

// Two streams interleaved, with containers of many events of two kinds: a cursor
// sees its stream's containers as they were, in order.
func TestInterleavedContainersStayWhole_ORC84(t *testing.T) {
	bothCaches(t, func(t *testing.T, cache func() (Cache, error), _ int) {
		c, err := cache()
		if err != nil {
			t.Fatal(err)
		}
		value := func(box uint64, i int) string {
			if i%2 == 0 {
				return fmt.Sprint(box*100 + uint64(i))
			}
			return fmt.Sprintf("text %d of %d", i, box)
		}
		for seq := uint64(1); seq <= 20; seq++ {
			var values []string
			for i := range 20 {
				values = append(values, value(seq, i))
			}
			mustAdd(t, c, boxOf([]string{"a", "b"}[seq%2], seq, values...))
		}
		for _, s := range []struct {
			stream string
			from   Position
			seen   []uint64
		}{
			{"b", Position{Kind: PositionEarliest}, []uint64{1, 3, 5, 7, 9, 11, 13, 15, 17, 19}},
			{"a", at(PositionAt, 10), []uint64{10, 12, 14, 16, 18, 20}},
			{"a", at(PositionAt, 20), []uint64{20}},
			{"b", at(PositionAt, 10), []uint64{11, 13, 15, 17, 19}},
		} {
			cur := cursorOf(t, c, s.stream, s.from)
			var seen []uint64
			for {
				got, ok, err := cur.Next()
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				seen = append(seen, got.Token.Lo)
				want(t, "events", got.Events.Len(), 20)
				for i := range got.Events.Len() {
					want(t, "value", string(got.Events.Value(i)), value(got.Token.Lo, i))
				}
			}
			if !slices.Equal(seen, s.seen) {
				t.Errorf("stream %s from %v: %v, want %v", s.stream, s.from, seen, s.seen)
			}
			cur.Close()
		}
	})
}

// unheard is a registry of which no notice arrives while it is told to be quiet.
type unheard struct {
	*scriptRegistry
	quiet *atomic.Bool
}

type unheardProducer struct {
	Producer
	quiet *atomic.Bool
}

func (u unheard) RegisterProducer(ctx context.Context, s QualifiedStreamID, p Producer) (Roster, error) {
	return u.scriptRegistry.RegisterProducer(ctx, s, unheardProducer{p, u.quiet})
}

func (p unheardProducer) RosterChanged(s QualifiedStreamID, r Roster) bool {
	return p.quiet.Load() || p.Producer.RosterChanged(s, r)
}

// A subscription that was faulted and reset was told that its place was taken
// before, unless the notice of its fault had come first: it would have gone on
// behind what had been read, and not where its consumer asks.
func TestResetSubscriptionIsAskedForItsPlace(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := &placedConsumer{}
			c.onShake = func(int) (Position, error) { return Position{Kind: PositionEarliest}, nil }
			c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
				if n == 1 {
					return Answer{}, errBoom
				}
				return Answer{}, nil
			}
			var off atomic.Bool
			g := newRig(t, func(g *rig, a *agentConfig) {
				a.maxAttempts, a.registry = 1, unheard{g.registry, &off}
				a.resolve = func(context.Context, SubscriptionRecord) (Consumer, error) { return c, nil }
			})
			g.verdict = func(Failure) Verdict { return Fault }
			g.start()
			g.subscribe("s", "sub")
			off.Store(quiet)
			g.feed(box("s", 1))
			g.pump()
			want(t, "faulted", g.stats().Faulted, 1)
			off.Store(false)
			g.feed(box("s", 2))
			g.pump()
			if err := g.registry.Reset(t.Context(), SubscriptionRecord{Stream: g.qualified("s"), Name: "sub"}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			g.feed(box("s", 3))
			g.pump()
			if fmt.Sprint(c.placed) != "[0 0]" {
				t.Errorf("without notices %v: placed by %v, want none each time", quiet, c.placed)
			}
			if err := g.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
