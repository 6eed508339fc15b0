package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
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

// TestLatestGroupLetsWaitingProducersIn: the first group of a full topic that
// begins behind everything moves the committed mark; producers that waited for
// a group were left waiting.
func TestLatestGroupLetsWaitingProducersIn(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 2})
		produce(t, topic, 1, 2)
		third := start(t, func() error { return topic.Produce(t.Context(), 3) })
		third.blocked()
		c := group(t, topic, "g", queue.GroupConfig{Start: queue.Latest}).Consumer(0)
		if err := third.wait(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{3}, pull(t, c, 10)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestLatestGroupGivesMemoryBack: what no group will ever read keeps nothing
// alive.
func TestLatestGroupGivesMemoryBack(t *testing.T) {
	topic := open(t, storages[0], queue.Config[*int]{})
	produce(t, topic, make([]*int, 1000)...)
	group(t, topic, "g", queue.GroupConfig{Start: queue.Latest})
	if s := topic.Stats().Partitions[0]; s.Earliest != 1000 {
		t.Errorf("%d of 1000 events are still kept", s.End-s.Earliest)
	}
}

// TestSecondCommitOfOnePullIsAnError covers BQ-76 where the first commit was
// the batch's own.
func TestSecondCommitOfOnePullIsAnError(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, 1)
		b, ok, err := c.TryPull(10)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		for range 2 {
			if err := b.Commit(); err != nil {
				t.Error(err)
			}
		}
		wantErr(t, c.Commit(), queue.ErrNothingPulled)
	})
}

// TestMetadataIsNotThatOfEarlierEvents: memory that was finished with while a
// closed group's batch was still in hands came back into use uncleared, and
// events without metadata showed that of events before them.
func TestMetadataIsNotThatOfEarlierEvents(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{SegmentSize: 8})
	first := group(t, topic, "first", queue.GroupConfig{})
	second := group(t, topic, "second", queue.GroupConfig{AutoCommit: true})
	old := make([]penstock.Event[int], 8)
	for i := range old {
		old[i].ID = fmt.Sprint("old ", i)
	}
	if err := topic.ProduceEvents(t.Context(), old...); err != nil {
		t.Fatal(err)
	}
	pull(t, first.Consumer(0), 4) // in hands
	pull(t, second.Consumer(0), 8)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	pull(t, second.Consumer(0), 1) // nothing, and all are finished with
	if _, _, err := first.Consumer(0).TryPull(1); !errors.Is(err, penstock.ErrClosed) {
		t.Fatal(err)
	}
	for i := range 100 {
		produce(t, topic, i)
		for {
			b, ok, err := second.Consumer(0).TryPull(3)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			for j := range b.Len() {
				if b.Offset(j) >= 8 && b.ID(j) != "" {
					t.Fatalf("event %d has id %q, and was given none", b.Offset(j), b.ID(j))
				}
			}
		}
	}
}

// large is the one type of large events in these tests: the queue is compiled
// anew for each size of an event.
type large [1 << 15]byte

func TestSizesThatCannotBeAllocatedAreRefused(t *testing.T) {
	for field, c := range map[string]queue.Config[large]{
		"SegmentSize": {Name: "t", SegmentSize: 1<<15 + 1}, // above 1 GiB
		"Capacity":    {Name: "t", Capacity: math.MaxInt},
		"Partitions":  {Name: "t", Partitions: math.MaxInt},
	} {
		_, err := queue.Open(c)
		var f *penstock.FieldError
		if !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: error %v does not name the field", field, err)
		}
	}
}

// TestLargeEventsComeInSmallSegments: segments grow in bytes, too, no further
// than they have to.
func TestLargeEventsComeInSmallSegments(t *testing.T) {
	topic := open(t, storages[0], queue.Config[large]{})
	events := make([]large, 100) // as many small ones take a segment of 256
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	produce(t, topic, events...)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 5<<20 {
		t.Errorf("100 events of 32 KiB made segments of %d KiB, want 4 MiB", n>>10)
	}
}

// TestUserCodeThatEndsACallTakesNothing: however a selector or a codec ends,
// nothing was appended, and the capacity is whole afterwards (BQ-23).
func TestUserCodeThatEndsACallTakesNothing(t *testing.T) {
	const capacity = 3
	ends := map[string]func(){
		"panic":     func() { panic("no") },
		"nil panic": func() { panic(nil) },
		"goexit":    runtime.Goexit,
	}
	forEachStorage(t, func(t *testing.T, s storage) {
		for name, end := range ends {
			t.Run(name, func(t *testing.T) {
				bad := func(v int) bool { return v < 0 }
				c := queue.Config[int]{Capacity: capacity, WhenFull: queue.Fail, Partitions: 2, Key: func(v int) string {
					if bad(v) && s.name == "memory" {
						end()
					}
					return fmt.Sprint(v)
				}}
				if s.name == "file" {
					c.Codec = badCodec{Codec: penstock.JSON[int](), bad: bad, end: end}
				}
				topic := open(t, s, c)
				for _, request := range [][]int{{-1}, {1, -1}, {-1, 1, 2}} {
					for _, call := range []func() error{
						func() error { return topic.Produce(t.Context(), request...) },
						func() error { _, err := topic.ProduceAsync(t.Context(), request...); return err },
						func() error { _, err := topic.TryProduceSeq(t.Context(), slices.Values(request)); return err },
					} {
						var err error
						var ended sync.WaitGroup
						ended.Go(func() { err = call() }) // ends with the call, or by Goexit; waited for
						ended.Wait()
						var p *penstock.PanicError
						if name != "goexit" && !errors.As(err, &p) {
							t.Errorf("%v: error %v, want a PanicError", request, err)
						}
					}
				}
				if n := topic.Stats().Produced; n != 0 {
					t.Errorf("%d events were appended", n)
				}
				for i := range capacity {
					if ok, err := topic.TryProduce(t.Context(), i); !ok || err != nil {
						t.Fatalf("event %d of %d: %t, %v", i, capacity, ok, err)
					}
				}
				if ok, err := topic.TryProduce(t.Context(), 9); ok || err != nil {
					t.Errorf("one above the capacity: %t, %v", ok, err)
				}
			})
		}
	})
}

type badCodec struct {
	penstock.Codec[int]
	bad func(int) bool
	end func()
}

func (c badCodec) Append(dst []byte, v int) ([]byte, error) {
	if c.bad(v) {
		c.end()
	}
	return c.Codec.Append(dst, v)
}

// TestCancelledWaitsLoseNoCapacity: producers whose contexts end at every
// point of a wait leave nobody in line and no capacity behind, and what an
// interrupted request says it accepted is what is there (FM-64, FM-65).
func TestCancelledWaitsLoseNoCapacity(t *testing.T) {
	for capacity := 1; capacity <= 3; capacity++ {
		synctest.Test(t, func(t *testing.T) {
			topic := open(t, storages[0], queue.Config[int]{Capacity: capacity, Partitions: 2})
			c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
			var accepted, ended atomic.Int64
			const producers, rounds = 8, 60
			var running sync.WaitGroup
			for p := range producers {
				running.Go(func() { // ends after its rounds; waited for below
					for i := range rounds {
						n := 1 + (p+i)%5
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration((p*7+i*3)%11)*time.Millisecond)
						err := topic.Produce(ctx, make([]int, n)...)
						cancel()
						var partial *penstock.PartialError
						switch {
						case err == nil:
							accepted.Add(int64(n))
						case !errors.Is(err, context.DeadlineExceeded):
							t.Error(err)
						case errors.As(err, &partial):
							if partial.Accepted%capacity != 0 || partial.Accepted >= n {
								t.Errorf("%d of %d accepted with capacity %d", partial.Accepted, n, capacity)
							}
							accepted.Add(int64(partial.Accepted))
						}
					}
					ended.Add(1)
				})
			}
			delivered := 0
			begin := time.Now()
			for ended.Load() < producers {
				if time.Since(begin) > time.Hour { // of the bubble's time; a tenth of a second is a wait's longest
					t.Fatalf("%d of %d producers have ended: %+v", ended.Load(), producers, topic.Stats())
				}
				if s := topic.Stats(); s.Retained > uint64(capacity) {
					t.Errorf("%d events in a capacity of %d", s.Retained, capacity)
				}
				delivered += len(pull(t, c, 1))
				_ = c.Commit()
				time.Sleep(time.Millisecond)
			}
			running.Wait()
			for got := pull(t, c, 10); got != nil; got = pull(t, c, 10) {
				delivered += len(got)
				commit(t, c)
			}
			if int64(delivered) != accepted.Load() {
				t.Errorf("%d accepted, %d delivered", accepted.Load(), delivered)
			}
			if n := topic.Stats().WaitingProducers; n != 0 {
				t.Errorf("%d producers in line", n)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := topic.Produce(ctx, make([]int, capacity)...); err != nil {
				t.Errorf("the capacity is not whole: %v", err)
			}
		})
	}
}

// TestCapacityHoldsWhileGroupsComeAndGo: with groups added, committing and
// removed, a topic holds exactly its capacity and lets everyone in, in the
// end.
func TestCapacityHoldsWhileGroupsComeAndGo(t *testing.T) {
	for capacity := 1; capacity <= 3; capacity++ {
		topic := open(t, storages[0], queue.Config[int]{Capacity: capacity, Partitions: 2})
		const events, producers = 600, 4
		base := group(t, topic, "base", queue.GroupConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var running, others sync.WaitGroup
		var next atomic.Int64
		for p := range producers {
			running.Go(func() { // ends when all events are produced; waited for below
				for next.Add(1) <= events {
					var err error
					if p%2 == 0 {
						err = topic.Produce(ctx, p)
					} else {
						_, err = topic.TryProduce(ctx, p)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		stop := make(chan struct{})
		for i := range 2 {
			others.Go(func() { // ends by stop; waited for below
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					g, err := topic.Group(fmt.Sprint("other ", i), queue.GroupConfig{Start: queue.Start(n % 2), AutoCommit: n%3 == 0})
					if err != nil {
						t.Error(err)
						return
					}
					for range n % 4 {
						b, ok, err := g.Consumer(0).TryPull(2)
						if err != nil {
							t.Error(err)
						}
						if ok && n%3 != 0 {
							if err := b.Commit(); err != nil {
								t.Error(err)
							}
						}
					}
					if err := g.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for delivered := 0; delivered < events; {
			b, err := base.Consumer(0).Pull(ctx)
			if err != nil {
				t.Fatalf("capacity %d: %d of %d delivered: %v; %+v", capacity, delivered, events, err, topic.Stats())
			}
			if b.Len() > capacity {
				t.Errorf("%d events in a capacity of %d", b.Len(), capacity)
			}
			delivered += b.Len()
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		running.Wait()
		close(stop)
		others.Wait()
		cancel()
		if s := topic.Stats(); s.Retained != 0 || s.WaitingProducers != 0 {
			t.Errorf("in the end: %+v", s)
		}
		if ok, err := topic.TryProduce(t.Context(), make([]int, capacity)...); !ok || err != nil {
			t.Errorf("the capacity is not whole: %t, %v", ok, err)
		}
	}
}

// TestEventsOfNoSizeAreCounted: a T without size has offsets, batches and
// capacity like any other.
func TestEventsOfNoSizeAreCounted(t *testing.T) {
	topic := open(t, storages[0], queue.Config[struct{}]{Capacity: 5000, Partitions: 3, WhenFull: queue.Fail})
	c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	produce(t, topic, make([]struct{}, 4999)...)
	produce(t, topic, struct{}{})
	if ok, err := topic.TryProduce(t.Context(), struct{}{}); ok || err != nil {
		t.Errorf("one above the capacity: %t, %v", ok, err)
	}
	n := 0
	for got := pull(t, c, 700); got != nil; got = pull(t, c, 700) {
		n += len(got)
		commit(t, c)
	}
	if n != 5000 {
		t.Errorf("%d of 5000 delivered", n)
	}
}

// TestVeryLargeRequestsPass: a million events in one call, and a pull that
// asks for as many as an int can say.
func TestVeryLargeRequestsPass(t *testing.T) {
	const events = 1_000_000
	topic := open(t, storages[0], queue.Config[int]{Partitions: 3})
	c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	produce(t, topic, seq(0, events)...)
	got := 0
	for {
		b, ok, err := c.TryPull(math.MaxInt)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		for i, v := range b.Values() {
			if want := (int(b.Offset(i)) * 3) + b.Partition(); v != want {
				t.Fatalf("partition %d offset %d: %d, want %d", b.Partition(), b.Offset(i), v, want)
			}
		}
		got += b.Len()
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if got != events {
		t.Errorf("%d of %d delivered", got, events)
	}
}

// TestReaderRefusesWhatIsOutOfRange: edge values of every call.
func TestReaderRefusesWhatIsOutOfRange(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 4})
		r, err := group(t, topic, "g", queue.GroupConfig{}).Reader(0)
		if err != nil {
			t.Fatal(err)
		}
		for _, max := range []int{0, -1, math.MinInt, 1, math.MaxInt} {
			if _, ok, err := r.Read(max); ok || err != nil {
				t.Errorf("Read(%d) of an empty topic: %t, %v", max, ok, err)
			}
		}
		produce(t, topic, seq(0, 10)...)
		for _, max := range []int{0, -1, math.MinInt} {
			if _, ok, err := r.Read(max); ok || err != nil {
				t.Errorf("Read(%d): %t, %v", max, ok, err)
			}
		}
		for _, to := range []penstock.Offset{11, math.MaxUint64, 1 << 63} {
			wantErr(t, r.Seek(to), penstock.ErrOffsetOutOfRange)
			wantErr(t, r.Commit(to), penstock.ErrOffsetOutOfRange)
		}
		wantErr(t, r.Commit(1), penstock.ErrOffsetOutOfRange) // nothing was read
		if err := r.Commit(0); err != nil {
			t.Error(err)
		}
		if err := r.Seek(10); err != nil {
			t.Error(err)
		}
		if _, ok, err := r.Read(5); ok || err != nil {
			t.Errorf("Read at the end: %t, %v", ok, err)
		}
		if err := r.Commit(5); err != nil { // below Next, which Seek moved
			t.Error(err)
		}
		wantErr(t, r.Seek(4), penstock.ErrOffsetOutOfRange)
		if err := r.Seek(5); err != nil {
			t.Error(err)
		}
		b, ok, err := r.Read(math.MaxInt)
		if !ok || err != nil || b.Offset(0) != 5 || b.Value(0) != 5 {
			t.Errorf("Read after Seek: %v, %t, %v", b.Values(), ok, err)
		}
	})
}

// TestBatchesReadAheadKeepTheirPlaces: what was read and not committed tells
// its offsets and values however commits and reads alternate, also after a
// Seek back.
func TestBatchesReadAheadKeepTheirPlaces(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: 16})
		r, err := group(t, topic, "g", queue.GroupConfig{}).Reader(0)
		if err != nil {
			t.Fatal(err)
		}
		produce(t, topic, seq(0, 300)...)
		var out []penstock.Batch[int]
		for round := range 120 {
			for range 1 + round%4 {
				if b, ok, err := r.Read(1 + round%3); err != nil {
					t.Fatal(err)
				} else if ok {
					out = append(out, b)
				}
			}
			if round%10 == 9 {
				if err := r.Seek(r.Committed() + (r.Next()-r.Committed())/2); err != nil {
					t.Fatal(err)
				}
			}
			to := r.Committed() + (r.Next()-r.Committed())*penstock.Offset(round%5)/4
			if err := r.Commit(to); err != nil {
				t.Fatal(err)
			}
			out = slices.DeleteFunc(out, func(b penstock.Batch[int]) bool { return b.Offset(0) < to })
			for _, b := range out {
				for i, v := range b.Values() {
					if v != int(b.Offset(i)) || b.Time(i).IsZero() || b.Partition() != 0 {
						t.Fatalf("round %d: event %d at offset %d", round, v, b.Offset(i))
					}
				}
			}
		}
		if r.Committed() < 200 {
			t.Errorf("committed only %d", r.Committed())
		}
	})
}

// TestStaleCommitsOfSeveralPartitions: batches of several partitions are
// committed each for itself, in any order; one whose partition was pulled
// again changes nothing (BQ-75, BQ-77).
func TestStaleCommitsOfSeveralPartitions(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 3})
		g := group(t, topic, "g", queue.GroupConfig{})
		c := g.Consumer(0)
		produce(t, topic, seq(0, 30)...)
		take := func(max int) queue.Batch[int] {
			b, ok, err := c.TryPull(max)
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			return b
		}
		old := []queue.Batch[int]{take(4), take(4), take(4)}
		if err := old[1].Commit(); err != nil {
			t.Fatal(err)
		}
		again := []queue.Batch[int]{take(2), take(2), take(2)} // partition 1 goes on, the others begin again
		for _, b := range old {
			if err := b.Commit(); err != nil { // late, all of them
				t.Fatal(err)
			}
		}
		want := func(when string, committed ...penstock.Offset) {
			t.Helper()
			for p, gp := range g.Stats().Partitions {
				if gp.Committed != committed[p] {
					t.Errorf("%s: partition %d is committed to %d, want %d", when, p, gp.Committed, committed[p])
				}
			}
		}
		want("late commits", 0, 4, 0)
		for _, p := range []int{2, 0, 1, 0} {
			if err := again[p].Commit(); err != nil {
				t.Fatal(err)
			}
		}
		want("new commits", 2, 6, 2)
		for _, b := range slices.Concat(old, again) {
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		want("doubled commits", 2, 6, 2)
	})
}

// TestDeadLetterHookThatEndsIsCalledAgain: however the hook ends, the event is
// not settled before it was taken, and other events are not lost over it.
func TestDeadLetterHookThatEndsIsCalledAgain(t *testing.T) {
	for name, end := range map[string]func() error{
		"error":  func() error { return errors.New("no room") },
		"panic":  func() error { panic("no") },
		"goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s storage) {
				topic := open(t, s, queue.Config[int]{Capacity: 4})
				calls := 0
				var dead []int
				c := queue.GroupConfig{}
				c.Retry.Attempts = 1
				g, err := topic.Group("g", c, queue.DeadLetter(func(_ context.Context, events ...penstock.Event[int]) error {
					if calls++; calls < 4 {
						return end()
					}
					for _, e := range events {
						dead = append(dead, e.Value)
					}
					return nil
				}))
				if err != nil {
					t.Fatal(err)
				}
				produce(t, topic, 1, 2, 3)
				var handled []int
				ctx, cancel := context.WithCancel(t.Context())
				run := start(t, func() error {
					return g.Run(ctx, func(_ context.Context, b penstock.Batch[int]) error {
						handled = append(handled, b.Values()...)
						for i, v := range b.All() {
							if v == 2 {
								b.Fail(i, errors.New("poison"))
							}
						}
						return nil
					})
				})
				time.Sleep(time.Minute)
				run.blocked()
				cancel()
				if err := run.wait(); err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff([]int{2}, dead); diff != "" || calls != 4 {
					t.Errorf("after %d calls the dead letters are off: %s", calls, diff)
				}
				if diff := cmp.Diff([]int{1, 2, 3}, handled); diff != "" {
					t.Error(diff)
				}
				if st := g.Stats(); st.Lag != 0 || st.Run.DeadLettered != 1 || st.Run.Failed != 1 || st.Run.Unsettled != 0 {
					t.Errorf("%+v", st)
				}
				produce(t, topic, seq(0, 4)...) // the capacity is whole
			})
		})
	}
}

// TestBadArgumentsLeaveNothingBehind: what panics or is refused does not keep
// a group from being used.
func TestBadArgumentsLeaveNothingBehind(t *testing.T) {
	panics := func(name string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s did not panic", name)
			}
		}()
		f()
	}
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2, Capacity: 2})
		for _, name := range []string{"", " ", "\t\n"} {
			_, err := topic.Group(name, queue.GroupConfig{})
			wantErr(t, err, penstock.ErrInvalid)
		}
		g := group(t, topic, "g", queue.GroupConfig{})
		handler := func(context.Context, penstock.Batch[int]) error { return nil }
		var none context.Context
		panics("Run without a context", func() { _ = g.Run(none, handler) })
		wantErr(t, g.Run(t.Context(), nil), penstock.ErrInvalid)
		panics("Produce without a context", func() { _ = topic.Produce(none, 1) })
		for _, i := range []int{-1, 1, math.MinInt, math.MaxInt} {
			panics(fmt.Sprintf("Consumer(%d)", i), func() { g.Consumer(i) })
		}
		for _, i := range []int{-1, 2, math.MinInt, math.MaxInt} {
			_, err := g.Reader(i)
			wantErr(t, err, penstock.ErrInvalid)
		}
		panics("Commit of no batch", func() { _ = queue.Batch[int]{}.Commit() })
		produce(t, topic, 1, 2)
		ctx, cancel := context.WithCancel(t.Context())
		run := start(t, func() error { return g.Run(ctx, handler) })
		run.blocked()
		cancel()
		if err := run.wait(); err != nil {
			t.Error(err)
		}
		produce(t, topic, 3, 4)
	})
}
