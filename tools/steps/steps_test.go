package steps

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// Two goroutines of three steps each, the first step being their start, have
// 6!/(3!3!) orders; each switch that is allowed adds some.
func TestExploreTriesEveryOrderOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for switches, want := range map[int]int{-1: 20, 0: 2, 1: 6, 2: 14} {
			seen := map[string]bool{}
			var now *Run
			count := func() { seen[strings.Join(now.trace, "")] = true }
			orders, err := Explore(switches, func(r *Run) {
				if now != nil {
					count()
				}
				now = r
				var x Int64
				for _, name := range []string{"a", "b"} {
					r.Go(name, func() { x.Load(); x.Store(1) })
				}
			})
			count()
			if err != nil || orders != want || len(seen) != want {
				t.Errorf("%d switches: %d orders, %d different, %v; want %d", switches, orders, len(seen), err, want)
			}
		}
	})
}

// A sleeper that does not look again after it has said that it sleeps misses
// its waker in some order, and one that does in none.
func TestExploreFindsALostWakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, looksAgain := range []bool{true, false} {
			_, err := Explore(-1, func(r *Run) {
				var ready, asleep Bool
				wake, end := make(chan struct{}, 1), make(chan struct{})
				r.OnStuck(func() { close(end) })
				r.Go("sleeper", func() {
					if ready.Load() {
						return
					}
					asleep.Store(true)
					if looksAgain && ready.Load() {
						return
					}
					select {
					case <-wake:
					case <-end:
					}
				})
				r.Go("waker", func() {
					ready.Store(true)
					if asleep.Load() {
						wake <- struct{}{}
					}
				})
			})
			if looksAgain && err != nil {
				t.Error(err)
			}
			if !looksAgain && (err == nil || !strings.HasPrefix(err.Error(), "sleeper waits for ever")) {
				t.Errorf("the lost wake-up is not found: %v", err)
			}
		}
	})
}
