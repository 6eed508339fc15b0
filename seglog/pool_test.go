package seglog

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// drain finishes with everything in the log.
func drain[T any](l *Log[T]) { l.Release(l.End()) }

// TestFinishedSegmentsServeOtherLogs: what one log has finished with, beyond
// what it keeps itself, another log of the type finds, without events, without
// metadata and with its own times.
func TestFinishedSegmentsServeOtherLogs(t *testing.T) {
	type event struct{ v *int }
	first := newLog[event](t, 64)
	const events = 64 * 100
	metas := make([]penstock.Meta, events)
	for i := range metas {
		metas[i].Key = "key"
	}
	first.AppendStrided(make([]event, events), metas, 0, 1)
	for range 64 {
		first.AppendStrided([]event{{new(int)}}, nil, 0, 1)
	}
	was := map[*segment[event]]bool{}
	for s := first.head; s != nil; s = s.next.Load() {
		was[s] = true
	}
	first.Append(event{}) // the last full segment is no longer the tail
	drain(first)
	if n := first.Usage().Free; n != maxFree {
		t.Errorf("the log keeps %d segments, want %d", n, maxFree)
	}
	first.Retire()
	if n := first.Usage().Free; n != 0 {
		t.Errorf("the log keeps %d segments after Retire", n)
	}

	second := newLog[event](t, 64)
	again := 0
	for range 100 {
		for range 64 {
			second.Append(event{})
		}
		if was[second.tail] {
			again++
		}
		if second.tail.metas.Load() != nil {
			t.Fatal("a segment came with metadata of others")
		}
	}
	// A sync.Pool may drop what it was given, and does so under the race
	// detector; one of a hundred is found at the least.
	if again == 0 {
		t.Error("no segment was used again")
	}
}

// TestShelfTakesNothingThatIsLookedAt: what a reader without a hold may still
// look at comes to no other log.
func TestShelfTakesNothingThatIsLookedAt(t *testing.T) {
	type event struct{ v [2]int }
	first := newLog[event](t, 64)
	for i := range 64 * 10 {
		first.Append(event{[2]int{i}})
	}
	c := first.Cursor()
	view := c.View(0, first.End()).Values
	first.Lend()
	drain(first)
	first.Retire()
	second := newLog[event](t, 64)
	for range 64 * 10 {
		second.Append(event{[2]int{-1}})
	}
	for i, v := range view {
		if v.v[0] != i {
			t.Fatalf("event %d in hands has become %d", i, v.v[0])
		}
	}
}

func TestSegmentsOfOddSizesHaveNoPlace(t *testing.T) {
	s := new(shelf[int])
	for _, size := range []int{0, 1, 32, 63, 65, 96, 4095, 8192} {
		if s.place(size) != nil {
			t.Errorf("segments of %d events have a place", size)
		}
	}
	seen := map[any]bool{}
	for size := smallest; size <= largest; size *= 2 {
		p := s.place(size)
		if p == nil || seen[p] {
			t.Errorf("segments of %d events have no place of their own", size)
		}
		seen[p] = true
	}
	if len(seen) != shelves {
		t.Errorf("%d places, want %d", len(seen), shelves)
	}
}

// TestClockOfRareReadingsIsExact: an event now and then sets no timer, and its
// time is exact; many share a reading.
func TestClockOfRareReadingsIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		for range 1000 {
			time.Sleep(clockStep)
			for range 3 {
				if age := time.Now().UnixNano() - c.UnixNano(); age != 0 {
					t.Fatalf("reading is %d ns old", age)
				}
			}
			if c.timer != nil {
				t.Fatal("a clock that is asked now and then set a timer")
			}
		}
		for range clockRun + 1 {
			c.UnixNano()
		}
		if c.now.Load() == 0 {
			t.Error("readings close together are not shared")
		}
		for range 100 { // under load the next timer follows at once
			time.Sleep(clockStep)
			synctest.Wait()
			if c.UnixNano(); c.now.Load() == 0 {
				t.Fatal("a busy clock is exact for a while after each step")
			}
		}
		time.Sleep(time.Hour)
		if c.UnixNano(); c.now.Load() != 0 {
			t.Error("a reading after a pause sets a timer")
		}
		c.Stop()
	})
}
