package stream

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func TestSlowSubscriptionDoesNotHoldFastOne_OR86(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		slow, fast := g.subscribe("s", "slow"), g.subscribe("s", "fast")
		gate := make(chan struct{})
		slow.gate = gate
		g.feed(boxes("s", 1, 5)...)
		g.pump()
		want(t, "fast", fast.values(), "1 2 3 4 5")
		want(t, "offered to slow", slow.offered(), "1")
		close(gate)
		synctest.Wait()
		want(t, "slow", slow.values(), "1 2 3 4 5")
		g.stop()
	})
}

// An acknowledgement must wait for every subscription (after case ORC-24).
func TestNothingIsAcknowledgedDuringDelivery_ORC24(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.groupSize = 2 })
		g.newCache = func() (Cache, error) { return NewSimpleCache(10) }
		g.start()
		defer g.stop()
		a, b := g.subscribe("s", "a"), g.subscribe("s", "b")
		g.registry.block = make(chan struct{}) // both containers are in before delivery
		gateA, gateB := make(chan struct{}), make(chan struct{})
		a.gate, b.gate = gateA, gateB
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		close(g.registry.block)
		synctest.Wait()
		g.pump()
		want(t, "acknowledged while both are blocked", g.receivers[0].acks(), "")
		close(gateA)
		synctest.Wait()
		g.pump()
		want(t, "acknowledged while one is blocked", g.receivers[0].acks(), "")
		close(gateB)
		synctest.Wait()
		g.pump()
		want(t, "acknowledged", g.receivers[0].acks(), "1 2")
		g.pump()
		want(t, "reports", fmt.Sprint(g.receivers[0].reports), "[2]")
		want(t, "groups", a.offered()+" "+b.offered(), "1,2 1,2")
	})
}

func TestGroupsOfContainers_ORC26(t *testing.T) {
	all := FilterFunc(func(penstock.StreamID, *penstock.Envelope, string) (bool, error) { return true, nil })
	for _, filter := range []Filter{nil, all} { // with one, more is read at once
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, func(_ *rig, c *agentConfig) { c.groupSize, c.filter = 3, filter })
			g.start()
			defer g.stop()
			c := g.subscribe("s", "sub")
			g.feed(boxes("s", 1, 7)...)
			g.pump()
			want(t, "groups", c.offered(), "1,2,3 4,5,6 7")
		})
	}
}

// While a group is under way, progress is the last token of the one before; a
// group begins at the token of its first container.
func TestProgressFollowsGroups_ORC26(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.groupSize = 3 })
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		gate := make(chan struct{})
		c.gate = gate
		var first []string
		c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
			first = append(first, fmt.Sprint(d.Items[0].Token.Lo))
			return Answer{}, nil
		}
		g.feed(boxes("s", 1, 7)...)
		g.pump()
		var seen []string
		for range 3 {
			gate <- struct{}{}
			synctest.Wait()
			g.pump()
			seen = append(seen, g.lastProgress())
		}
		want(t, "progress after each", strings.Join(seen, " "), "3 6 7")
		want(t, "groups begin at", strings.Join(first, " "), "1 4 7")
	})
}

func TestEventsOfAContainerShareItsToken_ORC29(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		var tokens []string
		c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
			for _, it := range d.Items {
				tokens = append(tokens, it.Token.String())
			}
			return Answer{}, nil
		}
		g.feed(boxOf("s", 9, "a", "b", "c", "d"))
		g.pump()
		want(t, "tokens", strings.Join(tokens, " "), "t1:0:9:0 t1:0:9:1 t1:0:9:2 t1:0:9:3")
		want(t, "values", c.values(), "a b c d")
	})
}

func TestHandlerThatFailsOnceGetsTheEventAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if n == 2 {
				return Answer{}, errBoom
			}
			return Answer{}, nil
		}
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		want(t, "offered", c.offered(), "1 2 2 3")
		want(t, "settled", c.values(), "1 2 3")
		want(t, "attempts", fmt.Sprint(c.attempts), "[1 1 2 1]")
		want(t, "failures reported", len(g.failed()), 0)
		want(t, "failed attempts", g.stats().Failed, 1)
	})
}

func TestOnlyFailedItemsComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		var seen []string
		c.onDeliver = func(n int, d *Delivery) (Answer, error) {
			var a Answer
			for i, it := range d.Items {
				seen = append(seen, fmt.Sprintf("%s#%d", it.Value(), it.Attempt))
				if n == 1 && i%2 == 1 {
					a.Failed = append(a.Failed, ItemFailure{Index: i, Err: errBoom})
				}
			}
			return a, nil
		}
		g.feed(boxOf("s", 1, "a", "b", "c", "d"), box("s", 2))
		g.pump()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		want(t, "seen", strings.Join(seen, " "), "a#1 b#1 c#1 d#1 b#2 d#2 2#1")
		want(t, "delivered", g.stats().Delivered, 5)
	})
}

func TestBadAnswerFailsTheWholeDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, d *Delivery) (Answer, error) {
			if n == 1 {
				return Answer{Failed: []ItemFailure{{Index: 7}}}, nil
			}
			return Answer{}, nil
		}
		g.feed(boxOf("s", 1, "a", "b"))
		g.pump()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		want(t, "offered", c.offered(), "1,1 1,1")
	})
}

func TestAttemptsEndAtTheLimit_ORC38(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.deliveryBackoff = Fixed(10 * time.Second) })
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
			if d.Items[0].Token.Lo == 1 {
				return Answer{}, errBoom
			}
			return Answer{}, nil
		}
		start := time.Now()
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		var at []string
		for i, tm := range c.times {
			if i < 7 {
				at = append(at, fmt.Sprint(int(tm.Sub(start).Seconds())))
			}
		}
		want(t, "attempts at", strings.Join(at, " "), "0 10 20 30 40 50 60")
		want(t, "offered", c.offered(), "1 1 1 1 1 1 1 2")
		f := g.failed()
		want(t, "failures", len(f), 1)
		want(t, "attempts", f[0].Items[0].Attempt, 7)
		want(t, "error", errors.Is(f[0].Err, errBoom), true)
		want(t, "skipped", g.stats().Skipped, 1)
	})
}

// exhaust makes a rig whose deliveries have one attempt, with an idle and a
// busy stream: idle has 1, busy 2; then idle 3 and 4, busy 200; 3 fails once.
func exhaust(t *testing.T, cache func() (Cache, error), group int, verdict Verdict) (g *rig, idle, busy *scriptConsumer) {
	t.Helper()
	g = newRig(t, func(g *rig, c *agentConfig) {
		c.groupSize, c.maxDelivery = group, time.Nanosecond
		g.newCache = cache
	})
	g.verdict = func(Failure) Verdict { return verdict }
	g.start()
	idle, busy = g.subscribe("idle", "I"), g.subscribe("busy", "B")
	g.feed(box("idle", 1), box("busy", 2))
	g.pump()
	g.forgetProgress()
	g.pump()
	g.wantProgress("2")
	failed := false
	idle.onDeliver = func(int, *Delivery) (Answer, error) {
		if !failed {
			failed = true
			return Answer{}, errBoom
		}
		return Answer{}, nil
	}
	gate := make(chan struct{})
	idle.set(func(c *scriptConsumer) { c.gate = gate })
	told := make(chan struct{}) // the error callback waits for it
	resolve := g.agent.resolve
	g.agent.resolve = func(ctx context.Context, rec SubscriptionRecord) (Consumer, error) {
		c, err := resolve(ctx, rec)
		if s, ok := c.(*scriptConsumer); ok && rec.Name == "I" {
			return slowListener{s, g, told}, err
		}
		return c, err
	}
	g.feed(box("idle", 3), box("idle", 4), box("busy", 200))
	g.pump()
	idle.set(func(c *scriptConsumer) { c.gate = nil })
	g.wantProgress("2")
	close(gate)
	time.Sleep(2 * time.Millisecond)
	g.pump()
	want(t, "idle offered before the error callback returns", idle.offered(), map[int]string{1: "1 3", 2: "1 3,4"}[group])
	want(t, "errors told", strings.Join(g.told(), ", "), "delivery failed 3")
	want(t, "failure handler", len(g.failed()), 0)
	g.wantProgress("2")
	close(told)
	synctest.Wait()
	return g, idle, busy
}

// slowListener waits when it is told something.
type slowListener struct {
	*scriptConsumer
	rig  *rig
	gate chan struct{}
}

func (l slowListener) Notify(_ context.Context, n Notice) {
	l.rig.step(fmt.Sprintf("told: %s %d", n.Kind, n.Token.Lo))
	<-l.gate
}

// told returns what consumers were told.
func (g *rig) told() (out []string) {
	for _, s := range g.steps() {
		if w, ok := strings.CutPrefix(s, "told: "); ok {
			out = append(out, w)
		}
	}
	return out
}

// bothCaches runs a test with each cache and with groups of one and of two.
func bothCaches(t *testing.T, test func(t *testing.T, cache func() (Cache, error), group int)) {
	for name, cache := range map[string]func() (Cache, error){
		"simple": func() (Cache, error) { return NewSimpleCache(DefaultCapacity) },
		"log":    func() (Cache, error) { return NewLogCache(LogCacheConfig{}) },
	} {
		for _, group := range []int{1, 2} {
			t.Run(fmt.Sprint(name, ", group ", group), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { test(t, cache, group) })
			})
		}
	}
}

func TestExhaustedDeliverySkips_ORC31(t *testing.T) {
	bothCaches(t, func(t *testing.T, cache func() (Cache, error), group int) {
		g, idle, busy := exhaust(t, cache, group, Skip)
		defer g.stop()
		g.pump()
		want(t, "idle settled", idle.values(), map[int]string{1: "1 4", 2: "1"}[group])
		want(t, "busy settled", busy.values(), "2 200")
		want(t, "progress", g.lastProgress(), "200")
		want(t, "failures", len(g.failed()), 1)
		want(t, "errors told", len(g.told()), 1)
	})
}

func TestExhaustedDeliveryIsRetriedAtTheNextPoll_ORC31(t *testing.T) {
	bothCaches(t, func(t *testing.T, cache func() (Cache, error), group int) {
		g, idle, busy := exhaust(t, cache, group, Retry)
		defer g.stop()
		want(t, "progress before the poll", g.lastProgress(), "2")
		g.pump()
		g.pump()
		want(t, "idle offered", idle.offered(), map[int]string{1: "1 3 3 4", 2: "1 3,4 3,4"}[group])
		want(t, "errors told", len(g.told()), 1)
		want(t, "idle settled", idle.values(), "1 3 4")
		want(t, "busy settled", busy.values(), "2 200")
		want(t, "progress", g.lastProgress(), "200")
		want(t, "failures", len(g.failed()), 1)
	})
}

func TestFaultRemovesTheSubscription_ORC33(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = 50 * time.Millisecond })
		g.verdict = func(Failure) Verdict { return Fault }
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{}, errBoom }
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "token reported", g.failed()[0].Items[0].Token.Lo, 1)
		want(t, "faulted", g.stats().Faulted, 1)
		want(t, "subscriptions", g.stats().Subscriptions, 0)
		if strings.Contains(c.offered(), "2") {
			t.Error("a faulted subscription was delivered to")
		}
		_, err := g.registry.Subscribe(t.Context(), SubscriptionRecord{Stream: g.qualified("s"), Name: "sub"})
		want(t, "subscribing again is refused", errors.Is(err, ErrFaulted), true)
		g.pump()
		want(t, "cached", g.stats().Cached, 0)
	})
}

func TestDeadLetterTakesTheEventAndDeliveryGoesOn_ORC39(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(g *rig, c *agentConfig) {
			c.maxDelivery = time.Nanosecond
			c.deadLetter = g.deadLetter
		})
		g.verdict = func(Failure) Verdict { return DeadLetter }
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
			if d.Items[0].Token.Lo == 2 {
				return Answer{}, errBoom
			}
			return Answer{}, nil
		}
		bad := box("s", 2)
		bad.Header = penstock.Header{{Name: "trace", Value: "t"}}
		g.feed(box("s", 1), bad, box("s", 3))
		g.pump()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		g.pump()
		want(t, "settled", c.values(), "1 3")
		if len(g.dead) != 1 {
			t.Fatalf("%d dead letters", len(g.dead))
		}
		d := g.dead[0]
		want(t, "payload", string(d.Value), "2")
		want(t, "stream", d.Stream.String(), "n/s")
		want(t, "attempt", d.Attempt, 1)
		want(t, "header", d.Header.Get("trace"), "t")
		want(t, "origin", fmt.Sprintf("%s %d %s %s", d.Origin.Topic, d.Origin.Offset, d.Origin.Group, d.Origin.Cause), "rig 2 sub boom")
		want(t, "counted", g.stats().DeadLettered, 1)
		want(t, "acknowledged", g.receivers[0].acks(), "1 2 3")
	})
}

// Whatever goes wrong with the policy itself, the events are kept.
func TestPolicyThatFailsKeepsTheEvents_OR110(t *testing.T) {
	for name, configure := range map[string]func(*rig, *agentConfig){
		"panic":                  func(g *rig, _ *agentConfig) { g.verdict = func(Failure) Verdict { panic("policy") } },
		"goexit":                 func(g *rig, _ *agentConfig) { g.verdict = func(Failure) Verdict { runtime.Goexit(); return Skip } },
		"dead letter to nowhere": func(g *rig, _ *agentConfig) { g.verdict = func(Failure) Verdict { return DeadLetter } },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
				configure(g, &g.agent.agentConfig)
				g.start()
				defer g.stop()
				c := g.subscribe("s", "sub")
				c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
					if n == 1 {
						return Answer{}, errBoom
					}
					return Answer{}, nil
				}
				g.feed(boxes("s", 1, 2)...)
				g.pump()
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
				want(t, "offered before the next poll", c.offered(), "1")
				g.pump()
				want(t, "settled", c.values(), "1 2")
			})
		})
	}
}

func TestPanicAndGoexitOfAConsumerAreFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			switch n {
			case 1:
				panic("consumer")
			case 2:
				runtime.Goexit()
			}
			return Answer{}, nil
		}
		g.feed(box("s", 1))
		g.pump()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		want(t, "offered", c.offered(), "1 1 1")
		want(t, "settled", c.values(), "1")
	})
}

// Skipped containers are not acknowledged, so a queue with acknowledgements
// keeps them (OR-109, after case ORC-77).
func TestSkippedContainerIsNotAcknowledged_ORC77(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery, c.rewindable = time.Nanosecond, false })
		c := g.subscribe("s", "sub")
		c.onDeliver = failing(2)
		for run := range 2 { // the next one reads again what was not acknowledged
			g.start()
			g.feed(boxes("s", uint64(1+run), 3)...)
			g.pump()
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			g.pump()
			want(t, "acknowledged", g.receivers[run].acks(), []string{"1 3", "3"}[run])
			want(t, "checkpoint", g.stats().Checkpoint, penstock.Token{})
			if err := g.stop(); err != nil {
				t.Error(err)
			}
		}
		want(t, "settled", c.values(), "1 3 3")
	})
}

func TestGoneConsumerIsUnregistered_OR104(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{}, ErrConsumerGone }
		g.feed(box("s", 1))
		g.pump()
		subs, err := g.registry.Subscriptions(t.Context(), g.qualified("s"))
		if err != nil || len(subs) != 0 {
			t.Errorf("still registered: %v, %v", subs, err)
		}
		want(t, "failures reported", len(g.failed()), 0)
		want(t, "offered", c.offered(), "1")
		g.pump()
		g.wantTable()
		want(t, "cached", g.stats().Cached, 0)
	})
}

func TestSubscriptionRemovedWhileDelivering_OR83(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.newCache = func() (Cache, error) { return NewSimpleCache(10) }
		g.start()
		defer g.stop()
		c, other := g.subscribe("s", "sub"), g.subscribe("s", "other")
		gate := make(chan struct{})
		c.gate = gate
		c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{}, errBoom }
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		g.unsubscribe("s", "sub")
		want(t, "subscriptions", g.stats().Subscriptions, 1)
		want(t, "progress does not wait", func() string { g.pump(); return g.lastProgress() }(), "3")
		if acks := g.receivers[0].acks(); acks != "" {
			t.Errorf("acknowledged %s while the delivery holds its container", acks)
		}
		close(gate)
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		want(t, "offered", c.offered(), "1")
		want(t, "failures reported", len(g.failed()), 0)
		want(t, "other", other.values(), "1 2 3")
		g.pump()
		want(t, "acknowledged", g.receivers[0].acks(), "1 2 3")
		want(t, "cached", g.stats().Cached, 0)
	})
}

func TestRewindByTheConsumer_ORC59(t *testing.T) {
	for name, tt := range map[string]struct {
		at   Position
		want string
	}{
		"after": {Position{Kind: PositionAfter, Token: penstock.Token{Lo: 3}}, "8 4 5 6 7 8 9"},
		"at":    {Position{Kind: PositionAt, Token: penstock.Token{Lo: 3}}, "8 3 4 5 6 7 8 9"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				g.marks = &spyMarks{}
				g.start()
				defer g.stop()
				holder, c := g.subscribe("s", "holder"), g.subscribe("s", "sub")
				gate := make(chan struct{})
				holder.gate = gate // keeps 1 and later in the cache
				c.onShake = func(int) (Position, error) {
					return Position{Kind: PositionAt, Token: penstock.Token{Lo: 8}}, nil
				}
				c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
					if n == 1 {
						return Answer{Rewind: tt.at}, nil
					}
					return Answer{}, nil
				}
				g.feed(boxes("s", 1, 9)...)
				g.pump()
				want(t, "offered", c.offered(), tt.want)
				close(gate)
			})
		})
	}
}

func TestBusyCacheStallsAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.newCache = func() (Cache, error) { return NewSimpleCache(20) }
		g.start()
		defer g.stop()
		slow, fast := g.subscribe("s", "slow"), g.subscribe("s", "fast")
		gate := make(chan struct{})
		slow.gate = gate
		g.feed(boxes("s", 1, 100)...)
		g.pump()
		cached := g.stats().Cached
		want(t, "under pressure", g.stats().UnderPressure, true)
		if cached > 20 {
			t.Errorf("%d containers in a cache for 20", cached)
		}
		want(t, "fast has what is cached", len(strings.Fields(fast.values())), cached)
		close(gate)
		synctest.Wait() // without another poll
		want(t, "slow", len(strings.Fields(slow.values())), 100)
		want(t, "fast", len(strings.Fields(fast.values())), 100)
	})
}
