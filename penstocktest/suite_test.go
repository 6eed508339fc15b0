package penstocktest_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/penstocktest"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/stream"
)

// The suites pass for what this module ships; their own subtests name what
// broke otherwise.

func TestTopicInMemory(t *testing.T) {
	penstocktest.Adapter(t, func(t *testing.T, queues int) stream.Factory {
		topic, err := stream.OpenTopic(queue.Config[stream.Container]{Name: "suite", Partitions: queues, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { topic.Close() })
		return topic
	})
}

func TestTopicOnDisk(t *testing.T) {
	penstocktest.Adapter(t, func(t *testing.T, queues int) stream.Factory {
		topic, err := stream.OpenTopic(queue.Config[stream.Container]{
			Name: "suite", Partitions: queues, Dir: t.TempDir(), Durability: penstock.Written, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { topic.Close() })
		return topic
	})
}

func TestSimpleCache(t *testing.T) {
	penstocktest.Cache(t, func(t *testing.T) stream.Cache {
		c, err := stream.NewSimpleCache(1000)
		if err != nil {
			t.Fatal(err)
		}
		return c
	})
}

func TestMemoryRegistry(t *testing.T) {
	penstocktest.Registry(t, func(*testing.T) stream.Registry { return stream.NewMemoryRegistry() })
}

func TestLogCache(t *testing.T) {
	penstocktest.Cache(t, func(t *testing.T) stream.Cache {
		c, err := stream.NewLogCache(stream.LogCacheConfig{
			Evict: func(stream.CacheMeta, stream.CacheMeta, time.Time) bool { return true },
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	})
}

func TestRegistryOnDisk(t *testing.T) {
	penstocktest.Registry(t, func(t *testing.T) stream.Registry {
		s, err := stream.OpenStore(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s.Registry()
	})
}

func TestVisibilityQueue(t *testing.T) {
	penstocktest.Adapter(t, func(t *testing.T, _ int) stream.Factory {
		q, err := stream.OpenVisibilityQueue(stream.VisibilityConfig{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return q
	})
}
