package stream

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
)

// set changes what the store does.
func (s *spyAttempts) set(f func(s *spyAttempts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// The count of a subscription that was faulted outlived its reset: an event that
// was given up was given up again at once. Its entries leave the store, and its
// events begin anew.
func TestFaultedSubscriptionCountsAnewWhenReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := holding()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.maxAttempts = store, 2 })
		g.verdict = func(f Failure) Verdict {
			return map[bool]Verdict{true: Fault, false: Retry}[f.Subscription.Name == "sub"]
		}
		g.after = time.Hour
		c := g.subscribe("s", "sub")
		c.onShake = func(n int) (Position, error) { return at(PositionAt, 1), nil }
		c.onDeliver = failsAt(1)
		g.start()
		g.subscribe("s", "slow").onDeliver = failsAt(1) // keeps the event in the cache
		g.feed(boxes("s", 1, 1)...)
		g.pump()
		time.Sleep(time.Minute)
		want(t, "stored when it is faulted", store.left(), "1-1:2") // of the other one
		if err := g.registry.Reset(context.Background(), SubscriptionRecord{Stream: g.qualified("s"), Name: "sub"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		want(t, "offered", c.tries(), "1:1 1:2 1:1 1:2")
		want(t, "stored at the end", store.left(), "1-1:2")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Entries of a subscription that was removed stayed in the store until a run began
// behind them.
func TestEntriesOfARemovedSubscriptionLeaveTheStore(t *testing.T) {
	for name, test := range map[string]func(g *rig, c *scriptConsumer, store *spyAttempts){
		"unsubscribed between two attempts": func(g *rig, c *scriptConsumer, store *spyAttempts) {
			c.onDeliver = failsAt(1)
			g.feed(boxes("s", 1, 1)...)
			g.pump()
			want(g.t, "stored before", store.left(), "1-1:1 7-7:3?")
			g.unsubscribe("s", "sub")
		},
		"unsubscribed during an attempt that fails": func(g *rig, c *scriptConsumer, store *spyAttempts) {
			c.onDeliver, c.gate = failsAt(1), make(chan struct{})
			g.feed(boxes("s", 1, 1)...)
			g.pump()
			g.unsubscribe("s", "sub")
			want(g.t, "stored during it", store.left(), "1-1:1? 7-7:3?")
			close(c.gate)
			synctest.Wait()
		},
		"unsubscribed before an attempt": func(g *rig, c *scriptConsumer, store *spyAttempts) {
			c.shakeGate = make(chan struct{})
			g.feed(boxes("s", 1, 1)...)
			g.pump()
			g.unsubscribe("s", "sub")
			close(c.shakeGate)
			synctest.Wait()
		},
		"gone": func(g *rig, c *scriptConsumer, store *spyAttempts) {
			c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
				return Answer{}, map[bool]error{true: errBoom, false: ErrConsumerGone}[n == 1]
			}
			g.feed(boxes("s", 1, 1)...)
			g.pump()
			time.Sleep(time.Minute)
		},
		"faulted without an attempt": func(g *rig, c *scriptConsumer, store *spyAttempts) {
			g.subFailed = func(Failure) Verdict { return Fault }
			c.onShake = func(int) (Position, error) { return Position{}, errBoom }
			g.feed(boxes("s", 1, 1)...)
			g.pump()
			time.Sleep(2 * time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := holding()
				g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.deliveryBackoff = store, Fixed(10*time.Second) })
				c := g.subscribe("s", "sub")
				subs, err := g.registry.Subscriptions(t.Context(), g.qualified("s"))
				if err != nil {
					t.Fatal(err)
				}
				open := openAt(subs[0], 7, 3)
				store.held[nameOf(&open)] = open // of an earlier process
				g.start()
				test(g, c, store)
				synctest.Wait()
				want(t, "stored", store.left(), "")
				g.agent.ask(func(r *run) {
					want(t, "to be taken out", len(r.dropped.entries), 0)
					want(t, "kept", len(r.stored), 0)
				})
				want(t, "remembered", g.ledgerOf(), "")
				if err := g.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A removal that failed was not tried again: it is, at the next poll, one
// subscription after the other.
func TestFailedRemovalOfEntriesIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := holding()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.deliveryBackoff = store, Fixed(10*time.Second) })
		names := []string{"a", "b", "c"}
		for _, name := range names {
			g.subscribe("s", name).onDeliver = failsAt(1)
		}
		g.start()
		g.feed(boxes("s", 1, 1)...)
		g.pump()
		store.set(func(s *spyAttempts) { s.failIt = errBoom })
		for _, name := range names {
			g.unsubscribe("s", name)
		}
		time.Sleep(time.Minute)
		g.pump()
		want(t, "stored while the store fails", store.left(), "1-1:1 1-1:1 1-1:1")
		store.set(func(s *spyAttempts) { s.failIt = nil })
		g.pump()
		want(t, "stored", store.left(), "")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// gatedAttempts holds the removal of entries up.
type gatedAttempts struct {
	*spyAttempts
	gate chan struct{}
}

func (s gatedAttempts) StoreAttempt(ctx context.Context, provider string, q QueueID, a Attempt) error {
	if a.N == 0 {
		<-s.gate
	}
	return s.spyAttempts.StoreAttempt(ctx, provider, q, a)
}

// A subscription that was reset while its entries are taken out has none until they
// are; two do not write under one name at a time.
func TestResetWhileEntriesAreTakenOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := gatedAttempts{holding(), make(chan struct{})}
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.maxAttempts = store, 2 })
		g.verdict = func(Failure) Verdict { return Fault }
		c := g.subscribe("s", "sub")
		c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
			switch d.Items[0].Token.Lo {
			case 1:
				return Answer{}, errBoom
			case 2:
				want(t, "stored while the earlier ones are taken out", store.left(), "1-1:2")
			case 3:
				want(t, "stored when they are out", store.left(), "3-3:1?")
			}
			return Answer{}, nil
		}
		g.start()
		g.feed(boxes("s", 1, 1)...)
		g.pump()
		time.Sleep(time.Minute)
		if err := g.registry.Reset(context.Background(), SubscriptionRecord{Stream: g.qualified("s"), Name: "sub"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		g.feed(boxes("s", 2, 2)...)
		g.pump()
		want(t, "offered", c.tries(), "1:1 1:2 2:1")
		close(store.gate)
		synctest.Wait()
		g.feed(boxes("s", 3, 3)...)
		g.pump()
		want(t, "offered at the end", c.tries(), "1:1 1:2 2:1 3:1")
		want(t, "stored at the end", store.left(), "")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// What is to be taken out of a store that fails is bounded.
func TestEntriesToBeTakenOutAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := holding()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.deliveryBackoff = store, Fixed(10*time.Second) })
		for _, name := range []string{"last", "over"} {
			g.subscribe("s", name).onDeliver = failsAt(1)
		}
		g.start()
		g.feed(boxes("s", 1, 1)...)
		g.pump()
		store.set(func(s *spyAttempts) { s.failIt = errBoom })
		g.agent.ask(func(r *run) {
			r.dropped.entries = map[triedKey]*entries{}
			for i := range uint64(droppedMax - 1) {
				r.dropped.entries[triedKey{incarnation: i + 1000}] = &entries{held: []tried{{end: penstock.Token{Lo: 1}, n: 1}}}
			}
		})
		g.unsubscribe("s", "last")
		g.unsubscribe("s", "over")
		time.Sleep(time.Minute)
		g.agent.ask(func(r *run) { want(t, "to be taken out", len(r.dropped.entries), droppedMax) })
		store.set(func(s *spyAttempts) { s.failIt = nil })
		g.pump()
		want(t, "stored", store.left(), "1-1:1")
		g.agent.ask(func(r *run) { want(t, "to be taken out at the end", len(r.dropped.entries), 0) })
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A write that failed, whether it has had an effect or not, was forgotten: what it
// was to remove stayed in the store. It is made again with the next change.
func TestFailedWritesAreMadeAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		disk := &diskOfTried{held: map[penstock.Token]tried{}}
		e := &entries{}
		failing := func(ctx context.Context, x tried) error {
			switch rapid.IntRange(0, 3).Draw(t, "outcome") {
			case 0:
				return errBoom
			case 1:
				_ = disk.store(ctx, x)
				return errBoom // and it is stored
			}
			return disk.store(ctx, x)
		}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			at := rapid.Uint32Range(0, 12).Draw(t, "at")
			events := []tried{{penstock.Token{Index: at}, penstock.Token{Index: at + rapid.Uint32Range(1, 4).Draw(t, "events")}, rapid.IntRange(1, 3).Draw(t, "n"), true}}
			put := e.begin(events)
			store := failing
			if rapid.Bool().Draw(t, "sound") {
				store = disk.store
			}
			for _, settle := range []bool{false, true} {
				if settle {
					e.settle(put, events[:rapid.IntRange(0, 1).Draw(t, "left")])
				}
				disk.left = 1000
				err := e.write(t.Context(), store)
				if err != nil && !errors.Is(err, errBoom) {
					t.Fatal(err)
				}
				if err == nil && (len(disk.held) != len(e.held) || slices.ContainsFunc(e.held, func(x tried) bool { return disk.held[x.first] != x })) {
					t.Fatalf("holds %v, the store %v", e.held, disk.held)
				}
			}
		}
		e.clear()
		if disk.left = 1000; e.write(t.Context(), disk.store) != nil || len(disk.held) > 0 || !e.empty() {
			t.Fatalf("the store has %v when nothing is held", disk.held)
		}
	})
}
