package stream

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// always fails the events with the given token, takes the others.
func failing(tokens ...uint64) func(int, *Delivery) (Answer, error) {
	return func(_ int, d *Delivery) (Answer, error) {
		for _, t := range tokens {
			if d.Items[0].Token.Lo == t {
				return Answer{}, errBoom
			}
		}
		return Answer{}, nil
	}
}

func TestRetryWaitsAsLongAsTheDecisionSays_OR112(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
		g.verdict, g.after = func(Failure) Verdict { return Retry }, time.Minute
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = failing(1)
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		time.Sleep(59 * time.Second) // the second attempt is past its time: decided by then
		g.pump()
		want(t, "offered before a minute", c.offered(), "1")
		want(t, "decisions", len(g.failed()), 1)
		c.set(func(c *scriptConsumer) { c.onDeliver = nil })
		time.Sleep(2 * time.Second)
		g.pump()
		want(t, "offered after a minute", c.offered(), "1 1 2")
		want(t, "attempt", fmt.Sprint(c.attempts), "[1 2 1]")
		want(t, "settled", c.values(), "1 2")
	})
}

func TestReasonGoesIntoTheDeadLetter_OR112(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(g *rig, c *agentConfig) {
			c.maxDelivery = time.Nanosecond
			c.deadLetter = g.deadLetter
		})
		g.verdict, g.verdictReason = func(Failure) Verdict { return DeadLetter }, "not an order"
		g.start()
		defer g.stop()
		g.subscribe("s", "sub").onDeliver = failing(1)
		g.feed(box("s", 1))
		g.pump()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if len(g.dead) != 1 {
			t.Fatalf("%d dead letters", len(g.dead))
		}
		want(t, "cause", g.dead[0].Origin.Cause, "not an order: boom")
	})
}

// What the queue knows of earlier attempts is counted on from: an event that
// several owners could not deliver is not always at its first attempt.
func TestAttemptsGoOnFromWhatTheQueueKnows_G8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		again := box("s", 1)
		again.Attempts = 4
		g.feed(again, box("s", 2))
		g.pump()
		want(t, "attempts", fmt.Sprint(c.attempts), "[5 1]")
	})
}

func TestSubscriptionIDsAreStable_OR151(t *testing.T) {
	rec := SubscriptionRecord{Stream: QualifiedStreamID{Provider: "p", StreamID: penstock.StreamID{Namespace: "n", Key: "k"}}, Name: "a"}
	want(t, "explicit", rec.ID().String(), "ea97d4756c4667cf938e91458179723e")
	moved := rec
	moved.Incarnation, moved.Attached, moved.Filter = 7, 8, "f"
	want(t, "another incarnation", moved.ID(), rec.ID())
	implicit := rec
	implicit.Implicit = true
	want(t, "implicit bit", fmt.Sprint(rec.ID().Implicit(), implicit.ID().Implicit()), "false true")
	seen := map[SubscriptionID]string{rec.ID(): "rec", implicit.ID(): "implicit"}
	for _, other := range []SubscriptionRecord{
		{Stream: rec.Stream, Name: "b"},
		{Stream: QualifiedStreamID{Provider: "pn", StreamID: penstock.StreamID{Key: "k"}}, Name: "a"},
		{Stream: QualifiedStreamID{Provider: "p", StreamID: penstock.StreamID{Namespace: "nk"}}, Name: "a"},
		{Stream: QualifiedStreamID{Provider: "p", StreamID: penstock.StreamID{Namespace: "n"}}, Name: "ka"},
	} {
		if was, ok := seen[other.ID()]; ok {
			t.Errorf("%+v has the id of %s", other, was)
		}
		seen[other.ID()] = other.Name
	}
}
