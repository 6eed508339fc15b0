package queue_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// The first request of the line for the disk waits for nothing that a request
// behind it holds. It did when it was one of a Producer and the line had begun
// before it: it had no capacity yet, which those behind it had.
func TestNumberedRequestThatWaitsForDiskDoesNotHoldUpThoseWithCapacity(t *testing.T) {
	for _, begun := range []bool{false, true} { // whether the line has begun before the request
		forEachDiskCapacity(t, 1, func(t *testing.T, c queue.Config[string]) {
			c.Capacity = 200
			topic := openDisk(t, c)
			g := group(t, topic, "g", queue.GroupConfig{})
			producer, err := topic.Producer(7)
			if err != nil {
				t.Fatal(err)
			}
			all := 0
			fill := func(n int, produce func(i int) error) call {
				all += n
				return start(t, func() (err error) {
					for i := 0; i < n && err == nil; i++ {
						err = produce(i)
					}
					return err
				})
			}
			var calls []call
			if begun {
				calls = append(calls, fill(30, func(i int) error { return topic.Produce(t.Context(), wide(i)) }))
			}
			calls = append(calls, fill(60, func(i int) error {
				_, err := producer.Produce(t.Context(), uint64(i+1), wide(i))
				return err
			}), fill(1, func(int) error { return topic.Produce(t.Context(), slices.Repeat([]string{"0000"}, c.Capacity)...) }))
			all += c.Capacity - 1
			for _, c := range calls {
				c.blocked()
			}
			got := 0
			for range 100 {
				synctest.Wait()
				got += len(takeNumbers(t, g))
			}
			if s := topic.Stats(); got != all {
				t.Fatalf("%d of %d events came; %d are retained, %v of %v taken, %d producers wait: %s",
					got, all, s.Retained, s.UsedDisk, s.CapacityDisk, s.WaitingProducers, s.Why)
			}
			for _, c := range calls {
				endsWith(t, c, nil)
			}
		})
	}
}

// A request that gets no capacity is refused for that, and not taken for one that
// found no room on the disk.
func TestRefusedNumberedRequestIsCountedOnce(t *testing.T) {
	forEachDiskCapacity(t, 1, func(t *testing.T, c queue.Config[string]) {
		c.Capacity, c.WhenFull = 1, queue.Fail
		topic := openDisk(t, c)
		group(t, topic, "g", queue.GroupConfig{})
		producer, err := topic.Producer(7)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := producer.Produce(t.Context(), 1, wide(0)); err != nil {
			t.Fatal(err)
		}
		_, err = producer.Produce(t.Context(), 2, wide(1))
		wantErr(t, err, penstock.ErrFull)
		if s := topic.Stats(); s.Refused != 1 {
			t.Errorf("%d events are counted as refused, want 1", s.Refused)
		}
	})
}
