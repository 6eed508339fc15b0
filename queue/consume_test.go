package queue_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// pulls is a script of pulls on one consumer.
type pulls struct {
	max    int
	want   []int
	commit bool
}

func runPulls(t *testing.T, c *queue.Consumer[int], script []pulls) {
	t.Helper()
	for i, p := range script {
		if diff := cmp.Diff(p.want, pull(t, c, p.max), nilIsEmpty); diff != "" {
			t.Fatalf("pull %d of %d: %s", i, p.max, diff)
		}
		if p.commit {
			commit(t, c)
		}
	}
}

func TestPullsCrossSegments_QC31(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 2})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, seq(0, 12)...)
		runPulls(t, c, []pulls{
			{4, seq(0, 4), true}, {3, seq(4, 7), true}, {2, seq(7, 9), true}, {4, seq(9, 12), true}, {1, nil, false},
		})
		produce(t, topic, 12)
		runPulls(t, c, []pulls{{3, []int{12}, true}})
	})
}

func TestUncommittedComesAgain_QC32(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 2})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, seq(0, 11)...)
		runPulls(t, c, []pulls{
			{4, seq(0, 4), false}, {3, seq(0, 3), true}, {3, seq(3, 6), false}, {5, seq(3, 8), true},
			{6, seq(8, 11), false}, {3, seq(8, 11), true}, {1, nil, false},
		})
	})
}

func TestGroupsAreIndependent_QC34(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 2})
		c1 := group(t, topic, "g1", queue.GroupConfig{}).Consumer(0)
		c2 := group(t, topic, "g2", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, seq(0, 4)...)
		runPulls(t, c1, []pulls{{3, seq(0, 3), true}})
		runPulls(t, c2, []pulls{{2, seq(0, 2), true}})
		runPulls(t, c1, []pulls{{4, []int{3}, false}})
		runPulls(t, c2, []pulls{{4, []int{2, 3}, false}})
	})
}

// segment returns the segment size of a case that appends without end, which
// on disk would make a file of each few events.
func segment(s storage, size int) int {
	if s.name == "memory" {
		return size
	}
	return 0
}

// TestRecyclingKeepsOrder is the visible half of QC-36; how many segments are
// alive is told by TestUncommittedPullKeepsItsSegment_QC36.
func TestRecyclingKeepsOrder_QC36(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 3})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		for i := range 6 {
			produce(t, topic, i)
		}
		runPulls(t, c, []pulls{{3, seq(0, 3), false}})
		produce(t, topic, 6)
		runPulls(t, c, []pulls{{10, seq(0, 7), false}, {3, seq(0, 3), true}})
		produce(t, topic, 7)
		runPulls(t, c, []pulls{{10, seq(3, 8), true}, {1, nil, false}})
	})
}

func TestAssignmentIsContiguous_QC37(t *testing.T) {
	for _, test := range []struct {
		partitions, consumers int
		want                  []int
	}{
		{18, 3, []int{6, 6, 6}},
		{18, 4, []int{5, 5, 4, 4}},
		{18, 5, []int{4, 4, 4, 3, 3}},
		{18, 16, append([]int{2, 2}, slices.Repeat([]int{1}, 14)...)},
		{5, 2, []int{3, 2}},
	} {
		forEachStorage(t, func(t *testing.T, s storage) {
			topic := open(t, s, queue.Config[int]{Partitions: test.partitions})
			g := group(t, topic, "g", queue.GroupConfig{Consumers: test.consumers})
			next := 0
			for i, n := range test.want {
				from, to := g.Consumer(i).Partitions()
				if from != next || to-from != n {
					t.Errorf("%d over %d: consumer %d has [%d, %d), want %d from %d", test.partitions, test.consumers, i, from, to, n, next)
				}
				next = to
			}
			if next != test.partitions {
				t.Errorf("%d over %d: %d assigned", test.partitions, test.consumers, next)
			}
		})
	}
}

func TestTwoConsumersShare_QC39(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2})
		produce(t, topic, seq(0, 10)...)
		if diff := cmp.Diff([]int{0, 2, 4, 6, 8}, pull(t, g.Consumer(0), 6)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]int{1, 3, 5, 7, 9}, pull(t, g.Consumer(1), 6)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestWaitingConsumerWakesAtOnce_QC40(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 3})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		begin := time.Now()
		go func() { // ends after one event; the pull below waits for it
			time.Sleep(100 * time.Millisecond)
			if err := topic.Produce(t.Context(), 1); err != nil {
				t.Error(err)
			}
		}()
		b, err := c.Pull(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// Time stands still in a bubble unless everyone sleeps, so any further
		// sleep of the consumer would show.
		if d := time.Since(begin); b.Value(0) != 1 || d != 100*time.Millisecond {
			t.Errorf("got %d after %v, want 1 after 100ms", b.Value(0), d)
		}
		synctest.Wait()
	})
}

func TestCancelReturnsPromptly_QC43(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		cause := errors.New("the cause")
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		waiting := start(t, func() error { _, err := c.Pull(ctx); return err })
		waiting.blocked()
		cancel(cause)
		wantErr(t, waiting.wait(), context.Canceled, cause)

		produce(t, topic, 1, 2)
		between, cancelBetween := context.WithCancelCause(t.Context())
		defer cancelBetween(nil)
		var last error
		n := 0
		for b, err := range c.Batches(between) {
			if last = err; err != nil {
				break
			}
			n += b.Len()
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
			produce(t, topic, 3)
			cancelBetween(cause)
		}
		wantErr(t, last, context.Canceled, cause)
		if n != 2 {
			t.Errorf("%d events before the cancel, want 2", n)
		}
	})
}

func TestPartitionsTakeTurns(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 3, Router: queue.RouterFunc("mod/1", func(v, p int) int { return v % p })})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		produce(t, topic, 0, 3, 6, 9, 1)
		runPulls(t, c, []pulls{{2, []int{0, 3}, false}, {2, []int{1}, false}})
		produce(t, topic, 2, 4)
		runPulls(t, c, []pulls{
			{2, []int{2}, false}, {1, []int{6}, false}, {2, []int{4}, false}, {2, []int{9}, false}, {2, nil, false},
		})
	})
}

// TestCommitCoversOneBatch covers BQ-75: what was pulled from another partition
// and not committed comes again.
func TestCommitCoversOneBatch(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, 0, 1, 2, 3)
		runPulls(t, c, []pulls{
			{2, []int{0, 2}, false}, {2, []int{1, 3}, true}, {1, []int{0}, true}, {2, []int{2}, true}, {2, nil, false},
		})
	})
}

func TestCommitErrors(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		c := group(t, topic, "manual", queue.GroupConfig{}).Consumer(0)
		auto := group(t, topic, "auto", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		wantErr(t, c.Commit(), queue.ErrNothingPulled)
		produce(t, topic, 1)
		pull(t, c, 1)
		commit(t, c)
		wantErr(t, c.Commit(), queue.ErrNothingPulled)
		b, _, _ := auto.TryPull(1)
		wantErr(t, auto.Commit(), queue.ErrAutoCommit)
		wantErr(t, b.Commit(), queue.ErrAutoCommit)
	})
}

// TestLateCommitChangesNothing covers BQ-77: a batch's commit is idempotent,
// and one that was superseded has no effect.
func TestLateCommitChangesNothing(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, seq(0, 10)...)
		take := func(max int) queue.Batch[int] {
			b, ok, err := c.TryPull(max)
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			return b
		}
		committed := func() penstock.Offset { return topic.Stats().Groups[0].Partitions[0].Committed }
		first := take(4)
		second := take(2)
		for range 2 {
			if err := first.Commit(); err != nil || committed() != 0 {
				t.Errorf("late commit: %v, committed %d, want 0", err, committed())
			}
		}
		for range 2 {
			if err := second.Commit(); err != nil || committed() != 2 {
				t.Errorf("commit: %v, committed %d, want 2", err, committed())
			}
		}
		third := take(3)
		if third.Value(0) != 2 {
			t.Errorf("next batch begins with %d, want 2", third.Value(0))
		}
		_ = second.Commit()
		_ = first.Commit()
		if committed() != 2 {
			t.Errorf("an old batch moved the commit to %d", committed())
		}
		if err := third.Commit(); err != nil || committed() != 5 {
			t.Errorf("commit: %v, committed %d, want 5", err, committed())
		}
	})
}

// TestBatchStaysWhileInHands: with automatic commit the events are given free
// at the pull, and yet what is in hands is neither cleared nor used again.
func TestBatchStaysWhileInHands(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[*int]{SegmentSize: segment(s, 4), Capacity: 64, Codec: codecFor[*int](s)})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		n := 0
		next := func(count int) (batch []*int) {
			for range count {
				v := n
				batch = append(batch, &v)
				n++
			}
			return batch
		}
		produce(t, topic, next(64)...)
		want := 0
		for range 100 {
			for _, max := range []int{1, 3, 4, 9, 16} {
				b, ok, err := c.TryPull(max)
				if !ok || err != nil {
					t.Fatal(ok, err)
				}
				produce(t, topic, next(b.Len())...) // fits: the pull gave capacity back
				for i, v := range b.Values() {
					if v == nil || *v != want+i {
						t.Fatalf("event %d of the batch in hands is %v, want %d", i, v, want+i)
					}
				}
				want += b.Len()
			}
		}
	})
}

// TestBatchInHandsOutlivesOtherGroups: what one group has committed and still
// looks at is not cleared when another group finishes with it.
func TestBatchInHandsOutlivesOtherGroups(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[*int]{SegmentSize: segment(s, 4), Codec: codecFor[*int](s)})
		slow := group(t, topic, "slow", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		fast := group(t, topic, "fast", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		for round := range 20 {
			batch := make([]*int, 30)
			for i := range batch {
				v := round*len(batch) + i
				batch[i] = &v
			}
			produce(t, topic, batch...)
			b, ok, err := slow.TryPull(4) // one segment: a view, not a copy
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			for len(pull(t, fast, 7)) > 0 {
			}
			for i, v := range b.Values() {
				if v == nil || *v != round*len(batch)+i {
					t.Fatalf("round %d: event %d of the batch in hands is %v", round, i, v)
				}
			}
			for len(pull(t, slow, 4)) > 0 {
			}
		}
	})
}

func codecFor[T any](s storage) penstock.Codec[T] {
	if s.name == "memory" {
		return nil
	}
	return penstock.JSON[T]()
}

// TestFinishedEventsDie is BQ-64 for a topic: after the commit, without another
// append or pull.
func TestFinishedEventsDie(t *testing.T) {
	topic := open(t, storages[0], queue.Config[*[64]byte]{Partitions: 2, SegmentSize: 16})
	g := group(t, topic, "g", queue.GroupConfig{})
	other := group(t, topic, "other", queue.GroupConfig{})
	var refs []weak.Pointer[[64]byte]
	func() {
		for range 100 {
			v := new([64]byte)
			refs = append(refs, weak.Make(v))
			produce(t, topic, v)
		}
	}()
	alive := func() (n int) {
		runtime.GC()
		for _, r := range refs {
			if r.Value() != nil {
				n++
			}
		}
		return n
	}
	finish := func(g *queue.Group[*[64]byte]) {
		for {
			b, ok, err := g.Consumer(0).TryPull(30)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				return
			}
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		}
	}
	finish(g)
	if n := alive(); n != 100 {
		t.Errorf("%d events alive while a group has not read them, want 100", n)
	}
	finish(other)
	if n := alive(); n != 0 {
		t.Errorf("%d finished events are alive", n)
	}
	runtime.KeepAlive(topic)
}

func TestPullAllocatesNothing(t *testing.T) {
	for _, auto := range []bool{true, false} {
		topic := open(t, storages[0], queue.Config[int]{Partitions: 4, Capacity: 10_000})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: auto}).Consumer(0)
		ctx, batch := t.Context(), seq(0, 500)
		round := func() {
			if topic.Produce(ctx, batch...) != nil {
				t.Fatal("Produce failed")
			}
			for n := 0; n < len(batch); {
				b, err := c.Pull(ctx)
				if err != nil {
					t.Fatal(err)
				}
				n += b.Len()
				if !auto && b.Commit() != nil {
					t.Fatal("Commit failed")
				}
			}
		}
		for range 300 {
			round()
		}
		if n := testing.AllocsPerRun(500, round); n > 0 {
			t.Errorf("auto = %v: %v allocations per 500 events, want 0", auto, n)
		}
	}
}

func TestMemoryIsFlatOverManyCycles_QC36(t *testing.T) {
	// Time stands still: a segment in which it moved on keeps a list of times.
	synctest.Test(t, func(t *testing.T) {
		topic := open(t, storages[0], queue.Config[int]{SegmentSize: 3})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		ctx := t.Context()
		cycle := func(n int) {
			for i := range n {
				if err := topic.Produce(ctx, i); err != nil {
					t.Fatal(err)
				}
				b, ok, err := c.TryPull(1)
				if !ok || err != nil || b.Value(0) != i {
					t.Fatal(i, ok, err)
				}
				if err := c.Commit(); err != nil {
					t.Fatal(err)
				}
			}
		}
		cycles := 1_000_000
		if raceEnabled {
			cycles = 100_000
		}
		cycle(10_000)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		cycle(cycles)
		runtime.GC()
		runtime.ReadMemStats(&after)
		if n := after.Mallocs - before.Mallocs; n > 1000 { // a few are the runtime's
			t.Errorf("%d allocations over %d cycles", n, cycles)
		}
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
			t.Errorf("the heap grew by %d bytes over %d cycles", grown, cycles)
		}
	})
}

// TestMemoryOfATopicOnDiskIsFlat_QC36 is the same for a topic on disk, which
// encodes and decodes, so that only what stays counts.
func TestMemoryOfATopicOnDiskIsFlat_QC36(t *testing.T) {
	topic := open(t, storage{"file"}, queue.Config[[]int]{Durability: penstock.Written})
	c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	value := make([]int, 100)
	cycle := func(n int) {
		for range n {
			produce(t, topic, value)
			if len(pull(t, c, 1)) != 1 {
				t.Fatal("nothing came")
			}
			commit(t, c)
		}
	}
	cycle(1000)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	cycle(10_000)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes over 10,000 cycles", grown)
	}
}

// TestEachGroupSeesEverything_QC45 runs three groups beside producers.
func TestEachGroupSeesEverything_QC45(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		const events = 4096
		partitions := 2 * runtime.GOMAXPROCS(0)
		for _, size := range []int{1, 10, 100, 1000, 10_000} {
			topic := open(t, s, queue.Config[int]{Partitions: partitions, Capacity: 512})
			var wg sync.WaitGroup
			for _, name := range []string{"a", "b", "c"} {
				g := group(t, topic, name, queue.GroupConfig{Consumers: 2, BatchMax: size})
				seen := make([]int, events)
				var consumers sync.WaitGroup
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var mu sync.Mutex
				left := events
				for i := range 2 {
					consumers.Go(func() { // ends with ctx; waited for below
						for b, err := range g.Consumer(i).Batches(ctx) {
							if err != nil {
								return
							}
							mu.Lock()
							for _, v := range b.Values() {
								seen[v]++
							}
							left -= b.Len()
							if left == 0 {
								cancel()
							}
							mu.Unlock()
							if err := b.Commit(); err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Go(func() { // ends when its consumers have; waited for below
					consumers.Wait()
					for v, n := range seen {
						if n != 1 {
							t.Errorf("group %s saw event %d %d times", name, v, n)
						}
					}
				})
			}
			for i := 0; i < events; i += 64 {
				produce(t, topic, seq(i, i+64)...)
			}
			wg.Wait()
			topic.Close()
		}
	})
}
