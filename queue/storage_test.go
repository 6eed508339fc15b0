package queue_test

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// storage is where a topic of a test keeps its events.
type storage struct{ name string }

// storages are the ones that every case holds for.
var storages = []storage{
	{name: "memory"},
	{name: "file"},
}

// forEachStorage runs a case on every storage.
func forEachStorage(t *testing.T, test func(t *testing.T, s storage)) {
	for _, s := range storages {
		t.Run(s.name, func(t *testing.T) { test(t, s) })
	}
}

// open opens a topic on the storage; the test's end closes it. A missing name
// is filled in.
func open[T any](t testing.TB, s storage, c queue.Config[T]) *queue.Topic[T] {
	t.Helper()
	if c.Name == "" {
		c.Name = "topic"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if s.name == "file" {
		c = onDisk(t, c)
	}
	topic, err := queue.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := topic.Close(); err != nil {
			t.Error(err)
		}
	})
	return topic
}

// onDisk makes the configuration one of a topic on disk. A size of segments in
// memory becomes the same number of events per file.
func onDisk[T any](t testing.TB, c queue.Config[T]) queue.Config[T] {
	t.Helper()
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	if c.Codec == nil {
		c.Codec = penstock.JSON[T]()
	}
	c.SegmentEvents, c.SegmentSize = c.SegmentSize, 0
	c.SegmentBytes = 64 * penstock.KiB
	return c
}

// group adds a group, one consumer unless c says otherwise.
func group[T any](t testing.TB, topic *queue.Topic[T], name string, c queue.GroupConfig) *queue.Group[T] {
	t.Helper()
	g, err := topic.Group(name, c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// produce produces as one request.
func produce[T any](t testing.TB, topic *queue.Topic[T], events ...T) {
	t.Helper()
	if err := topic.Produce(t.Context(), events...); err != nil {
		t.Fatalf("Produce(%v): %v", events, err)
	}
}

// pull pulls at most max events, nil when none is there.
func pull[T any](t testing.TB, c *queue.Consumer[T], max int) []T {
	t.Helper()
	b, ok, err := c.TryPull(max)
	if err != nil {
		t.Fatalf("TryPull(%d): %v", max, err)
	}
	if !ok {
		return nil
	}
	if b.Len() == 0 || b.Len() > max {
		t.Fatalf("TryPull(%d) returned %d events", max, b.Len())
	}
	return append([]T(nil), b.Values()...)
}

// commit commits the last pull.
func commit[T any](t testing.TB, c *queue.Consumer[T]) {
	t.Helper()
	if err := c.Commit(); err != nil {
		t.Fatalf("Commit: %v", err)
	}
}

// contents returns what the partitions hold, read by a group of its own with
// one consumer per partition.
func contents[T any](t testing.TB, topic *queue.Topic[T]) [][]T {
	t.Helper()
	g := group(t, topic, "contents", queue.GroupConfig{Consumers: topic.Partitions()})
	defer func() {
		g.Close()
		if err := topic.DeleteGroup("contents"); err != nil && !errors.Is(err, penstock.ErrNotFound) {
			t.Error(err)
		}
	}()
	all := make([][]T, topic.Partitions())
	for i := range all {
		for {
			values := pull(t, g.Consumer(i), 1000)
			if values == nil {
				break
			}
			all[i] = append(all[i], values...)
			commit(t, g.Consumer(i))
		}
	}
	return all
}

// wantErr fails the test unless err matches all of want.
func wantErr(t interface {
	Helper()
	Errorf(format string, args ...any)
}, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("error %v, want one that matches %v", err, w)
		}
	}
}

// eventually waits in real time until done says so; a minute is for ever.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("after a minute: %s", what)
		}
	}
}

// realLimit ends the test binary when the test takes longer than d of real
// time. In a bubble, a loop that waits for nothing keeps time from passing, and
// no guard inside could end it. Call it outside of bubbles.
func realLimit(t testing.TB, d time.Duration, what string) {
	timer := time.AfterFunc(d, func() { panic(fmt.Sprintf("%s after %v of real time: %s", t.Name(), d, what)) })
	t.Cleanup(func() { timer.Stop() })
}

// seq returns the integers [from, to).
func seq(from, to int) []int {
	var s []int
	for i := from; i < to; i++ {
		s = append(s, i)
	}
	return s
}
