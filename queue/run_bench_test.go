package queue_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// One producer and one group under Run, from Produce to the end of the handler,
// beside a channel between two goroutines that moves one event at a time.
func BenchmarkRun(b *testing.B) {
	const chunk = 8192
	events := seq(0, chunk)
	for _, size := range []int{1, 100, 1000} {
		b.Run("memory-b"+strconv.Itoa(size), func(b *testing.B) {
			topic := open(b, storages[0], queue.Config[int]{})
			g := group(b, topic, "g", queue.GroupConfig{BatchMax: size})
			var seen atomic.Int64
			all := make(chan struct{}, 1)
			run := startRun(b, g, func(_ context.Context, batch penstock.Batch[int]) error {
				if seen.Add(int64(batch.Len()))%chunk == 0 {
					all <- struct{}{}
				}
				return nil
			})
			b.ReportAllocs()
			for b.Loop() {
				for at := 0; at < chunk; at += size {
					if err := topic.Produce(b.Context(), events[at:min(at+size, chunk)]...); err != nil {
						b.Fatal(err)
					}
				}
				<-all
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/chunk, "ns/event")
			run.mustStop(b)
		})
	}
	b.Run("channel", func(b *testing.B) {
		events, all := make(chan int, chunk), make(chan struct{})
		go func() { // ends when events is closed; all is its last word
			n := 0
			for range events {
				if n++; n%chunk == 0 {
					all <- struct{}{}
				}
			}
			close(all)
		}()
		b.ReportAllocs()
		for b.Loop() {
			for i := range chunk {
				events <- i
			}
			<-all
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/chunk, "ns/event")
		close(events)
		<-all
	})
}

// One partition with many keys, on one worker and on four: a handler that waits
// for something else for a millisecond, and one that computes for some
// microseconds. The first grows with the workers, the second with the cores.
func BenchmarkWorkers(b *testing.B) {
	const chunk = 256
	keys := make([]penstock.Event[int], chunk)
	for i := range keys {
		keys[i] = penstock.Event[int]{Meta: penstock.Meta{Key: strconv.Itoa(i % 64)}, Value: i}
	}
	for name, do := range map[string]func(v int) int{
		"wait": func(v int) int { <-time.After(time.Millisecond); return v },
		"cpu": func(v int) int {
			for range 5000 {
				v = v*1664525 + 1013904223
			}
			return v
		},
	} {
		for _, workers := range []int{1, 4} {
			b.Run(name+"-w"+strconv.Itoa(workers), func(b *testing.B) {
				topic := open(b, storages[0], queue.Config[int]{})
				g := group(b, topic, "g", queue.GroupConfig{BatchMax: 8, Workers: workers})
				var seen, sum atomic.Int64
				all := make(chan struct{}, 1)
				run := startRun(b, g, func(_ context.Context, batch penstock.Batch[int]) error {
					for _, v := range batch.Values() {
						sum.Add(int64(do(v)))
					}
					if seen.Add(int64(batch.Len()))%chunk == 0 {
						all <- struct{}{}
					}
					return nil
				})
				b.ReportAllocs()
				for b.Loop() {
					if err := topic.ProduceEvents(b.Context(), keys...); err != nil {
						b.Fatal(err)
					}
					<-all
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/chunk, "ns/event")
				run.mustStop(b)
			})
		}
	}
}
