package stream

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// An event that its consumer has not tried, because one before it failed or
// because it could not be reached any more, has had no attempt: neither their
// number nor their time gives it up.
func TestUntriedEventsAreNotGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		maxAttempts int
		verdict     Verdict
		offered     string // of the third event: its attempts
	}{
		"by attempts":          {2, Skip, "1"},
		"by time":              {0, Skip, "1"},
		"by attempts, to dead": {2, DeadLetter, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(g *rig, a *agentConfig) {
					a.groupSize, a.maxAttempts, a.deliveryBackoff, a.deadLetter = 3, c.maxAttempts, Fixed(10*time.Second), g.deadLetter
				})
				g.verdict = func(Failure) Verdict { return c.verdict }
				g.marks = &spyMarks{}
				g.start()
				consumer := g.subscribe("s", "sub")
				consumer.onDeliver = func(_ int, d *Delivery) (a Answer, err error) {
					for i := range d.Items {
						switch lo := d.Items[i].Token.Lo; {
						case lo == 2:
							a.Failed = append(a.Failed, ItemFailure{i, errBoom})
						case len(a.Failed) > 0:
							a.Failed = append(a.Failed, ItemFailure{i, fmt.Errorf("not tried: %w", ErrAway)})
						default:
							if lo == 3 {
								want(t, "attempt of the third", fmt.Sprint(d.Items[i].Attempt), c.offered)
							}
						}
					}
					return a, nil
				}
				g.feed(boxes("s", 1, 3)...)
				g.pump()
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				want(t, "settled", consumer.values(), "1 3")
				s := g.stats()
				want(t, "given up", s.Skipped+s.DeadLettered, 1)
				want(t, "delivered", s.Delivered, 2)
				if f := g.failed(); len(f) != 1 || len(f[0].Items) != 1 || f[0].Items[0].Token.Lo != 2 {
					t.Errorf("asked about %+v, want the second event only", f)
				}
				if err := g.stop(); err != nil {
					t.Error(err)
				}
				want(t, "checkpoint", g.marks.at(), 3)
			})
		})
	}
}

// What is left of a delivery when its consumer cannot be reached any more waits
// for the next poll, as a delivery does that was not handed over at all.
func TestRestOfADeliveryWaitsForItsConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, a *agentConfig) { a.groupSize, a.maxAttempts = 3, 1 })
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, d *Delivery) (Answer, error) {
			if n == 1 {
				return Answer{Failed: []ItemFailure{{1, ErrAway}, {2, ErrAway}}}, nil
			}
			want(t, "attempt", d.Items[0].Attempt, 1)
			return Answer{}, nil
		}
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "before the poll", c.values(), "1")
		g.pump()
		want(t, "after it", c.values(), "1 2 3")
		want(t, "failed attempts", g.stats().Failed, 0)
		want(t, "asked the failure handler", len(g.failed()), 0)
	})
}
