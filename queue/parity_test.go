package queue_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// Requirements BQ-17 to BQ-90 that no numbered case covers; docs/parity.md has
// the whole list.

// TestBatchOfOneIsTheSingle is BQ-19: however one event is handed over, it
// takes one turn and one place.
func TestBatchOfOneIsTheSingle(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 3, Capacity: 8, WhenFull: queue.Fail})
		ctx := t.Context()
		for i, call := range []func(v int) error{
			func(v int) error { return topic.Produce(ctx, v) },
			func(v int) error { return topic.Produce(ctx, []int{v}...) },
			func(v int) error { _, err := topic.TryProduce(ctx, v); return err },
			func(v int) error { return topic.ProduceSeq(ctx, slices.Values([]int{v})) },
			func(v int) error { _, err := topic.TryProduceSeq(ctx, slices.Values([]int{v})); return err },
			func(v int) error { return topic.ProduceEvents(ctx, penstock.Event[int]{Value: v}) },
			func(v int) error { _, err := topic.ProduceAsync(ctx, v); return err },
			func(v int) error { _, err := topic.ProduceEventsAsync(ctx, penstock.Event[int]{Value: v}); return err },
		} {
			if err := call(i); err != nil {
				t.Fatalf("call %d: %v", i, err)
			}
			for _, nothing := range []func() error{
				func() error { return topic.Produce(ctx) },
				func() error { return topic.ProduceSeq(ctx, slices.Values([]int(nil))) },
				func() error { return topic.ProduceEvents(ctx) },
			} {
				if err := nothing(); err != nil {
					t.Fatalf("nothing after call %d: %v", i, err)
				}
			}
		}
		wantErr(t, topic.Produce(ctx, 9), penstock.ErrFull)
		if diff := cmp.Diff([][]int{{0, 3, 6}, {1, 4, 7}, {2, 5}}, contents(t, topic)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestCancelInsideASliceLeavesItWhole is BQ-20: once a slice was admitted, the
// end of its context does not tear it. In memory it is appended; on disk it may
// also be refused before anything is on its way.
func TestCancelInsideASliceLeavesItWhole(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		topic := open(t, s, queue.Config[int]{Partitions: 2, Capacity: 4, WhenFull: queue.Fail, Key: func(v int) string {
			if v == 1 {
				cancel()
			}
			return fmt.Sprint(v)
		}})
		err := topic.Produce(ctx, 0, 1, 2, 3)
		want := 4
		if err != nil {
			wantErr(t, err, context.Canceled)
			want = 0
		}
		if s.name == "memory" && err != nil {
			t.Errorf("an admitted slice was refused: %v", err)
		}
		if n := topic.Stats().Produced; n != uint64(want) {
			t.Errorf("error %v with %d of 4 appended", err, n)
		}
		if ok, err := topic.TryProduce(t.Context(), seq(4, 8-want)...); !ok || err != nil {
			t.Errorf("the rest of the capacity: %t, %v", ok, err)
		}
	})
}

// TestProducedEventIsReadableAtOnce is BQ-22 and BQ-58: while there is room
// nothing is waited for, and when the call returns the event is there.
func TestProducedEventIsReadableAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2, Capacity: 100})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		begin := time.Now()
		for i := range 50 {
			produce(t, topic, i)
			if diff := cmp.Diff([]int{i}, pull(t, c, 10)); diff != "" {
				t.Fatal(diff)
			}
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("50 events took %v of standing time", d)
		}
	})
}

// TestCancelledBatchMovesNoTurn is BQ-27 for mode Wait. What is cancelled would
// not have gone round the partitions.
func TestCancelledBatchMovesNoTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 5, Capacity: 3})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		produce(t, topic, 0, 1)
		ctx, cancel := context.WithCancel(t.Context())
		batch := start(t, func() error { return topic.Produce(ctx, 100, 101) })
		single := start(t, func() error { return topic.Produce(ctx, 102) })
		batch.blocked()
		single.blocked()
		cancel()
		wantErr(t, batch.wait(), context.Canceled)
		wantErr(t, single.wait(), context.Canceled)
		produce(t, topic, 2)
		var got []int
		for b := pull(t, c, 9); b != nil; b = pull(t, c, 9) {
			got = append(got, b...)
		}
		produce(t, topic, 3, 4)
		for range 2 {
			got = append(got, pull(t, c, 9)...)
		}
		// Each partition is pulled in its turn, so the order tells the places.
		if diff := cmp.Diff(seq(0, 5), got); diff != "" {
			t.Error(diff)
		}
	})
}

// routeTo tells where events went.
func routeTo[T any](t *testing.T, topic *queue.Topic[T], events ...T) (parts []int) {
	t.Helper()
	for _, e := range events {
		r, err := topic.ProduceAsync(t.Context(), e)
		if err != nil {
			t.Fatalf("%v: %v", e, err)
		}
		ack, err := r.Wait(t.Context())
		if err != nil || len(ack.Parts) != 1 {
			t.Fatalf("%v: %+v, %v", e, ack, err)
		}
		parts = append(parts, ack.Parts[0].Partition)
	}
	return parts
}

// TestNumericKeysReachTheirPartition_QC7 sends the table of the case through
// topics.
func TestNumericKeysReachTheirPartition_QC7(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		routeNumbers(t, s, "signed", []int64{15, 16, 17, 0, -1, -16, math.MinInt32, math.MaxInt32, math.MinInt64, math.MaxInt64},
			[]int{14, 15, 0, 15, 14, 15, 15, 14, 15, 14})
		routeNumbers(t, s, "unsigned", []uint64{0, 1, math.MaxUint32, math.MaxUint64}, []int{15, 0, 14, 14})
		routeNumbers(t, s, "float", []float64{15, 16, 17, math.Copysign(0, -1), -1, -16}, []int{14, 15, 0, 15, 14, 15})
	})
}

// routeNumbers wants event i, whose key is keys[i], in partition want[i].
func routeNumbers[K queue.Number](t *testing.T, s storage, name string, keys []K, want []int) {
	t.Helper()
	topic := open(t, s, queue.Config[int]{Name: name, Partitions: 16, Router: queue.NumericRouter(func(i int) K { return keys[i] })})
	if diff := cmp.Diff(want, routeTo(t, topic, seq(0, len(keys))...)); diff != "" {
		t.Errorf("%s: %s", name, diff)
	}
}

// TestPrefixKeysReachTheirPartition_QC9 is the same for the prefix rule.
func TestPrefixKeysReachTheirPartition_QC9(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		key := func(v string) string { return v }
		wide := open(t, s, queue.Config[string]{Name: "wide", Partitions: 16, Router: queue.PrefixRouter(key)})
		if diff := cmp.Diff([]int{3, 3, 0}, routeTo(t, wide, "cust-0001", "cust-9999", "")); diff != "" {
			t.Error(diff)
		}
		narrow := open(t, s, queue.Config[string]{Name: "narrow", Partitions: 2, Router: queue.PrefixRouter(key)})
		if diff := cmp.Diff([]int{0, 1}, routeTo(t, narrow, "ABCD", "ABCE")); diff != "" {
			t.Error(diff)
		}
	})
}

// TestNumberThatIsNoKeyIsRefused is BQ-31: nothing of the request is written,
// and its capacity is free.
func TestNumberThatIsNoKeyIsRefused(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		bad := map[int]float64{1: 1.5, 2: math.NaN(), 3: math.Inf(1), 4: math.Inf(-1), 5: 1 << 64, 6: -(1 << 64), 7: 0.1}
		topic := open(t, s, queue.Config[int]{
			Partitions: 4, Capacity: 3, WhenFull: queue.Fail, Router: queue.NumericRouter(func(v int) float64 { return bad[v] }),
		})
		for v := range bad {
			for _, request := range [][]int{{v}, {0, v}, {v, 0, 0}} {
				err := topic.Produce(t.Context(), request...)
				wantErr(t, err, penstock.ErrInvalid)
				if err == nil || !strings.Contains(err.Error(), "out of range") {
					t.Errorf("key %v: error %v does not say why", bad[v], err)
				}
			}
		}
		if n := topic.Stats().Produced; n != 0 {
			t.Errorf("%d events were written", n)
		}
		produce(t, topic, 0, 0, 0)
	})
}

// TestCancelOfTheFirstInLineLetsTheNextIn is BQ-46 for a topic.
func TestCancelOfTheFirstInLineLetsTheNextIn(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 3})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, 1, 2)
		ctx, cancel := context.WithCancel(t.Context())
		large := start(t, func() error { return topic.Produce(ctx, 3, 4, 5) })
		small := start(t, func() error { return topic.Produce(t.Context(), 6) })
		third := start(t, func() error { return topic.Produce(t.Context(), 7) })
		small.blocked() // one place is free, and not for it
		cancel()
		wantErr(t, large.wait(), context.Canceled)
		if err := small.wait(); err != nil {
			t.Error(err)
		}
		third.blocked() // full again
		if n := topic.Stats().WaitingProducers; n != 1 {
			t.Errorf("%d wait, want 1", n)
		}
		pull(t, c, 1)
		commit(t, c)
		if err := third.wait(); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]int{2, 6, 7}, pull(t, c, 9)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestPartOfASegmentGivesCapacityBack is BQ-48: by the difference of the
// minimum, event by event, not segment by segment.
func TestPartOfASegmentGivesCapacityBack(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 8, Capacity: 8, WhenFull: queue.Fail})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		other := group(t, topic, "other", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, seq(0, 8)...)
		room := func(want int) {
			t.Helper()
			n := 0
			for ok, err := topic.TryProduce(t.Context(), 0); ok; ok, err = topic.TryProduce(t.Context(), 0) {
				if n++; err != nil {
					t.Fatal(err)
				}
			}
			if n != want {
				t.Errorf("room for %d, want %d", n, want)
			}
		}
		pull(t, c, 5)
		commit(t, c)
		room(0) // the other group has not committed
		pull(t, other, 3)
		room(0) // nor by a pull
		commit(t, other)
		room(3) // the minimum is 3
		pull(t, other, 4)
		commit(t, other)
		room(2) // and now 5, which the first group holds
	})
}

// TestLateGroupSkipsWholeSegments is BQ-50: what has given its capacity back is
// not there for a late group, although its slots still hold it: the batch that
// was committed at the pull is in hands.
func TestLateGroupSkipsWholeSegments(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 2, Capacity: 10})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		for i := range 10 {
			produce(t, topic, i)
		}
		if diff := cmp.Diff(seq(0, 7), pull(t, c, 7)); diff != "" {
			t.Error(diff)
		}
		if e := topic.Stats().Partitions[0].Earliest; s.name == "memory" && e != 0 {
			t.Errorf("events below %d are gone while they are in hands", e)
		}
		late := group(t, topic, "late", queue.GroupConfig{})
		wantCommitted(t, late, 7)
		b, ok, err := late.Consumer(0).TryPull(10)
		if !ok || err != nil || b.Offset(0) != 7 {
			t.Fatalf("starts at %d: %t, %v", b.Offset(0), ok, err)
		}
		if diff := cmp.Diff(seq(7, 10), b.Values()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestLateGroupOfAnUnboundedTopicStartsAtTheOldest is BQ-51: nothing was given
// back, so all that is still kept is there for it, and nothing was kept from it
// on purpose.
func TestLateGroupOfAnUnboundedTopicStartsAtTheOldest(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 4})
		for i := range 10 {
			produce(t, topic, i)
		}
		first := group(t, topic, "first", queue.GroupConfig{})
		if diff := cmp.Diff(seq(0, 10), pull(t, first.Consumer(0), 100)); diff != "" {
			t.Errorf("the first group: %s", diff)
		}
		commit(t, first.Consumer(0))
		for i := range 10 {
			produce(t, topic, 10+i)
		}
		pull(t, first.Consumer(0), 3)
		commit(t, first.Consumer(0))
		oldest := topic.Stats().Partitions[0].Earliest
		if oldest > 13 {
			t.Fatalf("events below %d are gone, and a group has committed 13", oldest)
		}
		if s.name == "file" { // what nobody may read any more goes with its whole file
			oldest = 13
		}
		late := pull(t, group(t, topic, "late", queue.GroupConfig{}).Consumer(0), 100)
		if diff := cmp.Diff(seq(int(oldest), 20), late); diff != "" {
			t.Errorf("the late group: %s", diff)
		}
	})
}

// TestTopicWithoutGroupKeepsEverything is BQ-60 and BQ-49.
func TestTopicWithoutGroupKeepsEverything(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 4, Capacity: 100})
		for i := range 100 {
			produce(t, topic, i)
		}
		if p := topic.Stats().Partitions[0]; p.Earliest != 0 || p.Retained != 100 {
			t.Errorf("partition %+v, want all of 100", p)
		}
		more := start(t, func() error { return topic.Produce(t.Context(), 100) })
		time.Sleep(24 * time.Hour)
		more.blocked()
		c := group(t, topic, "late", queue.GroupConfig{}).Consumer(0)
		more.blocked() // it has committed nothing
		if diff := cmp.Diff(seq(0, 100), pull(t, c, 200)); diff != "" {
			t.Error(diff)
		}
		commit(t, c)
		if err := more.wait(); err != nil {
			t.Error(err)
		}
	})
}

// TestRecyclingKeepsOrder is BQ-61 to the letter.
func TestRecyclingKeepsOrder(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 2})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		for i := range 6 {
			produce(t, topic, 1+i)
		}
		runPulls(t, c, []pulls{{2, []int{1, 2}, true}, {2, []int{3, 4}, true}})
		produce(t, topic, 7)
		produce(t, topic, 8)
		runPulls(t, c, []pulls{{10, seq(5, 9), true}, {1, nil, false}})
	})
}

// TestUncommittedBatchPinsItsEvents is BQ-60: as long as a group has not
// committed, its events are there, however much the others commit and however
// often segments are used again.
func TestUncommittedBatchPinsItsEvents(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 4})
		pinning := group(t, topic, "pinning", queue.GroupConfig{})
		busy := group(t, topic, "busy", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, seq(0, 6)...)
		b, ok, err := pinning.Consumer(0).TryPull(2) // a view of one segment
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		for round := range 30 {
			produce(t, topic, seq(6+4*round, 10+4*round)...)
			for pull(t, busy, 3) != nil {
				commit(t, busy)
			}
			if diff := cmp.Diff([]int{0, 1}, b.Values()); diff != "" {
				t.Fatalf("round %d: the batch in hands: %s", round, diff)
			}
		}
		if diff := cmp.Diff(seq(0, 126), pull(t, pinning.Consumer(0), 1000)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestPullOfNothingMovesNothing is BQ-77 and BQ-79: a pull of size 0 or less,
// and one that finds nothing, change neither the place nor what a commit
// covers.
func TestPullOfNothingMovesNothing(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{})
		c := g.Consumer(0)
		produce(t, topic, seq(0, 6)...)
		for _, max := range []int{0, -1, math.MinInt} {
			runPulls(t, c, []pulls{{max, nil, false}})
			wantErr(t, c.Commit(), queue.ErrNothingPulled)
		}
		runPulls(t, c, []pulls{{2, []int{0, 1}, false}, {0, nil, false}, {-5, nil, true}})
		wantCommitted(t, g, 2)
		runPulls(t, c, []pulls{{4, seq(2, 6), true}, {4, nil, false}})
		wantErr(t, c.Commit(), queue.ErrNothingPulled) // it would skip what comes next
		wantCommitted(t, g, 6)
		produce(t, topic, 6, 7)
		wantErr(t, c.Commit(), queue.ErrNothingPulled)
		runPulls(t, c, []pulls{{4, []int{6, 7}, true}})
	})
}

// TestAutoCommitMovesAtThePull is BQ-78: before the application has the batch;
// in the other mode only Commit moves.
func TestAutoCommitMovesAtThePull(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 6, WhenFull: queue.Fail})
		auto := group(t, topic, "auto", queue.GroupConfig{AutoCommit: true})
		manual := group(t, topic, "manual", queue.GroupConfig{})
		produce(t, topic, seq(0, 6)...)
		for i := range 3 {
			want := seq(2*i, 2*i+2)
			if diff := cmp.Diff(want, pull(t, auto.Consumer(0), 2)); diff != "" {
				t.Error(diff)
			}
			wantCommitted(t, auto, penstock.Offset(2*i+2))
			if diff := cmp.Diff(seq(0, 2), pull(t, manual.Consumer(0), 2)); diff != "" {
				t.Error(diff)
			}
			wantCommitted(t, manual, 0)
		}
		if got := pull(t, auto.Consumer(0), 2); got != nil {
			t.Errorf("came again: %v", got)
		}
	})
}

// TestEmptyTopicGivesNoEmptyBatch is BQ-71 and BQ-72: when all partitions are
// empty a consumer waits, and the first event ends the wait whichever partition
// it is in.
func TestEmptyTopicGivesNoEmptyBatch(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		const partitions = 5
		topic := open(t, s, queue.Config[int]{Partitions: partitions, Router: queue.RouterFunc("id/1", func(v, _ int) int { return v })})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		for _, v := range []int{3, 0, 4, 4, 1, 2, 0} {
			var got []int
			waiting := start(t, func() error {
				b, err := c.Pull(t.Context())
				got = append(got, b.Values()...)
				return err
			})
			waiting.blocked()
			produce(t, topic, v)
			if err := waiting.wait(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]int{v}, got); diff != "" {
				t.Error(diff)
			}
		}
	})
}

// TestPartlyFailedRequestWakesConsumers is BQ-58 where an append ends with an
// error after some of its events: who waits for those gets them.
func TestPartlyFailedRequestWakesConsumers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		topic := openDisk(t, queue.WithFS(queue.Config[string]{
			Name: "orders", Dir: "data", Codec: penstock.String(), Partitions: 2, SegmentBytes: 8 * penstock.KiB, Logger: quiet(),
		}, m))
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		produce(t, topic, "before", "before") // one in each partition
		pull(t, c, 2)
		pull(t, c, 2)
		var got []string
		waiting := start(t, func() error {
			b, err := c.Pull(t.Context())
			got = append(got, b.Values()...)
			return err
		})
		waiting.blocked()
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpWrite && strings.Contains(op.Name, "p00001") {
				return vfs.Fault{Err: vfs.ErrNoSpace}
			}
			return vfs.Fault{}
		})
		wantErr(t, topic.Produce(t.Context(), "0", "1"), penstock.ErrDiskFull)
		if err := waiting.wait(); err != nil {
			t.Fatal(err)
		}
		want(t, got, "0")
	})
}

// TestHandlerErrorIsLoggedAndTheLoopGoesOn is BQ-88: one line that says where
// and why, and the next batch.
func TestHandlerErrorIsLoggedAndTheLoopGoesOn(t *testing.T) {
	for _, auto := range []bool{true, false} {
		bubble(t, func(t *testing.T, s storage) {
			var log bytes.Buffer
			topic := open(t, s, queue.Config[int]{Name: "orders", Logger: textLogger(&log)})
			g, err := topic.Group("billing", oneAttempt(queue.GroupConfig{BatchMax: 1, AutoCommit: auto}),
				queue.DeadLetter(func(context.Context, ...penstock.Event[int]) error { return nil }))
			if err != nil {
				t.Fatal(err)
			}
			produce(t, topic, 0, 1, 2)
			r := record(func(_ context.Context, b penstock.Batch[int]) error {
				if b.Value(0) == 1 {
					return errHandler
				}
				return nil
			})
			run := startRun(t, g, r.handle)
			time.Sleep(time.Minute)
			run.mustStop(t)
			r.want(t, handled{0, []int{0}, 1}, handled{0, []int{1}, 1}, handled{0, []int{2}, 1})
			text := log.String()
			for _, part := range []string{"topic=orders", "group=billing", "partition=0", "offset=1", errHandler.Error(), "WARN"} {
				if !strings.Contains(text, part) {
					t.Errorf("auto %t: %q is missing in the log:\n%s", auto, part, text)
				}
			}
			if n := strings.Count(text, errHandler.Error()); n != 1 {
				t.Errorf("auto %t: %d lines for one failure", auto, n)
			}
		})
	}
}

// oneAttempt gives failed events up at once.
func oneAttempt(c queue.GroupConfig) queue.GroupConfig {
	c.Retry.Attempts = 1
	return c
}
