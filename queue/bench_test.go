package queue_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/penstock/penstock/queue"
)

// The shapes that `penstock bench queue` measures: 8192 ints, 4 partitions. Each row
// has the channel of capacity 8192 beside it, with the same goroutines and one
// int per operation. ns/event is what the goals compare.
const (
	benchEvents     = 8192
	benchPartitions = 4
)

func perEvent(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchEvents, "ns/event")
}

func benchTopic(b *testing.B, capacity, batchMax int) (*queue.Topic[int], *queue.Group[int]) {
	t, err := queue.Open(queue.Config[int]{Name: "bench", Partitions: benchPartitions, Capacity: capacity})
	if err != nil {
		b.Fatal(err)
	}
	g, err := t.Group("g", queue.GroupConfig{AutoCommit: true, BatchMax: batchMax})
	if err != nil {
		b.Fatal(err)
	}
	return t, g
}

func drain(b *testing.B, c *queue.Consumer[int], max int) {
	for n := 0; n < benchEvents; {
		batch, ok, err := c.TryPull(max)
		if err != nil || !ok {
			b.Fatal(n, ok, err)
		}
		n += batch.Len()
	}
	if _, ok, _ := c.TryPull(max); ok {
		b.Fatal("more than was produced")
	}
}

var ints = func() []int {
	v := make([]int, benchEvents)
	for i := range v {
		v[i] = i
	}
	return v
}()

func BenchmarkProduceSingle(b *testing.B) {
	for _, capacity := range []int{0, benchEvents} {
		b.Run(fmt.Sprintf("topic/capacity=%d", capacity), func(b *testing.B) {
			t, g := benchTopic(b, capacity, 1000)
			defer t.Close()
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				for _, v := range ints {
					if err := t.Produce(ctx, v); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				drain(b, g.Consumer(0), 1000)
				b.StartTimer()
			}
			perEvent(b)
		})
	}
	b.Run("chan", func(b *testing.B) {
		ch := make(chan int, benchEvents)
		b.ReportAllocs()
		for b.Loop() {
			for _, v := range ints {
				ch <- v
			}
			b.StopTimer()
			for range benchEvents {
				<-ch
			}
			b.StartTimer()
		}
		perEvent(b)
	})
}

func BenchmarkProduceBatch(b *testing.B) {
	for _, capacity := range []int{0, benchEvents} {
		b.Run(fmt.Sprintf("topic/capacity=%d", capacity), func(b *testing.B) {
			t, g := benchTopic(b, capacity, 1000)
			defer t.Close()
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if err := t.Produce(ctx, ints...); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				drain(b, g.Consumer(0), 1000)
				b.StartTimer()
			}
			perEvent(b)
		})
	}
}

func BenchmarkConsume(b *testing.B) {
	for _, max := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("topic/b%d", max), func(b *testing.B) {
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				t, g := benchTopic(b, 0, 1000)
				if err := t.Produce(ctx, ints...); err != nil {
					b.Fatal(err)
				}
				c := g.Consumer(0)
				b.StartTimer()
				for n := 0; n < benchEvents; {
					batch, ok, err := c.TryPull(max)
					if err != nil || !ok {
						b.Fatal(n, ok, err)
					}
					n += batch.Len()
				}
				b.StopTimer()
				t.Close()
				b.StartTimer()
			}
			perEvent(b)
		})
	}
	b.Run("chan", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			ch := make(chan int, benchEvents)
			for _, v := range ints {
				ch <- v
			}
			b.StartTimer()
			for range benchEvents {
				if _, ok := <-ch; !ok {
					b.Fatal("closed")
				}
			}
		}
		perEvent(b)
	})
}

// BenchmarkFlow runs a producer and a consumer together, capacity 8192.
func BenchmarkFlow(b *testing.B) {
	for _, size := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("topic/b%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				t, g := benchTopic(b, benchEvents, size)
				flowTopic(b, t, g.Consumer(0), size)
				t.Close()
			}
			perEvent(b)
		})
	}
	b.Run("chan", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ch := make(chan int, benchEvents)
			var done sync.WaitGroup
			done.Go(func() { // ends after its events; the loop below waits
				for _, v := range ints {
					ch <- v
				}
			})
			for range benchEvents {
				<-ch
			}
			done.Wait()
		}
		perEvent(b)
	})
}

func flowTopic(b *testing.B, t *queue.Topic[int], c *queue.Consumer[int], size int) {
	ctx := context.Background()
	var done sync.WaitGroup
	done.Go(func() { // ends after its events; the last line waits
		for from := 0; from < benchEvents; from += size {
			if size == 1 {
				if err := t.Produce(ctx, ints[from]); err != nil {
					b.Error(err)
				}
				continue
			}
			if err := t.Produce(ctx, ints[from:min(from+size, benchEvents)]...); err != nil {
				b.Error(err)
			}
		}
	})
	for n := 0; n < benchEvents; {
		batch, err := c.Pull(ctx)
		if err != nil {
			b.Fatal(err)
		}
		n += batch.Len()
	}
	done.Wait()
}
