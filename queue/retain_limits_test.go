package queue_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// forEachLevelInBubble is forEachLevel with time that stands still.
func forEachLevelInBubble(t *testing.T, test func(t *testing.T, c queue.Config[string])) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		synctest.Test(t, func(t *testing.T) { test(t, c) })
	})
}

// earliest returns the first offset that partition 0 keeps.
func earliest[T any](topic *queue.Topic[T]) penstock.Offset {
	return topic.Stats().Partitions[0].Earliest
}

func TestLimitsNameTheBadField(t *testing.T) {
	disk := func(change func(*queue.Config[string])) queue.Config[string] {
		c := queue.Config[string]{Name: "orders", Dir: "/nowhere/at/all", Codec: penstock.String()}
		change(&c)
		return c
	}
	memory := func(change func(*queue.Config[string])) queue.Config[string] {
		c := queue.Config[string]{Name: "orders"}
		change(&c)
		return c
	}
	for _, c := range []struct {
		field  string
		config queue.Config[string]
	}{
		{"RetainAge", disk(func(c *queue.Config[string]) { c.RetainAge = -1 })},
		{"RetainBytes", disk(func(c *queue.Config[string]) { c.RetainBytes = -1 })},
		{"RetainEvents", disk(func(c *queue.Config[string]) { c.RetainEvents = -1 })},
		{"GroupTTL", disk(func(c *queue.Config[string]) { c.GroupTTL = -1 })},
		{"RetainAge", memory(func(c *queue.Config[string]) { c.RetainAge = 1 })},
		{"GroupTTL", memory(func(c *queue.Config[string]) { c.GroupTTL = 1 })},
		{"HardRetention", memory(func(c *queue.Config[string]) { c.HardRetention = true })},
		{"HardRetention", disk(func(c *queue.Config[string]) { c.HardRetention = true })},
		{"WhenFull", disk(func(c *queue.Config[string]) { c.WhenFull, c.Capacity = queue.DropOldest, 1 })},
		{"WhenFull", disk(func(c *queue.Config[string]) { c.WhenFull, c.HardRetention = queue.DropOldest, true })},
		{"WhenFull", memory(func(c *queue.Config[string]) { c.WhenFull, c.Capacity = queue.DropOldest, 1 })},
	} {
		_, err := queue.Open(c.config)
		var field *penstock.FieldError
		if !errors.As(err, &field) || field.Field != c.field {
			t.Errorf("%v, want an error that names %s", err, c.field)
		}
	}
}

// TestLimitsWithoutAGroupApplyAtOnce_BQ120: by age, count and bytes.
func TestLimitsWithoutAGroupApplyAtOnce_BQ120(t *testing.T) {
	for name, limit := range map[string]func(c *queue.Config[string]){
		"events": func(c *queue.Config[string]) { c.RetainEvents = 4 },
		"bytes":  func(c *queue.Config[string]) { c.RetainBytes = 3 * 4096 }, // a segment of two is a little more than its header
		"age":    func(c *queue.Config[string]) { c.RetainAge = time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
				c.SegmentEvents = 2
				limit(&c)
				topic := openDisk(t, c)
				produceEach(t, topic, numbers(0, 20)...)
				time.Sleep(50 * time.Minute)
				produceEach(t, topic, numbers(20, 25)...)
				time.Sleep(20 * time.Minute)
				synctest.Wait()
				first := earliest(topic)
				if first%2 != 0 || first < 18 || first > 22 {
					t.Errorf("the first event kept is %d; want the newest four or six, in whole segments of two", first)
				}
				if s := topic.Stats(); s.Expired != uint64(first) || s.Skipped != 0 {
					t.Errorf("%d expired, %d skipped; want %d and none", s.Expired, s.Skipped, first)
				}
				want(t, lateGroup(t, topic), numbers(int(first), 25)...)
				topic = reopen(t, topic, c)
				if at := earliest(topic); at != first && at != first+2 { // the limits are looked at when a segment is sealed, and at open
					t.Errorf("after a restart the first event kept is %d, before it %d", at, first)
				}
			})
		})
	}
}

// TestLimitOfAgeReachesAnIdlePartition: the last events of a partition go too,
// also those of an earlier session.
func TestLimitOfAgeReachesAnIdlePartition(t *testing.T) {
	for _, restart := range []bool{false, true} {
		forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
			c.RetainAge = time.Hour
			topic := openDisk(t, c)
			produceEach(t, topic, numbers(0, 5)...)
			time.Sleep(59 * time.Minute)
			if restart {
				topic = reopen(t, topic, c)
			}
			if at := earliest(topic); at != 0 {
				t.Errorf("event %d is the first before its time", at)
			}
			time.Sleep(6 * time.Minute)
			synctest.Wait()
			if at := earliest(topic); at != 5 || len(segments(t, c.Dir)) != 0 {
				t.Errorf("restart %t: the first event kept is %d, %d files; want 5 and none", restart, at, len(segments(t, c.Dir)))
			}
			produceEach(t, topic, "5")
			want(t, lateGroup(t, topic), "5")
		})
	}
}

// TestLimitsWaitForTheSlowestGroup: what some group has not committed stays,
// whatever its age; what all have committed goes when it is beyond the limits,
// and not before.
func TestLimitsWaitForTheSlowestGroup(t *testing.T) {
	forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
		c.SegmentEvents, c.RetainEvents, c.RetainAge = 2, 6, time.Hour
		topic := openDisk(t, c)
		slow, fast := group(t, topic, "slow", queue.GroupConfig{}), group(t, topic, "fast", queue.GroupConfig{})
		produceEach(t, topic, numbers(0, 21)...)
		consumeAll(t, fast.Consumer(0))
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if at := earliest(topic); at != 0 {
			t.Errorf("event %d is the first, and the slow group has not read", at)
		}
		want(t, consumeAll(t, slow.Consumer(0)), numbers(0, 21)...)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if at := earliest(topic); at != 21 {
			t.Errorf("the first event kept is %d when all are old and read", at)
		}
		produceEach(t, topic, numbers(21, 42)...)
		consumeAll(t, fast.Consumer(0))
		consumeAll(t, slow.Consumer(0))
		synctest.Wait()
		if at := earliest(topic); at != 33 && at != 35 {
			t.Errorf("the first event kept is %d; six behind its segment make it 33 or 35", at)
		}
		if s := topic.Stats(); s.Skipped != 0 || s.Expired != 0 {
			t.Errorf("%d skipped, %d expired; all were read", s.Skipped, s.Expired)
		}
	})
}

// TestRetainSegmentsAndLimitsHoldTogether: what is beyond one of them goes.
func TestRetainSegmentsAndLimitsHoldTogether(t *testing.T) {
	forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
		c.SegmentEvents, c.RetainEvents, c.RetainSegments = 2, 100, 3
		topic := openDisk(t, c)
		g := group(t, topic, "g", queue.GroupConfig{})
		produceEach(t, topic, numbers(0, 21)...)
		consumeAll(t, g.Consumer(0))
		synctest.Wait()
		if at := earliest(topic); at != 14 {
			t.Errorf("the first event kept is %d, want 14: three consumed segments", at)
		}
	})
}

// TestHardLimitPassesASlowGroupAndTellsIt: a group that is pulled, with nothing
// and with a batch in hand, and one that is not open.
func TestHardLimitPassesASlowGroupAndTellsIt(t *testing.T) {
	forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
		c.SegmentEvents, c.RetainEvents, c.HardRetention = 2, 4, true
		topic := openDisk(t, c)
		var told []queue.Skip
		var mu sync.Mutex
		note := queue.GroupConfig{OnSkip: func(s queue.Skip) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, s)
		}}
		idle, busy := group(t, topic, "idle", note), group(t, topic, "busy", queue.GroupConfig{})
		away := group(t, topic, "away", queue.GroupConfig{})
		produceEach(t, topic, "0")
		want(t, pull(t, away.Consumer(0), 1), "0")
		commit(t, away.Consumer(0))
		if err := away.Close(); err != nil {
			t.Fatal(err)
		}
		want(t, pull(t, busy.Consumer(0), 5), "0")
		produceEach(t, topic, numbers(1, 21)...)
		synctest.Wait()
		first := earliest(topic)
		if first != 14 && first != 16 {
			t.Fatalf("the first event kept is %d, want 14 or 16", first)
		}
		if err := busy.Consumer(0).Commit(); err != nil && !errors.Is(err, queue.ErrNothingPulled) {
			t.Errorf("late commit: %v", err)
		}
		for _, g := range []*queue.Group[string]{idle, busy} {
			_, ok, err := g.Consumer(0).TryPull(10)
			var skipped *queue.SkippedError
			if ok || !errors.As(err, &skipped) || !errors.Is(err, penstock.ErrOffsetOutOfRange) {
				t.Fatalf("%s: %t, %v; want a SkippedError", g.Name(), ok, err)
			}
			if s := skipped.Skip; s.From != 0 || s.To != first || s.Events != uint64(first) || s.Partition != 0 || s.Group != g.Name() || s.Topic != "orders" {
				t.Errorf("%s was told %+v, want [0, %d)", g.Name(), s, first)
			}
			want(t, consumeAll(t, g.Consumer(0)), numbers(int(first), 21)...)
			if s := g.Stats(); s.Skipped != uint64(first) || s.LastSkip == nil || s.LastSkip.To != first || s.Lag != 0 {
				t.Errorf("%s: %d skipped, last %+v, lag %d", g.Name(), s.Skipped, s.LastSkip, s.Lag)
			}
		}
		mu.Lock()
		total := uint64(0)
		for _, s := range told {
			if s.Group != "idle" {
				t.Errorf("the hook of idle was told %+v", s)
			}
			total += s.Events
		}
		mu.Unlock()
		if total != uint64(first) {
			t.Errorf("the hook was told of %d events, want %d", total, first)
		}
		away = group(t, topic, "away", queue.GroupConfig{})
		_, _, err := away.Consumer(0).TryPull(1)
		var skipped *queue.SkippedError
		if !errors.As(err, &skipped) || skipped.From != 1 || skipped.To != first {
			t.Errorf("the group that was not open: %v, want [1, %d)", err, first)
		}
		want(t, consumeAll(t, away.Consumer(0)), numbers(int(first), 21)...)
		if s := topic.Stats(); s.Skipped != 3*uint64(first)-1 || s.Expired != 0 {
			t.Errorf("%d skipped, %d expired; want %d and none", s.Skipped, s.Expired, 3*first-1)
		}
		topic = reopen(t, topic, c)
		if again := group(t, topic, "away", queue.GroupConfig{}); again.Stats().Skipped != 0 || pull(t, again.Consumer(0), 1) != nil {
			t.Error("after a restart the group is moved once more")
		}
	})
}

// TestHardLimitPassesAGroupThatIsNotOpen: over a restart, too: its position
// lies below what is kept, and it is told when it is opened.
func TestHardLimitPassesAGroupThatIsNotOpen(t *testing.T) {
	forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
		c.SegmentEvents, c.RetainEvents, c.HardRetention = 2, 4, true
		topic := openDisk(t, c)
		if err := group(t, topic, "away", queue.GroupConfig{}).Close(); err != nil {
			t.Fatal(err)
		}
		produceEach(t, topic, numbers(0, 21)...)
		synctest.Wait()
		topic = reopen(t, topic, c)
		first := earliest(topic)
		var told []queue.Skip
		away := group(t, topic, "away", queue.GroupConfig{OnSkip: func(s queue.Skip) { told = append(told, s) }})
		if len(told) != 1 || told[0].From != 0 || told[0].To != first || first < 14 {
			t.Errorf("told %+v, want [0, %d)", told, first)
		}
		_, _, err := away.Consumer(0).TryPull(1)
		wantErr(t, err, penstock.ErrOffsetOutOfRange)
		want(t, consumeAll(t, away.Consumer(0)), numbers(int(first), 21)...)
	})
}

// TestHardLimitPassesARun: the handler that is at work finishes, what it had is
// not committed, and the run goes on where it was moved to.
func TestHardLimitPassesARun(t *testing.T) {
	for _, workers := range []int{1, 3} {
		forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
			c.SegmentEvents, c.RetainEvents, c.HardRetention = 2, 4, true
			topic := openDisk(t, c)
			g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: workers})
			var mu sync.Mutex
			var got []string
			enter, leave := make(chan struct{}, 100), make(chan struct{})
			run := start(t, func() error {
				return g.Run(t.Context(), func(_ context.Context, b penstock.Batch[string]) error {
					enter <- struct{}{}
					<-leave
					mu.Lock()
					defer mu.Unlock()
					got = append(got, b.Values()...)
					return nil
				})
			})
			produceEach(t, topic, "0")
			<-enter
			produceEach(t, topic, numbers(1, 21)...)
			synctest.Wait()
			first := earliest(topic)
			close(leave)
			time.Sleep(time.Second) // commits are stored now and then
			synctest.Wait()
			if s := g.Stats(); s.Lag != 0 || s.LastSkip == nil || s.LastSkip.To != first || s.Skipped == 0 {
				t.Errorf("lag %d, %d skipped, last %+v; the first kept is %d", s.Lag, s.Skipped, s.LastSkip, first)
			}
			mu.Lock()
			for _, v := range numbers(int(first), 21) {
				if !slices.Contains(got, v) {
					t.Errorf("event %s was never handled", v)
				}
			}
			mu.Unlock()
			if _, err := g.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			if err := run.wait(); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

// TestReadersAreRefusedWhereLimitsAreHard: nobody could move them.
func TestReadersAreRefusedWhereLimitsAreHard(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.RetainEvents, c.HardRetention = 4, true
		_, err := group(t, openDisk(t, c), "g", queue.GroupConfig{}).Reader(0)
		var field *penstock.FieldError
		if !errors.As(err, &field) || field.Field != "HardRetention" {
			t.Errorf("%v", err)
		}
	})
}

// TestDropOldestKeepsTheNewest: producers never wait, and the group goes on
// with the newest events; none is lost without being told.
func TestDropOldestKeepsTheNewest(t *testing.T) {
	for _, limit := range []struct {
		name          string
		capacity      int
		bytes         penstock.Bytes
		partitions, n int
	}{{"events", 8, 0, 1, 50}, {"partitions", 12, 0, 3, 90}, {"bytes", 0, 16, 1, 40}} {
		t.Run(limit.name, func(t *testing.T) {
			forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
				c.Capacity, c.CapacityBytes, c.Partitions = limit.capacity, limit.bytes, limit.partitions
				c.WhenFull, c.HardRetention, c.SegmentEvents = queue.DropOldest, true, 4
				topic := openDisk(t, c)
				g := group(t, topic, "g", queue.GroupConfig{})
				produceEach(t, topic, numbers(10, 10+limit.n)...)
				got := map[string]bool{}
				for {
					b, ok, err := g.Consumer(0).TryPull(100)
					var skipped *queue.SkippedError
					if errors.As(err, &skipped) {
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					if !ok {
						break
					}
					for _, v := range b.Values() {
						got[v] = true
					}
					commit(t, g.Consumer(0))
				}
				kept := max(limit.capacity, int(limit.bytes)/2)
				if len(got) == 0 || len(got) > kept {
					t.Errorf("%d events are left, want 1 to %d", len(got), kept)
				}
				for i := range len(got) / limit.partitions {
					if v := numbers(10+limit.n-1-i, 10+limit.n-i)[0]; limit.partitions == 1 && !got[v] {
						t.Errorf("event %s is gone, and %d are left", v, len(got))
					}
				}
				if s := g.Stats(); s.Skipped != uint64(limit.n-len(got)) {
					t.Errorf("%d of %d events came, %d were skipped", len(got), limit.n, s.Skipped)
				}
			})
		})
	}
}

// TestDropOldestWithoutAGroup: nobody is passed, and what goes is counted.
func TestDropOldestWithoutAGroup(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.Capacity, c.WhenFull, c.HardRetention = 5, queue.DropOldest, true
		topic := openDisk(t, c)
		produceEach(t, topic, numbers(0, 30)...)
		if s := topic.Stats(); s.Expired != 25 || s.Retained != 5 || s.Skipped != 0 {
			t.Errorf("%d expired, %d retained, %d skipped; want 25, 5, 0", s.Expired, s.Retained, s.Skipped)
		}
		produce(t, topic, numbers(30, 43)...) // in slices of the capacity
		want(t, lateGroup(t, topic), numbers(38, 43)...)
	})
}

// TestBoundedTopicOnDiskWaitsRefusesAndExpires_QC72: a bound that waits until a
// commit, a bound that refuses, and an age that takes whole segments from a
// group that has not come.
func TestBoundedTopicOnDiskWaitsRefusesAndExpires_QC72(t *testing.T) {
	t.Run("events, wait", func(t *testing.T) {
		forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
			c.Capacity, c.WhenFull = 2, queue.Wait
			topic := openDisk(t, c)
			g := group(t, topic, "g", queue.GroupConfig{})
			produceEach(t, topic, "0", "1")
			third := start(t, func() error { return topic.Produce(t.Context(), "2") })
			third.blocked()
			want(t, pull(t, g.Consumer(0), 1), "0")
			third.blocked()
			commit(t, g.Consumer(0))
			if err := third.wait(); err != nil {
				t.Error(err)
			}
			want(t, consumeAll(t, g.Consumer(0)), "1", "2")
		})
	})
	t.Run("bytes, fail", func(t *testing.T) {
		forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
			c.CapacityBytes, c.WhenFull = 4, queue.Fail
			topic := openDisk(t, c)
			g := group(t, topic, "g", queue.GroupConfig{})
			produceEach(t, topic, "00", "11")
			wantErr(t, topic.Produce(t.Context(), "2"), penstock.ErrFull)
			want(t, consumeAll(t, g.Consumer(0)), "00", "11")
			produceEach(t, topic, "2")
			want(t, consumeAll(t, g.Consumer(0)), "2")
		})
	})
	t.Run("age, hard", func(t *testing.T) {
		forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
			c.SegmentEvents, c.RetainAge, c.HardRetention = 2, time.Hour, true
			topic := openDisk(t, c)
			slow := group(t, topic, "slow", queue.GroupConfig{})
			produceEach(t, topic, numbers(0, 4)...)
			time.Sleep(50 * time.Minute)
			produceEach(t, topic, numbers(4, 6)...)
			time.Sleep(20 * time.Minute)
			synctest.Wait()
			if at := earliest(topic); at != 4 {
				t.Errorf("the first event kept is %d, want 4: two sealed segments are too old", at)
			}
			if n := len(segments(t, c.Dir)); n > 2 { // one that is sealed, and the next
				t.Errorf("%d segment files, want two at most", n)
			}
			_, _, err := slow.Consumer(0).TryPull(10)
			wantErr(t, err, penstock.ErrOffsetOutOfRange)
			skipped, ok := errors.AsType[*queue.SkippedError](err)
			if !ok || skipped.From != 0 || skipped.To != 4 {
				t.Errorf("the slow group is told %v, want [0, 4)", err)
			}
			want(t, consumeAll(t, slow.Consumer(0)), numbers(4, 6)...)
		})
	})
}

// TestHookThatEndsItsGoroutineStopsNothing: limits are kept on, and producers go
// on. The hook used to end the goroutine that keeps the limits, or a producer's,
// with the capacity that it had been given.
func TestHookThatEndsItsGoroutineStopsNothing(t *testing.T) {
	hook := func(calls *atomic.Int64) queue.GroupConfig {
		return queue.GroupConfig{OnSkip: func(queue.Skip) {
			calls.Add(1)
			runtime.Goexit()
		}}
	}
	forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
		c.SegmentEvents, c.RetainEvents, c.HardRetention = 2, 4, true
		topic := openDisk(t, c)
		var calls atomic.Int64
		group(t, topic, "g", hook(&calls))
		for i := 0; i < 60; i += 20 {
			produceEach(t, topic, numbers(i, i+20)...)
			synctest.Wait()
			if at := earliest(topic); at < penstock.Offset(i+12) || calls.Load() == 0 {
				t.Errorf("of %d events the first kept is %d, after %d calls of the hook", i+20, at, calls.Load())
			}
		}
	})
	forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
		c.Capacity, c.WhenFull, c.HardRetention = 5, queue.DropOldest, true
		topic := openDisk(t, c)
		var calls atomic.Int64
		group(t, topic, "g", hook(&calls))
		producer := start(t, func() error {
			for _, v := range numbers(0, 30) {
				if err := topic.Produce(t.Context(), v); err != nil {
					return err
				}
			}
			return nil
		})
		if err := producer.wait(); err != nil || calls.Load() == 0 {
			t.Errorf("%v, after %d calls of the hook", err, calls.Load())
		}
	})
}
