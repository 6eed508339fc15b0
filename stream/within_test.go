package stream

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// A consumer that asks, while it has a delivery, for where that began was refused
// when the delivery was settled before it was asked: by default it was faulted.
func TestPlaceOfADeliveryIsThereUntilTheHandshakeIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.groupSize = 2 })
		g.start()
		c := g.subscribe("s", "sub")
		g.feed(boxes("s", 1, 1)...)
		g.pump()
		c.set(func(c *scriptConsumer) {
			c.gate, c.shakeGate = make(chan struct{}), make(chan struct{})
			c.onShake = func(int) (Position, error) { return at(PositionAt, 2), nil }
		})
		g.feed(boxes("s", 2, 3)...)
		g.pump()
		g.announce("s", "sub")
		close(c.gate)
		synctest.Wait()
		g.pump()
		want(t, "settled before the answer", c.values(), "1 2 3")
		want(t, "cached until then", g.stats().Cached, 2)
		close(c.shakeGate)
		synctest.Wait()
		g.pump()
		want(t, "settled", c.values(), "1 2 3 2 3")
		want(t, "cached", g.stats().Cached, 0)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// within is a subscription to four events, in two containers, which fails event 2
// whenever it is offered, and is changed once, from user code that is called for it.
type within struct {
	t       *testing.T
	s       *Stream[string]
	place   string // where it is changed
	change  func(w *within) error
	outcome func(b penstock.Batch[string], i int) error // of event 2

	failsOne bool

	mu      sync.Mutex
	changed bool
	last    penstock.Token // of the first event that was offered last
	log     []string       // "offered 1", "settled 1", "dead 2", "changed"
}

func (w *within) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// at is called at a place.
func (w *within) at(place string) {
	w.mu.Lock()
	now := !w.changed && place == w.place
	w.changed = w.changed || now
	w.mu.Unlock()
	if now {
		if err := w.change(w); err != nil {
			w.t.Errorf("changed at %s: %v", place, err)
		}
		w.say("changed")
	}
}

func (w *within) handle(_ context.Context, b penstock.Batch[string]) error {
	w.mu.Lock()
	w.last = b.Token(0)
	w.mu.Unlock()
	w.say("offered %s", strings.Join(b.Values(), " offered "))
	for i, v := range b.Values() {
		if v == "2" {
			w.at("handler")
			if err := w.outcome(b, i); err != nil {
				return err
			}
		}
	}
	w.at("end of the handler")
	settled := "settled " + strings.Join(b.Values(), " settled ")
	if w.failsOne {
		settled = strings.ReplaceAll(settled, "settled 2", "failed 2")
	}
	w.say("%s", settled)
	return nil
}

func (w *within) DeliveryFailed(context.Context, Failure) Decision {
	w.at("failure handler")
	return Decision{Verdict: DeadLetter}
}

func (w *within) SubscribeFailed(_ context.Context, f Failure) Decision {
	w.say("refused: %v", f.Err)
	return Decision{Verdict: Retry}
}

func (w *within) deadLetter(_ context.Context, events ...penstock.Envelope) error {
	for _, e := range events {
		w.say("dead %s", strings.Trim(string(e.Value), `"`))
	}
	w.at("dead letter")
	return nil
}

type backoffWithin struct{ *within }

func (w backoffWithin) Next(int) time.Duration {
	w.at("backoff")
	return time.Millisecond
}

func (w *within) subscribe(o ...SubscribeOption) error {
	_, err := w.s.Subscribe(w.t.Context(), "x", w.handle, append(o, OnNotice(func(context.Context, Notice) { w.at("notice") }))...)
	return err
}

// said returns how often something was said, and how often behind the change.
func (w *within) said(what string) (times, later int) {
	changed := false
	for _, line := range w.log {
		changed = changed || line == "changed"
		if (" " + line + " ") != strings.ReplaceAll(" "+line+" ", " "+what+" ", "") {
			if times++; changed {
				later++
			}
		}
	}
	return times, later
}

// A subscription may be subscribed to again, moved or given up from all user code
// that is called for it. Nothing waits for itself, no event is lost, and a verdict
// is given once, unless the change has come between it and the event.
func TestSubscriptionIsChangedFromWithin(t *testing.T) {
	changes := map[string]func(w *within) error{
		"subscribed again":  func(w *within) error { return w.subscribe() },
		"moved to earliest": func(w *within) error { return w.subscribe(From(Earliest)) },
		"moved back": func(w *within) error {
			w.mu.Lock()
			at := w.last
			w.mu.Unlock()
			return w.subscribe(From(At(at)))
		},
		"given up": func(w *within) error { return w.s.Unsubscribe(w.t.Context(), "x") },
		"given up and taken again": func(w *within) error {
			return errors.Join(w.s.Unsubscribe(w.t.Context(), "x"), w.subscribe())
		},
		"taken again twice": func(w *within) error { return errors.Join(w.subscribe(), w.subscribe(From(Earliest)), w.subscribe()) },
	}
	outcomes := map[string]func(b penstock.Batch[string], i int) error{
		"an error": func(penstock.Batch[string], int) error { return errBoom },
		"a panic":  func(penstock.Batch[string], int) error { panic("boom") },
		"an end of the goroutine": func(penstock.Batch[string], int) error {
			runtime.Goexit()
			return nil
		},
		"one event":  func(b penstock.Batch[string], i int) error { b.Fail(i, errBoom); return nil },
		"no failure": func(penstock.Batch[string], int) error { return nil },
	}
	for _, place := range []string{"handler", "end of the handler", "failure handler", "dead letter", "notice", "filter", "backoff"} {
		for change, f := range changes {
			for outcome, o := range outcomes {
				for _, group := range []int{1, 2} {
					t.Run(fmt.Sprintf("%s/%s/%s/%d", place, change, outcome, group), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							w := &within{t: t, place: place, change: f, outcome: o, failsOne: outcome == "one event"}
							w.test(change, group, outcome != "no failure")
						})
					})
				}
			}
		}
	}
}

func (w *within) test(change string, group int, fails bool) {
	t := w.t
	topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
	defer topic.Close()
	p := openProvider(t, topic, func(c *Config) {
		c.GroupSize, c.MaxAttempts, c.DeadLetter, c.Failure = group, 2, w.deadLetter, w
		c.Filter = FilterFunc(func(_ penstock.StreamID, e *penstock.Envelope, _ string) (bool, error) {
			if string(e.Value) == `"1"` {
				w.at("filter")
			}
			return true, nil
		})
		c.DeliveryBackoff = backoffWithin{w}
	})
	defer p.Close()
	w.s = Of[string](p, "orders", "7")
	if err := w.subscribe(); err != nil {
		t.Fatal(err)
	}
	for _, events := range [][]string{{"1", "2"}, {"3", "4"}} {
		if err := w.s.Publish(t.Context(), events...); err != nil {
			t.Fatal(err)
		}
	}
	stop := running(p)
	time.Sleep(time.Second)
	if err := w.s.Publish(t.Context(), "5", "6"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if err := stop(); err != nil {
		t.Error(err)
	}
	want(t, "lag", topic.Queue().Stats().Groups[0].Lag, 0)
	if !w.changed && (fails || w.place == "handler" || w.place == "end of the handler" || w.place == "filter") {
		t.Error("it was not changed")
	}
	givenUp := w.changed && strings.HasPrefix(change, "given up")
	again := w.changed && change != "given up"
	for _, v := range []string{"1", "2", "3", "4", "5", "6"} {
		settled, settledLater := w.said("settled " + v)
		dead, deadLater := w.said("dead " + v)
		_, offeredLater := w.said("offered " + v)
		switch {
		case givenUp && !again:
			if offeredLater > 0 {
				t.Errorf("event %s was offered when the subscription was given up", v)
			}
		case settled+dead == 0 && !(givenUp && v <= "4"):
			t.Errorf("event %s was lost", v)
		}
		most := 1 // verdicts behind the change
		if w.place == "failure handler" || w.place == "dead letter" || w.place == "notice" {
			most = 2 // the one that it came before counts for nothing
		}
		if settled-settledLater+dead-deadLater > 1 || settledLater > 4 || deadLater > most {
			t.Errorf("event %s was settled %d times and became a dead letter %d times; later %d and %d times", v, settled, dead, settledLater, deadLater)
		}
	}
	if t.Failed() {
		t.Log(strings.Join(w.log, ", "))
	}
}
