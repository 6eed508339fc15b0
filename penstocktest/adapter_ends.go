package penstocktest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// passedComesAgain: a container that a failed delivery passed is not among
// those reported, so a queue with acknowledgements keeps it. A queue that is
// read by position has no use for the report, and keeps to its checkpoint.
func passedComesAgain(t *testing.T, a *adapterRun) {
	q := a.mapper.Queues()[0]
	for _, v := range []string{"1", "2", "3", "4"} {
		a.enqueue(container(a.streamOn(q, 0), v))
	}
	r := a.receiver(q)
	all := a.read(r, 4, 10)
	if err := r.Delivered(a.ctx(), []stream.Container{all[0], all[2]}); err != nil {
		t.Errorf("Delivered: %v", err)
	}
	a.shutdown(r)
	r = a.receiver(q)
	want := "2 4"
	if _, ok := r.(stream.Checkpointed); ok {
		want = "1 2 3 4"
	}
	if got := values(a.read(r, len(strings.Fields(want)), 10)); got != want {
		t.Errorf("after the report of 1 and 3 came %q, want %q", got, want)
	}
	a.shutdown(r)
}

// emptiedQueue: what comes after everything was acknowledged is read too, with
// a higher token.
func emptiedQueue(t *testing.T, a *adapterRun) {
	q := a.mapper.Queues()[0]
	r := a.receiver(q)
	var last penstock.Token
	for _, v := range []string{"1", "2", "3"} {
		a.enqueue(container(a.streamOn(q, 0), v))
		got := a.read(r, 1, 10)
		if values(got) != v || v != "1" && got[0].Token.Compare(last) <= 0 {
			t.Errorf("got %q at %s after %s, want %s", values(got), got[0].Token, last, v)
		}
		last = got[0].Token
		if err := r.Delivered(a.ctx(), got); err != nil {
			t.Errorf("Delivered: %v", err)
		}
	}
	a.shutdown(r)
}

// endedContext: whatever a call with an ended context returns, nothing is lost
// by it.
func endedContext(t *testing.T, a *adapterRun) {
	q := a.mapper.Queues()[0]
	a.enqueue(container(a.streamOn(q, 0), "1"))
	ended, cancel := context.WithCancel(a.ctx())
	cancel()
	r := a.receiver(q)
	first, err := r.Read(ended, 10)
	if err != nil && len(first) > 0 {
		t.Errorf("Read with an ended context returned %d containers and an error; an agent drops them", len(first))
	}
	if len(first) == 0 {
		first = a.read(r, 1, 10)
	}
	if got := values(first); got != "1" {
		t.Errorf("got %q", got)
	}
	a.shutdown(r)
	if err := a.adapter.Enqueue(ended, container(a.streamOn(q, 0), "2")); err == nil {
		r = a.receiver(q)
		if got := values(a.read(r, 2, 10)); got != "1 2" {
			t.Errorf("Enqueue with an ended context returned nil; the queue gave %q", got)
		}
		a.shutdown(r)
	}
}

func tokensOfOthers(t *testing.T, a *adapterRun) {
	c, ok := a.adapter.(stream.TokenChecker)
	if !ok {
		t.Log("the adapter is not a TokenChecker; every token is taken for a place that is yet to come")
		return
	}
	q := a.mapper.Queues()[0]
	a.enqueue(container(a.streamOn(q, 0), "1"))
	r := a.receiver(q)
	own := a.read(r, 1, 10)[0].Token
	if err := c.CheckToken(q, own); err != nil {
		t.Errorf("CheckToken of the token of a container: %v", err)
	}
	far := penstock.Token{Hi: math.MaxUint64, Lo: math.MaxUint64}
	if err := c.CheckToken(q, far); !errors.Is(err, penstock.ErrInvalid) && !errors.Is(err, penstock.ErrOffsetOutOfRange) {
		t.Errorf("CheckToken of %s: %v, want ErrInvalid or ErrOffsetOutOfRange", far, err)
	}
	a.shutdown(r)
}

func waitEnds(t *testing.T, a *adapterRun) {
	q := a.mapper.Queues()[0]
	r := a.receiver(q)
	w, ok := r.(stream.Waiter)
	if !ok {
		t.Log("the receiver is not a Waiter; it is polled")
		a.shutdown(r)
		return
	}
	ctx, cancel := context.WithCancel(a.ctx())
	cancel()
	if err := w.Wait(ctx); err == nil {
		t.Error("Wait on an empty queue with an ended context returned nil")
	}
	woken := make(chan error, 1)
	go func() { woken <- w.Wait(a.ctx()) }() // ended by the container below
	a.enqueue(container(a.streamOn(q, 0), "1"))
	if err := <-woken; err != nil {
		t.Errorf("Wait: %v", err)
	}
	if got := values(a.read(r, 1, 10)); got != "1" {
		t.Errorf("got %q", got)
	}
	a.shutdown(r)
}

func concurrentProducers(t *testing.T, a *adapterRun) {
	const producers, each = 4, 50
	q := a.mapper.Queues()[0]
	var wg sync.WaitGroup
	for p := range producers {
		s := a.streamOn(q, p%2)
		wg.Go(func() { // ends after its containers
			for i := range each {
				if err := a.adapter.Enqueue(a.ctx(), container(s, fmt.Sprintf("%d.%03d", p, i))); err != nil {
					t.Errorf("Enqueue: %v", err)
					return
				}
			}
		})
	}
	r := a.receiver(q)
	got := a.read(r, producers*each, 20)
	wg.Wait()
	byProducer := map[string][]string{}
	for _, c := range got {
		v := string(c.Events.Value(0))
		byProducer[v[:1]] = append(byProducer[v[:1]], v)
	}
	for p, vs := range byProducer {
		if len(vs) != each || !slices.IsSorted(vs) {
			t.Errorf("producer %s: %d containers, in order: %v", p, len(vs), slices.IsSorted(vs))
		}
	}
	a.shutdown(r)
}
