package queue_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

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
