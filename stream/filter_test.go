package stream

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// only passes the events whose payload is in the subscription's data, all when
// it has none.
var only = FilterFunc(func(_ penstock.StreamID, e *penstock.Envelope, data string) (bool, error) {
	return data == "" || strings.Contains(" "+data+" ", " "+string(e.Value)+" "), nil
})

func filtered(f Filter) func(*rig, *agentConfig) {
	return func(_ *rig, c *agentConfig) { c.filter = f }
}

// subscribeFiltered registers a scripted consumer with data for the filter.
func (g *rig) subscribeFiltered(stream, name, data string) *scriptConsumer {
	c := &scriptConsumer{}
	g.mu.Lock()
	g.consumers[stream+"/"+name] = c
	g.mu.Unlock()
	if _, err := g.registry.Subscribe(context.Background(), SubscriptionRecord{Stream: g.qualified(stream), Name: name, Filter: data}); err != nil {
		g.t.Fatal(err)
	}
	synctest.Wait()
	return c
}

func TestFilteredEventsCountAsProgress_ORC28(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, filtered(only))
		g.start()
		defer g.stop()
		c := g.subscribeFiltered("s", "sub", "none of them")
		g.feed(boxes("s", 1, 10)...)
		g.pump()
		g.pump()
		want(t, "offered", c.offered(), "")
		want(t, "progress", g.lastProgress(), "10")
		want(t, "acknowledged", g.receivers[0].acks(), "1 2 3 4 5 6 7 8 9 10")
		want(t, "filtered", g.stats().Filtered, 10)
		want(t, "cached", g.stats().Cached, 0)
	})
}

// Groups are made of what passes; what stands between is progress with them.
func TestGroupsOfWhatPasses_OR88(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, filtered(only), func(_ *rig, c *agentConfig) { c.groupSize = 2 })
		g.start()
		defer g.stop()
		c := g.subscribeFiltered("s", "sub", "2 3 5 7 11")
		gate := make(chan struct{})
		c.gate = gate
		g.feed(boxes("s", 1, 12)...)
		g.pump()
		want(t, "first group", c.offered(), "2,3")
		gate <- struct{}{}
		synctest.Wait()
		g.pump()
		want(t, "progress after the first group", g.lastProgress(), "3")
		close(gate)
		synctest.Wait()
		g.pump()
		want(t, "groups", c.offered(), "2,3 5,7 11")
		want(t, "progress", g.lastProgress(), "12")
		want(t, "filtered", g.stats().Filtered, 7)
		want(t, "delivered", g.stats().Delivered, 5)
	})
}

func TestContainerPassesWhole_OR154(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, filtered(only))
		g.start()
		defer g.stop()
		c := g.subscribeFiltered("s", "sub", "b")
		g.feed(boxOf("s", 1, "a", "b", "c"), boxOf("s", 2, "a", "c"))
		g.pump()
		want(t, "settled", c.values(), "a b c")
	})
}

// A filter that fails withholds nothing, unless it is told to.
func TestFilterThatFails_ORC137(t *testing.T) {
	broken := map[string]Filter{
		"error": FilterFunc(func(penstock.StreamID, *penstock.Envelope, string) (bool, error) { return false, errBoom }),
		"panic": FilterFunc(func(penstock.StreamID, *penstock.Envelope, string) (bool, error) { panic("filter") }),
		"ends":  FilterFunc(func(penstock.StreamID, *penstock.Envelope, string) (bool, error) { runtime.Goexit(); return false, nil }),
	}
	for name, f := range broken {
		for policy, settled := range map[FilterPolicy]string{DeliverUnfiltered: "1 2 3 4 5 6 7 8 9 10", DropUnfiltered: ""} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newRig(t, filtered(f), func(_ *rig, c *agentConfig) { c.filterErrors = policy })
					g.start()
					defer g.stop()
					c := g.subscribe("s", "sub")
					g.feed(boxes("s", 1, 10)...)
					g.pump()
					g.pump()
					want(t, "settled", c.values(), settled)
					want(t, "progress", g.lastProgress(), "10")
					if g.stats().FilterErrors == 0 {
						t.Error("no failure of the filter is counted")
					}
				})
			})
		}
	}
}

// A rewind while a group of several is under way drops what was read with it;
// it comes again from the new place, once each.
func TestRewindWithinWhatWasRead_OR93(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, filtered(only))
		g.start()
		defer g.stop()
		c := g.subscribeFiltered("s", "sub", "")
		rewound := false
		c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
			if d.Items[0].Token.Lo == 4 && !rewound {
				rewound = true
				return Answer{Rewind: Position{Kind: PositionAt, Token: penstock.Token{Lo: 3}}}, nil
			}
			return Answer{}, nil
		}
		g.feed(boxes("s", 1, 6)...)
		g.pump()
		want(t, "settled", c.values(), "1 2 3 3 4 5 6")
	})
}

// An announcement while groups wait behind the one under way repeats that one
// and loses none of the others (OR-85).
func TestAnnouncedAgainWithGroupsWaiting_OR85(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, filtered(only))
		g.start()
		defer g.stop()
		c := g.subscribeFiltered("s", "sub", "")
		c.gate = make(chan struct{})
		g.feed(boxes("s", 1, 4)...)
		g.pump()
		g.announce("s", "sub")
		close(c.gate)
		synctest.Wait()
		want(t, "offered", c.offered(), "1 1 2 3 4")
	})
}

// A stop between two groups of one read leaves the second to the next run.
func TestDrainBetweenGroups_OR162(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, filtered(only), func(g *rig, _ *agentConfig) { g.marks = &spyMarks{} })
		g.start()
		c := g.subscribeFiltered("s", "sub", "1 3 4")
		c.gate = make(chan struct{})
		g.feed(boxes("s", 1, 5)...)
		g.pump()
		stopped := make(chan error, 1)
		go func() { stopped <- g.stop() }() // ends with the drain, received below
		synctest.Wait()
		close(c.gate)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		want(t, "offered", c.offered(), "1")
		want(t, "checkpoint", g.marks.at(), 1)
	})
}

func TestFiltersOfStreams_ORC137(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) {
			c.Filter = FilterFunc(func(_ penstock.StreamID, e *penstock.Envelope, data string) (bool, error) {
				n, err := strconv.Atoi(strings.Trim(string(e.Value), `"`))
				switch {
				case err != nil:
					return false, err
				case data == "even":
					return n%2 == 0, nil
				case strings.HasPrefix(data, "only"):
					return fmt.Sprint("only", n) == data, nil
				}
				return false, errors.New("no such filter")
			})
		})
		defer p.Close()
		s := Of[string](p, "n", "k")
		var fails, even, three, seven recorder
		subscribe(t, s, "fails", fails.handle, WithFilter("nonsense"))
		subscribe(t, s, "even", even.handle, WithFilter(" even "))
		subscribe(t, s, "three", three.handle, WithFilter("only3"))
		subscribe(t, s, "seven", seven.handle, WithFilter("only7"))
		stop := running(p)
		publish(t, s, "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
		want(t, "a filter that fails", fails.got(), "0 1 2 3 4 5 6 7 8 9")
		want(t, "even", even.got(), "0 2 4 6 8")
		want(t, "only3", three.got(), "3")
		want(t, "only7", seven.got(), "7")
		want(t, "lag", topic.Queue().Stats().Groups[0].Lag, 0)
		recs, err := s.Subscriptions(t.Context())
		if err != nil || len(recs) != 4 || recs[0].Filter != "even" {
			t.Errorf("subscriptions %+v, %v", recs, err)
		}
	})
}
