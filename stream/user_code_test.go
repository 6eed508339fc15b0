package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// What a handler does to its own stream and subscription from inside.
func TestHandlersMayUseTheirProvider(t *testing.T) {
	type world struct {
		t    *testing.T
		p    *Provider
		s    *Stream[string]
		r    *recorder
		more *recorder
	}
	for name, tt := range map[string]struct {
		act  func(w *world, call int, b penstock.Batch[string]) error
		want string
		more string
	}{
		"panics": {func(_ *world, call int, _ penstock.Batch[string]) error {
			if call == 1 {
				panic("boom")
			}
			return nil
		}, "1 2 3", ""},
		"ends its goroutine": {func(_ *world, call int, _ penstock.Batch[string]) error {
			if call == 2 {
				runtime.Goexit()
			}
			return nil
		}, "1 2 3", ""},
		"publishes": {func(w *world, call int, b penstock.Batch[string]) error {
			if v := b.Value(0); len(v) == 1 {
				publish(w.t, w.s, v+v)
			}
			return nil
		}, "1 2 3 11 22 33", ""},
		"unsubscribes itself": {func(w *world, call int, _ penstock.Batch[string]) error {
			if call == 2 {
				return w.s.Unsubscribe(w.t.Context(), "x")
			}
			return nil
		}, "1 2", ""},
		"unsubscribes itself and fails": {func(w *world, call int, _ penstock.Batch[string]) error {
			return errors.Join(w.s.Unsubscribe(w.t.Context(), "x"), errBoom)
		}, "", ""},
		"subscribes another": {func(w *world, call int, b penstock.Batch[string]) error {
			if call == 2 {
				subscribe(w.t, w.s, "y", w.more.handle, From(At(b.Token(0))))
				time.Sleep(time.Millisecond) // until it is attached
			}
			return nil
		}, "1 2 3", "2 3"},
		"is replaced by another": {func(w *world, call int, _ penstock.Batch[string]) error {
			if call == 2 {
				subscribe(w.t, w.s, "x", w.more.handle)
				time.Sleep(time.Millisecond)
			}
			return nil
		}, "1 2", "2 3"},
		"replaces itself": {func(w *world, call int, _ penstock.Batch[string]) error {
			if call == 2 {
				subscribe(w.t, w.s, "x", w.r.handle)
				time.Sleep(time.Millisecond)
			}
			return nil
		}, "1 2 2 3", ""},
		"asks for statistics": {func(w *world, _ int, _ penstock.Batch[string]) error {
			w.p.Stats()
			return nil
		}, "1 2 3", ""},
		"runs and closes the provider": {func(w *world, _ int, _ penstock.Batch[string]) error {
			if err := w.p.Run(w.t.Context()); !errors.Is(err, penstock.ErrExists) {
				w.t.Errorf("Run inside Run: %v", err)
			}
			if err := w.p.Close(); !errors.Is(err, penstock.ErrExists) {
				w.t.Errorf("Close inside Run: %v", err)
			}
			return nil
		}, "1 2 3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
				defer topic.Close()
				p := openProvider(t, topic)
				w := &world{t: t, p: p, s: Of[string](p, "orders", "7"), r: &recorder{}, more: &recorder{}}
				w.r.fail = func(call int, b penstock.Batch[string]) error { return tt.act(w, call, b) }
				subscribe(t, w.s, "x", w.r.handle)
				publish(t, w.s, "1", "2", "3")
				stop := running(p)
				time.Sleep(time.Second)
				want(t, "settled", w.r.got(), tt.want)
				want(t, "settled by the other", w.more.got(), tt.more)
				if err := stop(); err != nil {
					t.Error(err)
				}
				want(t, "lag", topic.Queue().Stats().Groups[0].Lag, 0)
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				if err := p.Run(t.Context()); !errors.Is(err, penstock.ErrClosed) {
					t.Errorf("Run after Close: %v", err)
				}
				if _, err := w.s.Subscribe(t.Context(), "z", w.r.handle); !errors.Is(err, penstock.ErrClosed) {
					t.Errorf("Subscribe after Close: %v", err)
				}
			})
		})
	}
}

// A context that has ended already: Run begins, drains and returns nil.
func TestRunWithAnEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		var r recorder
		s := Of[string](p, "orders", "7")
		subscribe(t, s, "x", r.handle)
		publish(t, s, "1")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
		stop := running(p)
		time.Sleep(time.Second)
		want(t, "settled", r.got(), "1")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// moody panics when it is decoded from "panic".
type moody string

func (m *moody) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if s == "panic" {
		panic("cannot decode " + s)
	}
	*m = moody(s)
	return nil
}

// An event on which a codec panics fails alone, as one that it refuses: those
// beside it in the container are delivered.
func TestCodecThatPanicsFailsOneEvent_OR103(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		var dead []string
		p := openProvider(t, topic, func(c *Config) {
			c.MaxDeliveryTime = 10 * time.Millisecond
			c.DeadLetter = func(_ context.Context, events ...penstock.Envelope) error {
				for _, e := range events {
					dead = append(dead, fmt.Sprintf("%s: %s", e.Value, e.Origin.Cause))
				}
				return nil
			}
		})
		defer p.Close()
		var got []string
		_, err := Of[moody](p, "n", "k").Subscribe(t.Context(), "x", func(_ context.Context, b penstock.Batch[moody]) error {
			for i, v := range b.Values() {
				got = append(got, fmt.Sprintf("%s %s #%d", v, b.Token(i), b.Attempt(i)))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := Of[string](p, "n", "k").Publish(t.Context(), "a", "panic", "b", "panic", "panic", "c"); err != nil {
			t.Fatal(err)
		}
		stop := running(p)
		time.Sleep(time.Second)
		if err := stop(); err != nil {
			t.Error(err)
		}
		want(t, "delivered", strings.Join(got, ", "), "a t1:0:0:0 #1, b t1:0:0:2 #1, c t1:0:0:5 #1")
		want(t, "dead letters", strings.Join(dead, ", "), strings.Join(slices.Repeat([]string{`"panic": codec json/1: panic: cannot decode panic`}, 3), ", "))
		want(t, "lag", topic.Queue().Stats().Groups[0].Lag, 0)
	})
}

type brokenMarks struct {
	*scriptReceiver
	broken func()
}

func (r brokenMarks) Checkpointer() Checkpointer { r.broken(); return nil }

// It killed the process: the receiver and the cache were made under a guard,
// and the checkpointer was asked for behind it.
func TestCheckpointerThatPanicsIsAFailureToStart(t *testing.T) {
	for name, broken := range map[string]func(){"panic": func() { panic("broken") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				g.agent.newReceiver = func() (Receiver, error) { return brokenMarks{&scriptReceiver{rig: g}, broken}, nil }
				var p *penstock.PanicError
				if err := g.agent.start(t.Context()); !errors.As(err, &p) {
					t.Errorf("start: %v", err)
				}
			})
		})
	}
}

// Whether the run before has ended, and whether the context has, was asked at
// once, and either could answer.
func TestRunWithAnEndedContextBeginsAndDrainsEachTime(t *testing.T) {
	topic := memoryTopic(t, queue.Config[Container]{Partitions: 8})
	defer topic.Close()
	p := openProvider(t, topic, func(c *Config) { c.Queues = 8 })
	defer p.Close()
	ended, end := context.WithCancel(t.Context())
	end()
	for range 50 {
		if err := p.Run(ended); err != nil {
			t.Fatal(err)
		}
	}
}
