package stream

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func empty(seq uint64) Container { return Container{Token: penstock.Token{Lo: seq}} }

// A queue with receipts would hand a container without events out again for ever:
// it is reported as delivered, when what was read before it has been, and the
// checkpoint passes it.
func TestContainerWithoutEventsIsReportedAsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(g *rig, _ *agentConfig) { g.marks = &spyMarks{} })
		g.start()
		c := g.subscribe("s", "sub")
		gate := make(chan struct{})
		c.gate = gate
		g.feed(box("s", 1), empty(2), box("s", 3), empty(4), empty(5))
		g.pump()
		g.pump()
		want(t, "reported before what was read before them", g.receivers[0].acks(), "")
		want(t, "empty", g.stats().Empty, 3)
		close(gate)
		synctest.Wait()
		g.pump()
		g.pump()
		want(t, "settled", c.values(), "1 3")
		want(t, "reported", g.receivers[0].acks(), "1 2 3 4 5")
		want(t, "checkpoint", g.marks.at(), 5)
		g.feed(empty(6))
		g.pump()
		want(t, "reported, alone", g.receivers[0].acks(), "1 2 3 4 5 6")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "read", g.stats().Read, 2)
	})
}

// Containers without events that wait to be reported are bounded: reading stops
// while too many do.
func TestContainersWithoutEventsThatWaitAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		seq := uint64(1)
		g.script = func(int, int) ([]Container, error) {
			if seq > 3000 { // without a bound this would not end
				return nil, nil
			}
			out := make([]Container, 100)
			for i := range out {
				seq++
				out[i] = empty(seq)
			}
			return out, nil
		}
		c := g.subscribe("s", "sub")
		gate := make(chan struct{})
		c.gate = gate
		g.start()
		g.feed(box("s", 1))
		g.pump()
		want(t, "empty", g.stats().Empty, 1100)
		close(gate)
		synctest.Wait()
		g.pump()
		want(t, "empty, then", g.stats().Empty, 3000)
		g.pump()
		want(t, "reported", len(strings.Fields(g.receivers[0].acks())), 3001)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// fullCache refuses a container for as long as it is told to.
type fullCache struct {
	Cache
	full *atomic.Bool
}

func (f fullCache) Add(batch []Container) error {
	for i := range batch {
		if f.full.Load() && batch[i].Token.Lo == 3 {
			return fmt.Errorf("no room: %w", penstock.ErrFull)
		}
	}
	return f.Cache.Add(batch)
}

// What a cache refuses for now is not passed by a container without events that
// was read behind it.
func TestContainerWithoutEventsWaitsBehindARefusedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &atomic.Bool{}
		full.Store(true)
		g := newRig(t, func(g *rig, _ *agentConfig) {
			g.marks = &spyMarks{}
			g.newCache = func() (Cache, error) {
				c, err := NewSimpleCache(DefaultCapacity)
				return fullCache{c, full}, err
			}
		})
		g.start()
		c := g.subscribe("s", "sub")
		g.feed(empty(1), box("s", 2), empty(20), box("s", 3), empty(30), box("s", 40))
		g.feed(dated(empty(50), time.Now()))
		for range 3 {
			g.pump()
		}
		want(t, "settled", c.values(), "2")
		want(t, "checkpoint", g.marks.at(), 20)
		want(t, "reported", g.receivers[0].acks(), "1 2 20")
		want(t, "empty", g.stats().Empty, 2)
		full.Store(false)
		for range 3 {
			g.pump()
		}
		want(t, "settled", c.values(), "2 3 40")
		want(t, "checkpoint", g.marks.at(), 50)
		want(t, "reported", g.receivers[0].acks(), "1 2 20 3 30 40 50")
		want(t, "empty", g.stats().Empty, 4)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}
