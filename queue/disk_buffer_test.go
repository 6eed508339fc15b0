package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// A handler that waits for a buffer of its own topic is told so also when the
// buffer's request waits for the disk and not for capacity.
func TestHandlerThatWaitsForABufferThatWaitsForDiskIsTold(t *testing.T) {
	for _, capacity := range []int{0, 1000} {
		forEachDiskCapacity(t, 1, func(t *testing.T, c queue.Config[string]) {
			c.Capacity = capacity
			topic := openDisk(t, c)
			g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Drain: time.Second})
			buffer, err := topic.Buffered(1, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			produce(t, topic, wide(0))
			told := make(chan error, 1)
			run := startRun(t, g, func(ctx context.Context, _ penstock.Batch[string]) error {
				for i := range 1000 {
					p, err := buffer.Add(ctx, wide(i))
					if err == nil {
						err = p.Wait(ctx)
					}
					if err != nil {
						select {
						case told <- err:
						default:
						}
						return nil
					}
				}
				return nil
			})
			select {
			case err := <-told:
				wantErr(t, err, queue.ErrWaitsForItself)
			case <-time.After(time.Hour):
				s := topic.Stats()
				t.Errorf("capacity %d: after an hour the handler still waits for its own buffer: disk %v of %v: %s", capacity, s.UsedDisk, s.CapacityDisk, g.Stats().Why)
			}
			run.cancel()
			<-run.done
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_ = buffer.Close(ctx)
		})
	}
}
