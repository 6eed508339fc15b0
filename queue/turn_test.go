package queue_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// TestSinglesAndBatchesShareTheTurns: single events publish by the turn while no
// batch comes and by their partition otherwise. Producers that change between
// both at different times lose nothing, deal evenly and keep their order, and a
// consumer that catches up again and again is woken for each.
func TestSinglesAndBatchesShareTheTurns(t *testing.T) {
	const partitions, producers, each = 3, 3, 3000
	topic := open(t, storages[0], queue.Config[int]{Partitions: partitions, Capacity: 500})
	c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true, BatchMax: 7}).Consumer(0)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // a guard; it takes milliseconds
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	for p := range producers {
		group.Go(func() { // ends after its events or with ctx; waited for above
			for i := 0; i < each; {
				n := 1
				if i/(40*(p+1))%3 == 2 { // a while of singles, a while of batches
					n = min(2+i%5, each-i)
				}
				events := make([]int, n)
				for j := range events {
					events[j] = p*each + i + j
				}
				if err := topic.Produce(ctx, events...); err != nil {
					t.Error(err)
					return
				}
				i += n
			}
		})
	}
	var counts [partitions]penstock.Offset
	seen := make([]bool, producers*each)
	var last [partitions][producers]int
	for n := 0; n < len(seen); {
		b, err := c.Pull(ctx)
		if err != nil {
			t.Fatalf("%d events came: %v", n, err)
		}
		p := b.Partition()
		if b.Offset(0) != counts[p] {
			t.Fatalf("partition %d goes on at %d, want %d", p, b.Offset(0), counts[p])
		}
		counts[p] += penstock.Offset(b.Len())
		for _, v := range b.Values() {
			if at := &last[p][v/each]; seen[v] || v < *at {
				t.Fatalf("event %d came twice or after %d", v, *at)
			} else {
				seen[v], *at = true, v
			}
			n++
		}
	}
	for p, k := range counts {
		if k != producers*each/partitions {
			t.Errorf("partition %d got %d events of %d", p, k, len(seen))
		}
	}
}
