package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
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
	"github.com/penstock/penstock/settle"
)

// Faults that other systems' users reported, as tests named after what broke.
// docs/public-bugs.md has the whole list.

// TestCancelledPullLosesNoEvent: a bounded channel lost the item that met the
// cancellation of a waiting read (dotnet/runtime#37671). Events come at the
// very instant at which the contexts of waiting pulls end.
func TestCancelledPullLosesNoEvent(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		const events = 500
		topic := open(t, s, queue.Config[int]{Partitions: 2, Capacity: 3})
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, BatchMax: 2, AutoCommit: true})
		var producing sync.WaitGroup
		producing.Go(func() { // ends after its events; waited for below
			for i := range events {
				time.Sleep(time.Millisecond)
				if err := topic.Produce(t.Context(), i); err != nil {
					t.Error(err)
				}
			}
		})
		var got [2][]int
		var pulling sync.WaitGroup
		for i := range 2 {
			pulling.Go(func() { // ends when all has come, or with the guard; waited for below
				guard, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				for ctx := guard; len(got[i]) < events/2; {
					ctx, cancel = context.WithTimeout(guard, time.Millisecond)
					b, err := g.Consumer(i).Pull(ctx)
					cancel()
					if err == nil {
						got[i] = append(got[i], b.Values()...)
					} else if !errors.Is(err, context.DeadlineExceeded) || guard.Err() != nil {
						t.Errorf("consumer %d has %d events: %v", i, len(got[i]), err)
						return
					}
				}
			})
		}
		pulling.Wait()
		producing.Wait()
		for i, values := range got {
			for j, v := range values {
				if v != 2*j+i {
					t.Fatalf("consumer %d: event %d is %d", i, j, v)
				}
			}
		}
	})
}

// TestCancelledWaitersDoNotPileUp: cancelled waiters stayed in the lists of
// channels and semaphores (dotnet/runtime#761, #80057, #52886). 100,000 waits
// of each kind are given up while one of each goes on; fewer where the line is
// the same, on disk, or where each takes long, with the race detector.
func TestCancelledWaitersDoNotPileUp(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		waits := 100_000
		if s.name == "file" || raceEnabled {
			waits /= 10
		}
		topic := open(t, s, queue.Config[int]{Capacity: 1})
		g := group(t, topic, "g", queue.GroupConfig{Start: queue.Latest})
		empty := group(t, topic, "empty", queue.GroupConfig{})
		produce(t, topic, 1)
		pull(t, empty.Consumer(0), 1)
		commit(t, empty.Consumer(0)) // has nothing to read any more
		standing := start(t, func() error { return topic.Produce(t.Context(), 2) })
		standing.blocked()
		giveUp := func(n int) {
			for range n {
				ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
				if err := topic.Produce(ctx, 3); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), time.Nanosecond)
				if _, err := empty.Consumer(0).Pull(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				cancel()
			}
		}
		giveUp(1000)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		giveUp(waits)
		runtime.GC()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<19 {
			t.Errorf("the heap grew by %d bytes over %d waits that were given up", grown, waits)
		}
		if n := topic.Stats().WaitingProducers; n != 1 {
			t.Errorf("%d producers are in line, want the one that waits", n)
		}
		pull(t, g.Consumer(0), 1)
		commit(t, g.Consumer(0))
		if err := standing.wait(); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]int{2}, pull(t, g.Consumer(0), 9)); diff != "" {
			t.Errorf("what was given up was written: %s", diff)
		}
	})
}

// TestFailingHandlerMakesNoStorm: a negative acknowledgement was redelivered at
// full speed, for ever (ThreeDotsLabs/watermill#414, #240, #296). With the
// policy that nobody has configured, ten seconds of failures are a few calls,
// and then a dead letter.
func TestFailingHandlerMakesNoStorm(t *testing.T) {
	for _, dead := range []bool{false, true} {
		bubble(t, func(t *testing.T, s storage) {
			topic := open(t, s, queue.Config[int]{})
			var letters []int
			var options []queue.GroupOption[int]
			if dead {
				options = append(options, queue.DeadLetter(func(_ context.Context, events ...penstock.Event[int]) error {
					for _, e := range events {
						letters = append(letters, e.Value)
					}
					return nil
				}))
			}
			g, err := topic.Group("g", queue.GroupConfig{}, options...)
			if err != nil {
				t.Fatal(err)
			}
			produce(t, topic, 7)
			var at []time.Duration
			begin := time.Now()
			run := startRun(t, g, func(context.Context, penstock.Batch[int]) error {
				at = append(at, time.Since(begin))
				return errHandler
			})
			time.Sleep(10 * time.Second)
			synctest.Wait()
			calls := slices.Clone(at)
			_ = run.stop()
			for i := 1; i < len(calls); i++ {
				most := settle.DefaultMin << (i - 1)
				if d := calls[i] - calls[i-1]; d > most || d < most*8/10 {
					t.Errorf("attempt %d came after %v, want %v less at most a fifth", i+1, d, most)
				}
			}
			switch {
			case dead && (len(calls) != settle.DefaultAttempts || !slices.Equal(letters, []int{7})):
				t.Errorf("%d attempts and dead letters %v, want %d and one", len(calls), letters, settle.DefaultAttempts)
			case !dead && (len(calls) < 6 || len(calls) > 8): // 0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3 s and sooner
				t.Errorf("%d attempts in 10 s: %v", len(calls), calls)
			}
		})
	}
}

// TestPoisonEventDoesNotKeepTheBacklog: messages reappeared for ever, and the
// backlog never drained (dotnet/orleans#2983, #6345). One poison event among
// 1,000: it is given up after its attempts, nothing else comes twice, and
// nothing is left.
func TestPoisonEventDoesNotKeepTheBacklog(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		const events, poison = 1000, 321
		topic := open(t, s, queue.Config[int]{})
		var letters []int
		g, err := topic.Group("g", queue.GroupConfig{BatchMax: 32}, queue.DeadLetter(func(_ context.Context, events ...penstock.Event[int]) error {
			for _, e := range events {
				letters = append(letters, e.Value)
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		produce(t, topic, seq(0, events)...)
		calls := make([]int, events)
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
			time.Sleep(time.Duration(b.Len()) * 100 * time.Millisecond)
			for i, v := range b.Values() {
				if calls[v]++; v == poison {
					b.Fail(i, errHandler)
				}
			}
			return nil
		})
		time.Sleep(time.Hour)
		run.mustStop(t)
		for v, n := range calls {
			if want := 1; v == poison && n != settle.DefaultAttempts || v != poison && n != want {
				t.Errorf("event %d came %d times", v, n)
			}
		}
		if st := g.Stats(); st.Lag != 0 || !slices.Equal(letters, []int{poison}) {
			t.Errorf("lag %d, dead letters %v", st.Lag, letters)
		}
	})
}

// TestLagReturnsToZeroAfterAnOutage: a buffer did not drain after the place it
// wrote to had recovered (warpstreamlabs/bento#329). The sink is down for a
// minute and producers go on until the topic is full; then all of it arrives,
// in order, without a restart.
func TestLagReturnsToZeroAfterAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		const events, capacity = 900, 200
		topic := open(t, s, queue.Config[int]{Capacity: capacity})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 50, Retry: settle.Policy{Backoff: settle.Backoff{Max: 500 * time.Millisecond}}})
		begin := time.Now()
		var got []int
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
			if d := time.Since(begin); d > 5*time.Second && d < 65*time.Second {
				return errHandler
			}
			got = append(got, b.Values()...)
			return nil
		})
		producing := start(t, func() error {
			for i := range events {
				if err := topic.Produce(t.Context(), i); err != nil {
					return err
				}
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		})
		time.Sleep(60 * time.Second)
		if st := topic.Stats(); st.Retained != capacity || st.WaitingProducers != 1 {
			t.Errorf("in the outage: %d retained, %d waiting, want %d and 1", st.Retained, st.WaitingProducers, capacity)
		}
		time.Sleep(10 * time.Minute)
		if err := producing.wait(); err != nil {
			t.Error(err)
		}
		if st := g.Stats(); st.Lag != 0 || st.Run.Blocked != nil {
			t.Errorf("after the outage: lag %d, blocked %v", st.Lag, st.Run.Blocked)
		}
		run.mustStop(t)
		if diff := cmp.Diff(seq(0, events), got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestLastEventsBeforeAStopAreNotHeld: a batcher held its last events back for
// ever at shutdown (redpanda-data/connect#216). Seven events, batches of ten,
// no end of the linger in sight: the stop does not wait for three more, and the
// seven are delivered to the next run.
func TestLastEventsBeforeAStopAreNotHeld(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 10, Linger: math.MaxInt64})
		var got []int
		handler := func(_ context.Context, b penstock.Batch[int]) error {
			got = append(got, b.Values()...)
			return nil
		}
		run := startRun(t, g, handler)
		produce(t, topic, seq(0, 7)...)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got != nil {
			t.Errorf("%v did not wait for company", got)
		}
		begin := time.Now()
		run.mustStop(t)
		if d := time.Since(begin); d != 0 {
			t.Errorf("the stop took %v", d)
		}
		if lag := g.Stats().Lag; int(lag)+len(got) != 7 {
			t.Errorf("%d delivered and a lag of %d, want 7 together", len(got), lag)
		}
		run = startRun(t, g, handler)
		synctest.Wait()
		produce(t, topic, 7, 8, 9)
		synctest.Wait()
		run.mustStop(t)
		if diff := cmp.Diff(seq(0, 10), got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestEveryPartitionOfARunIsCommitted: of a batch over several partitions only
// the last message's partition was committed (ordermentum/steveo#1054). Here a
// batch has one partition, and each is committed.
func TestEveryPartitionOfARunIsCommitted(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 3, Router: queue.RouterFunc("mod/1", func(v, n int) int { return v / 100 % n })})
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, 200, 201, 100, 0, 1)
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
			for _, v := range b.Values() {
				if v/100 != b.Partition() {
					t.Errorf("event %d in a batch of partition %d", v, b.Partition())
				}
			}
			return nil
		})
		synctest.Wait()
		run.mustStop(t)
		wantCommitted(t, g, 2, 1, 2)
	})
}

// TestCommitIsNeverAheadOfTheHandler: what was polled was committed by a timer
// before it was processed (twmb/franz-go#57), and progress was reported before
// the handler had ended (dotnet/orleans#903). The handler stops at the tenth of
// 500 events; nothing beyond is committed, and it all comes again.
func TestCommitIsNeverAheadOfTheHandler(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		for _, size := range []int{1, 4, 500} {
			topic := open(t, s, queue.Config[int]{})
			g := group(t, topic, "g", queue.GroupConfig{BatchMax: size, Drain: time.Second})
			produce(t, topic, seq(0, 500)...)
			run := startRun(t, g, func(ctx context.Context, b penstock.Batch[int]) error {
				if c := committed(g)[0]; c > b.Offset(0) {
					t.Errorf("committed %d while the handler has %d", c, b.Offset(0))
				}
				if b.Offset(b.Len()-1) >= 10 {
					<-ctx.Done() // the process dies in here
					return ctx.Err()
				}
				return nil
			})
			time.Sleep(time.Hour) // timers of commits
			if err := run.stop(); err == nil {
				t.Error("Run says that all was done")
			}
			reached := penstock.Offset(10 / size * size)
			wantCommitted(t, g, reached)
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			again := group(t, topic, "g", queue.GroupConfig{})
			b, ok, err := again.Consumer(0).TryPull(1000)
			if !ok || err != nil || b.Offset(0) > reached || b.Offset(b.Len()-1) != 499 {
				t.Errorf("batches of %d: what was not handled comes again from %d, want %d: %t, %v", size, b.Offset(0), reached, ok, err)
			}
		}
	})
}

// TestPublishOrderIsKept: an in-process broker delivered in another order than
// it was given (ThreeDotsLabs/watermill#560). Events of one producer stay in
// order inside each partition, singles and batches alike.
func TestPublishOrderIsKept(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		const producers = 4
		each := 5000
		if s.name == "file" {
			each = 500
		}
		topic := open(t, s, queue.Config[int]{Partitions: 3, Capacity: 700})
		g := group(t, topic, "g", queue.GroupConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		for p := range producers {
			running.Go(func() { // ends after its events, or with ctx; waited for below
				for i := 0; i < each; {
					var batch []int
					for range min(1+i%4, each-i) {
						batch = append(batch, p*each+i)
						i++
					}
					if err := topic.Produce(ctx, batch...); err != nil {
						if ctx.Err() == nil { // else the reader has given up
							t.Error(err)
						}
						return
					}
				}
			})
		}
		var last [3][producers]int
		for n := 0; n < producers*each; {
			b, err := g.Consumer(0).Pull(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range b.Values() {
				if seen := &last[b.Partition()][v/each]; v%each < *seen {
					t.Fatalf("producer %d: %d after %d", v/each, v%each, *seen)
				} else {
					*seen = v % each
				}
			}
			n += b.Len()
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestOrderOfAKeySurvivesRedelivery: with redeliveries, messages of one subject
// overtook each other (nats-io/nats-server#7106). Every event may fail a few
// times; those of one key are done in the order in which they were produced.
func TestOrderOfAKeySurvivesRedelivery(t *testing.T) {
	for seed := range uint64(2) {
		bubble(t, func(t *testing.T, s storage) {
			const events, keys = 400, 12
			random := rand.New(rand.NewPCG(1, seed))
			topic := open(t, s, queue.Config[int]{Partitions: 3, Key: func(v int) string { return fmt.Sprint(v % keys) }})
			g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Drain: time.Hour})
			produce(t, topic, seq(0, events)...)
			var done [keys][]int
			fails := 0
			run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
				if v := b.Value(0); random.IntN(4) > 0 {
					done[v%keys] = append(done[v%keys], v)
					return nil
				}
				fails++
				return errHandler
			})
			time.Sleep(24 * time.Hour)
			run.mustStop(t)
			if fails == 0 {
				t.Error("nothing failed")
			}
			for k, got := range done {
				var want []int
				for v := k; v < events; v += keys {
					want = append(want, v)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("key %d: %s", k, diff)
				}
			}
		})
	}
}

// TestHugeBatchSizeDoesNotHang: a batch size near the largest number
// overflowed, and the stream stood still without a word
// (reactor/reactor-core#4185).
func TestHugeBatchSizeDoesNotHang(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Size: func(int) penstock.Bytes { return math.MaxInt64 }})
		produce(t, topic, seq(0, 50)...)
		huge := queue.GroupConfig{BatchMax: 1 << 30}
		for i, max := range []int{math.MaxInt, math.MaxInt - 1, math.MaxInt32, math.MaxInt32 - 1} {
			g := group(t, topic, fmt.Sprint("pull ", i), huge)
			if diff := cmp.Diff(seq(0, 50), pull(t, g.Consumer(0), max)); diff != "" {
				t.Errorf("at most %d: %s", max, diff)
			}
		}
		b, err := group(t, topic, "wait", huge).Consumer(0).Pull(t.Context())
		if err != nil || b.Len() != 50 {
			t.Errorf("%d events, %v", b.Len(), err)
		}
		for i, c := range []queue.GroupConfig{huge, {BatchMax: 1 << 30, BatchBytes: math.MaxInt64}} {
			n := 0
			run := startRun(t, group(t, topic, fmt.Sprint("run ", i), c), func(_ context.Context, b penstock.Batch[int]) error {
				n += b.Len()
				return nil
			})
			synctest.Wait()
			run.mustStop(t)
			if n != 50 {
				t.Errorf("%d of 50 delivered", n)
			}
		}
	})
}

// TestPendingEventsOfADeadConsumerComeAgain: the pending messages of a dead
// consumer were deleted with it (ThreeDotsLabs/watermill-redisstream#24).
func TestPendingEventsOfADeadConsumerComeAgain(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		g := group(t, topic, "g", queue.GroupConfig{Consumers: 2})
		produce(t, topic, seq(0, 10)...)
		pull(t, g.Consumer(0), 5) // five are pending, and one is claimed by nobody
		pull(t, g.Consumer(1), 4)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		g = group(t, topic, "g", queue.GroupConfig{})
		got := append(pull(t, g.Consumer(0), 10), pull(t, g.Consumer(0), 10)...)
		slices.Sort(got)
		if diff := cmp.Diff(seq(0, 10), got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestLeavingTheLoopEarlyLosesNothing: what had been read was lost, or its
// producers hung, when a loop over results was left early (destel/rill#97 and
// #19, ReactiveX/RxGo#359).
func TestLeavingTheLoopEarlyLosesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 4})
		c := group(t, topic, "g", queue.GroupConfig{BatchMax: 3}).Consumer(0)
		all := start(t, func() error { return topic.Produce(t.Context(), seq(0, 40)...) })
		guard, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		next := func() queue.Batch[int] {
			for b, err := range c.Batches(guard) {
				if err != nil {
					t.Fatal(err)
				}
				return b // leaves the loop with the batch in hands
			}
			panic("unreachable")
		}
		var done []int
		for len(done) < 40 {
			first := next().Value(0)
			again := next()
			if again.Value(0) != first {
				t.Fatalf("%d was left, and %d came next", first, again.Value(0))
			}
			done = append(done, again.Values()...)
			if err := again.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		if err := all.wait(); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(seq(0, 40), done); diff != "" {
			t.Error(diff)
		}
	})
}

// TestUnacknowledgedEventDelaysItsOwnGroupOnly: one message that was not
// acknowledged blocked a whole topic (ThreeDotsLabs/watermill#275, #382). One
// group of ten hangs; the others go on until the topic is full (FM-59), and all
// of them when it goes on.
func TestUnacknowledgedEventDelaysItsOwnGroupOnly(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		const groups, capacity = 10, 300
		events := 20_000
		if s.name == "file" {
			events = 1500
		}
		topic := open(t, s, queue.Config[int]{Capacity: capacity, Partitions: 2})
		release := make(chan struct{})
		var seen [groups]atomic.Int64
		var runs []*running
		for i := range groups {
			g := group(t, topic, fmt.Sprint("g", i), queue.GroupConfig{BatchMax: 64})
			runs = append(runs, startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
				if i == 0 {
					<-release
				}
				seen[i].Add(int64(b.Len()))
				return nil
			}))
		}
		producing := start(t, func() error {
			for i := range events {
				if err := topic.Produce(t.Context(), i); err != nil {
					return err
				}
			}
			return nil
		})
		producing.blocked()
		if st := topic.Stats(); st.Retained != capacity || st.Produced != capacity {
			t.Errorf("%d of %d retained, want %d", st.Retained, st.Produced, capacity)
		}
		for i := range groups {
			want := int64(capacity)
			if i == 0 {
				want = 0
			}
			if n := seen[i].Load(); n != want {
				t.Errorf("group %d has seen %d, want %d", i, n, want)
			}
		}
		close(release)
		time.Sleep(time.Minute)
		if err := producing.wait(); err != nil {
			t.Error(err)
		}
		for i, r := range runs {
			r.mustStop(t)
			if n := seen[i].Load(); n != int64(events) {
				t.Errorf("group %d has seen %d of %d in the end", i, n, events)
			}
		}
	})
}
