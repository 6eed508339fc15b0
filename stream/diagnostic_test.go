package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// kinds takes what happened so far.
func kinds(t *testing.T, d *Diagnostics) (out []string) {
	t.Helper()
	synctest.Wait()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for {
		x, ok, _ := d.take()
		if !ok {
			if _, err := d.Next(ended); !errors.Is(err, context.Canceled) {
				t.Errorf("Next of an empty list with an ended context: %v", err)
			}
			return out
		}
		s := x.Kind.String()
		if x.Subscription != "" {
			s += " " + x.Subscription
		}
		if x.Events > 0 {
			s += fmt.Sprintf(" %d", x.Events)
		}
		out = append(out, s)
	}
}

// What happens to a subscription is told in order; a cursor that comes to its
// end is told once, and only when something was delivered.
func TestDiagnosticsTellWhatHappens_OR95(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hub
		p := &Provider{}
		d := p.Diagnostics(0)
		g := newRig(t, func(_ *rig, a *agentConfig) { a.hub = &p.hub })
		if h.heard() || !p.hub.heard() {
			t.Fatal("heard by the wrong ones")
		}
		g.start()
		c := g.subscribe("s", "sub")
		fail := true
		c.onDeliver = func(int, *Delivery) (Answer, error) {
			if fail {
				fail = false
				return Answer{}, errBoom
			}
			return Answer{}, nil
		}
		g.feed(box("s", 1), boxOf("s", 2, "a", "b"))
		g.pump()
		time.Sleep(time.Second)
		wantKinds := func(what string, want ...string) {
			t.Helper()
			if got := kinds(t, d); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		wantKinds("first delivery", "agent started", "receiver opened", "stream registered", "subscription added sub", "subscription attached sub",
			"delivery failed sub 1", "delivered sub 1", "delivered sub 2", "cursor drained sub")
		g.pump()
		wantKinds("nothing new")
		g.feed(box("s", 3))
		g.pump()
		wantKinds("one more", "delivered sub 1", "cursor drained sub")
		g.unsubscribe("s", "sub")
		wantKinds("unsubscribed", "subscription removed sub")
		g.script = func(call, _ int) ([]Container, error) { return nil, errBoom }
		g.pump()
		wantKinds("reads fail", slices.Repeat([]string{"read failed"}, 6)...)
		g.stop()
		wantKinds("stopped", "agent stopped")
		d.Close()
		want(t, "heard after Close", p.hub.heard(), false)
	})
}

// The list is bounded: it drops the oldest and says how many.
func TestDiagnosticsAreBounded(t *testing.T) {
	p := &Provider{}
	d := p.Diagnostics(2)
	for i := range 5 {
		p.hub.tell(Diagnostic{Kind: Delivered, Events: i})
	}
	next := func() Diagnostic {
		x, err := d.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	x := next()
	want(t, "oldest that is kept", x.Events, 3)
	want(t, "missed", x.Missed, 3)
	d.Close()
	d.Close()
	p.hub.tell(Diagnostic{Kind: Delivered, Events: 5})
	x = next()
	want(t, "left after Close", x.Events, 4)
	want(t, "missed", x.Missed, 0)
	if _, err := d.Next(t.Context()); !errors.Is(err, penstock.ErrClosed) {
		t.Errorf("Next after Close: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a negative size is accepted")
		}
	}()
	p.Diagnostics(-1)
}

// Next waits; Close of the provider ends it.
func TestDiagnosticsEndWithTheProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		d, heard := p.Diagnostics(0), make(chan error, 2)
		for range 2 {
			go func() { // ended by Close of the provider
				for {
					if _, err := d.Next(context.Background()); err != nil {
						heard <- err
						return
					}
				}
			}()
		}
		stop := running(p)
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
		p.Close()
		for range 2 {
			if err := <-heard; !errors.Is(err, penstock.ErrClosed) {
				t.Errorf("Next: %v", err)
			}
		}
	})
}
