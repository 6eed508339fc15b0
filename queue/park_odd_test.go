package queue_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// An order that was given while a handler had the last parked event of its key
// must not hit an event of that key that is parked later.
func TestOrderForAKeyThatIsGoneDoesNotHitTheNextOne(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()})
		produce(t, topic, "a1")
		w := handleWords(failUntil(2, "a1", "a2"))
		run := startRun(t, g, func(ctx context.Context, b penstock.Batch[string]) error {
			if b.Value(0) == "a1" && b.Attempt(0) == 2 { // in hand: it is not discarded
				if n, err := g.DiscardParked("a"); n != 1 || err != nil {
					t.Errorf("DiscardParked = %d, %v, want 1", n, err)
				}
			}
			return w.handle(ctx, b)
		})
		time.Sleep(5 * time.Second)
		nothingIsParked(t, g)
		produce(t, topic, "a2")
		time.Sleep(10 * time.Second)
		nothingIsParked(t, g)
		run.mustStop(t)
		w.want(t, "0s a1", "2s a1 2", "5s a2", "7s a2 2")
		if st := g.Stats(); st.Discarded != 0 {
			t.Errorf("%d discarded, want none", st.Discarded)
		}
	})
}

// What DiscardParked drops in a group without DeadLetter was taken by nobody.
func TestDroppedParkedEventsAreNotCountedAsDeadLetters(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()})
		produce(t, topic, "a1", "a2")
		run := startRun(t, g, handleWords(failUntil(9, "a1")).handle)
		time.Sleep(time.Second)
		if _, err := g.DiscardParked("a"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		run.mustStop(t)
		if st := g.Stats(); st.Discarded != 2 || st.Run.DeadLettered != 0 {
			t.Errorf("%d discarded and %d dead-lettered, want 2 and 0", st.Discarded, st.Run.DeadLettered)
		}
	})
}

// A parked event that was given up waits for its DeadLetter. When the group is
// opened without one, it is retried like everything in such a group, not
// dropped.
func TestParkedDeadLetterIsRetriedWithoutDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := keyedOnDisk("data", vfs.NewMem())
		gc := queue.GroupConfig{BatchMax: 1, Retry: parkPolicy(), Drain: time.Second}
		gc.Retry.Attempts = 2
		refuse := queue.DeadLetter(func(context.Context, ...penstock.Event[string]) error { return errors.New("no place") })
		topic, g := openKeyed(t, c, gc, refuse)
		produce(t, topic, "a1", "a2")
		run := startRun(t, g, handleWords(failUntil(9, "a1")).handle)
		time.Sleep(3 * time.Second)
		if keys := g.Parked(); len(keys) != 1 || !keys[0].DeadLetter {
			t.Fatalf("parked %+v, want a dead letter", keys)
		}
		_ = run.stop()
		closeTopic(t, topic)

		topic, g = openKeyed(t, c, gc)
		defer closeTopic(t, topic)
		w := handleWords(nil)
		run = startRun(t, g, w.handle)
		time.Sleep(20 * time.Second)
		nothingIsParked(t, g)
		run.mustStop(t)
		w.want(t, "0s a1 3", "0s a2")
	})
}

// Parked events come and keep the order of their key when the group is opened
// again with another way to fail.
func TestParkedEventsComeAlsoWithOnFailBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := keyedOnDisk("data", vfs.NewMem())
		gc := queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()}
		topic, g := openKeyed(t, c, gc)
		produce(t, topic, "a1", "b1", "a2")
		w := handleWords(failUntil(2, "a1", "c1"))
		run := startRun(t, g, w.handle)
		time.Sleep(time.Second)
		run.mustStop(t)
		closeTopic(t, topic)

		gc.OnFail = queue.Block
		topic, g = openKeyed(t, c, gc)
		defer closeTopic(t, topic)
		produce(t, topic, "a3")
		run = startRun(t, g, w.handle)
		time.Sleep(5 * time.Second)
		nothingIsParked(t, g)
		produce(t, topic, "c1", "c2") // at 6 s: fails, and is not parked
		time.Sleep(time.Second)
		nothingIsParked(t, g)
		time.Sleep(5 * time.Second)
		run.mustStop(t)
		w.want(t, "0s a1", "0s b1", "2s a1 2", "2s a2", "2s a3", "6s c1", "8s c1 2", "8s c2")
		wantCommitted(t, g, 6)
	})
}

// A group with parked events cannot be used in a way that never delivers them.
func TestGroupWithParkedEventsIsNotUsedInAWayThatForgetsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := keyedOnDisk("data", vfs.NewMem())
		gc := queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()}
		topic, g := openKeyed(t, c, gc)
		produce(t, topic, "a1", "a2", "b1")
		w := handleWords(failUntil(9, "a1"))
		run := startRun(t, g, w.handle)
		time.Sleep(time.Second)
		run.mustStop(t)
		closeTopic(t, topic)
		refused := func(how string, err error) {
			t.Helper()
			if !errors.Is(err, penstock.ErrExists) || !strings.Contains(err.Error(), "parked") {
				t.Errorf("%s: %v, want an error that matches ErrExists and says that events are parked", how, err)
			}
		}
		for _, auto := range []bool{false, true} {
			gc.AutoCommit = auto
			topic, g = openKeyed(t, c, gc)
			_, _, err := g.Consumer(0).TryPull(1)
			refused("pull", err)
			if auto {
				refused("Run", g.Run(t.Context(), w.handle))
			}
			closeTopic(t, topic)
		}
		gc.AutoCommit = false
		topic, g = openKeyed(t, c, gc)
		_, err := g.Reader(0)
		refused("reader", err)
		run = startRun(t, g, handleWords(nil).handle) // the refused uses have not decided
		time.Sleep(10 * time.Second)
		nothingIsParked(t, g)
		run.mustStop(t)
		closeTopic(t, topic)

		topic, g = openKeyed(t, c, gc) // nothing is parked any more
		defer closeTopic(t, topic)
		if _, ok, err := g.Consumer(0).TryPull(1); ok || err != nil {
			t.Errorf("pull of a group with an empty retry log: %v, %v", ok, err)
		}
	})
}

// A due time of a clock that was wrong does not keep a key parked for years.
func TestDueTimeOfAWrongClockIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := keyedOnDisk("data", vfs.NewMem())
		gc := queue.GroupConfig{BatchMax: 1, Retry: settle.Policy{Backoff: settle.Backoff{Min: 10 * 365 * 24 * time.Hour, Jitter: -1}}}
		topic, g := openKeyed(t, c, gc)
		produce(t, topic, "a1")
		run := startRun(t, g, handleWords(failUntil(9, "a1")).handle)
		time.Sleep(time.Second)
		run.mustStop(t)
		closeTopic(t, topic)

		gc.Retry = parkPolicy() // at most an hour
		topic, g = openKeyed(t, c, gc)
		defer closeTopic(t, topic)
		w := handleWords(nil)
		run = startRun(t, g, w.handle)
		time.Sleep(2 * time.Hour)
		nothingIsParked(t, g)
		run.mustStop(t)
		w.want(t, "1h0m0s a1 2")
	})
}

// While a key is parked, the rate of the group holds as ever.
func TestRateHoldsWhileAKeyIsParked(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		hour := settle.Policy{Backoff: settle.Backoff{Min: time.Hour, Max: time.Hour, Jitter: -1}}
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Retry: hour, Rate: 1, Burst: 3})
		produce(t, topic, "a1", "b1", "b2", "b3", "b4")
		w := handleWords(failUntil(9, "a1"))
		run := startRun(t, g, w.handle)
		time.Sleep(10 * time.Second)
		run.mustStop(t)
		w.want(t, "0s a1", "0s b1", "0s b2", "1s b3", "2s b4")
	})
}

// A retry log that is to be rewritten while the disk is full tries again after a
// pause, not without end.
func TestRewriteOnAFullDiskWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		var full, down atomic.Bool
		var failed atomic.Int64
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if full.Load() && op.Kind == vfs.OpWrite && op.Len > 40_000 && strings.Contains(op.Name, "retry") && failed.Load() < 10_000 {
				failed.Add(1)
				return vfs.Fault{Err: vfs.ErrNoSpace}
			}
			return vfs.Fault{}
		})
		c := keyedOnDisk("data", m)
		every := settle.Policy{Backoff: settle.Backoff{Min: 1500 * time.Millisecond, Max: 1500 * time.Millisecond, Jitter: -1}}
		topic, g := openKeyed(t, c, queue.GroupConfig{BatchMax: 1, Retry: every})
		defer closeTopic(t, topic)
		for range 100 {
			produce(t, topic, "a"+strings.Repeat("x", 500))
		}
		down.Store(true)
		run := startRun(t, g, func(context.Context, penstock.Batch[string]) error {
			if down.Load() {
				return errHandler
			}
			return nil
		})
		time.Sleep(time.Minute)
		full.Store(true)
		for i := 0; failed.Load() == 0 && i < 300; i++ { // 1,000 attempts and more, each an entry
			time.Sleep(10 * time.Second)
		}
		time.Sleep(30 * time.Second)
		if n := failed.Load(); n == 0 || n > 60 {
			t.Errorf("%d writes failed in 40 s, want one a second at the most", n)
		}
		full.Store(false)
		down.Store(false)
		time.Sleep(time.Minute)
		nothingIsParked(t, g)
		run.mustStop(t)
	})
}

// A Run that does not begin is seen as one that has ended.
func TestRunThatDoesNotBeginSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		c := keyedOnDisk("data", m)
		gc := queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()}
		topic, g := openKeyed(t, c, gc)
		produce(t, topic, "a1")
		run := startRun(t, g, handleWords(failUntil(9, "a1")).handle)
		time.Sleep(time.Second)
		run.mustStop(t)
		if s := g.Stats(); s.State != queue.NoConsumer || !strings.HasPrefix(s.Why, "no consumer is running; 1 key is parked") {
			t.Errorf("%v: %s", s.State, s.Why)
		}
		closeTopic(t, topic)

		m.SetFault(func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpOpen && strings.Contains(op.Name, "retry") {
				return vfs.Fault{Err: errors.New("input/output error")}
			}
			return vfs.Fault{}
		})
		topic, g = openKeyed(t, c, gc)
		defer closeTopic(t, topic)
		err := g.Run(t.Context(), handleWords(nil).handle)
		if err == nil {
			t.Fatal("Run began without its retry log")
		}
		if s := g.Stats(); s.State != queue.Ended || !strings.Contains(s.Why, "input/output error") {
			t.Errorf("%v: %s, after Run returned %v", s.State, s.Why, err)
		}
	})
}

// Discarded counts what is done with: not the order, nor what DeadLetter has
// refused so far.
func TestDiscardedCountsWhatWasTaken(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		var l letters
		l.refuse.Store(true)
		g := deadGroup(t, topic, queue.GroupConfig{BatchMax: 1, Retry: parkPolicy(), Drain: time.Second}, &l)
		produce(t, topic, "a1", "a2")
		run := startRun(t, g, handleWords(failUntil(9, "a1")).handle)
		time.Sleep(time.Second)
		if _, err := g.DiscardParked("a"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if st := g.Stats(); st.Discarded != 0 {
			t.Errorf("%d discarded before one was taken", st.Discarded)
		}
		l.refuse.Store(false)
		time.Sleep(time.Minute)
		run.mustStop(t)
		if st := g.Stats(); st.Discarded != 2 || len(l.take()) != 2 {
			t.Errorf("%d discarded, want 2", st.Discarded)
		}
	})
}
