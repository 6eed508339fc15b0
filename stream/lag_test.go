package stream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// dated is a container that the queue took in at a time.
func dated(c Container, t time.Time) Container {
	c.Time = t
	return c
}

// stateOf returns what the agent says of a subscription and of its stream.
func (g *rig) stateOf(stream, name string) (s StreamState, sub SubscriptionState) {
	g.t.Helper()
	found := false
	g.agent.ask(func(r *run) {
		for _, e := range r.inspect(false, -1, time.Now()) {
			for _, x := range e.Subscriptions {
				if e.Stream.Key == stream && x.Name == name {
					s, sub, found = e, x, true
				}
			}
		}
	})
	if !found {
		g.t.Errorf("subscription %s of %s is not known", name, stream)
	}
	return s, sub
}

// A subscription tells what its stream has, what it was given, what it has
// settled and how far it is behind; a queue counts each event once.
func TestLagOfStreamsAndSubscriptions(t *testing.T) {
	for name, newCache := range map[string]func() (Cache, error){
		"simple": func() (Cache, error) { return NewSimpleCache(DefaultCapacity) },
		"log":    func() (Cache, error) { return NewLogCache(LogCacheConfig{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(g *rig, a *agentConfig) {
					g.newCache, g.marks = newCache, &spyMarks{}
					a.unread = func(read penstock.Token, known bool) (uint64, bool) {
						if !known {
							return 9, true
						}
						return 9 - read.Lo, true
					}
				})
				want(t, "unread before the start", g.stats().Unread, 9)
				want(t, "condition before the start", g.stats().Condition, ConditionStopped)
				g.start()
				slow, other := g.subscribe("s", "slow"), g.subscribe("s", "other")
				block := make(chan struct{})
				slow.gate = block
				other.onDeliver = func(n int, _ *Delivery) (Answer, error) {
					if n == 2 {
						<-block
					}
					return Answer{}, nil
				}
				now := time.Now()
				g.feed(dated(boxOf("s", 1, "a", "b"), now), dated(box("u", 2), now), dated(boxOf("s", 3, "c", "d", "e"), now.Add(-time.Minute)), box("s", 4))
				g.pump()
				time.Sleep(3 * time.Second)
				s, sub := g.stateOf("s", "slow")
				want(t, "newest", s.Newest.Lo, 4)
				want(t, "lag of the stream", s.Lag, 6)
				want(t, "age of the stream", s.LagTime, 63*time.Second)
				want(t, "lag of the slow one", sub.Lag, 6)
				want(t, "age of the slow one", sub.LagTime, 3*time.Second)
				want(t, "offered to the slow one", sub.Offered, penstock.Token{Lo: 1, Index: 1})
				want(t, "settled by the slow one", sub.Settled, 0)
				want(t, "condition of the slow one", sub.Condition, ConditionBusy)
				_, sub = g.stateOf("s", "other")
				want(t, "lag of the other", sub.Lag, 4)
				want(t, "settled by the other", sub.Settled, 2)
				want(t, "offered to the other", sub.Offered, penstock.Token{Lo: 3, Index: 2})
				want(t, "processed by the other", sub.Processed.Lo, 2)
				st := g.stats()
				want(t, "lag of the queue", st.Lag, 6)
				want(t, "age of the queue", st.LagTime, 63*time.Second)
				want(t, "events read", st.ReadEvents, 7)
				want(t, "unread", st.Unread, 5)
				want(t, "condition", st.Condition, ConditionBusy)
				time.Sleep(time.Minute)
				want(t, "condition later", g.stats().Condition, ConditionStuck)
				close(block)
				synctest.Wait()
				s, sub = g.stateOf("s", "slow")
				want(t, "lag at rest", s.Lag+sub.Lag, 0)
				want(t, "age at rest", s.LagTime+sub.LagTime, 0)
				want(t, "settled at rest", sub.Settled, 6)
				want(t, "condition at rest", g.stats().Condition, ConditionIdle)
				g.stop()
				want(t, "condition after the stop", g.stats().Condition, ConditionStopped)
			})
		})
	}
}

// What waits for its subscriptions to be found, and what was read and has no
// room in the cache, counts too.
func TestLagCountsWhatHasNobodyYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.newCache = func() (Cache, error) { return NewSimpleCache(10) }
		block := make(chan struct{})
		g.registry.block = block
		more := boxes("s", 1, 14)
		g.script = func(int, int) ([]Container, error) { // more than was asked for
			out := more
			more = nil
			return out, nil
		}
		g.start()
		g.pump()
		time.Sleep(time.Second)
		st := g.stats()
		want(t, "lag", st.Lag, 14)
		want(t, "cached", st.Cached, 10)
		want(t, "condition", st.Condition >= ConditionAttaching, true)
		close(block)
		synctest.Wait()
		g.pump()
		want(t, "lag at rest", g.stats().Lag, 0)
		g.stop()
	})
}
