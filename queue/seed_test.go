package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// Sentences of the first source document that no numbered case covers.

// TestMemoryIsGoneWithTheTopic: "Restarting the process does not recover them"
// (BQ-63).
func TestMemoryIsGoneWithTheTopic(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{})
	c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	produce(t, topic, 1, 2, 3)
	pull(t, c, 1)
	commit(t, c)
	if err := topic.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, storages[0], queue.Config[int]{})
	if got := pull(t, group(t, again, "g", queue.GroupConfig{}).Consumer(0), 10); got != nil {
		t.Errorf("%v survived", got)
	}
	if s := again.Stats(); s.Produced != 0 || s.Groups[0].Partitions[0].Committed != 0 {
		t.Errorf("not a new topic: %+v", s)
	}
}

// TestSelectorRunsOncePerEvent: "A key-routed batch runs the selector for
// every item", in order, and slices make no difference (BQ-34).
func TestSelectorRunsOncePerEvent(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		var asked []int
		topic := open(t, s, queue.Config[int]{Partitions: 3, Capacity: 4, Key: func(v int) string {
			asked = append(asked, v)
			return fmt.Sprint(v % 2)
		}})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		done := make(chan error, 1)
		go func() { done <- topic.Produce(t.Context(), seq(0, 10)...) }() // ends when all are in; received below
		parity := map[int][]int{}
		for n := 0; n < 10; {
			b, err := c.Pull(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			n += b.Len()
			for _, v := range b.Values() {
				parity[v%2] = append(parity[v%2], v)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(seq(0, 10), asked); diff != "" {
			t.Errorf("the selector was asked otherwise: %s", diff)
		}
		want := map[int][]int{0: {0, 2, 4, 6, 8}, 1: {1, 3, 5, 7, 9}}
		if diff := cmp.Diff(want, parity); diff != "" {
			t.Errorf("equal keys in another order: %s", diff)
		}
	})
}

// TestEveryWaitingGroupIsNotified: "the partition notifies every registered
// consumer", one of each group.
func TestEveryWaitingGroupIsNotified(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		var calls []call
		for i := range 5 {
			c := group(t, topic, fmt.Sprint("g", i), queue.GroupConfig{}).Consumer(0)
			calls = append(calls, start(t, func() error {
				b, err := c.Pull(t.Context())
				if err == nil && b.Value(0) != 7 {
					t.Errorf("got %d", b.Value(0))
				}
				return err
			}))
			calls[i].blocked()
		}
		produce(t, topic, 7)
		for _, c := range calls {
			if err := c.wait(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestWaitingTryProduceCanBeCancelled: "Either call can be canceled".
func TestWaitingTryProduceCanBeCancelled(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 1})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, 1)
		ctx, cancel := context.WithCancel(t.Context())
		try := start(t, func() error {
			ok, err := topic.TryProduce(ctx, 2)
			if ok {
				t.Error("accepted")
			}
			return err
		})
		try.blocked()
		cancel()
		wantErr(t, try.wait(), context.Canceled)
		pull(t, c, 1)
		commit(t, c)
		if got := pull(t, c, 1); got != nil {
			t.Errorf("the cancelled event is there: %v", got)
		}
	})
}

// TestSequencesFollowTheRulesOfBatches: "These rules apply to both batch input
// forms", oversized ones too.
func TestSequencesFollowTheRulesOfBatches(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		failing := open(t, s, queue.Config[int]{Capacity: 3, WhenFull: queue.Fail})
		group(t, failing, "g", queue.GroupConfig{})
		if ok, err := failing.TryProduceSeq(t.Context(), slices.Values(seq(0, 4))); ok || err != nil {
			t.Errorf("an oversized sequence in mode Fail: %t, %v", ok, err)
		}
		wantErr(t, failing.ProduceSeq(t.Context(), slices.Values(seq(0, 4))), penstock.ErrFull)
		if ok, err := failing.TryProduceSeq(t.Context(), slices.Values(seq(0, 3))); !ok || err != nil {
			t.Errorf("a sequence that fits: %t, %v", ok, err)
		}

		waiting := open(t, s, queue.Config[int]{Capacity: 3})
		c := group(t, waiting, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		big := start(t, func() error {
			ok, err := waiting.TryProduceSeq(t.Context(), slices.Values(seq(0, 10)))
			if err == nil && !ok {
				t.Error("TryProduceSeq returned false in mode Wait")
			}
			return err
		})
		big.blocked()
		var got []int
		for len(got) < 10 {
			b, err := c.Pull(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b.Values()...)
		}
		if err := big.wait(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(seq(0, 10), got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestBatchTakesOneRangeOfTurns: "a batch reserves one contiguous selection
// range", also while others do: its events lie in the partitions one after the
// other.
func TestBatchTakesOneRangeOfTurns(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		const parts, producers, size = 5, 4, 7
		rounds := 60
		if s.name == "file" {
			rounds = 15 // each request is flushed
		}
		topic := open(t, s, queue.Config[int]{Partitions: parts})
		var running sync.WaitGroup
		for p := range producers {
			running.Go(func() { // ends after its rounds; waited for below
				for i := range rounds {
					batch := seq(size*(p*rounds+i), size*(p*rounds+i+1))
					if err := topic.Produce(t.Context(), batch...); err != nil {
						t.Error(err)
					}
					if err := topic.Produce(t.Context(), -1); err != nil {
						t.Error(err)
					}
				}
			})
		}
		running.Wait()
		where := map[int]int{}
		for p, events := range contents(t, topic) {
			for _, e := range events {
				where[e] = p
			}
		}
		for request := range producers * rounds {
			first := where[request*size]
			for j := range size {
				if p, ok := where[request*size+j]; !ok || p != (first+j)%parts {
					t.Fatalf("request %d: event %d in partition %d, the first in %d", request, j, p, first)
				}
			}
		}
	})
}

// TestGroupsComeAndGoBesideProducers: "Consumer state changes use the same
// coordinator, so they cannot overlap an unsynchronized append". It is for the
// race detector.
func TestGroupsComeAndGoBesideProducers(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{Partitions: 3})
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("a consumer was not woken"))
	defer cancel()
	var producing, others sync.WaitGroup
	var stop atomic.Bool
	for p := range 3 {
		producing.Go(func() { // ends by stop; waited for below
			for i := 0; !stop.Load(); i++ {
				var err error
				if p == 0 {
					err = topic.Produce(t.Context(), i, i, i, i)
				} else {
					err = topic.Produce(t.Context(), i)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 2 {
		others.Go(func() { // ends after its groups; waited for below
			for n := range 100 {
				g := group(t, topic, fmt.Sprintf("g%d", i), queue.GroupConfig{Start: queue.Latest, Consumers: 1 + n%3, AutoCommit: n%2 == 0})
				for c := range 1 + n%3 {
					b, err := g.Consumer(c).Pull(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					if n%2 != 0 {
						if err := b.Commit(); err != nil {
							t.Error(err)
						}
					}
				}
				for range 3 {
					s := topic.Stats()
					for _, p := range s.Partitions {
						if p.Earliest > p.End {
							t.Errorf("earliest %d above end %d", p.Earliest, p.End)
						}
					}
					for _, g := range s.Groups {
						for _, p := range g.Partitions {
							if p.Committed > p.End || p.Lag != uint64(p.End-p.Committed) {
								t.Errorf("group %+v", p)
							}
						}
					}
				}
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	others.Wait()
	stop.Store(true)
	producing.Wait()
}

// TestConcurrentClosesEndEverything: Close of topic and group, several times
// at once, while producers and consumers wait, a handler runs and another
// group drains.
func TestConcurrentClosesEndEverything(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 2, Partitions: 2})
		pulling := group(t, topic, "pulling", queue.GroupConfig{Consumers: 2})
		running := group(t, topic, "running", queue.GroupConfig{BatchMax: 1})
		draining := group(t, topic, "draining", queue.GroupConfig{BatchMax: 1})
		produce(t, topic, 1, 2)
		pull(t, pulling.Consumer(0), 5)
		if err := pulling.Consumer(0).Commit(); err != nil {
			t.Fatal(err)
		}
		slow := func(context.Context, penstock.Batch[int]) error {
			time.Sleep(3 * time.Second)
			return context.DeadlineExceeded // and comes again
		}
		ctx, cancel := context.WithCancel(t.Context())
		calls := []call{
			start(t, func() error { return running.Run(t.Context(), slow) }),
			start(t, func() error { return draining.Run(ctx, slow) }),
			start(t, func() error { _, err := pulling.Consumer(0).Pull(t.Context()); return err }),
			start(t, func() error { return topic.Produce(t.Context(), 3) }),
			start(t, func() error { _, err := topic.TryProduce(t.Context(), 3, 4, 5); return err }),
		}
		cancel()
		for _, c := range calls {
			c.blocked()
		}
		var closing sync.WaitGroup
		for i := range 9 {
			closing.Go(func() { // ends with Close; waited for below
				closeIt := []func() error{topic.Close, pulling.Close, running.Close, draining.Close}[i%4]
				if err := closeIt(); err != nil {
					t.Error(err)
				}
			})
		}
		closing.Wait()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for i, c := range calls {
			err := c.wait()
			if i == 1 && err == nil {
				t.Error("the drain left an event and says nothing")
			} else if i != 1 {
				wantErr(t, err, penstock.ErrClosed)
			}
		}
	})
}
