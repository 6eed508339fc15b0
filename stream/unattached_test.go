package stream

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// A consumer that cannot be reached yet holds its place; the stream stays in
// the table and the others go on.
func TestSubscriptionWithoutAConsumerKeepsItsStream_ORC12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.unresolved = errUnattached
		g.start()
		defer g.stop()
		g.announce("s", "nobody")
		other := g.subscribe("s", "other")
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		time.Sleep(time.Hour)
		synctest.Wait()
		g.pump()
		g.wantTable("s:registered")
		want(t, "others go on", other.values(), "1 2 3")
		want(t, "cached", g.stats().Cached, 3)
		want(t, "progress", g.lastProgress(), "nil") // of the time before the first event
		if why := g.stats().Reason; !strings.Contains(why, `"nobody"`) || !strings.Contains(why, "subscribed or removed") {
			t.Errorf("reason %q", why)
		}
		c := g.subscribe("s", "nobody")
		want(t, "what was kept for it", c.values(), "1 2 3")
		g.pump()
		want(t, "progress", g.lastProgress(), "3")
	})
}

// A registry that outlives a provider names subscriptions that nobody handles
// yet.
func TestStoredSubscriptionAfterARestart_OR101(t *testing.T) {
	for name, c := range map[string]struct {
		policy     UnattachedPolicy
		hook       bool
		got        string // after subscribing again
		listed     int    // before
		unattended uint64
	}{
		"hold":   {policy: HoldUnattached, got: "a b", listed: 1},
		"drop":   {policy: DropUnattached, got: "b", listed: 1, unattended: 1},
		"remove": {policy: RemoveUnattached, got: "b", listed: 0},
		"hook":   {policy: RemoveUnattached, hook: true, got: "a b", listed: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
				defer topic.Close()
				registry := NewMemoryRegistry()
				nop := func(context.Context, penstock.Batch[string]) error { return nil }
				before := openProvider(t, topic, func(c *Config) { c.Registry = registry })
				subscribe(t, Of[string](before, "n", "k"), "sub", nop)
				if err := before.Close(); err != nil {
					t.Fatal(err)
				}
				var r recorder
				var p *Provider
				p = openProvider(t, topic, func(config *Config) {
					config.Registry, config.Unattached = registry, c.policy
					if c.hook {
						config.OnUnattached = func(ctx context.Context, rec SubscriptionRecord) error {
							_, err := OfCodec(p, rec.Stream.Namespace, rec.Stream.Key, penstock.JSON[string]()).Subscribe(ctx, rec.Name, r.handle)
							return err
						}
					}
				})
				defer p.Close()
				s := Of[string](p, "n", "k")
				publish(t, s, "a")
				stop := running(p)
				time.Sleep(time.Second)
				recs, err := s.Subscriptions(t.Context())
				if err != nil || len(recs) != c.listed {
					t.Errorf("listed %v, %v; want %d", recs, err, c.listed)
				}
				unattended := uint64(0)
				for _, q := range p.Stats() {
					unattended += q.Unattended
				}
				want(t, "unattended", unattended, c.unattended)
				if !c.hook {
					subscribe(t, s, "sub", r.handle)
					time.Sleep(time.Second) // an event under way while it is asked anew would come twice
				}
				publish(t, s, "b")
				time.Sleep(time.Second)
				if err := stop(); err != nil {
					t.Error(err)
				}
				want(t, "got", r.got(), c.got)
			})
		})
	}
}

// A hook that fails is asked again.
func TestUnattachedHookThatFails_OR101(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		registry := NewMemoryRegistry()
		var r recorder
		calls := 0
		var p *Provider
		p = openProvider(t, topic, func(c *Config) {
			c.Registry = registry
			c.OnUnattached = func(ctx context.Context, rec SubscriptionRecord) error {
				if calls++; calls < 3 {
					return errors.New("not ready")
				}
				_, err := Of[string](p, rec.Stream.Namespace, rec.Stream.Key).Subscribe(ctx, rec.Name, r.handle)
				return err
			}
		})
		defer p.Close()
		s := Of[string](p, "n", "k")
		if _, err := registry.Subscribe(t.Context(), SubscriptionRecord{Stream: p.qualified(s.ID()), Name: "sub"}); err != nil {
			t.Fatal(err)
		}
		publish(t, s, "a")
		stop := running(p)
		time.Sleep(time.Second)
		stop()
		want(t, "got", r.got(), "a")
		want(t, "calls", calls, 3)
	})
}
