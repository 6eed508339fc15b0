package queue_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// call is one produce call that may block.
type call struct {
	t    *testing.T
	done chan error
}

// start runs f on a goroutine; the test ends it by wait or by Close.
func start(t *testing.T, f func() error) call {
	c := call{t: t, done: make(chan error, 1)}
	go func() { c.done <- f() }() // ends when f returns; received by wait, or buffered
	synctest.Wait()
	return c
}

func (c call) blocked() {
	c.t.Helper()
	synctest.Wait()
	select {
	case err := <-c.done:
		c.t.Fatalf("the call returned %v, want it to wait", err)
	default:
	}
}

func (c call) wait() error {
	c.t.Helper()
	synctest.Wait()
	select {
	case err := <-c.done:
		return err
	default:
		c.t.Fatal("the call still waits")
		return nil
	}
}

// inBubble runs a case on every storage with time standing still.
func inBubble(t *testing.T, test func(t *testing.T, s storage)) {
	forEachStorage(t, func(t *testing.T, s storage) {
		synctest.Test(t, func(t *testing.T) { test(t, s) })
	})
}

func TestCommitNotPullMakesRoom_QC21(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 8, Capacity: 1})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, 1)
		second := start(t, func() error { return topic.Produce(t.Context(), 2) })
		second.blocked()
		pull(t, c, 1)
		second.blocked()
		commit(t, c)
		if err := second.wait(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{2}, pull(t, c, 1)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestCancelledWriteIsNotWritten_QC22(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 8, Capacity: 1})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		second := start(t, func() error { return topic.Produce(ctx, 2) })
		second.blocked()
		cause := errors.New("the cause")
		cancel(cause)
		wantErr(t, second.wait(), context.Canceled, cause)
		pull(t, c, 1)
		commit(t, c)
		if ok, err := topic.TryProduce(t.Context(), 3); !ok || err != nil {
			t.Errorf("TryProduce = %v, %v, want true", ok, err)
		}
		if diff := cmp.Diff([]int{3}, pull(t, c, 1)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestBatchWaitsForItsWholeCapacity_QC23(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 8, Capacity: 3})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, 1, 2)
		batch := start(t, func() error { return topic.Produce(t.Context(), 3, 4) })
		batch.blocked()
		if n := topic.Stats().Produced; n != 2 {
			t.Errorf("%d events are there, though only one place is free", n)
		}
		pull(t, c, 1)
		commit(t, c)
		if err := batch.wait(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{2, 3, 4}, pull(t, c, 3)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSlowestGroupHoldsCapacity_QC26(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 1})
		c1 := group(t, topic, "g1", queue.GroupConfig{}).Consumer(0)
		c2 := group(t, topic, "g2", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, 1)
		pull(t, c1, 1)
		pull(t, c2, 1)
		second := start(t, func() error { return topic.Produce(t.Context(), 2) })
		second.blocked()
		commit(t, c1)
		second.blocked()
		commit(t, c2)
		if err := second.wait(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestWaitersAreServedInOrder_QC19 is the topic's side of the budget's case: a
// waiting 3 blocks a later 1 although one slot is free.
func TestWaitersAreServedInOrder_QC19(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 3})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, 1, 2, 3)
		a := start(t, func() error { return topic.Produce(t.Context(), 4, 5, 6) })
		b := start(t, func() error { return topic.Produce(t.Context(), 7) })
		pull(t, c, 1)
		commit(t, c)
		a.blocked()
		b.blocked()
		if n := topic.Stats().WaitingProducers; n != 2 {
			t.Errorf("%d producers wait, want 2", n)
		}
		pull(t, c, 2)
		commit(t, c)
		if err := a.wait(); err != nil {
			t.Fatal(err)
		}
		b.blocked()
		pull(t, c, 1)
		commit(t, c)
		if err := b.wait(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{5, 6, 7}, pull(t, c, 10)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestCapacityIsExact_QC17(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2, Capacity: 257, WhenFull: queue.Fail})
		results := make(chan int, 32)
		for range 32 {
			go func() { // ends after its tries; received below
				n := 0
				for i := range 32 {
					if ok, err := topic.TryProduce(t.Context(), i); ok && err == nil {
						n++
					}
				}
				results <- n
			}()
		}
		total := 0
		for range 32 {
			total += <-results
		}
		if total != 257 {
			t.Errorf("%d events were accepted, want 257", total)
		}
	})
}

// TestOversizedBatchGoesInSlices covers BQ-28, BQ-42, BQ-43 and FM-64.
func TestOversizedBatchGoesInSlices(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2, Capacity: 3})
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2})
		ctx, cancel := context.WithCancel(t.Context())
		big := start(t, func() error { return topic.Produce(ctx, seq(0, 8)...) })
		big.blocked()
		// The first slice is 0, 1, 2: 0 and 2 in partition 0, 1 in partition 1.
		if diff := cmp.Diff([]int{0, 2}, pull(t, g.Consumer(0), 9)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]int{1}, pull(t, g.Consumer(1), 9)); diff != "" {
			t.Error(diff)
		}
		commit(t, g.Consumer(0))
		big.blocked() // room for 2 is no room for a slice of 3
		commit(t, g.Consumer(1))
		big.blocked() // the second slice is in: turns go on with partition 1
		if diff := cmp.Diff([]int{4}, pull(t, g.Consumer(0), 9)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]int{3, 5}, pull(t, g.Consumer(1), 9)); diff != "" {
			t.Error(diff)
		}
		cancel()
		err := big.wait()
		wantErr(t, err, context.Canceled)
		var partial *penstock.PartialError
		if !errors.As(err, &partial) || partial.Accepted != 6 {
			t.Errorf("error %v, want a PartialError with 6 accepted", err)
		}
		commit(t, g.Consumer(0))
		commit(t, g.Consumer(1))
		produce(t, topic, 10, 11, 12) // no capacity leaked
	})
}

func TestOversizedBatchPasses(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 3})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true, BatchMax: 2}).Consumer(0)
		big := start(t, func() error {
			ok, err := topic.TryProduce(t.Context(), seq(0, 100)...)
			if !ok {
				t.Error("TryProduce returned false in mode Wait")
			}
			return err
		})
		var got []int
		for len(got) < 100 {
			b, err := c.Pull(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b.Values()...)
		}
		if err := big.wait(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(seq(0, 100), got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestTopicWithoutGroupSaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		var log bytes.Buffer
		topic := open(t, s, queue.Config[int]{Capacity: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		produce(t, topic, 1)
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := topic.Produce(ctx, 2)
			cancel()
			wantErr(t, err, context.DeadlineExceeded)
			if !strings.Contains(err.Error(), "no consumer group") {
				t.Errorf("error %q does not name the cause", err)
			}
		}
		if n := strings.Count(log.String(), "no consumer group"); n != 1 {
			t.Errorf("logged %d times, want once: %s", n, log.String())
		}
	})
}

// TestLateGroupStartsAtReleasedPosition covers BQ-50 and FM-62.
func TestLateGroupStartsAtReleasedPosition(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 10, SegmentSize: 64})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, seq(0, 10)...)
		pull(t, c, 4)
		commit(t, c)
		late := group(t, topic, "late", queue.GroupConfig{}).Consumer(0)
		latest := group(t, topic, "latest", queue.GroupConfig{Start: queue.Latest}).Consumer(0)
		if diff := cmp.Diff(seq(4, 10), pull(t, late, 100)); diff != "" {
			t.Error(diff)
		}
		produce(t, topic, 10)
		if diff := cmp.Diff([]int{10}, pull(t, latest, 100)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestCloseOfGroupGivesCapacityBack(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 2})
		slow := group(t, topic, "slow", queue.GroupConfig{})
		c := group(t, topic, "fast", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		produce(t, topic, 1, 2)
		pull(t, c, 2)
		third := start(t, func() error { return topic.Produce(t.Context(), 3) })
		third.blocked()
		if err := slow.Close(); err != nil {
			t.Fatal(err)
		}
		if s.name != "memory" { // on disk a closed group stays known
			third.blocked()
			if err := topic.DeleteGroup("slow"); err != nil {
				t.Fatal(err)
			}
		}
		if err := third.wait(); err != nil {
			t.Fatal(err)
		}
		group(t, topic, "slow", queue.GroupConfig{}) // the name is free again
	})
}

// TestCreditIsCalledIn: single events take capacity in advance, and yet nobody
// is refused or kept waiting for what is not used.
func TestCreditIsCalledIn(t *testing.T) {
	const capacity = 4096
	synctest.Test(t, func(t *testing.T) { // only topics in memory take credit
		topic := open(t, storages[0], queue.Config[int]{Partitions: 4, Capacity: capacity, WhenFull: queue.Fail})
		g := group(t, topic, "g", queue.GroupConfig{AutoCommit: true})
		for round := range 3 {
			produce(t, topic, 0) // and takes more in advance
			if ok, err := topic.TryProduce(t.Context(), seq(1, capacity)...); !ok || err != nil {
				t.Fatalf("round %d: a batch of all that is left: %v, %v", round, ok, err)
			}
			for range 2 {
				if ok, err := topic.TryProduce(t.Context(), 0); ok || err != nil {
					t.Fatalf("round %d: one event above the capacity: %v, %v", round, ok, err)
				}
			}
			for len(pull(t, g.Consumer(0), 100)) > 0 {
			}
			for i := range capacity {
				if ok, err := topic.TryProduce(t.Context(), i); !ok || err != nil {
					t.Fatalf("round %d: single %d of %d: %v, %v", round, i, capacity, ok, err)
				}
			}
			if ok, err := topic.TryProduce(t.Context(), 0); ok || err != nil {
				t.Fatalf("round %d: one single above the capacity: %v, %v", round, ok, err)
			}
			for len(pull(t, g.Consumer(0), 100)) > 0 {
			}
		}
	})
}

func TestWaitingBatchGetsTheCredit(t *testing.T) {
	const capacity = 4096
	synctest.Test(t, func(t *testing.T) {
		topic := open(t, storages[0], queue.Config[int]{Capacity: capacity})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, 0)
		all := start(t, func() error { return topic.Produce(t.Context(), seq(0, capacity)...) })
		all.blocked()
		single := start(t, func() error { return topic.Produce(t.Context(), 1) })
		single.blocked() // it came later, although it would fit
		pull(t, c, 1)
		commit(t, c)
		if err := all.wait(); err != nil {
			t.Fatal(err)
		}
		single.blocked()
		pull(t, c, 1)
		commit(t, c)
		if err := single.wait(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCapacityHoldsUnderMixedRequests lets singles and batches race in mode
// Fail. A request may be refused only when it did not fit at some moment of
// the call: with nobody consuming, when the capacity is nearly used up.
func TestCapacityHoldsUnderMixedRequests(t *testing.T) {
	const capacity, batch = 4096, 50
	synctest.Test(t, func(t *testing.T) {
		topic := open(t, storages[0], queue.Config[int]{Partitions: 4, Capacity: capacity, WhenFull: queue.Fail})
		accepted := make(chan int, 8)
		for p := range 8 {
			go func() { // ends at the first refusal; received below
				n := 0
				for {
					size := 1 + p%2*(batch-1)
					ok, err := topic.TryProduce(t.Context(), make([]int, size)...)
					if err != nil {
						t.Error(err)
					}
					if !ok {
						break
					}
					n += size
				}
				accepted <- n
			}()
		}
		total := 0
		for range 8 {
			total += <-accepted
		}
		if total != capacity { // singles go on until it is exactly full
			t.Errorf("%d events were accepted, want %d", total, capacity)
		}
	})
}
