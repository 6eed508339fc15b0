package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// spread puts the event v into partition v mod partitions.
func spread(partitions int) queue.Config[int] {
	return queue.Config[int]{
		Partitions: partitions, Router: queue.RouterFunc("mod/1", func(v, n int) int { return v % n }),
	}
}

func resize[T any](t testing.TB, g *queue.Group[T], consumers int) {
	t.Helper()
	if err := g.Resize(t.Context(), consumers); err != nil {
		t.Errorf("Resize(%d): %v", consumers, err)
	}
	if got := g.Stats().Consumers; got != consumers {
		t.Errorf("Stats says %d consumers, want %d", got, consumers)
	}
}

// wantAssigned checks who has what: contiguous, as at the creation of a group.
func wantAssigned[T any](t testing.TB, g *queue.Group[T], want ...int) {
	t.Helper()
	at := 0
	for i, n := range want {
		if from, to := g.Consumer(i).Partitions(); from != at || to != at+n {
			t.Errorf("consumer %d has [%d, %d), want [%d, %d)", i, from, to, at, at+n)
		}
		at += n
	}
}

// What is in hand of a partition that stays is committed as ever; of one that
// moves it stays readable, its commit says that it is too late, and the events
// come again at the new consumer.
func TestResizeMovesThePartitionsOfPullConsumers(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, spread(4))
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2})
		produce(t, topic, seq(0, 16)...)
		stays, moves := g.Consumer(0), g.Consumer(1)
		kept, _, err := stays.TryPull(2) // of partition 0
		mustDo(t, err)
		lost, _, err := moves.TryPull(2) // of partition 2
		mustDo(t, err)
		resize(t, g, 4)
		wantAssigned(t, g, 1, 1, 1, 1)
		if g.Consumer(0) != stays || g.Consumer(1) != moves {
			t.Error("consumers that stay are others")
		}
		mustDo(t, kept.Commit())
		wantErr(t, lost.Commit(), queue.ErrReassigned)
		wantErr(t, moves.Commit(), queue.ErrReassigned)
		wantCommitted(t, g, 2, 0, 0, 0)
		for i, want := range [][]int{{8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}} {
			wantPull(t, g.Consumer(i), 9, want...)
			commit(t, g.Consumer(i))
		}
		wantCommitted(t, g, 4, 4, 4, 4)
		wantErr(t, lost.Commit(), queue.ErrReassigned)
		wantCommitted(t, g, 4, 4, 4, 4)
	})
}

// The values of a batch that was in hand stay, whatever becomes of the partition
// under its new consumer, until its old one calls again.
func TestBatchInHandStaysReadableAfterResize(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		type event = *[4]int
		topic := open(t, s, queue.Config[event]{Partitions: 2, SegmentSize: 4})
		g := group(t, topic, "g", queue.GroupConfig{})
		fill := func(n int) {
			for i := range n {
				produce(t, topic, &[4]int{i, i, i, i})
			}
		}
		fill(8)
		old := g.Consumer(0)
		mustPull := func(c *queue.Consumer[event]) queue.Batch[event] {
			b, ok, err := c.TryPull(4)
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			return b
		}
		commitAll := func(c *queue.Consumer[event]) {
			for {
				b, ok, err := c.TryPull(100)
				mustDo(t, err)
				if !ok {
					return
				}
				mustDo(t, b.Commit())
			}
		}
		mustDo(t, mustPull(old).Commit()) // of partition 0
		b := mustPull(old)                // of partition 1, which moves
		resize(t, g, 2)
		for range 20 {
			fill(8)
			commitAll(g.Consumer(1))
		}
		for i, v := range b.Values() {
			if want := 2*i + 1; v == nil || *v != [4]int{want, want, want, want} {
				t.Fatalf("value %d of the batch in hand is %v", i, v)
			}
		}
		wantErr(t, b.Commit(), queue.ErrReassigned)
		commitAll(old)
		if st := g.Stats(); st.Lag != 0 {
			t.Errorf("lag %d", st.Lag)
		}
	})
}

func TestResizeWakesConsumersThatWait(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, spread(3))
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 3})
		var all []call
		got := make([]queue.Batch[int], 3)
		consumers := make([]*queue.Consumer[int], 3)
		for i := range 3 {
			consumers[i] = g.Consumer(i)
			all = append(all, start(t, func() (err error) { got[i], err = consumers[i].Pull(t.Context()); return err }))
		}
		resize(t, g, 1)
		all[0].blocked()
		for i := 1; i < 3; i++ {
			wantErr(t, all[i].wait(), queue.ErrReassigned)
			_, _, err := consumers[i].TryPull(1)
			wantErr(t, err, queue.ErrReassigned)
			wantErr(t, consumers[i].Commit(), queue.ErrReassigned)
			if from, to := consumers[i].Partitions(); from != to {
				t.Errorf("consumer %d still has [%d, %d)", i, from, to)
			}
		}
		produce(t, topic, 2) // of a partition that was another's
		if err := all[0].wait(); err != nil || got[0].Value(0) != 2 {
			t.Errorf("%v, %v", got[0].Values(), err)
		}
		commit(t, consumers[0])
		resize(t, g, 3)
		for i := 1; i < 3; i++ {
			if g.Consumer(i) == consumers[i] {
				t.Errorf("consumer %d, which was taken away, is back", i)
			}
			_, err := consumers[i].Pull(t.Context())
			wantErr(t, err, queue.ErrReassigned)
		}
		wait := start(t, func() (err error) { got[2], err = g.Consumer(2).Pull(t.Context()); return err })
		wait.blocked()
		produce(t, topic, 5)
		if err := wait.wait(); err != nil || got[2].Value(0) != 5 {
			t.Errorf("%v, %v", got[2].Values(), err)
		}
		g.Close()
		_, err := consumers[1].Pull(t.Context())
		wantErr(t, err, penstock.ErrClosed)
	})
}

func TestResizeSaysWhatIsWrong(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, spread(3))
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2})
		for _, n := range []int{-1, 0, 4, 1 << 30} {
			err := g.Resize(t.Context(), n)
			if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != "consumers" {
				t.Errorf("Resize(%d): %v, want one of consumers", n, err)
			}
		}
		err := g.Resize(ended(t), 3)
		wantErr(t, err, context.Canceled, errEnded)
		wantAssigned(t, g, 2, 1)
		first := g.Consumer(0)
		resize(t, g, 2) // as it is
		if st := g.Stats(); st.Resized != 0 || g.Consumer(0) != first {
			t.Errorf("a Resize to what is there counts: %d", st.Resized)
		}
		readers := group(t, topic, "readers", queue.GroupConfig{})
		r, err := readers.Reader(0)
		mustDo(t, err)
		wantErr(t, readers.Resize(t.Context(), 2), penstock.ErrExists)
		mustDo(t, r.Close())
		mustDo(t, g.Close())
		wantErr(t, g.Resize(t.Context(), 3), penstock.ErrClosed)
		other := group(t, topic, "other", queue.GroupConfig{})
		mustDo(t, topic.Close())
		wantErr(t, other.Resize(t.Context(), 2), penstock.ErrClosed)
	})
}

// A group that nobody has used yet takes its new number too, whatever its use
// is then.
func TestResizeBeforeTheFirstUse(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, spread(4))
		pulled := group(t, topic, "pulled", queue.GroupConfig{})
		early := pulled.Consumer(0)
		run := group(t, topic, "run", queue.GroupConfig{Consumers: 4})
		readers := group(t, topic, "readers", queue.GroupConfig{Consumers: 4})
		for _, g := range []*queue.Group[int]{pulled, run, readers} {
			resize(t, g, 2)
			wantAssigned(t, g, 2, 2)
			resize(t, g, 3)
		}
		produce(t, topic, seq(0, 8)...)
		if diff := cmp.Diff([]int{0, 4}, pull(t, early, 2)); diff != "" {
			t.Error(diff)
		}
		commit(t, early)
		wantPull(t, pulled.Consumer(2), 2, 3, 7)
		commit(t, pulled.Consumer(2))
		wantCommitted(t, pulled, 2, 0, 0, 2)
		var mu sync.Mutex
		most := map[int]bool{}
		r := startRun(t, run, func(_ context.Context, b penstock.Batch[int]) error {
			mu.Lock()
			most[b.Partition()] = true
			n := len(most)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			if delete(most, b.Partition()); n > 3 {
				t.Errorf("%d calls at a time of 3 consumers", n)
			}
			return nil
		})
		time.Sleep(time.Minute)
		r.mustStop(t)
		wantCommitted(t, run, 2, 2, 2, 2)
		reader, err := readers.Reader(3)
		mustDo(t, err)
		b, _, err := reader.Read(5)
		mustDo(t, err)
		if diff := cmp.Diff([]int{3, 7}, b.Values()); diff != "" {
			t.Error(diff)
		}
		mustDo(t, reader.Commit(2))
	})
}

// What holds a pulled group back, and where it was sought, does not depend on
// who has the partition.
func TestResizeKeepsPausesRatesAndSeeks(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		c := spread(2)
		topic := open(t, s, c)
		group(t, topic, "keeper", queue.GroupConfig{}) // of all events, to seek back to
		g := group(t, topic, "g", queue.GroupConfig{Rate: 1, Burst: 1, BatchMax: 1})
		produce(t, topic, seq(0, 10)...)
		old := g.Consumer(0)
		wantPull(t, old, 1, 0)
		mustDo(t, g.SeekOffset(t.Context(), 1, 3)) // not taken up yet
		mustDo(t, g.PausePartition(0))
		resize(t, g, 2)
		mustDo(t, g.SeekOffset(t.Context(), 0, 4)) // old still has a batch
		if err := old.Commit(); !errors.Is(err, queue.ErrNothingPulled) {
			t.Errorf("commit after a seek: %v", err)
		}
		begin := time.Now()
		b, err := g.Consumer(1).Pull(t.Context())
		if err != nil || b.Value(0) != 7 || time.Since(begin) != time.Second {
			t.Errorf("%v, %v after %v, want 7 after 1 s", b.Values(), err, time.Since(begin))
		}
		mustDo(t, b.Commit())
		wait := start(t, func() (err error) { b, err = old.Pull(t.Context()); return err })
		time.Sleep(time.Minute)
		wait.blocked()
		mustDo(t, g.ResumePartition(0))
		if err := wait.wait(); err != nil || b.Value(0) != 8 {
			t.Errorf("%v, %v, want 8", b.Values(), err)
		}
		mustDo(t, b.Commit())
		wantCommitted(t, g, 5, 4)
		mustDo(t, g.SeekOffset(t.Context(), 0, 0))
		resize(t, g, 1)
		time.Sleep(time.Second)
		b, err = old.Pull(t.Context())
		if err != nil || b.Value(0) != 0 {
			t.Errorf("%v, %v, want 0", b.Values(), err)
		}
	})
}

// Commits of before and after a Resize are on disk.
func TestResizeLosesNoStoredCommit(t *testing.T) {
	synctestFile(t, func(t *testing.T, s storage) {
		c := spread(2)
		c.Name, c.Dir = "topic", t.TempDir()
		topic := open(t, s, c)
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, seq(0, 12)...)
		old := g.Consumer(0)
		wantPull(t, old, 2, 0, 2)
		commit(t, old)
		wantPull(t, old, 2, 1, 3)
		commit(t, old)
		b, _, err := old.TryPull(2)
		mustDo(t, err)
		mustDo(t, b.Commit()) // of 0
		late, _, err := old.TryPull(2)
		mustDo(t, err) // of 1
		resize(t, g, 2)
		wantPull(t, g.Consumer(1), 1, 5)
		commit(t, g.Consumer(1))
		wantErr(t, late.Commit(), queue.ErrReassigned)
		wantPull(t, old, 1, 8)
		commit(t, old)
		mustDo(t, topic.Close())
		topic = open(t, s, c)
		wantCommitted(t, group(t, topic, "g", queue.GroupConfig{}), 5, 3)
	})
}

func synctestFile(t *testing.T, test func(t *testing.T, s storage)) {
	inBubble(t, func(t *testing.T, s storage) {
		if s.name == "file" {
			test(t, s)
		}
	})
}

// Consumers pull, commit and go while their group is resized without a pause.
// A commit that returned nil counts once and for ever; with AutoCommit each
// event comes once.
func TestResizeWhileConsumersWork(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		for _, auto := range []bool{false, true} {
			for _, capacity := range []int{0, 500} {
				t.Run(fmt.Sprintf("auto %t, capacity %d", auto, capacity), func(t *testing.T) {
					resizeWhileConsumersWork(t, s, auto, capacity)
				})
			}
		}
	})
}

func resizeWhileConsumersWork(t *testing.T, s storage, auto bool, capacity int) {
	const parts = 5
	events := 60_000
	if s.name == "file" {
		events = 4_000
	}
	c := spread(parts)
	c.Capacity, c.SegmentSize = capacity, 16
	if s.name == "file" {
		c.Durability, c.SegmentSize = penstock.Written, 0
	}
	topic := open(t, s, c)
	g := group(t, topic, "g", queue.GroupConfig{AutoCommit: auto})
	var mu sync.Mutex
	counted := make([]int, events) // by event
	last := make([]int, parts)     // by partition, the newest that counts
	for i := range last {
		last[i] = -1
	}
	left := events
	done := make(chan struct{})
	count := func(b queue.Batch[int], values []int) { // not b's own after its commit
		mu.Lock()
		defer mu.Unlock()
		for i, v := range values {
			counted[v]++
			if counted[v] > 1 {
				t.Errorf("event %d counts %d times", v, counted[v])
			}
			last[b.Partition()] = max(last[b.Partition()], int(b.Offset(i)))
		}
		if left -= b.Len(); left == 0 {
			close(done)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var workers sync.WaitGroup
	work := func(c *queue.Consumer[int], seed uint64) {
		defer workers.Done()
		rng := rand.New(rand.NewPCG(seed, 7))
		for {
			b, err := c.Pull(ctx)
			if errors.Is(err, queue.ErrReassigned) {
				return
			}
			if err != nil {
				if !errors.Is(err, context.Canceled) && !errors.Is(err, penstock.ErrClosed) {
					t.Errorf("Pull: %v", err)
				}
				return
			}
			if from := b.Values(); !slices.IsSorted(from) {
				t.Errorf("batch %v is out of order", from)
			}
			if auto {
				count(b, b.Values())
				continue
			}
			if rng.IntN(8) == 0 {
				continue // not committed: it comes again
			}
			values := slices.Clone(b.Values())
			switch err := b.Commit(); {
			case err == nil:
				count(b, values)
			case !errors.Is(err, queue.ErrReassigned):
				t.Errorf("Commit: %v", err)
			case !slices.Equal(values, b.Values()):
				t.Error("the values of a batch in hand have changed")
			}
		}
	}
	known := map[*queue.Consumer[int]]bool{}
	hire := func() {
		for i := range g.Stats().Consumers {
			if c := g.Consumer(i); !known[c] {
				known[c] = true
				workers.Add(1)
				go work(c, uint64(len(known))) // ends with its consumer or with ctx; waited for below
			}
		}
	}
	hire()
	produced := make(chan error, 1)
	go func() { // ends when all is produced or with ctx; received below
		for from := 0; from < events; from += 20 {
			if err := topic.Produce(ctx, seq(from, from+20)...); err != nil {
				produced <- err
				return
			}
		}
		produced <- nil
	}()
	rng := rand.New(rand.NewPCG(1, 2))
	for over := false; !over; {
		select {
		case <-done:
			over = true
		case <-ctx.Done():
			t.Fatalf("%d events were never committed: %+v", left, g.Stats())
		default:
			resize(t, g, 1+rng.IntN(parts))
			hire()
			time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
		}
	}
	if err := <-produced; err != nil {
		t.Errorf("produce: %v", err)
	}
	cancel()
	workers.Wait()
	if st := g.Stats(); st.Lag != 0 {
		t.Errorf("lag %d when everything was counted", st.Lag)
	}
}
