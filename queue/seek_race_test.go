package queue

import (
	"context"
	"log/slog"
	"runtime"
	"testing"

	"github.com/penstock/penstock"
)

// quiet opens a topic in memory, or on disk, whose logger is silent.
func quiet[T any](t *testing.T, c Config[T], disk bool) *Topic[T] {
	t.Helper()
	c.Name, c.Logger = "topic", slog.New(slog.DiscardHandler)
	if disk {
		c.Dir, c.Codec, c.SegmentEvents, c.SegmentSize = t.TempDir(), penstock.JSON[T](), c.SegmentSize, 0
		c.SegmentBytes = 64 * penstock.KiB
	}
	topic, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = topic.Close() })
	return topic
}

func fill(t *testing.T, topic *Topic[int], n int) {
	t.Helper()
	for i := range n {
		if err := topic.Produce(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
}

// The commits of a group raise the floor that a seek of it was given. Segments
// hold one event each, so what is passed is gone from memory and disk at once.
func TestSeekToTheEarliestMeetsCommits(t *testing.T) {
	for _, test := range []struct {
		name     string
		disk     bool
		capacity int
	}{
		{"memory", false, 0}, {"memory, bounded", false, 20},
		{"disk", true, 0}, {"disk, bounded", true, 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			topic := quiet(t, Config[int]{Capacity: test.capacity, SegmentSize: 1}, test.disk)
			g, err := topic.Group("g", GroupConfig{BatchMax: 1})
			if err != nil {
				t.Fatal(err)
			}
			fill(t, topic, 20)
			c := g.Consumer(0)
			consume := func(n int) {
				for range n {
					b, ok, err := c.TryPull(1)
					if err != nil || !ok {
						t.Fatal(ok, err)
					}
					if err := b.Commit(); err != nil {
						t.Fatal(err)
					}
				}
			}
			consume(3)
			if err := g.seek(0, func(from, end penstock.Offset) (penstock.Offset, error) {
				consume(10)
				if from != 3 || end != 20 {
					t.Errorf("the range is [%d, %d], want [3, 20]", from, end)
				}
				at, err := topic.parts[0].since(0, from, end)
				if err != nil || at != from {
					t.Errorf("the first event since ever is at %d, %v; want %d", at, err, from)
				}
				return from, nil
			}); err != nil {
				t.Fatal(err)
			}
			b, ok, err := c.TryPull(1)
			if err != nil || !ok || b.Values()[0] != 3 {
				t.Fatalf("after the seek: %v %v %v, want event 3", b, ok, err)
			}
			if test.capacity == 0 {
				return
			}
			consume(17) // the one in hand comes again
			if n, _ := topic.budget.Available(); n != 20 {
				t.Errorf("%d events of capacity are free after all is committed, want 20", n)
			}
		})
	}
}

// What a seek holds back for its own use comes back with it.
func TestSeekThatFailsGivesBackWhatItHeld(t *testing.T) {
	topic := quiet(t, Config[int]{Capacity: 8, SegmentSize: 4}, false)
	g, err := topic.Group("g", GroupConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if err := topic.Produce(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- topic.Produce(context.Background(), 1) }() // ends with room, or with the topic
	for topic.budget.Waiting() == 0 {
		if len(done) > 0 {
			t.Fatal(<-done)
		}
		runtime.Gosched()
	}
	err = g.seek(0, func(penstock.Offset, penstock.Offset) (penstock.Offset, error) {
		b, ok, err := g.Consumer(0).TryPull(8)
		if err != nil || !ok || b.Len() != 8 || b.Commit() != nil {
			t.Error(b, ok, err)
		}
		return 100, nil
	})
	if err == nil {
		t.Fatal("a seek beyond the end succeeded")
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if u := topic.parts[0].log.Usage(); u.Released != 8 {
		t.Errorf("memory is released to %d, want 8", u.Released)
	}
}

// An int of 32 bits counts no more than 2^31 events.
func TestUnboundedTopicOutlivesItsCredit(t *testing.T) {
	topic := quiet(t, Config[int]{}, false)
	topic.credit = 2
	fill(t, topic, 10)
	if end := topic.parts[0].end(); end != 10 {
		t.Errorf("the topic ends at %d, want 10", end)
	}
}
