package penstock_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/penstock/penstock"
)

func indexes(failures []penstock.Failure) (out []int) {
	for _, f := range failures {
		out = append(out, f.Index)
	}
	return out
}

func TestFailReportsInOrderOfIndexAndOnce(t *testing.T) {
	var d penstock.Delivery
	b := penstock.NewBatch([]string{"a", "b", "c", "d"}, &d)
	first := errors.New("first")
	b.Fail(2, first)
	b.Fail(0, nil)
	b.Fail(3, errors.New("third"))
	b.Fail(2, errors.New("again"))
	got := d.Settle()
	if !slices.Equal(indexes(got), []int{0, 2, 3}) {
		t.Fatalf("failed %v, want events 0, 2, 3", got)
	}
	if got[1].Err != first {
		t.Errorf("second Fail of an event replaced the first error: %v", got[1].Err)
	}
	if got[0].Err == nil {
		t.Error("a nil error was not replaced")
	}
}

func TestFailOutsideTheBatchPanics(t *testing.T) {
	b := penstock.NewBatch([]int{1}, &penstock.Delivery{})
	for _, i := range []int{-1, 1} {
		func() {
			defer func() {
				if s, _ := recover().(string); !strings.HasPrefix(s, "penstock: ") {
					t.Errorf("Fail(%d): panic %q, want one that begins with the package", i, s)
				}
			}()
			b.Fail(i, nil)
		}()
	}
}

func TestFailAfterSettleChangesNothing(t *testing.T) {
	var d penstock.Delivery
	values := []int{1, 2, 3}
	late := penstock.NewBatch(values, &d)
	late.Fail(0, nil)
	got := d.Settle()
	late.Fail(1, nil)
	if !slices.Equal(indexes(got), []int{0}) {
		t.Fatalf("a late Fail changed what was settled: %v", got)
	}
	if again := d.Settle(); len(again) != 0 {
		t.Fatalf("a late Fail was kept for the next batch: %v", again)
	}
	next := penstock.NewBatch(values, &d)
	late.Fail(2, nil)
	next.Fail(1, nil)
	if got := d.Settle(); !slices.Equal(indexes(got), []int{1}) {
		t.Fatalf("failed %v, want event 1 of the new batch alone", got)
	}
}

// The slice that Settle returns shares memory with the next batch's failures:
// it must hold until that batch fails its first event, and never be touched by
// marks that are ignored.
func TestSettledFailuresStayValidUntilTheNextFail(t *testing.T) {
	var d penstock.Delivery
	values := make([]int, 8)
	b := penstock.NewBatch(values, &d)
	for i := range values {
		b.Fail(i, fmt.Errorf("event %d", i))
	}
	got := d.Settle()
	kept := slices.Clone(got)
	next := penstock.NewBatch(values, &d)
	for i := range values {
		b.Fail(i, errors.New("late"))
	}
	if diff := cmp.Diff(kept, got, cmpopts.EquateErrors()); diff != "" {
		t.Fatalf("changed before the next Fail:\n%s", diff)
	}
	next.Fail(7, nil)
	if !slices.Equal(indexes(d.Settle()), []int{7}) {
		t.Fatal("the next batch's failures hold those of the one before")
	}
}

func TestFailFromManyGoroutines(t *testing.T) {
	var d penstock.Delivery
	const n = 500
	b := penstock.NewBatch(make([]int, n), &d)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range n {
				if i%8 == g || i%3 == 0 {
					b.Fail(i, nil)
				}
			}
		})
	}
	wg.Wait()
	got := indexes(d.Settle())
	if len(got) != n || !slices.IsSorted(got) {
		t.Fatalf("%d failures, sorted %v, want all %d in order", len(got), slices.IsSorted(got), n)
	}
}

func TestFillMakesTheBatchOfADelivery(t *testing.T) {
	var d penstock.Delivery
	var b penstock.Batch[int]
	for round := range 3 {
		d.First = penstock.Offset(round)
		values := []int{round, round + 1}
		b.Fill(values, &d)
		if diff := cmp.Diff(penstock.NewBatch(values, &d), b, cmp.AllowUnexported(penstock.Batch[int]{}), cmp.Comparer(func(a, b *penstock.Delivery) bool { return a == b })); diff != "" {
			t.Fatalf("round %d (-NewBatch +Fill):\n%s", round, diff)
		}
		b.Fail(1, nil)
		if got := indexes(d.Settle()); !slices.Equal(got, []int{1}) {
			t.Fatalf("round %d: failed %v, want event 1", round, got)
		}
	}
}

// A pulled batch is settled by a commit; a mark on it must not reach the next
// delivery that a handler gets.
func TestPulledBatchCarriesItsTicketAndIgnoresFail(t *testing.T) {
	carrier := &struct{}{}
	d := &penstock.Delivery{Carrier: carrier}
	b := penstock.NewPulled([]int{1, 2}, d, 1<<62)
	got, ticket := b.Ticket()
	if got != d || got.Carrier != carrier || ticket != 1<<62 || b.Len() != 2 || b.Value(1) != 2 {
		t.Errorf("delivery %p, ticket %d, batch %v", got, ticket, b.Values())
	}
	b.Fail(1, nil)
	penstock.NewPulled([]int{1}, d, 0).Fail(0, nil)
	if failed := d.Settle(); len(failed) != 0 {
		t.Errorf("failed %v through a pulled batch", failed)
	}
	if none, _ := (penstock.Batch[int]{}).Ticket(); none != nil {
		t.Error("the zero batch has a delivery")
	}
}

func TestValuesOfABatchCannotGrowIntoTheCarriersMemory(t *testing.T) {
	memory := []int{1, 2, 3}
	b := penstock.NewBatch(memory[:2], &penstock.Delivery{})
	_ = append(b.Values(), 9)
	if memory[2] != 3 {
		t.Error("append wrote behind the batch")
	}
	if empty := penstock.NewBatch[int](nil, &penstock.Delivery{}); empty.Len() != 0 || len(empty.Values()) != 0 {
		t.Errorf("a batch of nothing has %d values", empty.Len())
	}
}

func TestFailModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d penstock.Delivery
		n := rapid.IntRange(1, 20).Draw(t, "n")
		for range 3 {
			b := penstock.NewBatch(make([]int, n), &d)
			want := map[int]bool{}
			for _, i := range rapid.SliceOf(rapid.IntRange(0, n-1)).Draw(t, "failed") {
				want[i] = true
				b.Fail(i, nil)
			}
			got := indexes(d.Settle())
			if len(got) != len(want) || !slices.IsSorted(got) {
				t.Fatalf("failed %v, want those of %v", got, want)
			}
			for _, i := range got {
				if !want[i] {
					t.Fatalf("event %d failed by itself", i)
				}
			}
		}
	})
}

func TestBatchTellsWhatItsDeliveryKnows(t *testing.T) {
	at := time.Date(2026, 11, 29, 1, 2, 3, 4, time.UTC)
	d := &penstock.Delivery{
		Topic: "orders", Partition: 3, First: 100, Epoch: 2, Attempt: 4,
		Times: []penstock.TimeRun{{N: 2, UnixNano: at.UnixNano()}, {N: 1, UnixNano: at.UnixNano() + 1}},
	}
	b := penstock.NewBatch([]string{"a", "b", "c", "d"}, d)
	if b.Len() != 4 || b.Value(2) != "c" || b.Topic() != "orders" || b.Partition() != 3 || b.Epoch() != 2 || !b.Stream().IsZero() {
		t.Errorf("batch %+v does not tell what %+v knows", b, d)
	}
	if b.Offset(0) != 100 || b.Offset(3) != 103 || b.Token(3) != (penstock.Token{Lo: 103}) || b.Attempt(1) != 4 {
		t.Errorf("offset %v to %v, token %v, attempt %d", b.Offset(0), b.Offset(3), b.Token(3), b.Attempt(1))
	}
	for i, want := range []time.Time{at, at, at.Add(1), {}} {
		if got := b.Time(i); got != want {
			t.Errorf("time of event %d is %v, want %v", i, got, want)
		}
	}
	if diff := cmp.Diff(penstock.Event[string]{Meta: penstock.Meta{Time: at}, Value: "b"}, b.Event(1)); diff != "" {
		t.Errorf("event 1 (-want +got):\n%s", diff)
	}
	if b.ID(0) != "" || !cmp.Equal(b.Meta(0), penstock.Meta{}) {
		t.Error("metadata out of nothing")
	}
	var seen []string
	for i, v := range b.All() {
		seen = append(seen, fmt.Sprint(i, v))
	}
	if diff := cmp.Diff([]string{"0a", "1b", "2c", "3d"}, seen); diff != "" {
		t.Errorf("All (-want +got):\n%s", diff)
	}
}

func TestBatchTellsWhatIsKnownPerEvent(t *testing.T) {
	own := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	d := &penstock.Delivery{
		Stream: penstock.StreamID{Namespace: "n", Key: "k"}, First: 5, Attempt: 9, Attempts: []int{1, 3},
		Tokens: []penstock.Token{{Lo: 7}, {Lo: 7, Index: 1}},
		Times:  []penstock.TimeRun{{N: 2, UnixNano: 1000}},
		Metas:  []penstock.Meta{{ID: "x", Time: own}, {Key: "k"}},
	}
	b := penstock.NewBatch([]int{1, 2}, d)
	if b.Attempt(0) != 1 || b.Attempt(1) != 3 {
		t.Errorf("attempts %d and %d, want 1 and 3", b.Attempt(0), b.Attempt(1))
	}
	if b.Token(1) != (penstock.Token{Lo: 7, Index: 1}) || b.Stream().String() != "n/k" {
		t.Errorf("token %v, stream %v", b.Token(1), b.Stream())
	}
	if b.Offset(0) != 7 || b.Offset(1) != 7 {
		t.Errorf("offsets %d and %d, want that of the container", b.Offset(0), b.Offset(1))
	}
	if b.Time(0) != own || b.Time(1) != time.Unix(0, 1000).UTC() {
		t.Errorf("times %v and %v: the producer's goes before that of the append", b.Time(0), b.Time(1))
	}
	if b.ID(0) != "x" || b.Meta(1).Key != "k" {
		t.Errorf("metadata %v and %v", b.Meta(0), b.Meta(1))
	}
}

func TestFirstAttemptIsOne(t *testing.T) {
	if got := penstock.NewBatch([]int{1}, &penstock.Delivery{}).Attempt(0); got != 1 {
		t.Fatalf("attempt %d, want 1", got)
	}
}

func BenchmarkBatchOfOneDelivery(b *testing.B) {
	d := &penstock.Delivery{}
	values := make([]int, 100)
	b.ReportAllocs()
	for b.Loop() {
		batch := penstock.NewBatch(values, d)
		batch.Fail(3, nil)
		d.Settle()
	}
}

// TestValuesOfAnySize: the values are those of the carrier, however many, and
// cannot be appended to in place.
func TestValuesOfAnySize(t *testing.T) {
	for _, n := range []int{1, 2, 1 << 16, 1<<16 + 1, 100_000} {
		values := make([]int, n+1)
		values[0], values[n-1] = 1, n
		for name, b := range map[string]penstock.Batch[int]{
			"pulled":    penstock.NewPulled(values[:n], &penstock.Delivery{}, 0),
			"pulled at": penstock.NewPulledAt(append([]int{7, 7}, values...), 2, n, &penstock.Delivery{}, 0),
			"handed":    penstock.NewBatch(values[:n], &penstock.Delivery{}),
		} {
			got := b.Values()
			if len(got) != n || cap(got) != n || got[n-1] != n || n > 1 && got[0] != 1 {
				t.Errorf("%s: %d values of capacity %d, from %d to %d, want %d", name, len(got), cap(got), got[0], got[n-1], n)
			}
		}
	}
	if got := (penstock.Batch[int]{}).Values(); len(got) != 0 {
		t.Errorf("the zero Batch has %d values", len(got))
	}
	if got := penstock.NewBatch([]struct{}{{}, {}}, &penstock.Delivery{}).Values(); len(got) != 2 {
		t.Errorf("%d values without a size, want 2", len(got))
	}
}

func TestTokensByRuns(t *testing.T) {
	d := &penstock.Delivery{First: 99, Runs: []penstock.TokenRun{
		{End: 2, First: penstock.Token{Hi: 1, Lo: 5}}, {End: 3, First: penstock.Token{Hi: 1, Lo: 6}}, {End: 6, First: penstock.Token{Hi: 2, Lo: 1, Index: 4}},
	}}
	b := penstock.NewBatch(make([]int, 6), d)
	for i, want := range []penstock.Token{
		{Hi: 1, Lo: 5}, {Hi: 1, Lo: 5, Index: 1}, {Hi: 1, Lo: 6}, {Hi: 2, Lo: 1, Index: 4}, {Hi: 2, Lo: 1, Index: 5}, {Hi: 2, Lo: 1, Index: 6},
	} {
		if got := b.Token(i); got != want || b.Offset(i) != penstock.Offset(want.Lo) {
			t.Errorf("event %d: %s, offset %s; want %s", i, got, b.Offset(i), want)
		}
	}
	d.Runs = d.Runs[:1]
	if got := b.Token(1); got != (penstock.Token{Hi: 1, Lo: 5, Index: 1}) {
		t.Errorf("one run: %s", got)
	}
}
