package stream

import (
	"fmt"
	"strings"
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

// An event that was not tried is not given up with those around it, before and
// behind, that have failed until their time was over: it is tried alone then.
func TestUntriedEventBetweenFailedOnesIsNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.deliveryBackoff = Fixed(10 * time.Second) })
		var given []string
		g.verdict = func(f Failure) Verdict {
			for i := range f.Items {
				given = append(given, string(f.Items[i].Value()))
			}
			return Skip
		}
		c := g.subscribe("s", "sub")
		c.onDeliver = func(_ int, d *Delivery) (a Answer, _ error) {
			for i := range d.Items {
				switch {
				case string(d.Items[i].Value()) != "b":
					a.Failed = append(a.Failed, ItemFailure{i, errBoom})
				case len(d.Items) > 1:
					a.Failed = append(a.Failed, ItemFailure{i, ErrAway})
				}
			}
			return a, nil
		}
		g.start()
		g.feed(boxOf("s", 1, "a", "b", "c"))
		g.pump()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		want(t, "given up", strings.Join(given, " "), "a c")
		want(t, "settled", c.values(), "b")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}
