package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// forEachDiskCapacity runs a test with six segments of 8 KiB per partition, of
// which each holds some four events of wide.
func forEachDiskCapacity(t *testing.T, partitions int, test func(t *testing.T, c queue.Config[string])) {
	forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
		c.Partitions, c.SegmentBytes = partitions, 8*penstock.KiB
		c.CapacityDisk = 6 * penstock.Bytes(partitions) * c.SegmentBytes
		test(t, c)
	})
}

// wide is an event with a number.
func wide(i int) string { return fmt.Sprintf("%04d%s", i, strings.Repeat("w", 900)) }

// takeNumbers pulls and commits everything that is there and returns the numbers.
func takeNumbers(t *testing.T, g *queue.Group[string]) (got []int) {
	t.Helper()
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
			return got
		}
		for _, v := range b.Values() {
			n := 0
			if _, err := fmt.Sscanf(v, "%04d", &n); err != nil {
				t.Fatal(err)
			}
			got = append(got, n)
		}
		commit(t, g.Consumer(0))
	}
}

// endsWith waits for a call, which must return nil or an error that matches.
func endsWith(t *testing.T, c call, want error) {
	t.Helper()
	if err := c.wait(); !errors.Is(err, want) {
		t.Fatalf("the call returned %v, want %v", err, want)
	}
}

// withinDisk fails when the topic takes more than it may.
func withinDisk[T any](t *testing.T, topic *queue.Topic[T]) queue.Stats {
	t.Helper()
	s := topic.Stats()
	if s.UsedDisk > s.CapacityDisk || s.CapacityDisk == 0 {
		t.Fatalf("%v of %v are taken", s.UsedDisk, s.CapacityDisk)
	}
	return s
}

func TestCapacityOfDiskMakesProducersWait(t *testing.T) {
	forEachDiskCapacity(t, 1, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		g := group(t, topic, "g", queue.GroupConfig{})
		const all = 100
		var done atomic.Int64
		p := start(t, func() error {
			for i := range all {
				if err := topic.Produce(t.Context(), wide(i)); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
		var got []int
		for rounds := 0; len(got) < all; rounds++ {
			synctest.Wait()
			s := withinDisk(t, topic)
			if n := int(done.Load()); n < all && (s.WaitingProducers != 1 || n == len(got)) {
				t.Fatalf("%d are accepted, %d taken, %d producers wait", n, len(got), s.WaitingProducers)
			}
			if rounds == 0 && (s.State != queue.NoGroup && s.State != queue.Full || done.Load() < 12) {
				t.Fatalf("%d events fit, state %v: %s", done.Load(), s.State, s.Why)
			}
			got = append(got, takeNumbers(t, g)...)
		}
		endsWith(t, p, nil)
		for i, n := range got {
			if i != n {
				t.Fatalf("event %d came in the place of %d", n, i)
			}
		}
	})
}

func TestCapacityOfDiskFailsWholeRequests(t *testing.T) {
	forEachDiskCapacity(t, 2, func(t *testing.T, c queue.Config[string]) {
		c.WhenFull = queue.Fail
		topic := openDisk(t, c)
		g := group(t, topic, "g", queue.GroupConfig{})
		n := 0
		for range 3 {
			for {
				ok, err := topic.TryProduce(t.Context(), wide(n), wide(n+1)) // one in each partition
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				withinDisk(t, topic)
				if n += 2; n > 1000 {
					t.Fatal("it never got full")
				}
			}
			if err := topic.Produce(t.Context(), wide(n)); !errors.Is(err, penstock.ErrFull) {
				t.Fatalf("a full topic says %v", err)
			}
			s := withinDisk(t, topic)
			if a, b := s.Partitions[0].End, s.Partitions[1].End; a != b || int(a+b) != n {
				t.Fatalf("the partitions end at %d and %d, and %d events were accepted", a, b, n)
			}
			if got := takeNumbers(t, g); len(got) < 12 {
				t.Fatalf("full after %d events", len(got))
			}
		}
		if s := topic.Stats(); s.Refused != 9 {
			t.Errorf("%d events are counted as refused, want 9", s.Refused)
		}
	})
}

func TestCapacityOfDiskDropsTheOldest(t *testing.T) {
	forEachDiskCapacity(t, 1, func(t *testing.T, c queue.Config[string]) {
		c.WhenFull, c.HardRetention = queue.DropOldest, true
		topic := openDisk(t, c)
		g := group(t, topic, "g", queue.GroupConfig{})
		const all = 100
		for i := range all {
			produce(t, topic, wide(i))
			withinDisk(t, topic)
		}
		got := takeNumbers(t, g)
		if len(got) < 8 || len(got) > 40 {
			t.Fatalf("%d events are left", len(got))
		}
		for i, n := range got {
			if want := all - len(got) + i; n != want {
				t.Fatalf("event %d came, want %d", n, want)
			}
		}
		if s := topic.Stats(); int(s.Skipped) != all-len(got) {
			t.Errorf("%d events are counted as skipped, %d of %d came", s.Skipped, len(got), all)
		}
	})
}

func TestWaitForDiskEndsWithItsContextAndTheTopic(t *testing.T) {
	forEachDiskCapacity(t, 1, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		group(t, topic, "g", queue.GroupConfig{})
		fill := start(t, func() error {
			for i := 0; ; i++ {
				if err := topic.Produce(t.Context(), wide(i)); err != nil {
					return err
				}
			}
		})
		fill.blocked()
		ctx, cancel := context.WithCancel(t.Context())
		second := start(t, func() error { return topic.Produce(ctx, wide(0)) }) // in line behind it
		second.blocked()
		before := topic.Stats().Produced
		cancel()
		endsWith(t, second, context.Canceled)
		fill.blocked()
		if got := topic.Stats().Produced; got != before {
			t.Errorf("%d events, %d before the context ended", got, before)
		}
		if err := topic.Close(); err != nil {
			t.Error(err)
		}
		endsWith(t, fill, penstock.ErrClosed)
	})
}

// TestNumberedRequestWaitsForDisk: and is appended once.
func TestNumberedRequestWaitsForDisk(t *testing.T) {
	forEachDiskCapacity(t, 1, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		g := group(t, topic, "g", queue.GroupConfig{})
		producer, err := topic.Producer(7)
		if err != nil {
			t.Fatal(err)
		}
		const all = 60
		p := start(t, func() error {
			for i := range all {
				if _, err := producer.Produce(t.Context(), uint64(i+1), wide(i)); err != nil {
					return err
				}
			}
			return nil
		})
		p.blocked()
		var got []int
		for len(got) < all {
			synctest.Wait()
			more := takeNumbers(t, g)
			if got = append(got, more...); len(more) == 0 {
				t.Fatalf("nothing comes after %d events", len(got))
			}
		}
		endsWith(t, p, nil)
		for i, n := range got {
			if i != n {
				t.Fatalf("event %d came in the place of %d", n, i)
			}
		}
	})
}

func TestCapacityOfDiskNamesTheBadField(t *testing.T) {
	for name, c := range map[string]queue.Config[string]{
		"memory":    {CapacityDisk: penstock.GiB},
		"negative":  {CapacityDisk: -1, Dir: "/nowhere/at/all"},
		"too small": {CapacityDisk: penstock.MiB, Dir: "/nowhere/at/all"},
		"retention": {CapacityDisk: penstock.GiB, RetainSegments: 1, Dir: "/nowhere/at/all"},
		"by age":    {CapacityDisk: penstock.GiB, RetainAge: 1, Dir: "/nowhere/at/all"},
		"by events": {CapacityDisk: penstock.GiB, SegmentEvents: 4, Dir: "/nowhere/at/all"},
	} {
		c.Name = "orders"
		if c.Dir != "" {
			c.Codec = penstock.String()
		}
		var field *penstock.FieldError
		if _, err := queue.Open(c); !errors.As(err, &field) || field.Field != "CapacityDisk" {
			t.Errorf("%s: %v, want a FieldError of CapacityDisk", name, err)
		}
	}
}
