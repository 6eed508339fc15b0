package queue_test

import (
	"bytes"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// Run measures an event for the limit in bytes, and, in memory, when it is
// parked: in the middle of what the machine decides. A Size that panics there
// had ended the run with the event neither parked nor waiting, and the commit
// passed it.
func TestSizeThatPanicsInARunLosesNothing(t *testing.T) {
	for _, workers := range []int{1, 2} {
		inBubble(t, func(t *testing.T, s storage) {
			var bad atomic.Bool
			c := keyed()
			c.Size = func(v string) penstock.Bytes {
				if bad.Load() && v[0] == 'a' {
					panic("no size")
				}
				return penstock.Bytes(len(v))
			}
			var lines bytes.Buffer
			c.Logger = textLogger(&lines)
			topic := open(t, s, c)
			g := group(t, topic, "g", queue.GroupConfig{BatchMax: 4, BatchBytes: 8, Workers: workers, Retry: parkPolicy()})
			produce(t, topic, "a1", "b1", "a2", "c1", "a3")
			bad.Store(true)
			w := handleWords(failUntil(3, "a1"))
			run := startRun(t, g, w.handle)
			time.Sleep(time.Minute)
			run.mustStop(t)
			got := strings.Join(w.calls, " ")
			for _, v := range []string{"a1", "a2", "a3", "b1", "c1"} {
				if !strings.Contains(got, v) {
					t.Errorf("%d workers: %s never came: %s", workers, v, got)
				}
			}
			nothingIsParked(t, g)
			wantCommitted(t, g, 5)
			if st := topic.Stats(); st.SizePanics == 0 || !strings.Contains(st.Why, "Config.Size has panicked") {
				t.Errorf("%d panics counted; why: %s", st.SizePanics, st.Why)
			}
			if n := strings.Count(lines.String(), "Config.Size panicked"); n != 1 {
				t.Errorf("%d lines of the log tell of the panics, want one", n)
			}
		})
	}
}

// Sizes that cannot be added up do not wrap round.
func TestHugeSizesAreBatchesOfOne(t *testing.T) {
	for _, workers := range []int{1, 2} {
		inBubble(t, func(t *testing.T, s storage) {
			c := keyed()
			c.Size = func(string) penstock.Bytes { return math.MaxInt64 }
			topic := open(t, s, c)
			g := group(t, topic, "g", queue.GroupConfig{BatchMax: 10, BatchBytes: 1 << 40, Workers: workers, Linger: time.Second})
			produce(t, topic, "a1", "a2", "a3", "a4")
			w := handleWords(func(string, int) bool { return false })
			run := startRun(t, g, w.handle)
			time.Sleep(10 * time.Second)
			run.mustStop(t)
			if got := strings.Join(w.calls, " "); got != "0s a1 0s a2 0s a3 0s a4" {
				t.Errorf("%d workers: calls %s", workers, got)
			}
		})
	}
}
