package stream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// A delivery is under way when its subscription is moved back, and announced
// once more before the delivery ends: the second answer keeps the position of
// the first, not that of the delivery, which must neither come again from its
// old place nor let the checkpoint pass what was asked for.
func TestOldDeliveryDoesNotReturnAfterARewindAndAnotherAnnouncement_OR94(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		g.start()
		holder := g.subscribe("s", "holder") // keeps the checkpoint at 1
		hold := make(chan struct{})
		holder.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if n == 2 {
				<-hold
			}
			return Answer{}, nil
		}
		c := g.subscribe("s", "sub")
		gate, again := make(chan struct{}), make(chan struct{})
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			switch n {
			case 4:
				<-gate
			case 5:
				<-again
			}
			return Answer{}, nil
		}
		c.onShake = func(n int) (Position, error) {
			if n == 2 {
				return at(PositionAt, 2), nil
			}
			return Position{}, nil
		}
		g.feed(boxes("s", 1, 5)...)
		g.pump()
		want(t, "offered", c.offered(), "1 2 3 4")
		g.announce("s", "sub") // moves it back to 2
		g.announce("s", "sub") // keeps it there
		close(gate)
		close(hold)
		synctest.Wait()
		g.pump()
		want(t, "offered after the rewind", c.offered(), "1 2 3 4 2")
		want(t, "checkpoint while 2 is under way", g.marks.at(), 1)
		close(again)
		synctest.Wait()
		want(t, "offered at last", c.offered(), "1 2 3 4 2 3 4 5")
		g.stop()
		want(t, "checkpoint", g.marks.at(), 5)
	})
}

// brokenFault is a registry that cannot store a fault; it waits for gate first.
type brokenFault struct {
	*scriptRegistry
	gate chan struct{}
}

func (b brokenFault) Fault(context.Context, SubscriptionRecord) (bool, error) {
	<-b.gate
	return false, errBoom
}

// A delivery is given up with the verdict Fault, the subscription is announced
// again while the registry stores that, and the registry fails: the events are
// still owed.
func TestFaultThatFailsDuringAHandshakeLosesNoEvents_OR84(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		g := newRig(t, func(g *rig, c *agentConfig) {
			c.registry = brokenFault{g.registry, gate}
			c.maxDelivery = 0
		})
		g.marks = &spyMarks{}
		g.verdict = func(Failure) Verdict { return Fault }
		g.start()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if n == 1 {
				return Answer{}, errBoom
			}
			return Answer{}, nil
		}
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		time.Sleep(5 * time.Millisecond) // the time for attempts is used up
		want(t, "failures reported", len(g.failed()), 1)
		g.announce("s", "sub")
		close(gate)
		synctest.Wait()
		g.pump()
		want(t, "settled", c.values(), "1 2")
		g.stop()
		want(t, "checkpoint", g.marks.at(), 2)
	})
}

// A consumer that answers a delivery with what it has settled so far, instead
// of settling the delivery, goes on behind that and not behind the delivery.
func TestRewindToWhatTheConsumerHasSkipsNothing_OR93(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		g.start()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if n == 2 {
				return Answer{Rewind: at(PositionResume, 1)}, nil
			}
			return Answer{}, nil
		}
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		want(t, "offered", c.offered(), "1 2 2 3")
		want(t, "settled", c.values(), "1 2 3")
		g.stop()
		want(t, "checkpoint", g.marks.at(), 3)
	})
}

// A delivery that came from an older place does not show that the agent has
// taken the new one: if the answer is lost, it is given again.
func TestOldDeliveryDoesNotForgetTheWish(t *testing.T) {
	settle := func(context.Context, string, *Delivery) (Answer, error) { return Answer{}, nil }
	c := (*localConsumer)(nil).successor("shop", settle, &subscribeOptions{at: at(PositionAt, 3)})
	ask := func(request uint64) Position {
		p, err := c.Handshake(t.Context(), Handshake{Request: request})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	offer := func(request, seq uint64) {
		if _, err := c.Deliver(t.Context(), &Delivery{Request: request, Items: []Item{{From: &Container{}, Token: penstock.Token{Lo: seq}}}}); err != nil {
			t.Fatal(err)
		}
	}
	offer(1, 7)
	want(t, "answer to request 2", ask(2), at(PositionAt, 3))
	offer(1, 8) // of the place before, begun after the answer
	want(t, "answer to request 3", ask(3), at(PositionAt, 3))
	offer(3, 3)
	want(t, "answer to request 4", ask(4), Position{Kind: PositionResume, Token: through(penstock.Token{Lo: 3})})
}
