package stream

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
)

// lossyCache forgets what its cursors stand at when it is told to.
type lossyCache struct {
	Cache
	lost *penstock.Token // containers up to here are gone
}

type lossyCursor struct {
	Cursor
	cache *lossyCache
}

func (l *lossyCache) Cursor(s penstock.StreamID, at Position) (Cursor, error) {
	if at.Kind == PositionEarliest && l.lost != nil {
		at = Position{Kind: PositionAfter, Token: *l.lost}
	}
	c, err := l.Cache.Cursor(s, at)
	return &lossyCursor{c, l}, err
}

func (c *lossyCursor) Next() (Container, bool, error) {
	if p, ok := c.Peek(); ok && c.cache.lost != nil && p.Token.Compare(*c.cache.lost) <= 0 {
		return Container{}, false, &CacheMissError{Requested: p.Token, Low: *c.cache.lost}
	}
	return c.Cursor.Next()
}

func TestLostPlaceFollowsThePolicy_OR96(t *testing.T) {
	for policy, c := range map[MissPolicy]struct {
		settled  string // of 1 to 6; 2 and 3 are lost while 1 is under way, 6 comes later
		progress string
		reason   string
		faulted  uint64
	}{
		MissStay:     {"1", "none", "no longer kept", 0},
		MissEarliest: {"1 4 5 6", "6", "", 0},
		MissLatest:   {"1 6", "6", "", 0},
		MissFault:    {"1", "nil", "", 1},
	} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lossy := &lossyCache{}
				g := newRig(t, func(g *rig, a *agentConfig) {
					a.onMiss = policy
					g.newCache = func() (Cache, error) {
						inner, err := NewSimpleCache(DefaultCapacity)
						lossy.Cache = inner
						return lossy, err
					}
				})
				g.start()
				defer g.stop()
				sub := g.subscribe("s", "sub")
				sub.gate = make(chan struct{})
				g.feed(boxes("s", 1, 5)...)
				g.pump()
				g.forgetProgress()
				lossy.lost = &penstock.Token{Lo: 3} // the loop is idle: nothing is delivered before the gate opens
				close(sub.gate)
				synctest.Wait()
				g.feed(box("s", 6))
				g.pump()
				g.pump()
				want(t, "settled", sub.values(), c.settled)
				want(t, "missed", g.stats().Missed, 1)
				want(t, "faulted", g.stats().Faulted, c.faulted)
				want(t, "progress", g.lastProgress(), c.progress)
				if why := g.stats().Reason; !strings.Contains(why, c.reason) || c.reason == "" && why != "" {
					t.Errorf("reason %q", why)
				}
				if policy == MissStay { // until its consumer asks for a place that is kept
					sub.set(func(c *scriptConsumer) {
						c.onShake = func(int) (Position, error) { return at(PositionAfter, 3), nil }
					})
					g.announce("s", "sub")
					g.pump()
					want(t, "settled in the end", sub.values(), "1 4 5 6")
					want(t, "progress in the end", g.lastProgress(), "6")
				}
			})
		})
	}
}
