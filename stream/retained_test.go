package stream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// stumbleCache is a cache whose cursors fail so many times.
type stumbleCache struct {
	Cache
	fails int
}

type stumbleCursor struct {
	Cursor
	cache *stumbleCache
}

func (b *stumbleCache) Cursor(s penstock.StreamID, at Position) (Cursor, error) {
	c, err := b.Cache.Cursor(s, at)
	return &stumbleCursor{c, b}, err
}

func (c *stumbleCursor) Next() (Container, bool, error) {
	if c.cache.fails > 0 {
		c.cache.fails--
		return Container{}, false, errBoom
	}
	return c.Cursor.Next()
}

// A cursor that fails in the turn in which a pause ends is tried again at the next
// poll, as at any other time.
func TestCursorThatFailsWhenDeliveriesResumeIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := &stumbleCache{}
		g := newRig(t, func(g *rig, c *agentConfig) {
			c.deliveryBackoff = Fixed(time.Hour)
			g.newCache = func() (Cache, error) {
				inner, err := NewSimpleCache(DefaultCapacity)
				broken.Cache = inner
				return broken, err
			}
		})
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if n < 3 {
				return Answer{Rewind: at(PositionAt, 1)}, nil
			}
			return Answer{}, nil
		}
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		want(t, "offered before the pause", c.offered(), "1 1")
		g.agent.ask(func(*run) { broken.fails = 1 })
		time.Sleep(90 * time.Minute)
		synctest.Wait()
		g.agent.ask(func(*run) { want(t, "failures left", broken.fails, 0) })
		g.pump()
		g.pump()
		want(t, "offered", c.offered(), "1 1 1 2")
		want(t, "reason", g.stats().Reason, "")
	})
}
