package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// A consumer that is away has failed nothing: what it was to be asked or given
// is offered again at each poll, for as long as it takes, and the checkpoint
// waits.
func TestConsumerThatIsAwayKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		away := true
		c := &scriptConsumer{}
		c.onShake = func(int) (Position, error) {
			if away {
				return Position{}, fmt.Errorf("no connection: %w", ErrAway)
			}
			return Position{}, nil
		}
		c.onDeliver = func(int, *Delivery) (Answer, error) {
			if away {
				return Answer{}, fmt.Errorf("no demand: %w", ErrAway)
			}
			return Answer{}, nil
		}
		set := func(v bool) { c.mu.Lock(); defer c.mu.Unlock(); away = v }
		g.consumers["s/far"] = c
		g.announce("s", "far")
		g.feed(boxes("s", 1, 2)...)
		for range 3 {
			g.pump()
			time.Sleep(10 * time.Minute) // longer than the time for attempts
			synctest.Wait()
		}
		want(t, "failures", len(g.failed()), 0)
		want(t, "offered before it was asked", c.offered(), "")
		if why := g.stats().Reason; !strings.Contains(why, "asked again") || !strings.Contains(why, "no connection") {
			t.Errorf("reason %q, which does not say who is away", why)
		}
		want(t, "progress", g.lastProgress(), "nil")

		set(false)
		g.pump()
		want(t, "delivered", c.values(), "1 2")
		set(true)
		g.feed(box("s", 3))
		for range 3 {
			g.pump()
			time.Sleep(10 * time.Minute)
			synctest.Wait()
		}
		want(t, "progress", g.lastProgress(), "2")
		if why := g.stats().Reason; !strings.Contains(why, "no demand") || !strings.Contains(why, "offered again") {
			t.Errorf("reason %q", why)
		}
		set(false)
		g.pump()
		want(t, "delivered", c.values(), "1 2 3")
		g.pump()
		want(t, "progress", g.lastProgress(), "3")
		want(t, "failures", len(g.failed()), 0)
		for _, n := range c.attempts {
			if n != 1 {
				t.Errorf("attempts %v: being away is no attempt", c.attempts)
				break
			}
		}
	})
}

// A drain does not wait for who is away, and reports nothing as lost.
func TestDrainDoesNotWaitForWhoIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		c := g.subscribe("s", "far")
		c.set(func(c *scriptConsumer) {
			c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{}, ErrAway }
		})
		g.feed(box("s", 1))
		g.pump()
		began := time.Now()
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "time of the drain", time.Since(began), 0)
	})
}

// Numbers of requests are never used again, so that who remembers one can tell
// a later attachment from an earlier one.
func TestRequestsAreNumberedOverAllRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 1})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) { c.Queues = 1 })
		defer p.Close()
		s := Of[string](p, "n", "k")
		var asked []uint64
		c := &askedConsumer{asked: &asked}
		if _, err := p.Attach(t.Context(), s.ID(), "far", c); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := s.Publish(t.Context(), fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
			stop := running(p)
			synctest.Wait()
			time.Sleep(time.Second)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		}
		if len(asked) < 3 {
			t.Fatalf("asked %v, want once per run", asked)
		}
		for i := 1; i < len(asked); i++ {
			if asked[i] <= asked[i-1] {
				t.Fatalf("asked %v, want numbers that rise", asked)
			}
		}
	})
}

type askedConsumer struct{ asked *[]uint64 }

func (c *askedConsumer) Handshake(_ context.Context, h Handshake) (Position, error) {
	*c.asked = append(*c.asked, h.Request)
	return Position{}, nil
}

func (c *askedConsumer) Deliver(context.Context, *Delivery) (Answer, error) { return Answer{}, nil }

// A consumer of one's own is attached by name, and one made of a handler does
// what a subscribed handler does.
func TestAttachedConsumerOfAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		s := Of[string](p, "n", "k")
		for i := range 3 {
			if err := s.Publish(t.Context(), fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		var r recorder
		c, err := NewConsumer(penstock.JSON[string](), r.handle, From(Earliest))
		if err != nil {
			t.Fatal(err)
		}
		sub, err := p.Attach(t.Context(), s.ID(), "far", c)
		if err != nil {
			t.Fatal(err)
		}
		stop := running(p)
		synctest.Wait()
		time.Sleep(time.Second)
		want(t, "got", r.got(), "0 1 2")
		if err := sub.Unsubscribe(t.Context()); err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAttachAndNewConsumerRefuse(t *testing.T) {
	topic := memoryTopic(t, queue.Config[Container]{Partitions: 1})
	defer topic.Close()
	p := openProvider(t, topic, func(c *Config) { c.Queues = 1 })
	defer p.Close()
	ok := penstock.StreamID{Namespace: "n", Key: "k"}
	for name, attach := range map[string]func() error{
		"stream":   func() error { _, err := p.Attach(t.Context(), penstock.StreamID{}, "x", dropConsumer{}); return err },
		"name":     func() error { _, err := p.Attach(t.Context(), ok, " ", dropConsumer{}); return err },
		"consumer": func() error { _, err := p.Attach(t.Context(), ok, "x", nil); return err },
		"option":   func() error { _, err := p.Attach(t.Context(), ok, "x", dropConsumer{}, From(Earliest)); return err },
		"codec": func() error {
			_, err := NewConsumer[string](nil, func(context.Context, penstock.Batch[string]) error { return nil })
			return err
		},
		"handler": func() error { _, err := NewConsumer[string](penstock.JSON[string](), nil); return err },
		"filter": func() error {
			_, err := NewConsumer(penstock.JSON[string](), func(context.Context, penstock.Batch[string]) error { return nil }, WithFilter("x"))
			return err
		},
	} {
		if err := attach(); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Attach(t.Context(), ok, "x", dropConsumer{}); !errors.Is(err, penstock.ErrClosed) {
		t.Errorf("attach to a closed provider: %v", err)
	}
}
