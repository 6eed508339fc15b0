package stream

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock/queue"
)

// A stream that has left the table while its containers were still in the cache
// is registered anew by its next one.
func TestStreamThatWasForgottenIsRegisteredAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		gone, slow := g.subscribe("a", "sub"), g.subscribe("b", "sub")
		gate := make(chan struct{})
		slow.set(func(c *scriptConsumer) { c.gate = gate })
		g.feed(box("b", 1), box("a", 2))
		g.pump()
		g.unsubscribe("a", "sub")
		g.wantTable("b:registered")
		g.agent.ask(func(r *run) {
			want(t, "the container of a is cached", r.shelf.streams[box("a", 2).Stream] != nil, true)
		})
		c := g.subscribe("a", "other")
		g.feed(box("a", 3))
		g.pump()
		want(t, "settled by the old one", gone.values(), "2")
		want(t, "settled by the new one", c.values(), "3")
		close(gate)
		synctest.Wait()
		want(t, "settled by the slow one", slow.values(), "1")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// The consumer that was found for a delivery is used for the next ones until
// another one takes its place; one whose registration fails takes none.
func TestDeliveryGoesToWhoIsSubscribedThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		registry := &refusing{MemoryRegistry: NewMemoryRegistry()}
		p := openProvider(t, topic, func(c *Config) { c.Registry = registry })
		defer p.Close()
		s := Of[string](p, "n", "s")
		var first, second, third recorder
		subscribe(t, s, "x", first.handle)
		stop := running(p)
		publish(t, s, "1", "2")
		synctest.Wait()
		subscribe(t, s, "x", second.handle)
		synctest.Wait()
		publish(t, s, "3", "4")
		synctest.Wait()
		registry.err = errBoom
		if _, err := s.Subscribe(t.Context(), "x", third.handle); !errors.Is(err, errBoom) {
			t.Errorf("subscribe: %v", err)
		}
		registry.err = nil
		publish(t, s, "5")
		synctest.Wait()
		want(t, "the first one", first.got(), "1 2")
		want(t, "the second one", second.got(), "3 4 5")
		want(t, "the refused one", third.got(), "")
		if err := s.Unsubscribe(t.Context(), "x"); err != nil {
			t.Error(err)
		}
		subscribe(t, s, "x", third.handle)
		synctest.Wait()
		publish(t, s, "6")
		synctest.Wait()
		want(t, "the third one", third.got(), "6")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
