package seglog

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock/seglog/steps"
)

// TestEveryOrderOfTheTurn is put beside a Turn that is compiled with stepped
// atomics: each of several goroutines takes it, in every way there is to give it
// back, and in no order are two inside, or does one wait beside a turn that is
// free.
func TestEveryOrderOfTheTurn(t *testing.T) {
	back := map[string]func(*Turn){
		"unlock":  (*Turn).Unlock,
		"publish": (*Turn).Publish,
		"release": func(t *Turn) {
			if t.Release() {
				t.Wake()
			}
		},
	}
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			each     int // turns of each
			who      []string
			switches int
		}{
			{1, []string{"unlock", "publish"}, -1},
			{2, []string{"release", "unlock"}, 5},
			{1, []string{"unlock", "publish", "release"}, 4},
		} {
			orders, err := steps.Explore(c.switches, func(r *steps.Run) {
				var turn Turn
				turn.Init()
				var taken steps.Int64
				for _, name := range c.who {
					r.Go(name, func() {
						for range c.each {
							turn.Lock()
							taken.Store(taken.Load() + 1) // two inside would lose one
							back[name](&turn)
						}
					})
				}
				r.OnStuck(func() {
					for range 10 * len(c.who) {
						select {
						case turn.ready <- struct{}{}:
						default:
						}
						synctest.Wait()
					}
				})
				r.AtEnd(func() error {
					if n, want := taken.Load(), int64(c.each*len(c.who)); n != want {
						return fmt.Errorf("%d of %d turns were taken alone", n, want)
					}
					if w := turn.word.Load(); w&(locked|starving) != 0 {
						return fmt.Errorf("the turn is left as %b", w)
					}
					return nil
				})
			})
			if err != nil {
				t.Fatalf("%v: %v", c.who, err)
			}
			t.Logf("%d orders of a turn taken %d times by each of %d", orders, c.each, len(c.who))
		}
	})
}
