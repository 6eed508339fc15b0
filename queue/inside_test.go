package queue

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/seglog"
)

// The tests in this file set up states that only a race reaches from outside.

func openInside(t *testing.T, c Config[int]) *Topic[int] {
	t.Helper()
	c.Name, c.Logger = "topic", slog.New(slog.DiscardHandler)
	topic, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := topic.Close(); err != nil {
			t.Error(err)
		}
	})
	return topic
}

// TestPullBesideCloseOfItsGroupEnds: a pull that is under way when its group
// is closed, and whose events another group lets go of, finds nothing. It used
// to look for ever.
func TestPullBesideCloseOfItsGroupEnds(t *testing.T) {
	clock := seglog.NewClock()
	t.Cleanup(clock.Stop)
	log := seglog.New[int](seglog.Config{SegmentSize: 2, Clock: clock})
	m := newMemory(log)
	for i := range 6 {
		log.Append(i)
	}
	log.Release(4) // the hold at 0 is gone
	done := make(chan int, 1)
	go func() { // ends with the fill; received below
		w, err := m.fill(0, log.End(), 10, false)
		if err != nil {
			t.Error(err)
		}
		done <- len(w.Values)
	}()
	select {
	case n := <-done:
		if n != 0 {
			t.Errorf("%d events, want none", n)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the pull still looks for events that are gone")
	}
}

// TestEndedContextStopsBetweenSlices covers BQ-20 and BQ-43: also when the
// capacity for the next slice is free at once.
func TestEndedContextStopsBetweenSlices(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var g *Group[int]
	topic := openInside(t, Config[int]{Capacity: 2, Key: func(v int) string {
		if v == 1 { // the last event of the first slice
			cancel()
			g.cursor(0).hold.Commit(2) // the commit that comes as soon as both are readable
		}
		return ""
	}})
	g, err := topic.Group("g", GroupConfig{})
	if err != nil {
		t.Fatal(err)
	}
	err = topic.Produce(ctx, 0, 1, 2, 3)
	partial, ok := err.(*penstock.PartialError)
	if !ok || partial.Accepted != 2 {
		t.Errorf("error %v, want a PartialError with 2 accepted", err)
	}
	if end := topic.parts[0].end(); end != 2 {
		t.Errorf("%d events were appended, want 2", end)
	}
}

// TestTurnNeverLeavesThePartitions_BQ82: whose turn is next is kept as a
// number below the number of partitions, so there is no counter to wrap.
func TestTurnNeverLeavesThePartitions_BQ82(t *testing.T) {
	for _, name := range []string{"memory", "file"} {
		for _, partitions := range []int{1, 3, 7, 64} {
			c := Config[int]{Partitions: partitions}
			if name == "file" {
				c = Config[int]{Partitions: partitions, Dir: t.TempDir(), Codec: penstock.JSON[int](), SegmentBytes: 8 * penstock.KiB}
			}
			turnsStayInside(t, openInside(t, c))
		}
	}
	for _, partitions := range []int{1, 3, 7} {
		whole := &batchRouter[int]{}
		whole.turns.Store(math.MaxUint64 - 2) // this one is a counter, and wraps
		topic := openInside(t, Config[int]{Partitions: partitions, Router: whole})
		for i := range 10 {
			if err := topic.Produce(t.Context(), i); err != nil {
				t.Errorf("%d partitions, event %d: %v", partitions, i, err)
			}
		}
	}
}

func turnsStayInside(t *testing.T, topic *Topic[int]) {
	t.Helper()
	partitions, want := topic.Partitions(), 0
	for range 100 {
		if first := topic.reserve(math.MaxInt); first != want {
			t.Fatalf("%d partitions: first %d, want %d", partitions, first, want)
		}
		topic.batches.Add(-1)
		want = int((uint64(want) + math.MaxInt) % uint64(partitions))
	}
	g, err := topic.Group("g", GroupConfig{})
	if err != nil {
		t.Fatal(err)
	}
	c := g.Consumer(0)
	for range 1000 {
		if _, _, err := c.TryPull(1); err != nil {
			t.Fatal(err)
		}
		if c.now != c.cursors[c.now.place] {
			t.Fatalf("turn %d of %d partitions", c.now.place, partitions)
		}
	}
}

func TestEndlessDrainWaitsForRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := openInside(t, Config[int]{})
		g, err := topic.Group("g", GroupConfig{Drain: math.MaxInt64})
		if err != nil {
			t.Fatal(err)
		}
		if err := topic.Produce(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		err = g.Run(ctx, func(context.Context, penstock.Batch[int]) error {
			cancel()
			if calls++; calls < 3 {
				return context.DeadlineExceeded
			}
			return nil
		})
		if err != nil || calls != 3 {
			t.Errorf("Run = %v after %d calls, want nil after 3", err, calls)
		}
	})
}

// TestValuesOutliveTheirBatch: the values of a batch in hands stay as they are
// after Close of the group, also when nothing but the slice is left of batch,
// consumer and group. They were cleared when the cursor had been collected.
func TestValuesOutliveTheirBatch(t *testing.T) {
	for _, size := range []int{4, 64} {
		topic := openInside(t, Config[int]{SegmentSize: size})
		other, err := topic.Group("other", GroupConfig{AutoCommit: true})
		if err != nil {
			t.Fatal(err)
		}
		values := lastValues(t, topic, size)
		for round := range 50 {
			runtime.GC() // the cursor goes, and its cleanup runs sooner or later
			runtime.Gosched()
			for i := range 2 * size {
				if err := topic.Produce(t.Context(), -i-1); err != nil {
					t.Fatal(err)
				}
			}
			for {
				if _, ok, err := other.Consumer(0).TryPull(size); err != nil {
					t.Fatal(err)
				} else if !ok {
					break
				}
			}
			for i, v := range values {
				if v != i {
					t.Fatalf("segments of %d, round %d: event %d became %d", size, round, i, v)
				}
			}
		}
	}
}

// lastValues returns the values of a batch of a group that is closed and
// forgotten.
func lastValues(t *testing.T, topic *Topic[int], n int) []int {
	g, err := topic.Group("closed", GroupConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := topic.Produce(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	b, ok, err := g.Consumer(0).TryPull(n)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Values()
}

// TestLoanLastsWhileAnEarlierShareIsTaken: a consumer that takes its share
// while the next Resize is about to give one of the share's partitions away goes
// on with that partition, and looks at what it pulls there. The loan used to
// end with the look, before it was opened, so that the log used memory again
// which the consumer had in hand.
func TestLoanLastsWhileAnEarlierShareIsTaken(t *testing.T) {
	topic := openInside(t, Config[int]{Partitions: 3})
	g, err := topic.Group("g", GroupConfig{Consumers: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := g.Consumer(0)
	if _, _, err := c.TryPull(1); err != nil { // the group is used
		t.Fatal(err)
	}
	if err := g.Resize(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	stays, goes := c.share.Load().cursors[0], c.share.Load().cursors[1]
	goes.moved.Store(&moved{}) // the first thing that Resize does
	if _, _, err := c.TryPull(1); err != nil {
		t.Fatal(err)
	}
	goes.moved.Store(nil)
	if err := g.Resize(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if goes.loan.state != lent || stays.loan.state != notLent {
		t.Errorf("loans of the partition that goes and of the one that stays: %d, %d", goes.loan.state, stays.loan.state)
	}
	if _, _, err := c.TryPull(1); err != nil {
		t.Fatal(err)
	}
	if goes.loan.state != ended {
		t.Errorf("the loan is not ended by the next call: %d", goes.loan.state)
	}
}

// TestLoanOfAShareNeverTakenEnds: a consumer that is given a partition and loses
// it again before its next call ends the loan with that call. It used to last
// until the garbage collector found the cursor.
func TestLoanOfAShareNeverTakenEnds(t *testing.T) {
	topic := openInside(t, Config[int]{Partitions: 3})
	g, err := topic.Group("g", GroupConfig{Consumers: 3})
	if err != nil {
		t.Fatal(err)
	}
	c := g.Consumer(0)
	if _, _, err := c.TryPull(1); err != nil {
		t.Fatal(err)
	}
	if err := g.Resize(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	given := c.share.Load().cursors[1]
	for _, n := range []int{3, 2, 3} {
		if err := g.Resize(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	if given.loan.state != lent {
		t.Fatalf("state %d of the loan", given.loan.state)
	}
	if _, _, err := c.TryPull(1); err != nil {
		t.Fatal(err)
	}
	if given.loan.state != ended {
		t.Errorf("state %d of the loan after the next call", given.loan.state)
	}
}

// TestResizeOfAnUnusedGroupLeavesNoOldShare: no consumer of a group that nobody
// uses keeps cursors that another one has now; its first pull would rewind them
// while the other one is at work.
func TestResizeOfAnUnusedGroupLeavesNoOldShare(t *testing.T) {
	topic := openInside(t, Config[int]{Partitions: 4})
	g, err := topic.Group("g", GroupConfig{Consumers: 3})
	if err != nil {
		t.Fatal(err)
	}
	all := g.shares.Load().consumers
	for _, n := range []int{1, 4, 2} {
		if err := g.Resize(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		all = append(all, g.shares.Load().consumers...)
		owner := map[*cursor[int]]*Consumer[int]{}
		for i, c := range all {
			if c.mine != c.share.Load() {
				t.Errorf("%d consumers: consumer %d has an old share", n, i)
			}
			for _, cur := range c.cursors {
				if o := owner[cur]; o != nil && o != c {
					t.Errorf("%d consumers: partition %d has two owners", n, cur.part.index)
				}
				owner[cur] = c
			}
		}
	}
}
