package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

var nilIsEmpty = cmpopts.EquateEmpty()

func TestRoundRobinPerEvent_QC1(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 4, SegmentSize: 8})
		produce(t, topic, 0)
		produce(t, topic, 1, 2, 3, 4, 5)
		want := [][]int{{0, 4}, {1, 5}, {2}, {3}}
		if diff := cmp.Diff(want, contents(t, topic)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestBatchAndSequenceKeepOrder_QC2(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 8})
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, 1, 2, 3, 4)
		if err := topic.ProduceSeq(t.Context(), slices.Values([]int{5, 6, 7, 8})); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(seq(1, 9), pull(t, g.Consumer(0), 8)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestCancelledContextTouchesNothing_QC4(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		selected := 0
		topic := open(t, s, queue.Config[int]{Key: func(int) string { selected++; return "" }})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		bomb := func(func(int) bool) { panic("the sequence was read") }
		wantErr(t, topic.ProduceSeq(ctx, bomb), context.Canceled)
		ok, err := topic.TryProduceSeq(ctx, bomb)
		wantErr(t, err, context.Canceled)
		_, asyncErr := topic.ProduceAsync(ctx, 1)
		wantErr(t, asyncErr, context.Canceled)
		wantErr(t, topic.Produce(ctx, 1), context.Canceled)
		wantErr(t, topic.Produce(ctx), context.Canceled)
		if ok || selected != 0 || topic.Stats().Produced != 0 {
			t.Errorf("ok = %v, selector calls %d, produced %d", ok, selected, topic.Stats().Produced)
		}
	})
}

// TestEndedContextStopsASingleEvent: every way of one event looks at the context,
// the short one too, which singles in turn take when some have come.
func TestEndedContextStopsASingleEvent(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		for name, c := range map[string]queue.Config[int]{
			"in turn":          {Name: "turn", Partitions: 2},
			"with a capacity":  {Name: "capacity", Partitions: 2, Capacity: 1000},
			"routed":           {Name: "routed", Partitions: 2, Router: queue.NumericRouter(func(v int) int { return v })},
			"whole to the one": {Name: "whole", Partitions: 2, Router: queue.BatchRouter[int]()},
		} {
			topic := open(t, s, c)
			for v := range 20 {
				produce(t, topic, v)
			}
			for range 3 {
				wantErr(t, topic.Produce(ended(t), 99), context.Canceled, errEnded)
				ok, err := topic.TryProduce(ended(t), 99)
				wantErr(t, err, context.Canceled, errEnded)
				if ok {
					t.Errorf("%s: accepted", name)
				}
			}
			if n := topic.Stats().Produced; n != 20 {
				t.Errorf("%s: %d events, want 20", name, n)
			}
			produce(t, topic, 20)
		}
	})
}

func TestEmptyBatchSucceeds(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 1, WhenFull: queue.Fail})
		produce(t, topic, 1)
		produce(t, topic)
		if ok, err := topic.TryProduce(t.Context()); !ok || err != nil {
			t.Errorf("TryProduce of nothing = %v, %v", ok, err)
		}
	})
}

func TestRejectedBatchMovesNoTurn_QC5(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 4, SegmentSize: 8, Capacity: 2, WhenFull: queue.Fail})
		if ok, err := topic.TryProduce(t.Context(), 1, 2, 3); ok || err != nil {
			t.Errorf("TryProduce of 3 = %v, %v, want false", ok, err)
		}
		if ok, err := topic.TryProduce(t.Context(), 1, 2); !ok || err != nil {
			t.Errorf("TryProduce of 2 = %v, %v, want true", ok, err)
		}
		want := [][]int{{1}, {2}, {}, {}}
		if diff := cmp.Diff(want, contents(t, topic), nilIsEmpty); diff != "" {
			t.Error(diff)
		}
	})
}

// TestRequestThatDoesNotFitNowMovesNoTurn is the same for requests that the
// capacity would hold, and does not now (BQ-27, BQ-40).
func TestRequestThatDoesNotFitNowMovesNoTurn(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 5, Capacity: 2, WhenFull: queue.Fail})
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 5})
		produce(t, topic, 0)
		wantErr(t, topic.Produce(t.Context(), 8, 9), penstock.ErrFull)
		produce(t, topic, 1)
		wantErr(t, topic.Produce(t.Context(), 9), penstock.ErrFull)
		for v := range 4 {
			if diff := cmp.Diff([]int{v}, pull(t, g.Consumer(v), 9)); diff != "" {
				t.Error(diff)
			}
			commit(t, g.Consumer(v))
			if v < 2 {
				produce(t, topic, v+2)
			}
		}
	})
}

func TestFailRejectsWholeBatch_QC13(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		selected := 0
		topic := open(t, s, queue.Config[int]{
			Partitions: 2, Capacity: 2, WhenFull: queue.Fail,
			Key: func(v int) string { selected++; return fmt.Sprint(v) },
		})
		ok, err := topic.TryProduce(t.Context(), 1, 2, 3)
		if ok || err != nil {
			t.Errorf("TryProduce = %v, %v, want false", ok, err)
		}
		wantErr(t, topic.Produce(t.Context(), 1, 2, 3), penstock.ErrFull)
		if selected != 0 {
			t.Errorf("the selector was called %d times", selected)
		}
	})
}

func TestConcurrentSinglesSpreadEvenly_QC15(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		const producers, each = 32, 128
		topic := open(t, s, queue.Config[int]{Partitions: 4})
		var wg sync.WaitGroup
		for p := range producers {
			wg.Go(func() { // ends after its events; waited for below
				for i := range each {
					if err := topic.Produce(t.Context(), p*each+i); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		var all []int
		for p, events := range contents(t, topic) {
			if len(events) != producers*each/4 {
				t.Errorf("partition %d has %d events, want %d", p, len(events), producers*each/4)
			}
			all = append(all, events...)
		}
		slices.Sort(all)
		if !slices.Equal(all, seq(0, producers*each)) {
			t.Error("events were lost or doubled")
		}
	})
}

// TestSinglesAndBatchesTogether mixes what takes the turn's lock alone with
// what takes the partitions' locks.
func TestSinglesAndBatchesTogether(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		const producers, each = 8, 200
		topic := open(t, s, queue.Config[int]{Partitions: 3})
		var wg sync.WaitGroup
		for p := range producers {
			wg.Go(func() { // ends after its events; waited for below
				for i := 0; i < each; {
					n := 1 + (p*i)%5
					n = min(n, each-i)
					batch := seq(p*each+i, p*each+i+n)
					if err := topic.Produce(t.Context(), batch...); err != nil {
						t.Error(err)
					}
					i += n
				}
			})
		}
		wg.Wait()
		var all []int
		for p, events := range contents(t, topic) {
			if n := len(events); n < producers*each/3 || n > producers*each/3+1 {
				t.Errorf("partition %d has %d events", p, n)
			}
			all = append(all, events...)
		}
		slices.Sort(all)
		if !slices.Equal(all, seq(0, producers*each)) {
			t.Error("events were lost or doubled")
		}
	})
}

func TestConcurrentTryNeverPassesCapacity_QC29(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{
			Partitions: 4, Capacity: 257, WhenFull: queue.Fail,
			Router: queue.NumericRouter(func(v int) int { return v }),
		})
		var accepted atomic.Int64
		var wg sync.WaitGroup
		for p := range 32 {
			wg.Go(func() { // ends after its tries; waited for below
				for i := range 32 {
					ok, err := topic.TryProduce(t.Context(), p*32+i)
					if err != nil {
						t.Error(err)
					}
					if ok {
						accepted.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if ok, err := topic.TryProduce(t.Context(), 1); ok || err != nil {
			t.Errorf("one more than the capacity: %t, %v", ok, err)
		}
		stored := 0
		for _, events := range contents(t, topic) {
			stored += len(events)
		}
		if accepted.Load() != 257 || stored != 257 {
			t.Errorf("accepted %d, stored %d, want 257", accepted.Load(), stored)
		}
	})
}

func TestFullTopicFailsUntilCommit(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 1, WhenFull: queue.Fail})
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, 1)
		err := topic.Produce(t.Context(), 2)
		wantErr(t, err, penstock.ErrFull)
		if err == nil || !strings.Contains(err.Error(), `"topic"`) {
			t.Errorf("error %v does not name the topic", err)
		}
		if ok, err := topic.TryProduce(t.Context(), 2); ok || err != nil {
			t.Errorf("TryProduce = %v, %v, want false", ok, err)
		}
		pull(t, g.Consumer(0), 1)
		wantErr(t, topic.Produce(t.Context(), 2), penstock.ErrFull)
		commit(t, g.Consumer(0))
		produce(t, topic, 2)
	})
}

// TestSelectorFailureGivesCapacityBack covers BQ-23 and BQ-36: whatever the
// router does wrong, nothing is written and no capacity is lost.
func TestSelectorFailureGivesCapacityBack(t *testing.T) {
	errRoute := errors.New("no partition")
	for _, test := range []struct {
		name  string
		route func(int) (int, error)
		want  error
	}{
		{"panics", func(int) (int, error) { panic(errRoute) }, errRoute},
		{"fails", func(int) (int, error) { return 0, errRoute }, errRoute},
		{"index too high", func(int) (int, error) { return 2, nil }, penstock.ErrInvalid},
		{"index negative", func(int) (int, error) { return -1, nil }, penstock.ErrInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			forEachStorage(t, func(t *testing.T, s storage) {
				bad := true
				topic := open(t, s, queue.Config[int]{
					Partitions: 2, Capacity: 2, WhenFull: queue.Fail,
					Router: routerFunc(func(v int) (int, error) {
						if bad && v == 2 {
							return test.route(v)
						}
						return 0, nil
					}),
				})
				wantErr(t, topic.Produce(t.Context(), 2), test.want)
				wantErr(t, topic.Produce(t.Context(), 1, 2), test.want)
				bad = false
				produce(t, topic, 1, 2) // needs the whole capacity
				if diff := cmp.Diff([][]int{{1, 2}, nil}, contents(t, topic), nilIsEmpty); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

type routerFunc func(int) (int, error)

func (routerFunc) ID() string                    { return "test/1" }
func (f routerFunc) Route(v, _ int) (int, error) { return f(v) }

func TestPanicOfSelectorIsPanicError(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{Key: func(int) string { panic("boom") }})
	err := topic.Produce(t.Context(), 1)
	var p *penstock.PanicError
	if !errors.As(err, &p) || p.Value != "boom" || len(p.Stack) == 0 {
		t.Errorf("error %#v, want a PanicError with value and stack", err)
	}
}

func TestEventsKeepWhatIsKnownOfThem(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[string]{Partitions: 2, Key: func(v string) string { return v }})
		events := []penstock.Event[string]{
			{Meta: penstock.Meta{ID: "1", Key: "k", Header: penstock.Header{{Name: "a", Value: "b"}}}, Value: "x"},
			{Value: "bare"},
			{Meta: penstock.Meta{ID: "3", Key: "k"}, Value: "y"},
		}
		receipt, err := topic.ProduceEventsAsync(t.Context(), events...)
		if err != nil {
			t.Fatal(err)
		}
		ack, err := receipt.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for _, p := range ack.Parts {
			count += p.Count
		}
		if count != 3 {
			t.Errorf("the acknowledgement counts %d events, want 3", count)
		}
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2})
		got := map[string]penstock.Event[string]{}
		part := map[string]int{}
		var order []string
		for i := range 2 {
			b, ok, err := g.Consumer(i).TryPull(10)
			if err != nil {
				t.Fatal(err)
			}
			for j := range b.Values() {
				if !ok {
					break
				}
				e := b.Event(j)
				got[e.Value], part[e.Value] = e, b.Partition()
				order = append(order, e.Value)
			}
		}
		want := map[string]penstock.Event[string]{"x": events[0], "bare": events[1], "y": events[2]}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(penstock.Meta{}, "Time"), nilIsEmpty); diff != "" {
			t.Error(diff)
		}
		if part["x"] != part["y"] || slices.Index(order, "x") > slices.Index(order, "y") {
			t.Errorf("equal given keys: partitions %v, order %v", part, order)
		}
		for v, e := range got {
			if e.Time.IsZero() {
				t.Errorf("%q has no time", v)
			}
		}
	})
}

func TestAckNamesOffsets(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		produce(t, topic, 0)
		receipt, err := topic.ProduceAsync(t.Context(), 1, 2, 3)
		if err != nil {
			t.Fatal(err)
		}
		ack, err := receipt.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(ack.Parts, func(a, b queue.Part) int { return a.Partition - b.Partition })
		want := []queue.Part{{Partition: 0, First: 1, Count: 1}, {Partition: 1, First: 0, Count: 2}}
		if diff := cmp.Diff(want, ack.Parts); diff != "" {
			t.Error(diff)
		}
		if ack.Level == penstock.DurabilityDefault {
			t.Error("the acknowledgement names no level")
		}
	})
}

func TestProduceAllocatesNothing(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{Partitions: 4, Capacity: 10_000})
	g := group(t, topic, "g", queue.GroupConfig{AutoCommit: true})
	batch := seq(0, 100)
	ctx := t.Context()
	round := func() {
		for i := range 100 {
			if topic.Produce(ctx, i) != nil {
				t.Fatal("Produce failed")
			}
		}
		if topic.Produce(ctx, batch...) != nil {
			t.Fatal("Produce failed")
		}
		for {
			if _, ok, _ := g.Consumer(0).TryPull(7); !ok {
				break
			}
		}
	}
	for range 200 {
		round()
	}
	if n := testing.AllocsPerRun(500, round); n > 0 {
		t.Errorf("%v allocations per 200 events, want 0", n)
	}
}

func TestKeyedProduceAllocatesNothing(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{Partitions: 4, Router: queue.NumericRouter(func(v int) int { return v })})
	g := group(t, topic, "g", queue.GroupConfig{AutoCommit: true})
	batch := seq(0, 100)
	ctx := t.Context()
	round := func() {
		for i := range 100 {
			if topic.Produce(ctx, i) != nil {
				t.Fatal("Produce failed")
			}
		}
		if topic.Produce(ctx, batch...) != nil {
			t.Fatal("Produce failed")
		}
		for {
			if _, ok, _ := g.Consumer(0).TryPull(7); !ok {
				break
			}
		}
	}
	for range 200 {
		round()
	}
	limit := 1.0 // the pool of plans may be emptied by a collection
	if raceEnabled {
		limit = 4 // a plan
	}
	if n := testing.AllocsPerRun(500, round); n > limit {
		t.Errorf("%v allocations per 200 events, want 0", n)
	}
}
