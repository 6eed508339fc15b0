package stream

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// A place that an agent has taken is not asked for again, although nothing has
// come from it yet: the checkpoint has passed it meanwhile, and rightly, and who
// asked for it then would lose the subscription.
func TestPlaceThatWasTakenIsNotAskedForAgain(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, p *Provider, resubscribe func(), restart func()){
		"subscribed again": func(_ *testing.T, _ *Provider, resubscribe, _ func()) { resubscribe() },
		"after inactivity": func(*testing.T, *Provider, func(), func()) { time.Sleep(5 * time.Minute) },
		"run again":        func(_ *testing.T, _ *Provider, _, restart func()) { restart() },
		"run again, subscribed again": func(_ *testing.T, _ *Provider, resubscribe, restart func()) {
			restart()
			resubscribe()
		},
	} {
		for place, from := range map[string]func(last penstock.Token, now time.Time) Start{
			"after":    func(last penstock.Token, _ time.Time) Start { return After(last) },
			"at":       func(last penstock.Token, _ time.Time) Start { last.Lo++; return At(last) },
			"at time":  func(_ penstock.Token, now time.Time) Start { return AtTime(now.Add(time.Nanosecond)) },
			"earliest": func(penstock.Token, time.Time) Start { return Earliest },
		} {
			t.Run(name+"/"+place, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := openShop(t, func(c *Config) { c.Inactivity = time.Minute })
					s, other := Of[int](p, "n", "k"), Of[int](p, "n", "other")
					var last penstock.Token
					placed := make(chan struct{}) // until then the checkpoint stays
					if _, err := s.Subscribe(t.Context(), "first", func(_ context.Context, b penstock.Batch[int]) error {
						last = b.Token(0)
						return nil
					}); err != nil {
						t.Fatal(err)
					}
					if _, err := other.Subscribe(t.Context(), "first", func(context.Context, penstock.Batch[int]) error {
						<-placed
						return nil
					}); err != nil {
						t.Fatal(err)
					}
					stop := keepRunning(t, p)
					publishAll := func(s *Stream[int], values ...int) {
						for _, v := range values {
							if err := s.Publish(t.Context(), v); err != nil {
								t.Fatal(err)
							}
						}
						time.Sleep(time.Second)
					}
					publishAll(s, 1)
					publishAll(other, 101) // so that a token behind that of s exists
					var got []string
					handler := func(name string) penstock.Handler[int] {
						return func(_ context.Context, b penstock.Batch[int]) error {
							got = append(got, fmt.Sprint(name, b.Values()))
							return nil
						}
					}
					if _, err := s.Subscribe(t.Context(), "sub", handler("a"), From(from(last, time.Now()))); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
					close(placed)
					publishAll(other, 102, 103, 104) // the checkpoint goes on
					again(t, p, func() {
						if _, err := s.Subscribe(t.Context(), "sub", handler("b")); err != nil {
							t.Fatal(err)
						}
						time.Sleep(time.Second)
					}, func() {
						stop()
						stop = keepRunning(t, p)
						publishAll(other, 105)
					})
					publishAll(s, 2, 3)
					time.Sleep(time.Minute)
					stop()
					faulted, err := s.Faulted(t.Context())
					want(t, "faulted", len(faulted), 0)
					if err != nil {
						t.Error(err)
					}
					who := "a"
					if name == "subscribed again" || name == "run again, subscribed again" {
						who = "b"
					}
					want(t, "got", fmt.Sprint(got), fmt.Sprintf("[%s[2] %s[3]]", who, who))
				})
			})
		}
	}
}

// placedConsumer notes what each handshake says about its last answer.
type placedConsumer struct {
	scriptConsumer
	placed []uint64
}

func (c *placedConsumer) Handshake(ctx context.Context, h Handshake) (Position, error) {
	c.placed = append(c.placed, h.Placed)
	return c.scriptConsumer.Handshake(ctx, h)
}

// A place that was taken is remembered, over the end of a run, until its consumer
// has settled something from there: events that are given up without it tell it
// nothing. Then it is forgotten, also by a later run.
func TestPlaceIsRememberedUntilItsConsumerHasSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &placedConsumer{}
		c.onShake = func(n int) (Position, error) {
			if n == 1 {
				return Position{Kind: PositionEarliest}, nil
			}
			return Position{}, nil
		}
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if n == 1 {
				return Answer{}, penstock.ErrTooLarge
			}
			return Answer{}, nil
		}
		g := newRig(t, func(_ *rig, a *agentConfig) {
			a.maxAttempts = 1
			a.resolve = func(context.Context, SubscriptionRecord) (Consumer, error) { return c, nil }
		})
		remembered := func() (n int) {
			g.agent.ask(func(r *run) { n = len(r.places) })
			return n
		}
		g.start()
		g.subscribe("s", "sub")
		g.feed(box("s", 1))
		g.pump()
		want(t, "given up", g.stats().Skipped, 1)
		want(t, "remembered", remembered(), 1)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		g.start()
		g.feed(box("s", 2))
		g.pump()
		want(t, "settled in the second run", c.values(), "2")
		if len(c.placed) != 2 || c.placed[0] != 0 || c.placed[1] == 0 {
			t.Errorf("placed by %v, want none and the first handshake", c.placed)
		}
		want(t, "remembered in the end", remembered(), 0)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A place that is noted again takes no other one's place.
func TestPlaceNotedAgainKeepsTheOthers(t *testing.T) {
	var p places
	for range 10 {
		for i := range uint64(takenKept) {
			p.note(&handshake{sub: &subscription{rec: SubscriptionRecord{Name: "sub", Incarnation: i}}, request: 1}, Position{Kind: PositionEarliest})
		}
		if len(p) != takenKept {
			t.Fatalf("%d places are remembered, want %d", len(p), takenKept)
		}
	}
}

// A consumer that has a part of what was evicted has lost the rest of it: that is
// up to Config.OnMiss, as it is without that part, and no refused place.
func TestResumeBehindAnEvictedContainerIsAMiss(t *testing.T) {
	for policy, got := range map[MissPolicy]string{MissStay: "", MissEarliest: "8 9 10"} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.onMiss = policy })
				g.newCache = func() (Cache, error) {
					return NewLogCache(LogCacheConfig{MaxContainers: 4, MaxAdd: 1, EvictUnderCursors: true})
				}
				g.start()
				defer g.stop()
				c := g.subscribe("s", "sub")
				c.shakeGate = make(chan struct{})
				c.onShake = func(int) (Position, error) { return at(PositionResume, 2), nil }
				g.feed(boxes("s", 1, 10)...)
				for range 10 {
					g.pump()
				}
				close(c.shakeGate)
				synctest.Wait()
				faulted, err := g.registry.Faulted(t.Context(), g.qualified("s"))
				if len(faulted) > 0 || err != nil {
					t.Errorf("faulted %v, %v", faulted, err)
				}
				want(t, "missed", g.stats().Missed, 1)
				want(t, "delivered", c.values(), got)
			})
		})
	}
}
