package stream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
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

// A subscription that a verdict faulted has its entries when it is reset: they
// are still in the store.
func TestFaultedSubscriptionKnowsWhatIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := holding()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.maxAttempts = store, 2 })
		g.verdict = func(Failure) Verdict { return Fault }
		c := g.subscribe("s", "sub")
		c.onDeliver = failsAt(1)
		g.start()
		g.feed(boxes("s", 1, 1)...)
		g.pump()
		time.Sleep(time.Minute)
		want(t, "offered", c.tries(), "1:1 1:2")
		rec := SubscriptionRecord{Stream: g.qualified("s"), Name: "sub"}
		if err := g.registry.Reset(context.Background(), rec); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want(t, "stored before", store.left(), "1-1:2")
		g.feed(boxes("s", 2, 2)...)
		g.pump()
		want(t, "stored at the end", store.left(), "")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}
