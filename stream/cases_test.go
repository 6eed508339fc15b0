package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

func TestRegistrationThatAnswersAtOnceLeavesNothingPending_ORC4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		g.feed(box("s", 1))
		want(t, "had data", g.pump(), true)
		g.wantTable("s:registered")
		g.pump() // a look at what is outstanding
		want(t, "busy", g.stats().Busy, 0)
		want(t, "reason", g.stats().Reason, "")
	})
}

// While one stream registers the others of its queue are read and delivered
// (OR-57): nothing of the one is purged or acknowledged meanwhile.
func TestOtherStreamsGoOnWhileOneRegisters_OR57(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		fast := g.subscribe("fast", "sub")
		g.feed(box("fast", 1))
		g.pump()
		block := make(chan struct{})
		g.registry.mu.Lock()
		g.registry.block = block
		g.registry.mu.Unlock()
		cold := g.subscribe("cold", "sub")
		g.feed(box("cold", 2), box("fast", 3))
		g.pump()
		g.feed(box("fast", 4))
		g.pump()
		want(t, "the fast one", fast.values(), "1 3 4")
		want(t, "the cold one", cold.values(), "")
		want(t, "acknowledged", g.receivers[0].acks(), "1")
		close(block)
		synctest.Wait()
		g.pump()
		want(t, "the cold one, then", cold.values(), "2")
		want(t, "acknowledged, then", g.receivers[0].acks(), "1 2 3 4")
	})
}

// One initial subscription that cannot be attached does not disturb the others
// (OR-62); the pin falls when all have ended (OR-63).
func TestInitialSubscriptionsAreIsolated_OR62(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
		g.start()
		defer g.stop()
		bad, slow, good := g.subscribe("s", "bad"), g.subscribe("s", "slow"), g.subscribe("s", "good")
		bad.onShake = func(int) (Position, error) { return Position{}, errBoom }
		slow.shakeGate = make(chan struct{})
		g.subFailed = func(Failure) Verdict { return Fault }
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "good", good.values(), "1 2")
		g.pump()
		want(t, "cached while one is asked", g.stats().Cached, 2)
		close(slow.shakeGate)
		synctest.Wait()
		g.pump()
		want(t, "slow", slow.values(), "1 2")
		want(t, "cached in the end", g.stats().Cached, 0)
		g.wantTable("s:registered")
	})
}

// A notice for a stream that is not active changes nothing (OR-66); a removal
// closes the cursor, and the last one takes the stream out of the table (OR-68).
func TestNoticesOfInactiveAndEmptyStreams_OR68(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		g.registry.RegisterProducer(t.Context(), g.qualified("unknown"), g.agent) // so that it is told
		g.subscribe("unknown", "sub")
		g.wantTable()
		a, b := g.subscribe("s", "a"), g.subscribe("s", "b")
		a.gate, b.gate = make(chan struct{}), make(chan struct{})
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		g.unsubscribe("s", "a")
		close(a.gate)
		synctest.Wait()
		g.wantTable("s:registered")
		want(t, "cached for the other", g.stats().Cached, 3)
		close(b.gate)
		synctest.Wait()
		g.unsubscribe("s", "b")
		g.wantTable()
		g.pump()
		want(t, "cached", g.stats().Cached, 0)
		want(t, "removed one got", a.values(), "1") // under way when it was removed
	})
}

// A failed handshake keeps its stream through the sweep (OR-70).
func TestUnresolvedStreamSurvivesTheSweep_OR70(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		g.feed(box("s", 1))
		g.pump()
		g.subFailed = func(Failure) Verdict { return Retry }
		c.set(func(c *scriptConsumer) { c.onShake = func(int) (Position, error) { return Position{}, errBoom } })
		g.announce("s", "sub")
		time.Sleep(time.Hour)
		g.pump()
		g.wantTable("s:registered")
		c.set(func(c *scriptConsumer) { c.onShake = nil })
		time.Sleep(time.Second) // the attempt of that poll has failed
		g.pump()
		time.Sleep(time.Hour)
		g.pump()
		g.wantTable()
	})
}

// An error of a report costs a repetition, not the agent (OR-51), and errors of
// the end are logged, not returned (OR-141).
func TestErrorsOfReportsAndOfTheEndAreSurvived_OR141(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		newReceiver := g.agent.newReceiver
		g.agent.newReceiver = func() (Receiver, error) {
			rec, err := newReceiver()
			return unwilling{rec}, err
		}
		g.agent.registry = unwillingRegistry{g.registry}
		g.start()
		c := g.subscribe("s", "sub")
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		g.pump()
		want(t, "settled", c.values(), "1 2 3")
		if err := g.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		want(t, "shutdowns", g.receivers[0].ended(), 1)
	})
}

type unwilling struct{ Receiver }

func (unwilling) Delivered(context.Context, []Container) error { return errBoom }
func (u unwilling) Shutdown(ctx context.Context) error {
	return errors.Join(u.Receiver.Shutdown(ctx), errBoom)
}

type unwillingRegistry struct{ Registry }

func (unwillingRegistry) UnregisterProducer(context.Context, QualifiedStreamID, Producer) error {
	return errBoom
}

// Consumers that are gone are unregistered, and what overlaps it does not bring
// them back (OR-84).
func TestUnregisteringADeadConsumerCompletes_OR84(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{}, ErrConsumerGone }
		block := make(chan struct{})
		g.agent.registry = slowUnsubscribe{g.registry, block}
		g.feed(box("s", 1))
		g.pump()
		want(t, "attached while the registry is asked", g.stats().Subscriptions, 0)
		g.agent.ask(func(r *run) { // a roster that was on its way says that it is still there
			recs, _ := g.registry.Subscriptions(context.Background(), g.qualified("s"))
			r.rosterChanged(g.qualified("s").StreamID, Roster{Revision: 1, Subscriptions: recs})
		})
		close(block)
		synctest.Wait()
		recs, _ := g.registry.Subscriptions(t.Context(), g.qualified("s"))
		want(t, "listed", names(recs), "")
		want(t, "attached", g.stats().Subscriptions, 0)
		g.wantTable()
	})
}

type slowUnsubscribe struct {
	Registry
	block chan struct{}
}

func (s slowUnsubscribe) Unsubscribe(ctx context.Context, r SubscriptionRecord) error {
	<-s.block
	return s.Registry.Unsubscribe(ctx, r)
}

// A consumer that has processed a token goes on strictly behind it, also when
// the container of that token is not there: nothing is skipped blindly (OR-75,
// dotnet/orleans#9023).
func TestResumeBehindATokenThatIsNotThere_OR75(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onShake = func(int) (Position, error) { return at(PositionResume, 1), nil }
		g.feed(box("s", 2), box("s", 3)) // 1 was never in this cache
		g.pump()
		want(t, "settled", c.values(), "2 3")
	})
}

// The fast of two new subscriptions gets what comes while the slow one is still
// asked (dotnet/orleans#9107).
func TestFastOneGetsWhatComesWhileASlowOneAttaches_OR86(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		a, b := g.subscribe("s", "a"), g.subscribe("s", "b")
		b.shakeGate = make(chan struct{})
		g.feed(box("s", 1))
		g.pump()
		want(t, "a", a.values(), "1")
		g.feed(box("s", 2))
		g.pump()
		want(t, "a again", a.values(), "1 2")
		want(t, "cached for b", g.stats().Cached, 2)
		close(b.shakeGate)
		synctest.Wait()
		want(t, "b", b.values(), "1 2")
	})
}

func TestListingFollowsUnsubscribing_ORC128(t *testing.T) {
	p := openProvider(t, &fixedFactory{})
	s := Of[string](p, "n", "k")
	nop := func(context.Context, penstock.Batch[string]) error { return nil }
	var subs []*Subscription
	for i := range 10 {
		subs = append(subs, subscribe(t, s, fmt.Sprint("sub", i), nop))
	}
	listed := func() int {
		recs, err := s.Subscriptions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, n, err := s.Counts(t.Context())
		if err != nil || n != len(recs) {
			t.Errorf("counted %d, %v; listed %d", n, err, len(recs))
		}
		return len(recs)
	}
	want(t, "ten", listed(), 10)
	for i, sub := range subs {
		if err := sub.Unsubscribe(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, "left", listed(), 9-i)
		if err := sub.Unsubscribe(t.Context()); !errors.Is(err, penstock.ErrNotFound) {
			t.Errorf("twice: %v", err)
		}
	}
}

func TestSubscriptionsComeAndGo_ORC129(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		s := Of[string](p, "n", "k")
		defer running(p)()
		var both, first, second, third recorder
		a, b := subscribe(t, s, "a", both.handle), subscribe(t, s, "b", first.handle)
		step := func(v string) {
			time.Sleep(time.Second)
			publish(t, s, v)
			time.Sleep(time.Second)
		}
		step("1")
		if err := b.Unsubscribe(t.Context()); err != nil {
			t.Error(err)
		}
		step("2")
		c := subscribe(t, s, "b", second.handle) // the name again is another subscription
		step("3")
		if err := c.Unsubscribe(t.Context()); err != nil {
			t.Error(err)
		}
		subscribe(t, s, "c", third.handle)
		step("4")
		if err := a.Unsubscribe(t.Context()); err != nil {
			t.Error(err)
		}
		step("5")
		want(t, "a", both.got(), "1 2 3 4")
		want(t, "b", first.got(), "1")
		want(t, "b again", second.got(), "3")
		want(t, "c", third.got(), "4 5")
	})
}

func TestConsumersOfBatches_ORC138(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) { c.GroupSize = 8 })
		defer p.Close()
		batches, singles := Of[string](p, "n", "batches"), Of[string](p, "n", "singles")
		var calls int
		var sizes []int
		subscribe(t, batches, "each", Each(func(context.Context, string, penstock.Token) error { calls++; return nil }))
		sizer := func(_ context.Context, b penstock.Batch[string]) error { sizes = append(sizes, b.Len()); return nil }
		subscribe(t, batches, "batch", sizer)
		for range 3 {
			if err := batches.Publish(t.Context(), strings.Split("0123456789", "")...); err != nil {
				t.Fatal(err)
			}
		}
		stop := running(p)
		time.Sleep(time.Second)
		stop()
		sum := func() (n int) {
			for _, s := range sizes {
				n += s
			}
			return n
		}
		want(t, "calls", calls, 30)
		want(t, "events in batches", sum(), 30)
		if slices.Max(sizes) < 10 {
			t.Errorf("sizes %v: a container is delivered whole", sizes)
		}
		sizes = nil
		subscribe(t, singles, "batch", sizer)
		for i := range 30 {
			publish(t, singles, fmt.Sprint(i))
		}
		stop = running(p)
		time.Sleep(time.Second)
		stop()
		want(t, "single events", sum(), 30)
		if slices.Max(sizes) <= 1 {
			t.Errorf("sizes %v: some call has several", sizes)
		}
	})
}

// A subscribe that the registry refuses leaves no handler behind; what was there
// comes back (OR-146).
func TestRefusedSubscribeIsTakenBack_OR146(t *testing.T) {
	registry := &refusing{MemoryRegistry: NewMemoryRegistry()}
	p := openProvider(t, &fixedFactory{}, func(c *Config) { c.Registry = registry })
	s := Of[string](p, "n", "k")
	nop := func(context.Context, penstock.Batch[string]) error { return nil }
	registry.err = errBoom
	if _, err := s.Subscribe(t.Context(), "new", nop); !errors.Is(err, errBoom) {
		t.Errorf("subscribe: %v", err)
	}
	want(t, "attached", len(p.consumers), 0)
	registry.err = nil
	subscribe(t, s, "old", nop)
	before := p.consumers[consumerKey{s.ID(), "old"}]
	registry.err = errBoom
	if _, err := s.Subscribe(t.Context(), "old", nop); !errors.Is(err, errBoom) {
		t.Errorf("resume: %v", err)
	}
	want(t, "the old handler", p.consumers[consumerKey{s.ID(), "old"}], before)
}

type refusing struct {
	*MemoryRegistry
	err error
}

func (r *refusing) Subscribe(ctx context.Context, rec SubscriptionRecord) (SubscriptionRecord, error) {
	if r.err != nil {
		return SubscriptionRecord{}, r.err
	}
	return r.MemoryRegistry.Subscribe(ctx, rec)
}

// Two providers over one topic, and over one registry, do not see each other.
func TestProvidersLiveSideBySide_OR158(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		registry := NewMemoryRegistry()
		var got [2]recorder
		var providers [2]*Provider
		for i, name := range []string{"one", "two"} {
			p := openProvider(t, topic, func(c *Config) { c.Name, c.Registry = name, registry })
			defer p.Close()
			providers[i] = p
			subscribe(t, Of[string](p, "n", "k"), "sub", got[i].handle, From(Earliest))
		}
		publish(t, Of[string](providers[0], "n", "k"), "a", "b") // a topic is read by every provider over it
		stopOne := running(providers[0])
		time.Sleep(time.Second)
		stopOne()
		want(t, "one, which ran", got[0].got(), "a b")
		want(t, "two, which did not", got[1].got(), "")
		stopTwo := running(providers[1])
		time.Sleep(time.Second)
		stopTwo()
		want(t, "two", got[1].got(), "a b")
	})
}

// A subscription that was faulted and is reset goes on.
func TestResetGoesOn_OR113(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) {
			c.MaxDeliveryTime = time.Millisecond
			c.Failure = alwaysSays{Fault}
		})
		defer p.Close()
		s := Of[string](p, "n", "k")
		var r recorder
		var told []string
		r.fail = func(call int, _ penstock.Batch[string]) error {
			if call < 5 {
				return errBoom
			}
			return nil
		}
		subscribe(t, s, "sub", r.handle, OnNotice(func(_ context.Context, n Notice) {
			told = append(told, fmt.Sprint(n.Kind, " ", n.Events, " ", errors.Is(n.Err, ErrFaulted)))
		}))
		stop := running(p)
		publish(t, s, "a")
		time.Sleep(time.Second)
		faulted, err := s.Faulted(t.Context())
		want(t, "faulted", fmt.Sprint(names(faulted), " ", err), "sub <nil>")
		want(t, "told", strings.Join(told, ", "), "delivery failed 1 false, faulted 0 true")
		r.mu.Lock()
		r.fail = nil
		r.mu.Unlock()
		if err := s.Reset(t.Context(), "sub"); err != nil {
			t.Error(err)
		}
		if err := s.Reset(t.Context(), "sub"); !errors.Is(err, penstock.ErrNotFound) {
			t.Errorf("second reset: %v", err)
		}
		time.Sleep(time.Second)
		publish(t, s, "b")
		time.Sleep(time.Second)
		stop()
		want(t, "got", r.got(), "b")
	})
}

type alwaysSays struct{ v Verdict }

func (a alwaysSays) DeliveryFailed(context.Context, Failure) Decision  { return Decision{Verdict: a.v} }
func (a alwaysSays) SubscribeFailed(context.Context, Failure) Decision { return Decision{Verdict: a.v} }

// What the cache refuses for now is kept and added later, without reading it
// again and without delivering anything twice.
func TestRefusedContainersAreAddedLater_OR58(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		moody := &moodyCache{refuse: 2}
		g := newRig(t, func(g *rig, _ *agentConfig) {
			g.newCache = func() (Cache, error) {
				inner, err := NewSimpleCache(DefaultCapacity)
				moody.Cache = inner
				return moody, err
			}
		})
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		want(t, "at first", c.values(), "1")
		reads := g.receivers[0].reads()
		g.pump() // refused again
		want(t, "reads meanwhile", g.receivers[0].reads(), reads)
		want(t, "progress meanwhile", g.lastProgress(), "1")
		moody.refuse = 0
		g.pump()
		g.pump()
		want(t, "in the end", c.values(), "1 2 3")
		want(t, "progress", g.lastProgress(), "3")
		want(t, "counted", g.stats().Read, 3)
	})
}

// moodyCache refuses batches with a token.
type moodyCache struct {
	Cache
	refuse uint64
}

func (m *moodyCache) Add(batch []Container) error {
	for _, c := range batch {
		if m.refuse > 0 && m.refuse == c.Token.Lo {
			return errBoom
		}
	}
	return m.Cache.Add(batch)
}

// A container that can never be kept does not keep the others out; the
// checkpoint stays before it.
func TestOversizedContainerKeepsNobodyOut_OR58(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(g *rig, _ *agentConfig) {
			g.newCache = func() (Cache, error) {
				inner, err := NewSimpleCache(DefaultCapacity)
				return &strictCache{inner}, err
			}
		})
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		g.pump()
		want(t, "settled", c.values(), "1 3")
		want(t, "progress", g.lastProgress(), "nil") // of the time before
		if why := g.stats().Reason; !strings.Contains(why, "refused") {
			t.Errorf("reason %q", why)
		}
	})
}

type strictCache struct{ Cache }

func (s *strictCache) Add(batch []Container) error {
	for _, c := range batch {
		if c.Token.Lo == 2 {
			return fmt.Errorf("container: %w", penstock.ErrTooLarge)
		}
	}
	return s.Cache.Add(batch)
}
