package stream

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// BenchmarkDelivery publishes, in containers of 1 or 100 events of 8 bytes, to
// streams with one subscription each in turn, and waits until all is delivered,
// once per lap: the rows stream/deliver and stream/many of the binary. Chan is
// the same events, in slices of as many, through a channel.
func BenchmarkDelivery(b *testing.B) {
	for _, per := range []int{1, 100} {
		events := make([][]byte, per)
		for i := range events {
			events[i] = make([]byte, 8)
		}
		for _, streams := range []int{16, 100, 100_000} {
			b.Run(fmt.Sprintf("streams=%d/events=%d", streams, per), func(b *testing.B) { benchDelivery(b, streams, events) })
		}
		b.Run(fmt.Sprintf("chan/events=%d", per), func(b *testing.B) { benchChan(b, events) })
	}
}

// lap is the number of containers after which BenchmarkDelivery waits.
const lap = 2000

func benchDelivery(b *testing.B, streams int, events [][]byte) {
	b.ReportAllocs()
	topic := memoryTopic(b, queue.Config[Container]{Partitions: 8, Capacity: 8 * 8192})
	defer topic.Close()
	p := openProvider(b, topic, func(c *Config) { c.Queues, c.GroupSize = 8, 1 })
	defer p.Close()
	var got, total atomic.Int64
	done := make(chan struct{}, 1)
	ss := make([]*Stream[[]byte], streams)
	for i := range ss {
		ss[i] = OfCodec(p, "bench", fmt.Sprint(i), penstock.Raw())
		_, err := ss[i].Subscribe(b.Context(), "x", func(_ context.Context, batch penstock.Batch[[]byte]) error {
			if got.Add(int64(batch.Len())) == total.Load() {
				done <- struct{}{}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	stop := running(p)
	next := 0
	publish := func(n int, events [][]byte) {
		total.Add(int64(n * len(events)))
		for range n {
			if err := ss[next%streams].Publish(b.Context(), events...); err != nil {
				b.Fatal(err)
			}
			next++
		}
		<-done
	}
	publish(streams, events[:1]) // every stream registers
	b.ResetTimer()
	for left := b.N; left > 0; left -= lap {
		publish(min(left, lap), events)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
	if err := stop(); err != nil {
		b.Fatal(err)
	}
}

func benchChan(b *testing.B, events [][]byte) {
	b.ReportAllocs()
	c := make(chan [][]byte, 8*8192)
	done := make(chan int)
	go func() { // ends when the channel closes; the benchmark waits for it
		n := 0
		for batch := range c {
			n += len(batch)
		}
		done <- n
	}()
	for range b.N {
		c <- events
	}
	close(c)
	if n := <-done; n != b.N*len(events) {
		b.Fatalf("%d events came, %d were sent", n, b.N*len(events))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
}

// BenchmarkCursorNext reads a stream of 4,096 containers among 100,000 others
// that belong to one other stream or to as many as there are of them: the cost
// of a step must not depend on the number of streams (G-5). Alone, its
// containers lie side by side, which is faster for the processor's caches.
func BenchmarkCursorNext(b *testing.B) {
	const own, others = DefaultCapacity, 100_000
	for _, kind := range []string{"simple", "log"} {
		for _, streams := range []int{0, 1, 1000, others} {
			b.Run(fmt.Sprintf("%s/others=%d", kind, streams), func(b *testing.B) {
				b.ReportAllocs()
				var c Cache = newCache(b, own+others)
				if kind == "log" {
					c = newLogCache(b, LogCacheConfig{MaxBytes: 1 << 30})
				}
				token, other := uint64(0), 0
				for i := range own {
					token++
					mustAdd(b, c, box("0", token))
					for ; streams > 0 && other < others*(i+1)/own; other++ {
						token++
						mustAdd(b, c, box(fmt.Sprint("other", other%streams), token))
					}
				}
				id := box("0", 0).Stream
				cur, err := c.Cursor(id, Position{Kind: PositionEarliest})
				if err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					if _, ok, _ := cur.Next(); !ok {
						b.StopTimer()
						cur.Close()
						if cur, err = c.Cursor(id, Position{Kind: PositionEarliest}); err != nil {
							b.Fatal(err)
						}
						b.StartTimer()
					}
				}
			})
		}
	}
}
