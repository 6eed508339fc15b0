package seglog_test

import (
	"context"
	"math/bits"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock/seglog"
	"github.com/penstock/penstock/seglog/steps"
)

// TestEveryOrderOfAWakeUp is put beside a Waker that is compiled with stepped
// atomics: appenders publish and notify, a consumer takes and sleeps, and in no
// order does it sleep beside something that it has not seen.
func TestEveryOrderOfAWakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name      string
			appenders int
			events    int // of each
			places    int
			rings     bool
			switches  int // needless ones; negative: all orders
		}{
			{name: "one event", appenders: 1, events: 1, places: 1, switches: -1},
			{name: "a ring and an event", appenders: 2, events: 1, places: 1, rings: true, switches: 3},
			{name: "two events", appenders: 1, events: 2, places: 1, switches: 4},
			{name: "two appenders at one place", appenders: 2, events: 1, places: 1, switches: 3},
			{name: "two appenders at two places", appenders: 2, events: 1, places: 2, switches: 3},
		} {
			orders, err := steps.Explore(c.switches, func(r *steps.Run) {
				w := seglog.NewWaker(c.places)
				published := make([]steps.Int64, c.places)
				var rung steps.Bool
				ctx, cancel := context.WithCancel(context.Background())
				r.OnStuck(cancel)
				total := int64(c.appenders * c.events)
				for a := range c.appenders {
					if c.rings && a == 0 {
						total -= int64(c.events)
						r.Go("ringer", func() { rung.Store(true); w.Ring() })
						continue
					}
					r.Go("appender", func() {
						for range c.events {
							published[a%c.places].Add(1)
							w.Notify(a % c.places)
						}
					})
				}
				r.Go("consumer", func() {
					defer cancel()
					seen := make([]int64, c.places)
					for left := total; ; {
						for found := w.Take(0); found != 0; found &= found - 1 {
							p := bits.TrailingZeros64(found)
							n := published[p].Load()
							left -= n - seen[p]
							seen[p] = n
						}
						if left == 0 && (!c.rings || rung.Load()) {
							return
						}
						if err := w.Wait(ctx, nil); err != nil {
							return
						}
					}
				})
			})
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			t.Logf("%d orders of %s", orders, c.name)
		}
	})
}
