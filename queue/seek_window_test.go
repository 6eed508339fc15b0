package queue_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// A batch over two segments is copied together, and the copy is emptied when it
// was committed. A way back must not end in the empty copy.
func TestSeekBackReadsTheLogNotAnEmptiedCopy(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[*int]{SegmentSize: 4})
		group(t, topic, "keeper", queue.GroupConfig{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 6})
		for i := range 12 {
			produce(t, topic, &i)
		}
		c := g.Consumer(0)
		for range 3 {
			if got := pull(t, c, 6); len(got) != 6 || *got[0] != 0 {
				t.Fatalf("pulled %d events, want 6 from the first on", len(got))
			}
			commit(t, c)
			mustDo(t, g.SeekOffset(t.Context(), 0, 2))
			got := pull(t, c, 4) // as many as the old window has from there on
			if len(got) != 4 {
				t.Fatalf("pulled %d events after the seek, want 4", len(got))
			}
			for i, v := range got {
				if v == nil || *v != i+2 {
					t.Fatalf("event %d after the seek is %v, want %d", i, v, i+2)
				}
			}
			commit(t, c)
			mustDo(t, g.Seek(t.Context(), queue.Earliest))
		}
	})
}

func TestReaderStartsWhereTheGroupWasSought(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 10, WhenFull: queue.Fail, SegmentSize: 2})
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, seq(0, 10)...)
		mustDo(t, g.SeekOffset(t.Context(), 0, 6))
		r, err := g.Reader(0)
		if err != nil {
			t.Fatal(err)
		}
		if r.Next() != 6 || r.Committed() != 6 {
			t.Errorf("the reader stands at %d, commit %d; want 6", r.Next(), r.Committed())
		}
		wantErr(t, g.SeekOffset(t.Context(), 0, 8), penstock.ErrExists)
		b, ok, err := r.Read(1)
		if err != nil || !ok || b.Values()[0] != 6 {
			t.Fatalf("read %v %v %v, want event 6", b, ok, err)
		}
		mustDo(t, r.Commit(7))
		wantCommitted(t, g, 7)
		produce(t, topic, seq(10, 17)...)
		wantErr(t, topic.Produce(t.Context(), 17), penstock.ErrFull)
	})
}

// Pauses and resumes of other partitions must not undo a pause that stands.
func TestPauseHoldsBesideOtherChanges(t *testing.T) {
	topic := open(t, storage{name: "memory"}, queue.Config[int]{Partitions: 2})
	g := group(t, topic, "g", queue.GroupConfig{})
	produce(t, topic, 0) // to partition 0; nothing is in 1
	stop := make(chan struct{})
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_ = g.PausePartition(1)
				_ = g.ResumePartition(1)
				g.Resume()
			}
		})
	}
	defer others.Wait()
	defer close(stop)
	c := g.Consumer(0)
	for range 20_000 {
		mustDo(t, g.PausePartition(0))
		if got := pull(t, c, 1); got != nil {
			t.Fatal("a paused partition was pulled from")
		}
		mustDo(t, g.ResumePartition(0))
	}
}

// A caller that looks now and then comes too late for its reservation each
// time; the tokens that came meanwhile are there all the same.
func TestRateServesThoseWhoLookNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := open(t, storage{name: "memory"}, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{Rate: 10, AutoCommit: true})
		produce(t, topic, seq(0, 1000)...)
		c, begin, got := g.Consumer(0), time.Now(), 0
		for time.Since(begin) < 20*time.Second {
			got += len(pull(t, c, 10))
			time.Sleep(130 * time.Millisecond)
		}
		if got < 180 || got > 210 {
			t.Errorf("%d events in 20 s at a rate of 10 and a burst of 10", got)
		}
	})
}
