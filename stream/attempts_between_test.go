package stream

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// Containers of a group that lie between those that failed, and were settled,
// are not counted with them: neither in the store nor in the next deliveries.
func TestSettledContainersBetweenFailedOnesAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := holding()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.groupSize = store, 3 })
		c := g.subscribe("s", "sub")
		var left []string
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			left = append(left, store.left())
			switch n {
			case 1:
				return Answer{Failed: []ItemFailure{{Index: 0, Err: errBoom}, {Index: 2, Err: errBoom}}}, nil
			case 2:
				return Answer{Rewind: at(PositionAt, 1)}, nil
			}
			return Answer{}, nil
		}
		g.start()
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		time.Sleep(time.Minute)
		g.pump()
		want(t, "offered", c.tries(), "1:1 2:1 3:1 1:2 3:2 1:2 2:1 3:2")
		want(t, "stored during each attempt", strings.Join(left, ", "), "1-3:1?, 1-1:2? 3-3:2?, 1-1:2? 2-2:1? 3-3:2?")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// An event that was given up keeps its entry while those around it are offered
// and settled, until the checkpoint has passed it.
func TestGivenUpEventBetweenOthersKeepsItsEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := holding()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.groupSize, c.maxAttempts = store, 3, 2 })
		c := g.subscribe("s", "sub")
		subs, err := g.registry.Subscriptions(t.Context(), g.qualified("s"))
		if err != nil {
			t.Fatal(err)
		}
		spent := openAt(subs[0], 2, 2)
		store.held[nameOf(&spent)] = spent
		var left []string
		c.onDeliver = func(int, *Delivery) (Answer, error) {
			left = append(left, store.left())
			return Answer{}, nil
		}
		g.start()
		g.feed(boxes("s", 1, 4)...)
		g.pump()
		want(t, "offered", c.offered(), "1,3 4")
		want(t, "stored during each attempt", strings.Join(left, ", "), "1-1:1? 2-2:2? 3-3:1?, 2-2:2? 4-4:1?")
		want(t, "stored at the end", store.left(), "2-2:2?")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// More ranges than one attempt may be stored in are joined, but not over an event
// during which a process has ended.
func TestJoinedEntriesLeaveOutWhatIsNotOffered(t *testing.T) {
	at := func(i uint32) penstock.Token { return penstock.Token{Index: i} }
	held := []tried{{at(5), at(6), 3, true}, {at(9), at(10), 2, false}}
	e := &entries{held: slices.Clone(held)}
	var events []tried
	for i := range uint32(offeredMax + 2) {
		events = append(events, tried{at(2 * i), at(2*i + 1), 1, true})
	}
	put := e.begin(events)
	if wanted := []tried{{at(0), at(5), 1, true}, held[0], {at(6), at(19), 1, true}}; !slices.Equal(e.next.list, wanted) {
		t.Errorf("planned %v, want %v", e.next.list, wanted)
	}
	e.held, e.next.list = e.next.list, e.held
	e.settle(put, nil)
	if !slices.Equal(e.next.list, held[:1]) {
		t.Errorf("settled, planned %v, want %v", e.next.list, held[:1])
	}
}
