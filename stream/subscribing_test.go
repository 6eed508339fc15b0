package stream

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// observedRegistry calls a function before it registers a subscription.
type observedRegistry struct {
	Registry
	before func(rec SubscriptionRecord)
}

func (o *observedRegistry) Subscribe(ctx context.Context, rec SubscriptionRecord) (SubscriptionRecord, error) {
	o.before(rec)
	return o.Registry.Subscribe(ctx, rec)
}

// A consumer is attached here before the registry, and so any agent, hears of its
// subscription.
func TestConsumerIsAttachedBeforeItIsRegistered_OR146(t *testing.T) {
	registry := &observedRegistry{Registry: NewMemoryRegistry()}
	p := openProvider(t, &fixedFactory{}, func(c *Config) { c.Registry = registry })
	defer p.Close()
	s := Of[string](p, "n", "k")
	calls := 0
	registry.before = func(rec SubscriptionRecord) {
		calls++
		want(t, "attached when it is registered", p.local(rec) != nil, true)
	}
	nop := func(context.Context, penstock.Batch[string]) error { return nil }
	subscribe(t, s, "x", nop)
	before := p.local(SubscriptionRecord{Stream: p.qualified(s.ID()), Name: "x"})
	registry.before = func(rec SubscriptionRecord) {
		calls++
		want(t, "replaced when it is registered again", p.local(rec) != before, true)
	}
	subscribe(t, s, "x", nop)
	want(t, "registrations", calls, 2)
}

// Each name is a subscription of its own, and the same name is the same one: its
// id stays, and any handle on it can be used.
func TestSameNameIsTheSameSubscription_OR148(t *testing.T) {
	p := openProvider(t, &fixedFactory{})
	defer p.Close()
	s := Of[string](p, "n", "k")
	nop := func(context.Context, penstock.Batch[string]) error { return nil }
	record := func(name string) SubscriptionRecord {
		t.Helper()
		recs, err := s.Subscriptions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range recs {
			if r.Name == name {
				return r
			}
		}
		t.Fatalf("%q is not among %v", name, recs)
		return SubscriptionRecord{}
	}
	first := subscribe(t, s, "x", nop)
	one := record("x")
	again := subscribe(t, s, "x", nop)
	two := record("x")
	want(t, "id", two.ID(), one.ID())
	want(t, "incarnation", two.Incarnation, one.Incarnation)
	want(t, "it was announced again", two.Attached > one.Attached, true)
	subscribe(t, s, "y", nop)
	want(t, "another name has another id", record("y").ID() != one.ID(), true)
	if err := first.Unsubscribe(t.Context()); err != nil {
		t.Errorf("the handle of before: %v", err)
	}
	if err := again.Unsubscribe(t.Context()); !errors.Is(err, penstock.ErrNotFound) {
		t.Errorf("a handle on what is no more: %v", err)
	}
	if err := Of[string](p, "n", "other").Unsubscribe(t.Context(), "y"); !errors.Is(err, penstock.ErrNotFound) {
		t.Errorf("of another stream: %v", err)
	}
	want(t, "consumers left", len(p.consumers), 1)
}

// Unsubscribing works without a handler here, and can be repeated after an error.
func TestUnsubscribeWithoutAHandler_OR148(t *testing.T) {
	registry := &brokenUnsubscribe{MemoryRegistry: NewMemoryRegistry()}
	nop := func(context.Context, penstock.Batch[string]) error { return nil }
	p := openProvider(t, &fixedFactory{}, func(c *Config) { c.Registry = registry })
	subscribe(t, Of[string](p, "n", "k"), "x", nop)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = openProvider(t, &fixedFactory{}, func(c *Config) { c.Registry = registry }) // a restart: nobody handles it
	defer p.Close()
	s := Of[string](p, "n", "k")
	registry.err = errBoom
	if err := s.Unsubscribe(t.Context(), "x"); !errors.Is(err, errBoom) {
		t.Errorf("unsubscribe while the registry is down: %v", err)
	}
	registry.err = nil
	if err := s.Unsubscribe(t.Context(), "x"); err != nil {
		t.Errorf("unsubscribe again: %v", err)
	}
	recs, err := s.Subscriptions(t.Context())
	if err != nil || len(recs) != 0 {
		t.Errorf("left %v, %v", recs, err)
	}
}

type brokenUnsubscribe struct {
	*MemoryRegistry
	err error
}

func (b *brokenUnsubscribe) Unsubscribe(ctx context.Context, rec SubscriptionRecord) error {
	if b.err != nil {
		return b.err
	}
	return b.MemoryRegistry.Unsubscribe(ctx, rec)
}

// After a restart a stored subscription goes on with the next events when it is
// subscribed again by its name, and keeps its id.
func TestSubscribedAgainAfterARestart_ORC130(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		registry := NewMemoryRegistry()
		var got [2]recorder
		var ids [2]SubscriptionID
		for life := range got {
			p := openProvider(t, topic, func(c *Config) { c.Registry = registry })
			s := Of[string](p, "n", "k")
			subscribe(t, s, "x", got[life].handle)
			recs, err := s.Subscriptions(t.Context())
			if err != nil || len(recs) != 1 {
				t.Fatalf("subscriptions %v, %v", recs, err)
			}
			ids[life] = recs[0].ID()
			stop := running(p)
			publish(t, s, []string{"a", "c"}[life])
			time.Sleep(time.Second)
			if err := stop(); err != nil {
				t.Error(err)
			}
			publish(t, s, []string{"b", "d"}[life])
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		want(t, "before the restart", got[0].got(), "a")
		want(t, "after it", got[1].got(), "b c")
		want(t, "id", ids[1], ids[0])
	})
}

// Resuming with a place on an adapter that cannot rewind is refused like
// subscribing with one, and leaves the subscription as it was.
func TestResumeWithAPlaceIsRefused_ORC140(t *testing.T) {
	p := openProvider(t, &fixedFactory{})
	defer p.Close()
	s := Of[string](p, "n", "k")
	nop := func(context.Context, penstock.Batch[string]) error { return nil }
	subscribe(t, s, "x", nop)
	before, err := s.Subscriptions(t.Context())
	if err != nil || len(before) != 1 {
		t.Fatalf("subscriptions %v, %v", before, err)
	}
	handler := p.local(before[0])
	for name, from := range map[string]Start{
		"At": At(penstock.Token{Lo: 1}), "After": After(penstock.Token{Lo: 1}), "AtTime": AtTime(time.Now()),
	} {
		if _, err := s.Subscribe(t.Context(), "x", nop, From(from)); !errors.Is(err, penstock.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
		after, err := s.Subscriptions(t.Context())
		if err != nil || len(after) != 1 || after[0] != before[0] {
			t.Errorf("%s: registered %v, %v, want %v", name, after, err, before)
		}
		want(t, "handler", p.local(before[0]) == handler, true)
	}
}

// The package documentation names the defaults as they are, and says what
// capacity and delivery do not promise.
func TestDefaultsAreAsTheDocumentationSays_OR164(t *testing.T) {
	c := Config{Name: "p", Factory: &fixedFactory{}}
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	want(t, "containers per delivery", c.GroupSize, 1)
	want(t, "poll", c.Poll, 100*time.Millisecond)
	want(t, "containers in a cache", DefaultCapacity, 4096)
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "//", " ")), " ")
	for _, said := range []string{
		"Defaults (one container per delivery, a poll each 100 ms, 4,096 containers in a cache) are behaviour, not a recommendation.",
		"capacity is not durability",
		"when the queue acknowledges", "delivers again after a receiver or a node has failed", "on the checkpoint", "on the adapter's tokens", "and on the consumer",
		"must be idempotent",
	} {
		if !strings.Contains(words, said) {
			t.Errorf("doc.go does not say %q", said)
		}
	}
}
