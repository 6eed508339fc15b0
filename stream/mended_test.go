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

// failingCursors makes the given calls of Next fail, over all cursors.
type failingCursors struct {
	Cache
	calls, from, to int
}

func (f *failingCursors) Cursor(s penstock.StreamID, at Position) (Cursor, error) {
	c, err := f.Cache.Cursor(s, at)
	return &failingCursor{c, f}, err
}

type failingCursor struct {
	Cursor
	of *failingCursors
}

func (c *failingCursor) Next() (Container, bool, error) {
	if c.of.calls++; c.of.calls >= c.of.from && c.of.calls <= c.of.to {
		return Container{}, false, errBoom
	}
	return c.Cursor.Next()
}

// A cursor that fails behind containers which it has returned does not take them
// with it: they are delivered, and then it is asked again.
func TestCursorThatFailsAgainLosesNothing(t *testing.T) {
	for from := 1; from <= 4; from++ {
		for _, implicit := range []bool{false, true} {
			t.Run(fmt.Sprintf("from=%d/implicit=%t", from, implicit), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newRig(t, func(_ *rig, c *agentConfig) { c.groupSize = 3 })
					g.marks = &spyMarks{}
					inner := g.agent.newCache
					g.agent.newCache = func() (Cache, error) {
						c, err := inner()
						return &failingCursors{Cache: c, from: from, to: from + 1}, err
					}
					c, _ := g.order(t, implicit, Skip)
					c.onDeliver = nil
					if !implicit {
						g.announce("s", "sub")
					}
					g.start()
					g.feed(boxes("s", 1, 7)...)
					for range 5 {
						g.pump()
						time.Sleep(time.Second)
					}
					want(t, "settled", c.values(), "1 2 3 4 5 6 7")
					want(t, "delivered", g.stats().Delivered, 7)
					if err := g.stop(); err != nil {
						t.Error(err)
					}
					want(t, "checkpoint", g.marks.at(), 7)
				})
			})
		}
	}
}

// Containers that nobody can be given are passed over, and counted.
func TestEmptyAndNamelessContainersAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		c := g.subscribe("s", "sub")
		nameless := box("s", 4)
		nameless.Stream = penstock.StreamID{}
		g.feed(Container{Token: penstock.Token{Lo: 1}}, box("s", 2), Container{Token: penstock.Token{Lo: 3}}, nameless, box("s", 5))
		g.pump()
		want(t, "settled", c.values(), "2 5")
		want(t, "empty", g.stats().Empty, 3)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "empty at the end", g.stats().Empty, 3)
	})
}

// hanging is a receiver whose calls wait for a gate when they are told to.
type hanging struct {
	*scriptReceiver
	gate                  chan struct{}
	read, delivered, wait bool
}

func (h *hanging) Read(ctx context.Context, limit int) ([]Container, error) {
	if h.read {
		<-h.gate
	}
	return h.scriptReceiver.Read(ctx, limit)
}

func (h *hanging) Delivered(ctx context.Context, done []Container) error {
	if h.delivered {
		<-h.gate
	}
	return h.scriptReceiver.Delivered(ctx, done)
}

func (h *hanging) Wait(ctx context.Context) error {
	if h.wait {
		<-h.gate
	} else {
		<-ctx.Done()
	}
	return penstock.ContextError(ctx)
}

// A receiver that does not return is named, while the agent runs and while it
// drains.
func TestReasonNamesTheReceiverThatDoesNotReturn(t *testing.T) {
	for name, tt := range map[string]struct {
		hang     func(h *hanging)
		draining bool
		want     string
	}{
		"read":                {func(h *hanging) { h.read = true }, false, "has not returned for"},
		"read, draining":      {func(h *hanging) { h.read = true }, true, "has not returned for"},
		"delivered":           {func(h *hanging) { h.delivered = true }, false, "has not returned for"},
		"delivered, draining": {func(h *hanging) { h.delivered = true }, true, "has not returned for"},
		"wait, draining":      {func(h *hanging) { h.wait = true }, true, "Wait has not returned for"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				h := &hanging{gate: make(chan struct{})}
				tt.hang(h)
				inner := g.agent.newReceiver
				g.agent.newReceiver = func() (Receiver, error) {
					rec, err := inner()
					h.scriptReceiver, _ = rec.(*scriptReceiver)
					return h, err
				}
				g.start()
				c := g.subscribe("s", "sub")
				if !h.read && !h.wait {
					g.feed(box("s", 1))
				}
				go func() { // ends with the run, which comes to its end below
					g.agent.pump()
					g.agent.pump()
				}()
				time.Sleep(time.Minute)
				if !h.read && !h.wait {
					want(t, "settled", c.values(), "1")
				}
				ended := make(chan error, 1)
				if tt.draining {
					go func() { ended <- g.stop() }() // ends with the run; received below
					time.Sleep(time.Minute)
				}
				if s := g.stats(); !strings.Contains(s.Reason, "the receiver's ") || !strings.Contains(s.Reason, tt.want) {
					t.Errorf("reason %q (%s), want %q", s.Reason, s.Condition, tt.want)
				}
				close(h.gate)
				if !tt.draining {
					go func() { ended <- g.stop() }() // ends with the run; received below
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A handler that was left behind may settle its events yet: the error of the
// drain says so, and names it.
func TestDrainErrorNamesTheHandlerLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) { c.Drain = 5 * time.Second })
		defer p.Close()
		s := Of[string](p, "orders", "7")
		hang := make(chan struct{})
		r := recorder{fail: func(int, penstock.Batch[string]) error { <-hang; return nil }}
		subscribe(t, s, "x", r.handle)
		stop := running(p)
		publish(t, s, "one")
		synctest.Wait()
		err := stop()
		var d *penstock.DrainError
		if !errors.As(err, &d) || d.Left != 1 || fmt.Sprint(d.Busy) != `[subscription "x" of stream orders/7 for 6s]` {
			t.Fatalf("Run returned %v, want 1 event left with its handler", err)
		}
		if !strings.Contains(err.Error(), "unless user code settles them yet") {
			t.Errorf("%v: claims that the events come again", err)
		}
		close(hang)
		synctest.Wait()
		stop = running(p)
		time.Sleep(time.Second)
		want(t, "settled", r.got(), "one")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// What Reset and StartAgents refuse, they call what it is.
func TestErrorsOfResetAndStartAgentsSayWhatIsWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		s := Of[string](p, "orders", "7")
		var r recorder
		subscribe(t, s, "x", r.handle)
		for name, text := range map[string]string{
			"x": `reset subscription "x" of stream orders/7: it is not faulted: not found`,
			"y": `reset subscription "y" of stream orders/7: not found`,
		} {
			err := s.Reset(t.Context(), name)
			want(t, "error", fmt.Sprint(err), text)
			want(t, "not found", errors.Is(err, penstock.ErrNotFound), true)
		}
		err := p.StartAgents(t.Context())
		want(t, "error", fmt.Sprint(err), `stream: provider "shop": start agents: provider is not running`)
		want(t, "closed", errors.Is(err, penstock.ErrClosed), true)
	})
}
