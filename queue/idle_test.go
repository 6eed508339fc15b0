package queue_test

import (
	"log/slog"
	"runtime"
	"testing"

	"github.com/penstock/penstock/queue"
)

// TestIdleTopicsAreCheap: a process may have thousands of topics of which few
// are used. 10,000 of them, with 4 partitions and a group each, cost no
// goroutine, and not more than 16 KiB each.
func TestIdleTopicsAreCheap(t *testing.T) {
	const topics, most = 10_000, 16 << 10 // also under the race detector: nothing runs
	goroutines := runtime.NumGoroutine()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	all := make([]*queue.Topic[int], topics)
	log := slog.New(slog.DiscardHandler)
	for i := range all {
		topic, err := queue.Open(queue.Config[int]{Name: "idle", Partitions: 4, Capacity: 1000, Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := topic.Group("g", queue.GroupConfig{}); err != nil {
			t.Fatal(err)
		}
		all[i] = topic
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines were started", n-goroutines)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / topics
	t.Logf("%d bytes each", each)
	if each > most {
		t.Errorf("an idle topic takes %d bytes, want at most %d", each, most)
	}
	for _, topic := range all {
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
