package queue_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// The short ways of Produce, of a pull and of a commit leave out every look
// that does not matter at the time. These tests change what they do not look at.

// TestShortWayOfPullEndsWithTheGroup: events that are in the window already are
// not handed out after Close.
func TestShortWayOfPullEndsWithTheGroup(t *testing.T) {
	for _, auto := range []bool{true, false} {
		topic := open(t, storages[0], queue.Config[int]{})
		produce(t, topic, seq(0, 10)...)
		g := group(t, topic, "g", queue.GroupConfig{AutoCommit: auto})
		c := g.Consumer(0)
		for i := range 3 {
			b, ok, err := c.TryPull(1)
			if !ok || err != nil || b.Value(0) != i {
				t.Fatal(i, ok, err)
			}
			if err := b.Commit(); !auto && err != nil || auto && !errors.Is(err, queue.ErrAutoCommit) {
				t.Fatal(err)
			}
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := c.TryPull(1); ok || !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("auto %v: a pull after Close returned %v and %v", auto, ok, err)
		}
	}
}

// TestShortWayOfPullGivesUncommittedEventsAgain: a pull that took the short way
// and was not committed comes again, whatever the sizes.
func TestShortWayOfPullGivesUncommittedEventsAgain(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{})
	produce(t, topic, seq(0, 20)...)
	c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	want := func(max, first, n int) {
		t.Helper()
		b, ok, err := c.TryPull(max)
		if !ok || err != nil || b.Len() != n || b.Value(0) != first || b.Offset(0) != penstock.Offset(first) {
			t.Fatalf("pull of %d: %v, %v, want %d events from %d", max, ok, err, n, first)
		}
	}
	commit := func() {
		t.Helper()
		if err := c.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	want(2, 0, 2)
	commit()
	want(3, 2, 3) // the short way
	want(1, 2, 1)
	want(4, 2, 4)
	commit()
	want(2, 6, 2)
	want(2, 6, 2)
	commit()
	want(100, 8, 12)
	want(100, 8, 12)
	commit()
	if _, ok, err := c.TryPull(1); ok || err != nil {
		t.Error("more than was produced:", ok, err)
	}
}

// TestWakeUpIsLookedAtAfterThePublication: a producer that finds the consumer's
// bit set leaves it asleep, which is right only if it has published before. The
// values are large, so that a look before the value is written would be long
// before: the consumer, woken by the first of two events, takes the bit, finds
// nothing more and sleeps, and the second event lies there for good.
func TestWakeUpIsLookedAtAfterThePublication(t *testing.T) {
	const rounds = 300
	topic := open(t, storages[0], queue.Config[large]{})
	c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true, BatchMax: 1}).Consumer(0)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a guard; rounds take microseconds
	defer cancel()
	asked := make(chan struct{})
	go func() { // ends after the last round or with ctx; the pulls below wait for what it does
		var v large
		for range rounds {
			select {
			case <-asked:
			case <-ctx.Done():
				return
			}
			for range 2 {
				if err := topic.Produce(ctx, v); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	for i := range rounds {
		asked <- struct{}{}
		for range 2 {
			if _, err := c.Pull(ctx); err != nil {
				t.Fatalf("round %d: an event is there and nobody is woken: %v", i, err)
			}
		}
	}
}
