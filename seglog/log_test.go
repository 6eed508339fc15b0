package seglog

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
)

func newLog[T any](t testing.TB, segmentSize int) *Log[T] {
	clock := NewClock()
	t.Cleanup(clock.Stop)
	return New[T](Config{SegmentSize: segmentSize, Clock: clock})
}

// all returns the events in [at, end) across segments.
func all[T any](l *Log[T], at penstock.Offset) []T {
	var got []T
	c := l.Cursor()
	for end := l.End(); at < end; {
		span := c.View(at, end)
		got = append(got, span.Values...)
		at += penstock.Offset(len(span.Values))
	}
	return got
}

func TestAppendFormsKeepOrder(t *testing.T) {
	for _, size := range []int{0, 1, 2, 3, 64} {
		t.Run(fmt.Sprint("segment=", size), func(t *testing.T) {
			l := newLog[int](t, size)
			l.Append(0)
			if first, n := l.AppendStrided([]int{1, -1, 2, -1, 3}, nil, 0, 2); first != 1 || n != 3 {
				t.Errorf("AppendStrided = %d, %d, want 1, 3", first, n)
			}
			if first, n := l.AppendStrided([]int{-1, 4, 5, 6}, nil, 1, 1); first != 4 || n != 3 {
				t.Errorf("AppendStrided = %d, %d, want 4, 3", first, n)
			}
			if first, n := l.AppendPicked([]int{8, -1, 9, 7}, nil, []int32{3, 0, 2}); first != 7 || n != 3 {
				t.Errorf("AppendPicked = %d, %d, want 7, 3", first, n)
			}
			if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, all(l, 0)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEmptyAppendChangesNothing(t *testing.T) {
	l := newLog[int](t, 0)
	if first, n := l.AppendStrided(nil, nil, 0, 3); first != 0 || n != 0 {
		t.Errorf("AppendStrided of nothing = %d, %d", first, n)
	}
	if u := l.Usage(); u.Slots != 0 || u.End != 0 {
		t.Errorf("an unused log keeps %+v", u)
	}
}

func TestMetasLieBesideTheirEvents(t *testing.T) {
	l := newLog[int](t, 4)
	l.Append(0)
	metas := []penstock.Meta{{ID: "a"}, {}, {ID: "c"}, {ID: "d"}, {ID: "e"}}
	l.AppendStrided([]int{1, 2, 3, 4, 5}, metas, 0, 1)
	l.AppendPicked([]int{7, 6}, []penstock.Meta{{ID: "g"}, {ID: "f"}}, []int32{1, 0})
	var got []string
	c := l.Cursor()
	for at := penstock.Offset(0); at < l.End(); {
		span := c.View(at, l.End())
		for i := range span.Values {
			id := ""
			if span.Metas != nil {
				id = span.Metas[i].ID
			}
			got = append(got, id)
		}
		at += penstock.Offset(len(span.Values))
	}
	if diff := cmp.Diff([]string{"", "a", "", "c", "d", "e", "f", "g"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestTimesAreThoseOfTheAppends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog[int](t, 8)
		start := time.Now()
		want := make([]time.Duration, 0, 40)
		for i := range 40 {
			if i%3 == 0 {
				time.Sleep(5 * time.Millisecond)
				synctest.Wait() // the clock has gone stale
			}
			want = append(want, time.Since(start))
			l.Append(i)
		}
		c := l.Cursor()
		for at := penstock.Offset(0); at < l.End(); {
			// Views of every length and place see the same times.
			span := c.View(at, min(at+3, l.End()))
			i := int(at)
			for _, r := range c.Times(nil, span) {
				for range r.N {
					if got := time.Unix(0, r.UnixNano).Sub(start); got != want[i] {
						t.Errorf("event %d: time %v, want %v", i, got, want[i])
					}
					i++
				}
			}
			if i != int(at)+len(span.Values) {
				t.Errorf("times of %d events at %d cover %d", len(span.Values), at, i-int(at))
			}
			at++
		}
	})
}

func TestClockIsFreshWithinItsStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		for range 1000 {
			time.Sleep(300 * time.Microsecond)
			if age := time.Now().UnixNano() - c.UnixNano(); age < 0 || age > int64(clockStep) {
				t.Fatalf("reading is %d ns old", age)
			}
		}
		c.Stop()
		time.Sleep(time.Hour)
		if age := time.Now().UnixNano() - c.UnixNano(); age != 0 {
			t.Errorf("reading after Stop is %d ns old", age)
		}
	})
}

// TestFinishedPointersDieWithoutAppend is the rule against BQ-64.
func TestFinishedPointersDieWithoutAppend(t *testing.T) {
	l, marks := newLog[*[64]byte](t, 16), NewMarks()
	hold := marks.Add(func(_, low penstock.Offset) penstock.Offset { return low })
	var refs []weak.Pointer[[64]byte]
	for range 40 { // two full segments and a part of the tail
		v := new([64]byte)
		refs = append(refs, weak.Make(v))
		l.Append(v)
	}
	hold.Commit(37)
	hold.Lower(37)
	l.Release(marks.Low())
	runtime.GC()
	for i, r := range refs {
		if alive := r.Value() != nil; alive != (i >= 37) {
			t.Errorf("event %d: alive = %v", i, alive)
		}
	}
	runtime.KeepAlive(l)
}

func TestMetasOfFinishedEventsDie(t *testing.T) {
	l, marks := newLog[int](t, 16), NewMarks()
	hold := marks.Add(func(_, low penstock.Offset) penstock.Offset { return low })
	header := make(penstock.Header, 3)
	ref := weak.Make(&header[0])
	l.AppendStrided([]int{1}, []penstock.Meta{{Header: header}}, 0, 1)
	header = nil
	hold.Commit(1)
	hold.Lower(1)
	l.Release(marks.Low())
	runtime.GC()
	if ref.Value() != nil {
		t.Error("the header of a finished event is alive")
	}
	runtime.KeepAlive(l)
}

func TestMemoryIsFlatOverAMillionCycles(t *testing.T) {
	l, marks := newLog[int](t, 0), NewMarks()
	hold := marks.Add(func(_, low penstock.Offset) penstock.Offset { return low })
	c := l.Cursor()
	cycle := func(n int) {
		for i := range n {
			l.Append(i)
			end := l.End()
			if span := c.View(end-1, end); span.Values[0] != i {
				t.Fatalf("read %v, want %d", span.Values, i)
			}
			hold.Commit(end)
			c.Leave(end)
			hold.Lower(end)
			l.Release(marks.Low())
		}
	}
	cycle(10_000)
	slots := l.Usage().Slots
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cycle(1_000_000)
	runtime.ReadMemStats(&after)
	if got := l.Usage().Slots; got != slots {
		t.Errorf("slots grew from %d to %d", slots, got)
	}
	// The clock's timer and the runtime itself may allocate now and then.
	if n := after.Mallocs - before.Mallocs; n > 10_000 {
		t.Errorf("%d allocations in 1,000,000 cycles", n)
	}
}

func TestAdaptiveSizesFollowTheBacklog(t *testing.T) {
	l := newLog[int](t, 0)
	for i := range 10_000 {
		l.Append(i)
	}
	var sizes []int
	for s := l.head.next.Load(); s != nil; s = s.next.Load() {
		sizes = append(sizes, len(s.items))
	}
	if want := []int{64, 64, 128, 256, 512, 1024, 2048, 4096, 4096}; !slices.Equal(sizes, want) {
		t.Errorf("segment sizes %v, want %v", sizes, want)
	}
}

func TestReleaseAboveTheEndPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	newLog[int](t, 0).Release(1)
}

// TestLentEventsStayAsTheyAre: a reader that lost its hold still reads what it
// had, whatever the others do.
func TestLentEventsStayAsTheyAre(t *testing.T) {
	l, marks := newLog[*int](t, 4), NewMarks()
	earliest := func(_, low penstock.Offset) penstock.Offset { return low }
	lost, other := marks.Add(earliest), marks.Add(earliest)
	appendN := func(from, n int) {
		for i := range n {
			v := from + i
			l.Append(&v)
		}
	}
	appendN(0, 6)
	c := l.Cursor()
	first, second := c.View(0, 6), c.View(4, 6)
	l.Lend()
	marks.Remove(lost)
	for round := range 20 {
		appendN(6+4*round, 4)
		other.Commit(l.End())
		other.Lower(l.End())
		l.Release(marks.Low())
	}
	for i, v := range append(slices.Clone(first.Values), second.Values...) {
		if v == nil || *v != i {
			t.Errorf("event %d was overwritten", i)
		}
	}
	if late := c.View(2, 6); len(late.Values) != 0 {
		t.Errorf("a view of what is gone gives %d events", len(late.Values))
	}
	if free := l.Usage().Free; free != 0 {
		t.Errorf("%d segments put aside for reuse while lent", free)
	}
	l.Return()
	appendN(100, 8)
	other.Commit(l.End())
	other.Lower(l.End())
	l.Release(marks.Low())
	if free := l.Usage().Free; free == 0 {
		t.Error("no segment put aside for reuse after Return")
	}
}

// TestLentEventsDieWhenReturned: what was finished with while something was
// lent was never cleared, neither in the tail nor in segments used again.
func TestLentEventsDieWhenReturned(t *testing.T) {
	l := newLog[*[64]byte](t, 8)
	var kept []weak.Pointer[[64]byte]
	for range 6 {
		v := new([64]byte)
		kept = append(kept, weak.Make(v))
		l.AppendStrided([]*[64]byte{v}, []penstock.Meta{{ID: "old"}}, 0, 1)
	}
	l.Lend()
	l.Lend()
	l.Release(5)
	l.Return()
	runtime.GC()
	if kept[0].Value() == nil {
		t.Error("event 0 died while it was lent")
	}
	l.Return()
	runtime.GC()
	for i, w := range kept {
		if alive := w.Value() != nil; alive != (i >= 5) {
			t.Errorf("event %d: alive %t", i, alive)
		}
	}
	for range 64 { // the segment is used again
		l.Append(nil)
		c := l.Cursor()
		span := c.View(l.End()-1, l.End())
		if l.End() > 8 && span.Metas != nil && span.Metas[0].ID != "" {
			t.Fatalf("event %d shows the metadata of an earlier one", l.End()-1)
		}
		l.Release(max(5, l.End()-1))
	}
}

// TestReadersRunBesideTheAppender is for the race detector: two readers with
// holds follow an appender, and segments are used again under them.
func TestReadersRunBesideTheAppender(t *testing.T) {
	const events = 20_000
	l, marks := newLog[*int](t, 8), NewMarks()
	var readers sync.WaitGroup
	for range 2 {
		hold := marks.Add(func(_, low penstock.Offset) penstock.Offset { return low })
		readers.Go(func() { // ends after its events; waited for below
			c := l.Cursor()
			at := penstock.Offset(0)
			for end := time.Now().Add(time.Minute); at < events; {
				if time.Now().After(end) {
					t.Errorf("a reader stands at %d of %d: %+v", at, events, l.Usage())
					return
				}
				span := c.View(at, l.End())
				for i, v := range span.Values {
					if *v != int(at)+i {
						t.Errorf("offset %d holds %d", int(at)+i, *v)
						return
					}
				}
				at += penstock.Offset(len(span.Values))
				hold.Commit(at)
				c.Leave(at)
				hold.Lower(at)
				l.Release(marks.Low())
				if len(span.Values) == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	for i := range events {
		l.Append(&i)
	}
	readers.Wait()
	if u := l.Usage(); u.Released != events {
		t.Errorf("released up to %d, want %d", u.Released, events)
	}
}
