package stream

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// A run whose receiver could not be opened at once reads later, and knows what
// an earlier process has stored.
func TestStoredAttemptsAreLoadedWhenInitFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := holding()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts = store })
		g.failInit = errBoom
		c := g.subscribe("s", "sub")
		subs, err := g.registry.Subscriptions(t.Context(), g.qualified("s"))
		if err != nil {
			t.Fatal(err)
		}
		open := openAt(subs[0], 1, 2)
		store.held[nameOf(&open)] = open
		g.start()
		g.feed(boxes("s", 1, 1)...)
		g.pump() // the receiver fails
		g.pump()
		want(t, "offered", c.tries(), "1:3")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// ledgerOf is what the agent remembers of its only subscription, by index.
func (g *rig) ledgerOf() string {
	var out []string
	g.agent.ask(func(r *run) {
		for _, t := range r.ledger.subs {
			for _, o := range t.list {
				out = append(out, fmt.Sprintf("%d-%d:%d%s", o.first.Index, o.end.Index, o.n, map[bool]string{true: "?"}[o.open]))
			}
		}
	})
	return strings.Join(out, " ")
}

// An event that was offered and not tried is held as it was before: as one during
// which a process has ended, or not at all.
func TestUntriedEventIsHeldAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := holding()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.deliveryBackoff = store, Fixed(10*time.Second) })
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if n == 1 {
				return Answer{Failed: []ItemFailure{{1, errBoom}, {2, ErrAway}, {3, ErrAway}, {4, errBoom}}}, nil
			}
			return Answer{}, nil
		}
		subs, err := g.registry.Subscriptions(t.Context(), g.qualified("s"))
		if err != nil {
			t.Fatal(err)
		}
		open := openAt(subs[0], 1, 1)
		open.First.Index, open.End.Index = 2, 3
		store.held[nameOf(&open)] = open
		g.start()
		g.feed(boxOf("s", 1, "a", "b", "c", "d", "e"))
		g.pump()
		want(t, "stored", store.events(), "1-2:1 2-3:1? 4-5:1")
		want(t, "remembered", g.ledgerOf(), "1-2:1 2-3:1? 4-5:1")
		time.Sleep(time.Minute)
		want(t, "settled", c.values(), "a b c d e")
		want(t, "stored at the end", store.left(), "")
		want(t, "remembered at the end", g.ledgerOf(), "")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// What a consumer has settled, as it says by where it goes on, leaves the store and
// the memory of attempts; the rest is held as it was.
func TestResumeInsideADeliverySettlesItsEntries(t *testing.T) {
	for _, rewindable := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := holding()
			g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.rewindable = store, rewindable })
			c := g.subscribe("s", "sub")
			gate := make(chan struct{})
			c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
				switch n {
				case 1:
					return Answer{}, errBoom
				case 2:
					return Answer{Rewind: Position{Kind: PositionResume, Token: penstock.Token{Lo: 1, Index: 1}}}, nil
				case 3:
					want(t, "stored while the rest is offered", store.events(), map[bool]string{true: "2-4:2?", false: "2-4:3?"}[rewindable])
					want(t, "remembered", g.ledgerOf(), "2-4:1")
					<-gate
				}
				return Answer{}, nil
			}
			g.start()
			g.feed(boxOf("s", 1, "a", "b", "c", "d"))
			g.pump()
			time.Sleep(time.Second)
			close(gate)
			synctest.Wait()
			want(t, "stored at the end", store.left(), "")
			want(t, "remembered at the end", g.ledgerOf(), "")
			if err := g.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
