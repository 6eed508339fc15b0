package penstocktest

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// guard bounds every wait of a suite.
const guard = 10 * time.Second

// Adapter checks the contracts of [stream.Factory], [stream.Adapter] and
// [stream.Receiver], and of [stream.TokenChecker], [stream.Waiter] and
// [stream.Checkpointed] where they are implemented. open returns a factory over an empty queue outside
// the factory, with the given number of queues; it is called once per subtest
// and registers its own cleanup. The adapter must be able to read and write.
func Adapter(t *testing.T, open func(t *testing.T, queues int) stream.Factory) {
	for _, s := range []struct {
		name string
		test func(t *testing.T, a *adapterRun)
	}{
		{"ContainersComeBackAsTheyWere", containersComeBack},
		{"StreamsComeFromTheirQueue", streamsComeFromTheirQueue},
		{"TokensRiseAndLimitsHold", tokensRise},
		{"EmptyReadDoesNotWait", emptyRead},
		{"WhatWasNotAcknowledgedComesAgain", comesAgain},
		{"CheckpointIsWhereTheNextReceiverBegins", checkpoint},
		{"WhatWasPassedIsNotAcknowledged", passedComesAgain},
		{"EmptiedQueueGoesOn", emptiedQueue},
		{"EndedContextIsNoContainer", endedContext},
		{"TokensOfOthersAreRefused", tokensOfOthers},
		{"WaitEndsWhenDataComes", waitEnds},
		{"ConcurrentProducersLoseNothing", concurrentProducers},
	} {
		t.Run(s.name, func(t *testing.T) {
			a := &adapterRun{t: t, factory: open(t, queues)}
			var err error
			if a.mapper, err = a.factory.NewMapper("suite", queues); err != nil {
				t.Fatalf("NewMapper: %v", err)
			}
			a.adapter, err = a.factory.NewAdapter(a.ctx(), stream.Environment{Provider: "suite", Mapper: a.mapper, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatalf("NewAdapter: %v", err)
			}
			if d := a.adapter.Direction(); d != stream.ReadWrite {
				t.Fatalf("the suite needs an adapter that reads and writes; this one's direction is %d", d)
			}
			s.test(t, a)
			if err := a.adapter.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// pollPause is the time between reads of a queue that cannot say when data
// comes.
const pollPause = 10 * time.Millisecond

// queues is the number of queues of each subtest.
const queues = 2

type adapterRun struct {
	t       *testing.T
	factory stream.Factory
	mapper  stream.Mapper
	adapter stream.Adapter
}

func (a *adapterRun) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), guard)
	a.t.Cleanup(cancel)
	return ctx
}

func (a *adapterRun) enqueue(c stream.Container) {
	a.t.Helper()
	if err := a.adapter.Enqueue(a.ctx(), c); err != nil {
		a.t.Fatalf("Enqueue: %v", err)
	}
}

func (a *adapterRun) receiver(q stream.QueueID) stream.Receiver {
	a.t.Helper()
	r, err := a.adapter.NewReceiver(q)
	if err != nil {
		a.t.Fatalf("NewReceiver: %v", err)
	}
	if err := r.Init(a.ctx()); err != nil {
		a.t.Fatalf("Init: %v", err)
	}
	return r
}

func (a *adapterRun) shutdown(r stream.Receiver) {
	a.t.Helper()
	if err := r.Shutdown(a.ctx()); err != nil {
		a.t.Errorf("Shutdown: %v", err)
	}
}

// read reads until n containers came, or the guard has passed.
func (a *adapterRun) read(r stream.Receiver, n, limit int) (out []stream.Container) {
	a.t.Helper()
	ctx := a.ctx()
	for len(out) < n {
		got, err := r.Read(ctx, limit)
		if err != nil {
			a.t.Fatalf("Read after %d of %d containers: %v", len(out), n, err)
		}
		if limit >= 0 && len(got) > limit {
			a.t.Fatalf("Read(%d) returned %d containers", limit, len(got))
		}
		out = append(out, got...)
		if len(got) == 0 {
			if ctx.Err() != nil {
				a.t.Fatalf("%d of %d containers came", len(out), n)
			}
			if w, ok := r.(stream.Waiter); ok {
				if err := w.Wait(ctx); err != nil {
					a.t.Fatalf("Wait after %d of %d containers: %v", len(out), n, err)
				}
			} else {
				<-time.After(pollPause)
			}
		}
	}
	return out
}

// streamOn returns the n-th stream whose queue is q.
func (a *adapterRun) streamOn(q stream.QueueID, n int) penstock.StreamID {
	for i := 0; ; i++ {
		s := penstock.StreamID{Namespace: "suite", Key: fmt.Sprint(i)}
		if a.mapper.QueueFor(s) == q {
			if n == 0 {
				return s
			}
			n--
		}
	}
}

func container(s penstock.StreamID, values ...string) stream.Container {
	c := stream.Container{Stream: s}
	var events []penstock.Envelope
	for _, v := range values {
		events = append(events, penstock.Envelope{Value: []byte(v)})
	}
	c.Events = stream.EventsOf(events...)
	return c
}

// envelopes returns the events of a container; no payload is nil.
func envelopes(c stream.Container) (all []penstock.Envelope) {
	for _, e := range c.Events.All() {
		e.Value = append([]byte{}, e.Value...)
		all = append(all, e)
	}
	return all
}

// described gives event i of a container its metadata.
func described(c *stream.Container, i int, m penstock.Meta) {
	all := envelopes(*c)
	all[i].Meta = m
	c.Events = stream.EventsOf(all...)
}

func values(cs []stream.Container) string {
	var out []string
	for _, c := range cs {
		for _, e := range c.Events.All() {
			out = append(out, string(e.Value))
		}
	}
	return strings.Join(out, " ")
}

func containersComeBack(t *testing.T, a *adapterRun) {
	q := a.mapper.Queues()[0]
	sent := container(a.streamOn(q, 0), "one", "", "three")
	sent.Header = penstock.Header{{Name: "trace", Value: "t"}, {Name: "trace", Value: "again"}}
	described(&sent, 1, penstock.Meta{
		ID: "id", Time: time.Unix(7, 8).UTC(), Key: "key", Header: penstock.Header{{Name: "h", Value: "v"}},
		ContentType: "text/plain", Schema: "s/1", Producer: 1<<40 | 9,
	})
	a.enqueue(sent)
	r := a.receiver(q)
	got := a.read(r, 1, 10)[0]
	got.Token, got.Time, got.Raw = penstock.Token{}, time.Time{}, nil
	if want, is := envelopes(sent), envelopes(got); !reflect.DeepEqual(want, is) {
		t.Errorf("the events of a container came back changed:\nsent %+v\ngot  %+v", want, is)
	}
	sent.Events, got.Events = stream.Events{}, stream.Events{}
	if !reflect.DeepEqual(sent, got) {
		t.Errorf("a container came back changed:\nsent %+v\ngot  %+v", sent, got)
	}
	a.shutdown(r)
}

func streamsComeFromTheirQueue(t *testing.T, a *adapterRun) {
	for _, q := range a.mapper.Queues() {
		a.enqueue(container(a.streamOn(q, 0), q.String()))
	}
	for _, q := range a.mapper.Queues() {
		r := a.receiver(q)
		if got := values(a.read(r, 1, 10)); got != q.String() {
			t.Errorf("queue %s gave %q", q, got)
		}
		if more, err := r.Read(a.ctx(), 10); err != nil || len(more) > 0 {
			t.Errorf("queue %s gave more: %q, %v", q, values(more), err)
		}
		a.shutdown(r)
	}
}

func tokensRise(t *testing.T, a *adapterRun) {
	q := a.mapper.Queues()[1]
	var sent []string
	for i := range 50 {
		sent = append(sent, fmt.Sprint(i))
		a.enqueue(container(a.streamOn(q, i%3), sent[i]))
	}
	r := a.receiver(q)
	got := a.read(r, 50, 7)
	if v := values(got); v != strings.Join(sent, " ") {
		t.Errorf("order: %s", v)
	}
	for i := range got {
		if got[i].Token.Index != 0 {
			t.Errorf("container %d has token %s; its index must be 0", i, got[i].Token)
		}
		if i > 0 && got[i-1].Token.Compare(got[i].Token) >= 0 {
			t.Errorf("token %s after %s", got[i].Token, got[i-1].Token)
		}
	}
	a.shutdown(r)
	a.enqueue(container(a.streamOn(q, 0), "51"))
	r = a.receiver(q)
	if all := a.read(r, 1, -1); len(all) == 0 {
		t.Error("a read without a limit gave nothing")
	}
	a.shutdown(r)
}

func emptyRead(t *testing.T, a *adapterRun) {
	r := a.receiver(a.mapper.Queues()[0])
	start := time.Now()
	if got, err := r.Read(a.ctx(), 10); err != nil || len(got) != 0 {
		t.Errorf("read of an empty queue: %d containers, %v", len(got), err)
	}
	if d := time.Since(start); d > guard/2 {
		t.Errorf("it took %v", d)
	}
	a.shutdown(r)
}

func comesAgain(t *testing.T, a *adapterRun) {
	q := a.mapper.Queues()[0]
	for _, v := range []string{"1", "2", "3"} {
		a.enqueue(container(a.streamOn(q, 0), v))
	}
	for range 2 {
		r := a.receiver(q)
		if got := values(a.read(r, 3, 10)); got != "1 2 3" {
			t.Errorf("got %q", got)
		}
		a.shutdown(r)
	}
}

func checkpoint(t *testing.T, a *adapterRun) {
	q := a.mapper.Queues()[0]
	for _, v := range []string{"1", "2", "3", "4"} {
		a.enqueue(container(a.streamOn(q, 0), v))
	}
	r := a.receiver(q)
	c, ok := r.(stream.Checkpointed)
	if !ok {
		all := a.read(r, 4, 10)
		if err := r.Delivered(a.ctx(), all[:2]); err != nil {
			t.Errorf("Delivered: %v", err)
		}
		a.shutdown(r)
		r = a.receiver(q)
		if got := values(a.read(r, 2, 10)); got != "3 4" {
			t.Errorf("after the report of 1 and 2 came %q, want 3 4", got)
		}
		a.shutdown(r)
		return
	}
	m := c.Checkpointer()
	if _, stored, err := m.Load(a.ctx()); stored || err != nil {
		t.Errorf("Load before any: %v, %v", stored, err)
	}
	all := a.read(r, 4, 10)
	for _, i := range []int{1, 2, 0} { // the last one is stale
		if err := m.Update(a.ctx(), all[i].Token, time.Now()); err != nil {
			t.Errorf("Update: %v", err)
		}
	}
	a.shutdown(r)
	r = a.receiver(q)
	m = r.(stream.Checkpointed).Checkpointer()
	pos, stored, err := m.Load(a.ctx())
	if err != nil || !stored || pos.Compare(all[2].Token) != 0 {
		t.Errorf("Load: %s, %v, %v; want %s", pos, stored, err, all[2].Token)
	}
	again := a.read(r, 1, 10)
	if values(again) != "4" || again[0].Token != all[3].Token {
		t.Errorf("behind the checkpoint came %q at %s, want 4 at %s", values(again), again[0].Token, all[3].Token)
	}
	a.shutdown(r)
}
