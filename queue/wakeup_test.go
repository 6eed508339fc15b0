package queue

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// TestArrivalBehindTheLookIsNotSleptOver: an event arrives in a partition that
// this look has passed, and a later partition of the same look takes its dirty
// bit. The consumer slept with the bit in its hand (BQ-80).
func TestArrivalBehindTheLookIsNotSleptOver(t *testing.T) {
	for _, name := range []string{"memory", "file"} {
		t.Run(name, func(t *testing.T) {
			c := Config[int]{Partitions: 2}
			if name == "file" {
				c = Config[int]{Partitions: 2, Dir: t.TempDir(), Codec: penstock.JSON[int](), SegmentBytes: 8 * penstock.KiB}
			}
			arrivalBehindTheLook(t, c)
		})
	}
}

func arrivalBehindTheLook(t *testing.T, c Config[int]) {
	synctest.Test(t, func(t *testing.T) {
		topic := openInside(t, c)
		g, err := topic.Group("g", GroupConfig{})
		if err != nil {
			t.Fatal(err)
		}
		c := g.Consumer(0)
		if _, ok, err := c.TryPull(1); ok || err != nil {
			t.Fatal(ok, err)
		}
		if err := topic.Produce(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		c.fresh(1, c.cursors[1], 1) // the look at partition 1, after that at partition 0
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		b, err := c.wait(ctx, c.max)
		if err != nil || b.Value(0) != 7 {
			t.Fatalf("waiting with an event there: %v", err)
		}
	})
}

// TestRunDoesNotSleepOverAnArrivalBehindItsLook is the same for Run. The event
// comes while partition 1 is looked at; the look at partition 2 took its bit.
func TestRunDoesNotSleepOverAnArrivalBehindItsLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const full = 100
		var topic *Topic[int]
		come := func() {
			if err := topic.Produce(t.Context(), full); err != nil {
				t.Error(err)
			}
		}
		topic, err := Open(Config[int]{
			Name: "topic", Partitions: 3, Logger: slog.New(slog.DiscardHandler),
			Router: RouterFunc("test/1", func(v, _ int) int {
				if v == full {
					return 0
				}
				return 1
			}),
			Size: func(v int) penstock.Bytes {
				if v != full && come != nil {
					f := come
					come = nil
					f()
				}
				return penstock.Bytes(v)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer topic.Close()
		g, err := topic.Group("g", GroupConfig{BatchBytes: full, Linger: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if err := topic.Produce(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		begin, took := time.Now(), time.Duration(-1)
		done := make(chan error, 1)
		go func() { // ends by cancel; received below
			done <- g.Run(ctx, func(_ context.Context, b penstock.Batch[int]) error {
				if b.Value(0) == full {
					took = time.Since(begin)
				}
				return nil
			})
		}()
		time.Sleep(2 * time.Hour)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if took != 0 {
			t.Errorf("the full batch was delivered after %v, want at once", took)
		}
	})
}
