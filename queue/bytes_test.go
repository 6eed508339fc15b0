package queue_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// texts is a topic of strings whose size is their length, in memory as on disk.
func texts(c queue.Config[string]) queue.Config[string] {
	c.Size = func(v string) penstock.Bytes { return penstock.Bytes(len(v)) }
	c.Codec = penstock.String()
	return c
}

func inMemory[T any](s storage, c queue.Config[T]) queue.Config[T] {
	if s.name == "memory" {
		c.Codec = nil
	}
	return c
}

// openTexts opens such a topic.
func openTexts(t testing.TB, s storage, c queue.Config[string]) *queue.Topic[string] {
	t.Helper()
	return open(t, s, inMemory(s, texts(c)))
}

func text(n int) string { return strings.Repeat("x", n) }

func TestCommitGivesBytesBackInsideASegment(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := openTexts(t, s, queue.Config[string]{CapacityBytes: 10, SegmentSize: 64})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		slow := group(t, topic, "slow", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, text(6), text(3))
		third := start(t, func() error { return topic.Produce(t.Context(), text(7)) })
		third.blocked()
		fourth := start(t, func() error { return topic.Produce(t.Context(), text(1)) })
		fourth.blocked() // one byte is free, but the line is served in order
		pull(t, c, 1)
		commit(t, c)
		third.blocked() // the other group still needs it
		pull(t, slow, 1)
		third.blocked() // a pull gives nothing back
		commit(t, slow)
		if err := third.wait(); err != nil {
			t.Fatal(err)
		}
		fourth.blocked() // 3 and 7
		if st := topic.Stats(); st.UsedBytes != 10 || st.CapacityBytes != 10 {
			t.Errorf("Stats: %d of %d bytes, want 10 of 10", st.UsedBytes, st.CapacityBytes)
		}
		for _, c := range []*queue.Consumer[string]{c, slow} {
			pull(t, c, 1)
			commit(t, c)
		}
		if err := fourth.wait(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestOversizedBatchIsCutByEventsAndByBytes(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := openTexts(t, s, queue.Config[string]{Capacity: 3, CapacityBytes: 10})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		batch := []string{text(4), text(5), text(4), text(1), text(1), text(1), text(10), "", ""}
		call := start(t, func() error { return topic.Produce(t.Context(), batch...) })
		for _, n := range []int{2, 3, 1, 3} { // by bytes, by events, by bytes, the rest
			if n == 3 && len(batch) == 3 {
				if err := call.wait(); err != nil {
					t.Fatal(err)
				}
			} else {
				call.blocked()
			}
			if diff := cmp.Diff(batch[:n], pull(t, c, 100)); diff != "" {
				t.Fatal(diff)
			}
			commit(t, c)
			batch = batch[n:]
		}
	})
}

func TestInterruptedBatchOfBytesSaysWhatWasAccepted(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := openTexts(t, s, queue.Config[string]{CapacityBytes: 10})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		ctx, cancel := context.WithCancel(t.Context())
		call := start(t, func() error { return topic.Produce(ctx, text(6), text(4), text(9)) })
		call.blocked()
		cancel()
		err := call.wait()
		wantErr(t, err, context.Canceled)
		if p, ok := errors.AsType[*penstock.PartialError](err); !ok || p.Accepted != 2 {
			t.Errorf("error %v, want a PartialError with 2 accepted", err)
		}
		if got := pull(t, c, 10); len(got) != 2 {
			t.Errorf("pulled %d events, want 2", len(got))
		}
		commit(t, c)
		produce(t, topic, text(10))
	})
}

// Fail: rejected whole, and the selector never hears of it.
func TestBatchOfTooManyBytesIsRejectedWhole(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		calls := 0
		topic := openTexts(t, s, queue.Config[string]{
			CapacityBytes: 10, WhenFull: queue.Fail, Partitions: 2, Key: func(v string) string { calls++; return v },
		})
		g := group(t, topic, "g", queue.GroupConfig{})
		wantErr(t, topic.Produce(t.Context(), text(6), text(5)), penstock.ErrFull)
		ok, err := topic.TryProduce(t.Context(), text(6), text(5))
		if ok || err != nil || calls != 0 {
			t.Errorf("TryProduce = %v, %v after %d calls of the selector, want false and none", ok, err, calls)
		}
		produce(t, topic, text(6), text(4))
		if ok, err := topic.TryProduce(t.Context(), "x"); ok || err != nil {
			t.Errorf("TryProduce = %v, %v, want false", ok, err)
		}
		if st := g.Stats(); st.Lag != 2 {
			t.Errorf("lag %d, want 2", st.Lag)
		}
	})
}

// refusal is a way to produce.
var refusals = map[string]func(context.Context, *queue.Topic[string], ...string) error{
	"Produce": func(ctx context.Context, topic *queue.Topic[string], v ...string) error {
		return topic.Produce(ctx, v...)
	},
	"TryProduce": func(ctx context.Context, topic *queue.Topic[string], v ...string) error {
		ok, err := topic.TryProduce(ctx, v...)
		if ok {
			return nil
		}
		return err
	},
	"ProduceAsync": func(ctx context.Context, topic *queue.Topic[string], v ...string) error {
		r, err := topic.ProduceAsync(ctx, v...)
		if err == nil {
			_, err = r.Wait(ctx)
		}
		return err
	},
	"ProduceEvents": func(ctx context.Context, topic *queue.Topic[string], v ...string) error {
		var events []penstock.Event[string]
		for _, v := range v {
			events = append(events, penstock.Event[string]{Value: v})
		}
		return topic.ProduceEvents(ctx, events...)
	},
}

func TestEventAboveALimitMovesNothing(t *testing.T) {
	for name, c := range map[string]queue.Config[string]{
		"MaxEvent":                  {MaxEvent: 16, Capacity: 4},
		"MaxEvent, fail":            {MaxEvent: 16, Capacity: 4, WhenFull: queue.Fail},
		"MaxEvent alone":            {MaxEvent: 16},
		"CapacityBytes":             {CapacityBytes: 16},
		"CapacityBytes, fail":       {CapacityBytes: 16, WhenFull: queue.Fail},
		"MaxEvent in CapacityBytes": {MaxEvent: 16, CapacityBytes: 100},
	} {
		for _, keyed := range []bool{false, true} {
			for how, produceBy := range refusals {
				t.Run(name+" "+how, func(t *testing.T) {
					forEachStorage(t, func(t *testing.T, s storage) {
						c, calls := c, 0
						c.Partitions = 4
						if keyed {
							c.Router = queue.RouterFunc("by length", func(v string, _ int) int { calls++; return map[int]int{5: 1, 6: 2, 1: 3}[len(v)] })
						}
						topic := openTexts(t, s, c)
						group(t, topic, "g", queue.GroupConfig{})
						for _, request := range [][]string{{text(17)}, {"a", "b", text(17), "c"}} {
							err := produceBy(t.Context(), topic, request...)
							wantErr(t, err, penstock.ErrTooLarge)
							if err != nil && !(strings.Contains(err.Error(), "17B") && strings.Contains(err.Error(), "16B")) {
								t.Errorf("error %q does not name both sizes", err)
							}
						}
						if st := topic.Stats(); st.Produced != 0 || st.UsedBytes != 0 || calls != 0 {
							t.Errorf("%d events and %d bytes are there, the selector was called %d times; want nothing", st.Produced, st.UsedBytes, calls)
						}
						produce(t, topic, text(4), text(5), text(6), text(1)) // all of the capacity, turns from the first on
						for i, all := range contents(t, topic) {
							if len(all) != 1 || len(all[0]) != []int{4, 5, 6, 1}[i] {
								t.Errorf("partition %d holds %q", i, all)
							}
						}
					})
				})
			}
		}
	}
}

// A size function that is wrong fails the call, names itself, and takes
// nothing.
func TestSizeThatIsNegativeOrPanicsTakesNothing(t *testing.T) {
	size := func(v string) penstock.Bytes {
		switch v {
		case "negative":
			return -5
		case "panic":
			panic("size")
		}
		return penstock.Bytes(len(v))
	}
	for _, key := range []func(string) string{nil, func(v string) string { return v }} {
		topic := open(t, storages[0], queue.Config[string]{CapacityBytes: 4, WhenFull: queue.Fail, Partitions: 2, Size: size, Key: key})
		group(t, topic, "g", queue.GroupConfig{})
		for range 3 {
			err := topic.Produce(t.Context(), "a", "negative")
			wantErr(t, err, penstock.ErrInvalid)
			if err == nil || !strings.Contains(err.Error(), "-5") {
				t.Errorf("error %v does not name the size", err)
			}
			if p, ok := errors.AsType[*penstock.PanicError](topic.Produce(t.Context(), "panic")); !ok || p.Value != "size" {
				t.Error("no PanicError of a size function that panics")
			}
		}
		if ok, err := topic.TryProduce(t.Context(), "abcd"); !ok || err != nil {
			t.Errorf("TryProduce = %v, %v: capacity is lost", ok, err)
		}
	}
}

func TestConfigurationOfBytesNamesTheBadField(t *testing.T) {
	size := func(string) penstock.Bytes { return 1 }
	for field, c := range map[string][]queue.Config[string]{
		"CapacityBytes": {{CapacityBytes: -1, Size: size}, {CapacityBytes: 1}},
		"MaxEvent":      {{MaxEvent: -1, Size: size}, {MaxEvent: 1}},
	} {
		for _, c := range c {
			c.Name = "topic"
			_, err := queue.Open(c)
			if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != field {
				t.Errorf("%+v: error %v, want one of %s", c, err, field)
			}
		}
	}
}

// TestBytesGivenBackAreBytesTaken: random sizes, routings, groups and commits.
// Never more than the capacity is there, and in the end all of it is free.
func TestBytesGivenBackAreBytesTaken(t *testing.T) {
	for _, keyed := range []bool{false, true} {
		inBubble(t, func(t *testing.T, s storage) {
			const capacity = 1000
			c := queue.Config[string]{CapacityBytes: capacity, Partitions: 3, WhenFull: queue.Fail, SegmentSize: 16}
			if keyed {
				c.Key = func(v string) string { return v }
			}
			topic := openTexts(t, s, c)
			rng := rand.New(rand.NewPCG(7, 7))
			var groups []*queue.Group[string]
			for _, name := range []string{"a", "b"} {
				groups = append(groups, group(t, topic, name, queue.GroupConfig{Consumers: 3}))
			}
			accepted := 0
			for range 600 {
				request := make([]string, 1+rng.IntN(5))
				for i := range request {
					request[i] = text(rng.IntN(80))
				}
				ok, err := topic.TryProduce(t.Context(), request...)
				if err != nil {
					t.Fatal(err)
				}
				if ok {
					accepted++
				}
				if st := topic.Stats(); st.UsedBytes > capacity {
					t.Fatalf("%d bytes in a capacity of %d", st.UsedBytes, capacity)
				}
				for _, g := range groups {
					c := g.Consumer(rng.IntN(3))
					if pull(t, c, 1+rng.IntN(6)) != nil && rng.IntN(4) > 0 {
						commit(t, c)
					}
				}
			}
			for _, g := range groups {
				for i := range 3 {
					for pull(t, g.Consumer(i), 100) != nil {
						commit(t, g.Consumer(i))
					}
				}
			}
			if accepted < 100 {
				t.Errorf("only %d requests were accepted", accepted)
			}
			if st := topic.Stats(); st.UsedBytes != 0 {
				t.Errorf("%d bytes are retained of nothing", st.UsedBytes)
			}
			produce(t, topic, text(capacity))
		})
	}
}

func TestUncommittedBytesCountAfterReopen(t *testing.T) {
	c := texts(queue.Config[string]{Name: "topic", Dir: t.TempDir(), CapacityBytes: 100, WhenFull: queue.Fail, Partitions: 2})
	topic := openDisk(t, c)
	g := group(t, topic, "g", queue.GroupConfig{})
	produce(t, topic, text(10), text(20), text(30), text(5)) // 10 and 30, 20 and 5
	pull(t, g.Consumer(0), 1)
	commit(t, g.Consumer(0)) // the 10
	if err := topic.Close(); err != nil {
		t.Fatal(err)
	}
	topic = openDisk(t, c)
	if st := topic.Stats(); st.UsedBytes != 55 {
		t.Errorf("%d bytes are retained, want 55", st.UsedBytes)
	}
	wantErr(t, topic.Produce(t.Context(), text(46)), penstock.ErrFull)
	produce(t, topic, text(45))
	if err := topic.Close(); err != nil {
		t.Fatal(err)
	}
	c.CapacityBytes = 70 // less than what is there: the first commits give nothing back
	topic = openDisk(t, c)
	g = group(t, topic, "g", queue.GroupConfig{Consumers: 2})
	wantErr(t, topic.Produce(t.Context(), "x"), penstock.ErrFull)
	for i := range 2 {
		for pull(t, g.Consumer(i), 10) != nil {
			commit(t, g.Consumer(i))
		}
	}
	produce(t, topic, text(70))
}

func TestProduceWithinBytesAllocatesNothing(t *testing.T) {
	topic := openTexts(t, storages[0], queue.Config[string]{CapacityBytes: 1000, Capacity: 100, Partitions: 2})
	c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	batch := []string{text(1), text(2), text(3), text(4)}
	cycle := func() {
		if err := topic.Produce(t.Context(), batch...); err != nil {
			t.Fatal(err)
		}
		if err := topic.Produce(t.Context(), "five5"); err != nil {
			t.Fatal(err)
		}
		for {
			_, ok, err := c.TryPull(10)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				return
			}
			if err := c.Commit(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2000 {
		cycle()
	}
	// The pool of measures may be emptied by a collection, and the race
	// detector empties it at random.
	if n := testing.AllocsPerRun(200, cycle); n > 2 {
		t.Errorf("%v allocations per 5 events, want 0", n)
	}
}

// TestRoutedRequestAbove32BitsIsRefused: events of no size make a slice that
// long cost nothing.
func TestRoutedRequestAbove32BitsIsRefused(t *testing.T) {
	big := int64(1) << 31
	if int64(int(big)) != big {
		t.Log("an int of this platform cannot count so many")
		return
	}
	topic := open(t, storages[0], queue.Config[struct{}]{Key: func(struct{}) string { panic("called") }})
	err := topic.Produce(t.Context(), make([]struct{}, int(big))...)
	wantErr(t, err, penstock.ErrTooLarge)
	if err == nil || !strings.Contains(err.Error(), "2147483648") || !strings.Contains(err.Error(), "2147483647") {
		t.Errorf("error %v does not name both numbers", err)
	}
}
