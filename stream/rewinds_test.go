package stream

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// A consumer that answers each delivery with a rewind is not asked again at once
// for ever: after the second one in a row its subscription pauses, for longer
// and longer, and says so. Others go on. What it settles ends that.
func TestRewindsInARowPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) {
			c.poll, c.pollOffset = 100*time.Millisecond, 100*time.Millisecond
			c.deliveryBackoff = growing{}
		})
		g.marks = &spyMarks{}
		g.start()
		c, other := g.subscribe("s", "sub"), g.subscribe("s", "other")
		back := Answer{Rewind: Position{Kind: PositionAt, Token: penstock.Token{Lo: 1}}}
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if n < 7 {
				return back, nil
			}
			return Answer{}, nil
		}
		from := time.Now()
		g.feed(boxes("s", 1, 2)...)
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "offered at first", c.offered(), "1 1")
		want(t, "settled by another one", other.values(), "1 2")
		s := g.stats()
		want(t, "condition", s.Condition, ConditionRetrying)
		want(t, "reason", strings.Contains(s.Reason, `subscription "sub" of stream n/s: its consumer has answered 2 deliveries in a row with a rewind`), true)
		want(t, "checkpoint", g.marks.at(), 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "offered", c.offered(), "1 1 1 1 1 1 1 2")
		want(t, "settled", c.values(), "1 2")
		for i, after := range []time.Duration{0, 0, 1, 3, 7, 15, 31} {
			if d := c.times[i].Sub(from) - after*time.Second; d < 0 || d > time.Second {
				t.Errorf("offer %d came after %v, want some %ds", i, c.times[i].Sub(from), after)
			}
		}
		want(t, "reason at the end", g.stats().Reason, "")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "final checkpoint", g.marks.at(), 2)
	})
}

// growing waits for 1, 2, 4 s and so on.
type growing struct{}

func (growing) Next(n int) time.Duration { return time.Second << n }

// A pause after rewinds ends with what it is for: a new handshake, a removal, a
// drain.
func TestPauseAfterRewindsIsNoHindrance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.deliveryBackoff = Fixed(time.Hour) })
		c, gone := g.subscribe("s", "sub"), g.subscribe("s", "gone")
		stubborn := func(int, *Delivery) (Answer, error) {
			return Answer{Rewind: Position{Kind: PositionAt, Token: penstock.Token{Lo: 1}}}, nil
		}
		c.onDeliver, gone.onDeliver = stubborn, stubborn
		g.start()
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		g.pump()
		want(t, "offered", c.offered()+", "+gone.offered(), "1 1, 1 1")
		c.set(func(c *scriptConsumer) { c.onDeliver = nil })
		g.announce("s", "sub")
		want(t, "offered when it was announced again", c.offered(), "1 1 1 2")
		g.unsubscribe("s", "gone")
		want(t, "offered to the removed one", gone.offered(), "1 1")
		want(t, "subscriptions", g.stats().Subscriptions, 1)
		c.set(func(c *scriptConsumer) {
			c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{Rewind: at(PositionAt, 3)}, nil }
		})
		g.feed(box("s", 3))
		g.pump()
		want(t, "offered before the drain", c.offered(), "1 1 1 2 3 3")
		want(t, "condition before the drain", g.stats().Condition, ConditionRetrying)
		from := time.Now()
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "the drain took", time.Since(from), 0)
	})
}

// A pause that begins while the consumer is asked anew, and has not answered yet,
// ends with its answer: what it has answered before is of the place before.
func TestPauseEndsWithAHandshakeThatWasUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.deliveryBackoff = Fixed(time.Hour) })
		g.marks = &spyMarks{}
		g.start()
		c := g.subscribe("s", "sub")
		g.feed(box("s", 1))
		g.pump()
		answer := make(chan struct{})
		c.set(func(c *scriptConsumer) {
			c.shakeGate = answer
			c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{Rewind: at(PositionAt, 2)}, nil }
		})
		g.announce("s", "sub")
		g.feed(boxes("s", 2, 3)...)
		g.pump()
		want(t, "offered before it has answered", c.offered(), "1 2 2")
		c.set(func(c *scriptConsumer) { c.onDeliver = nil })
		close(answer)
		synctest.Wait()
		want(t, "offered when it has answered", c.offered(), "1 2 2 2 3")
		time.Sleep(2 * time.Hour)
		g.pump()
		want(t, "offered", c.offered(), "1 2 2 2 3")
		want(t, "reason", g.stats().Reason, "")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "checkpoint", g.marks.at(), 3)
	})
}

// slowBackoff says only when it is told to that the first pause is none; later
// ones take an hour.
type slowBackoff struct {
	calls atomic.Int32
	first chan struct{}
}

func (s *slowBackoff) Next(int) time.Duration {
	if s.calls.Add(1) == 1 {
		<-s.first
		return 0
	}
	return time.Hour
}

// A backoff that takes longer than its pause does not end a later one.
func TestLateBackoffDoesNotEndALaterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowBackoff{first: make(chan struct{})}
		g := newRig(t, func(_ *rig, c *agentConfig) { c.deliveryBackoff = slow })
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		g.feed(box("s", 1))
		g.pump()
		answer := make(chan struct{})
		c.set(func(c *scriptConsumer) {
			c.shakeGate = answer
			c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{Rewind: at(PositionAt, 2)}, nil }
		})
		g.announce("s", "sub")
		g.feed(box("s", 2))
		g.pump()
		want(t, "offered before the first pause", c.offered(), "1 2 2")
		close(answer)
		synctest.Wait()
		want(t, "offered before the second pause", c.offered(), "1 2 2 2 2")
		close(slow.first)
		synctest.Wait()
		g.pump()
		want(t, "offered in the second pause", c.offered(), "1 2 2 2 2")
		c.set(func(c *scriptConsumer) { c.onDeliver = nil })
		time.Sleep(2 * time.Hour)
		g.pump()
		want(t, "offered behind it", c.offered(), "1 2 2 2 2 2")
	})
}

// A subscription that is removed elsewhere while subscribing again fails does not
// get its consumer of before back.
func TestFailedSubscribeDoesNotReviveARemovedSubscription(t *testing.T) {
	registry := &refusing{MemoryRegistry: NewMemoryRegistry()}
	var during func()
	p := openProvider(t, &fixedFactory{}, func(c *Config) { c.Registry = whileSubscribing{registry, &during} })
	s := Of[string](p, "n", "k")
	nop := func(context.Context, penstock.Batch[string]) error { return nil }
	key := consumerKey{s.ID(), "x"}
	for _, removed := range []bool{true, false} {
		registry.err, during = nil, func() {}
		subscribe(t, s, "x", nop)
		recs, err := p.config.Registry.Subscriptions(t.Context(), p.qualified(s.ID()))
		if err != nil || len(recs) != 1 {
			t.Fatalf("registered %v, %v", recs, err)
		}
		registry.err = errBoom
		during = func() {
			rec := recs[0]
			if !removed { // one from before it, whose removal was told late
				rec.Incarnation--
			}
			p.forget(rec)
		}
		if _, err := s.Subscribe(t.Context(), "x", nop); !errors.Is(err, errBoom) {
			t.Errorf("subscribe: %v", err)
		}
		want(t, "there is a consumer", p.consumers[key] != nil, !removed)
	}
}

// whileSubscribing calls a function in each Subscribe.
type whileSubscribing struct {
	*refusing
	during *func()
}

func (w whileSubscribing) Subscribe(ctx context.Context, rec SubscriptionRecord) (SubscriptionRecord, error) {
	(*w.during)()
	return w.refusing.Subscribe(ctx, rec)
}
