package stream

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func at(kind PositionKind, lo uint64) Position {
	return Position{Kind: kind, Token: penstock.Token{Lo: lo}}
}

// hold makes a rig whose cache keeps 1..10 of stream s, because the
// subscription "holder" is blocked at 1. release lets it go on.
func hold(t *testing.T, configure ...func(*rig, *agentConfig)) (g *rig, holder *scriptConsumer, release func()) {
	g = newRig(t, configure...)
	g.start()
	holder = g.subscribe("s", "holder")
	gate := make(chan struct{})
	holder.gate = gate
	g.feed(boxes("s", 1, 10)...)
	g.pump()
	return g, holder, func() {
		holder.set(func(c *scriptConsumer) { c.gate = nil })
		close(gate)
		synctest.Wait()
	}
}

func TestNewSubscriptionStartsWhereItAsks_ORC54(t *testing.T) {
	for name, tt := range map[string]struct {
		answer Position
		want   string
	}{
		"at 5":      {at(PositionAt, 5), "5 6 7 8 9 10 11"},
		"after 5":   {at(PositionAfter, 5), "6 7 8 9 10 11"},
		"no answer": {Position{}, "11"},
		"latest":    {Position{Kind: PositionLatest}, "11"},
		"earliest":  {Position{Kind: PositionEarliest}, "1 2 3 4 5 6 7 8 9 10 11"},
		"first one": {at(PositionAt, 1), "1 2 3 4 5 6 7 8 9 10 11"},
		"future":    {at(PositionAt, 11), "11"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _, release := hold(t)
				defer g.stop()
				c := &scriptConsumer{onShake: func(int) (Position, error) { return tt.answer, nil }}
				g.consumers["s/new"] = c
				g.announce("s", "new")
				g.feed(box("s", 11))
				g.pump()
				want(t, "delivered", c.values(), tt.want)
				release()
			})
		})
	}
}

// A start at the very first container that the cache keeps gets that one, in
// either cache and before and after what came before it was dropped.
func TestStartAtTheFirstKeptContainer_ORC55(t *testing.T) {
	for name, newCache := range map[string]func() (Cache, error){
		"simple": func() (Cache, error) { return NewSimpleCache(10) },
		"log": func() (Cache, error) {
			return NewLogCache(LogCacheConfig{Evict: func(_, _ CacheMeta, _ time.Time) bool { return true }})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(g *rig, _ *agentConfig) { g.newCache = newCache })
				g.start()
				defer g.stop()
				holder, gate := g.subscribe("s", "holder"), make(chan struct{})
				g.feed(boxes("s", 1, 3)...)
				g.pump()
				g.pump() // 1 to 3 are dropped
				holder.set(func(c *scriptConsumer) { c.gate = gate })
				g.feed(boxes("s", 4, 6)...)
				g.pump()
				g.pump()
				want(t, "kept", g.stats().Cached, 3)
				c := &scriptConsumer{onShake: func(int) (Position, error) { return at(PositionAt, 4), nil }}
				g.consumers["s/new"] = c
				g.announce("s", "new")
				want(t, "delivered", c.values(), "4 5 6")
				holder.set(func(c *scriptConsumer) { c.gate = nil })
				close(gate)
				synctest.Wait()
			})
		})
	}
}

func TestRemovedDuringHandshakeIsNotRevived_ORC48(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, holder, release := hold(t)
		defer g.stop()
		c := &scriptConsumer{shakeGate: make(chan struct{}), onShake: func(int) (Position, error) { return at(PositionAt, 3), nil }}
		g.consumers["s/new"] = c
		g.announce("s", "new")
		want(t, "attached or attaching", g.stats().Subscriptions, 2)
		g.unsubscribe("s", "new")
		close(c.shakeGate)
		synctest.Wait()
		want(t, "attached", g.stats().Subscriptions, 1)
		want(t, "offered", c.offered(), "")
		release()
		g.pump()
		want(t, "holder", holder.values(), "1 2 3 4 5 6 7 8 9 10")
		want(t, "cached", g.stats().Cached, 0)
		want(t, "progress", g.lastProgress(), "10")
	})
}

func TestNoticeIsAcknowledgedAtOnce_ORC43(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _, release := hold(t)
		defer g.stop()
		c := &scriptConsumer{shakeGate: make(chan struct{})}
		g.consumers["s/new"] = c
		g.announce("s", "new") // returns although the consumer cannot answer
		close(c.shakeGate)
		synctest.Wait()
		g.feed(box("s", 11))
		g.pump()
		want(t, "delivered", c.values(), "11")
		release()
	})
}

// Events that arrive while a subscription is attaching are kept for it.
func TestEventsDuringAttachingAreKept_ORC57(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.newCache = func() (Cache, error) { return NewSimpleCache(10) }
		g.start()
		defer g.stop()
		other := g.subscribe("s", "other")
		g.feed(boxes("s", 1, 5)...)
		g.pump()
		c := &scriptConsumer{shakeGate: make(chan struct{})}
		g.consumers["s/new"] = c
		g.announce("s", "new")
		g.feed(boxes("s", 6, 7)...)
		g.pump()
		g.pump()
		want(t, "other", other.values(), "1 2 3 4 5 6 7")
		want(t, "acknowledged", g.receivers[0].acks(), "1 2 3 4 5")
		close(c.shakeGate)
		synctest.Wait()
		want(t, "new", c.values(), "6 7")
		g.pump()
		want(t, "acknowledged at last", g.receivers[0].acks(), "1 2 3 4 5 6 7")
	})
}

// A subscription heard of while its stream registers starts after what had
// been read then; one that registration finds starts at the trigger (G-3).
func TestLatestWhileRegistering_G3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.registry.block = make(chan struct{})
		g.start()
		defer g.stop()
		found := g.subscribe("s", "found")
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		heard := g.subscribe("s", "heard")
		g.feed(boxes("s", 4, 5)...)
		g.pump()
		close(g.registry.block)
		synctest.Wait()
		want(t, "found by registration", found.values(), "1 2 3 4 5")
		want(t, "heard of", heard.values(), "4 5")
	})
}

func TestSupersededHandshakeChangesNothing_OR80(t *testing.T) {
	for name, tt := range map[string]struct {
		oldFirst         bool
		oldFails, newBad bool
		want             string // delivered after 11 came
		resolved         bool
	}{
		"new ok, old ok":                {want: "7 8 9 10 11", resolved: true},
		"new ok, old fails":             {oldFails: true, want: "7 8 9 10 11", resolved: true},
		"new fails, old ok":             {newBad: true, want: ""},
		"both fail":                     {oldFails: true, newBad: true, want: ""},
		"old ok first, new ok":          {oldFirst: true, want: "7 8 9 10 11", resolved: true},
		"old fails first, new ok":       {oldFirst: true, oldFails: true, want: "7 8 9 10 11", resolved: true},
		"old ok first, new fails after": {oldFirst: true, newBad: true, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _, release := hold(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
				defer g.stop()
				oldGate, newGate := make(chan struct{}), make(chan struct{})
				c := &scriptConsumer{onShake: func(n int) (Position, error) {
					switch {
					case n == 1:
						<-oldGate
						if tt.oldFails {
							return Position{}, errBoom
						}
						return at(PositionAt, 3), nil
					case n == 2:
						<-newGate
						if tt.newBad {
							return Position{}, errBoom
						}
					}
					return at(PositionAt, 7), nil
				}}
				g.consumers["s/new"] = c
				g.announce("s", "new")
				g.announce("s", "new")
				first, second := newGate, oldGate
				if tt.oldFirst {
					first, second = oldGate, newGate
				}
				close(first)
				time.Sleep(5 * time.Millisecond)
				synctest.Wait()
				close(second)
				time.Sleep(5 * time.Millisecond)
				synctest.Wait()
				release()
				// By hand: the next poll would ask anew.
				want(t, "delivered before", c.values() == "", tt.want == "")
				unresolved := false
				g.agent.ask(func(r *run) {
					for _, e := range r.streams {
						i, _ := r.lookup(e, "new")
						unresolved = e.subs[i].unresolved
						want(t, "pending", e.subs[i].pending, 0)
					}
				})
				want(t, "resolved", !unresolved, tt.resolved)
				if !tt.resolved {
					return
				}
				g.feed(box("s", 11))
				g.pump()
				want(t, "delivered", c.values(), tt.want)
			})
		})
	}
}

// A failed handshake leaves the position uncertain: the checkpoint stays until
// a later handshake succeeds.
func TestFailedHandshakeKeepsTheCheckpoint_OR82(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
		g.marks = &spyMarks{}
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		g.pump()
		want(t, "checkpoint", g.marks.at(), 2)
		c.set(func(c *scriptConsumer) { c.onShake = func(int) (Position, error) { return Position{}, errBoom } })
		g.announce("s", "sub")
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		want(t, "failure reported", len(g.failed()), 1)
		g.feed(boxes("s", 3, 4)...)
		g.pump() // delivers, and asks anew: fails again
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		want(t, "delivered", c.values(), "1 2 3 4")
		want(t, "checkpoint while uncertain", g.marks.at(), 2)
		c.set(func(c *scriptConsumer) { c.onShake = nil })
		g.pump()
		g.pump()
		want(t, "checkpoint", g.marks.at(), 4)
	})
}

// An initial subscription that fails to attach keeps the stream's containers.
func TestFailedInitialHandshakeKeepsThePin_OR65(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
		g.start()
		defer g.stop()
		bad, good := g.subscribe("s", "bad"), g.subscribe("s", "good")
		bad.set(func(c *scriptConsumer) { c.onShake = func(int) (Position, error) { return Position{}, errBoom } })
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		g.pump()
		want(t, "good", good.values(), "1 2 3")
		want(t, "cached", g.stats().Cached, 3)
		want(t, "acknowledged", g.receivers[0].acks(), "")
		bad.set(func(c *scriptConsumer) { c.onShake = nil })
		time.Sleep(5 * time.Millisecond)
		g.pump()
		want(t, "bad", bad.values(), "1 2 3")
		g.pump()
		want(t, "acknowledged", g.receivers[0].acks(), "1 2 3")
	})
}

func TestSkippedSubscriptionStartsWithoutAnAnswer_OR77(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
		g.subFailed = func(Failure) Verdict { return Skip }
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onShake = func(int) (Position, error) { return Position{}, errBoom }
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		want(t, "delivered", c.values(), "1 2 3")
	})
}

// What lies at or below the checkpoint cannot be asked for: no silent jump.
func TestLostPositionFaultsTheSubscription_OR77(t *testing.T) {
	for name, tt := range map[string]struct {
		answer     Position
		rewindable bool
		match      error
		text       string
	}{
		"below the checkpoint": {at(PositionAt, 2), true, ErrCacheMiss, "only what lies above the checkpoint of its queue can, which is at t1:0:5:0"},
		"after below":          {at(PositionAfter, 1), true, ErrCacheMiss, "only what lies above the checkpoint"},
		"cannot rewind":        {at(PositionAt, 20), false, penstock.ErrUnsupported, "cannot rewind"},
		"nonsense":             {Position{Kind: 99}, true, penstock.ErrInvalid, "Position"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.rewindable = tt.rewindable })
				g.marks = &spyMarks{}
				g.start()
				defer g.stop()
				g.subscribe("s", "other")
				g.feed(boxes("s", 1, 5)...)
				g.pump()
				g.pump()
				want(t, "checkpoint", g.marks.at(), 5)
				c := &scriptConsumer{onShake: func(int) (Position, error) { return tt.answer, nil }}
				g.consumers["s/new"] = c
				g.announce("s", "new")
				f := g.failed()
				want(t, "failures", len(f), 1)
				if !errors.Is(f[0].Err, tt.match) || !strings.Contains(f[0].Err.Error(), tt.text) {
					t.Errorf("failed with %v, want %v: %q", f[0].Err, tt.match, tt.text)
				}
				faulted, _ := g.registry.Faulted(t.Context(), g.qualified("s"))
				want(t, "faulted", len(faulted), 1)
				want(t, "attached", g.stats().Subscriptions, 1)
			})
		})
	}
}

// Announcing a subscription again without asking for a place delivers the
// group again that was under way (OR-85); asking for one moves it, and the old
// delivery changes nothing (OR-94).
func TestAnnouncedAgainDuringDelivery_OR85(t *testing.T) {
	for name, tt := range map[string]struct {
		answer Position
		want   string
	}{
		"stays":  {Position{}, "1 1 2 3"},
		"moves":  {at(PositionAt, 3), "1 3"},
		"latest": {Position{Kind: PositionLatest}, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				g.marks = &spyMarks{}
				g.start()
				c := g.subscribe("s", "sub")
				gate := make(chan struct{})
				c.gate = gate
				c.onShake = func(n int) (Position, error) {
					if n > 1 {
						return tt.answer, nil
					}
					return Position{}, nil
				}
				g.feed(boxes("s", 1, 3)...)
				g.pump()
				g.announce("s", "sub")
				c.set(func(c *scriptConsumer) { c.gate = nil })
				close(gate)
				synctest.Wait()
				want(t, "offered", c.offered(), tt.want)
				g.stop()
				want(t, "checkpoint", g.marks.at(), 3)
			})
		})
	}
}

// An accepted rewind is reflected by the final checkpoint.
func TestFinalCheckpointReflectsTheRewind_OR163(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
		g.marks = &spyMarks{}
		g.verdict = func(Failure) Verdict { return Retry }
		g.start()
		c := g.subscribe("s", "sub")
		// 1 and 2 are settled, 3 waits; then the consumer asks for 2 again,
		// which is above the checkpoint of 1, and fails it.
		c.onDeliver = func(n int, d *Delivery) (Answer, error) {
			if n >= 3 {
				return Answer{}, errBoom
			}
			return Answer{}, nil
		}
		holder := g.subscribe("s", "holder")
		gate := make(chan struct{})
		holder.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if n == 2 {
				<-gate
			}
			return Answer{}, nil
		}
		g.feed(boxes("s", 1, 4)...)
		g.pump()
		time.Sleep(5 * time.Millisecond)
		g.pump()
		want(t, "checkpoint", g.marks.at(), 1)
		c.set(func(c *scriptConsumer) { c.onShake = func(int) (Position, error) { return at(PositionAt, 2), nil } })
		g.announce("s", "sub")
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		close(gate)
		synctest.Wait()
		want(t, "holder", holder.values(), "1 2 3 4")
		g.stop()
		want(t, "final checkpoint", g.marks.at(), 1)
	})
}

func TestHandshakeIsRepeatedWithinItsTime_OR73(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onShake = func(n int) (Position, error) {
			if n < 4 {
				return Position{}, fmt.Errorf("attempt %d: %w", n, errBoom)
			}
			return Position{}, nil
		}
		g.feed(box("s", 1))
		g.pump()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		want(t, "delivered", c.values(), "1")
		want(t, "failures reported", len(g.failed()), 0)
	})
}
