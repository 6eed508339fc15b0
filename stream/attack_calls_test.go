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
	"github.com/penstock/penstock/queue"
)

// slowRegistry does not store a subscription before its gate opens.
type slowRegistry struct {
	*MemoryRegistry
	gate chan struct{}
}

func (s slowRegistry) Subscribe(ctx context.Context, r SubscriptionRecord) (SubscriptionRecord, error) {
	<-s.gate
	return s.MemoryRegistry.Subscribe(ctx, r)
}

// Unsubscribe took away the consumer of a Subscribe that was under way: the
// subscription was stored, nobody handled it, and the checkpoint waited for ever.
func TestUnsubscribeBesideSubscribeTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		slow := slowRegistry{NewMemoryRegistry(), make(chan struct{})}
		p := openProvider(t, topic, func(c *Config) { c.Registry = slow })
		defer p.Close()
		s := Of[string](p, "n", "k")
		var r recorder
		subscribed, unsubscribed := make(chan error, 1), make(chan error, 1)
		go func() { // ends with its call, below
			_, err := s.Subscribe(t.Context(), "x", r.handle)
			subscribed <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Unsubscribe(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Unsubscribe beside a Subscribe that does not return: %v", err)
		}
		go func() { unsubscribed <- s.Unsubscribe(t.Context(), "x") }() // ends with its call, below
		synctest.Wait()
		close(slow.gate)
		if err := errors.Join(<-subscribed, <-unsubscribed); err != nil {
			t.Error(err)
		}
		recs, err := s.Subscriptions(t.Context())
		if err != nil || len(recs) != len(p.consumers) {
			t.Errorf("%d subscriptions are stored and %d attached (%v)", len(recs), len(p.consumers), err)
		}
		want(t, "turns that are left", len(p.turns.keys), 0)
	})
}

// A name that can be written and not be read again made the store damaged, for
// ever.
func TestMapperOfALongNameIsRefused(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", penstock.MaxFieldBytes+1)
	for _, err := range []error{
		s.Registry().KeepMapper(t.Context(), long, "m", false),
		s.Registry().KeepMapper(t.Context(), "p", long, false),
	} {
		if !errors.Is(err, penstock.ErrTooLarge) {
			t.Errorf("KeepMapper: %v", err)
		}
	}
	if err := s.Registry().KeepMapper(t.Context(), long[1:], "m", false); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if s, err = OpenStore(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// What a read had made before Event panicked was passed over.
func TestGeneratorWhoseEventPanicsLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		g, err := NewGenerator(GeneratorConfig{Streams: 1, Events: 5, Event: func(_ penstock.StreamID, n int) penstock.Envelope {
			if calls.Add(1) == 4 {
				panic("rude")
			}
			return penstock.Envelope{Value: []byte{'0' + byte(n)}}
		}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := Open(Config{Name: "made", Factory: g, Queues: 1, ReadBackoff: Fixed(time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		var got []byte
		_, err = OfCodec(p, "generated", "0", penstock.Raw()).Subscribe(t.Context(), "x", func(_ context.Context, b penstock.Batch[[]byte]) error {
			for _, v := range b.Values() {
				got = append(got, v...)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		stop := running(p)
		time.Sleep(time.Minute)
		if err := stop(); err != nil {
			t.Error(err)
		}
		want(t, "settled", string(got), "01234")
	})
}

// failsOnce makes no cache for the queue 1 the first time.
func failsOnce(f Factory) Factory {
	failed := false
	return WithCache(f, func(q QueueID) (Cache, error) {
		if q.Number == 1 && !failed {
			failed = true
			return nil, errBoom
		}
		return NewSimpleCache(10)
	})
}

// A second StartAgents returned nil, and did nothing for the agent that the
// first one could not start.
func TestStartAgentsStartsWhatCouldNotBeStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, failsOnce(topic), func(c *Config) { c.Startup = AgentsStopped })
		defer p.Close()
		stop := running(p)
		synctest.Wait()
		if err := p.StartAgents(t.Context()); !errors.Is(err, errBoom) {
			t.Errorf("StartAgents: %v", err)
		}
		if err := p.StartAgents(t.Context()); err != nil {
			t.Error(err)
		}
		_, agents := p.State()
		want(t, "agents", agents, 2)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A verdict that is for deliveries only faulted a subscription, and so did one
// that does not exist.
func TestVerdictThatIsNotForSubscriptionsAsksAgain(t *testing.T) {
	for _, v := range []Verdict{DeadLetter, 77} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t)
			g.subFailed = func(Failure) Verdict { return v }
			g.start()
			c := g.subscribe("s", "sub")
			c.onShake = func(n int) (Position, error) {
				if n == 1 {
					return Position{Kind: 99}, nil
				}
				return Position{}, nil
			}
			g.feed(box("s", 1))
			g.pump()
			g.pump()
			want(t, "settled", c.values(), "1")
			want(t, "faulted", g.stats().Faulted, 0)
			if err := g.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
