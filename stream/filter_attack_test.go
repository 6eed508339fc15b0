package stream

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// speaks is an error that does something when it is asked for its text.
type speaks func() string

func (s speaks) Error() string { return s() }

// A filter that ends its goroutine, or whose error does when it is asked for its
// text, decides about one event: the others of the same read are asked about,
// and the end of the stream is heard, whatever the policy says.
func TestFilterThatLeavesDecidesOneEvent(t *testing.T) {
	for name, leave := range map[string]func() error{
		"leaves":                  func() error { runtime.Goexit(); return nil },
		"panics":                  func() error { panic("no") },
		"its error leaves":        func() error { return speaks(func() string { runtime.Goexit(); return "" }) },
		"its error panics":        func() error { return speaks(func() string { panic("no text") }) },
		"its error is nil inside": func() error { var e *penstock.FieldError; return e },
	} {
		for policy, settled := range map[FilterPolicy]string{DeliverUnfiltered: "1 2 3 4 6 end", DropUnfiltered: "1 3 4 6 end"} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := FilterFunc(func(_ penstock.StreamID, e *penstock.Envelope, _ string) (bool, error) {
						switch string(e.Value) {
						case "2", "x":
							return false, leave()
						case "5":
							return false, nil
						}
						return true, nil
					})
					g := newRig(t, filtered(f), func(_ *rig, c *agentConfig) { c.filterErrors = policy })
					g.start()
					defer g.stop()
					c := g.subscribe("s", "sub")
					var got []string
					c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
						for i := range d.Items {
							v := string(d.Items[i].Value())
							if _, end := d.Items[i].From.End(); end {
								v = "end"
							}
							got = append(got, v)
						}
						return Answer{}, nil
					}
					end := Container{Stream: penstock.StreamID{Namespace: "n", Key: "s"}, Token: penstock.Token{Lo: 9}, Header: endMark(End{}), Events: EventsOf(penstock.Envelope{})}
					g.feed(append(boxes("s", 1, 3), boxOf("s", 4, "x", "4"), box("s", 5), box("s", 6), end)...)
					g.pump()
					g.pump()
					text := strings.Replace(strings.Join(got, " "), "x 4", "4", 1) // one container, which passes whole
					want(t, "delivered", text, settled)
					want(t, "failures", g.stats().FilterErrors, 2)
					want(t, "progress", g.lastProgress(), "9")
				})
			})
		}
	}
}

// A filter that leaves at every event of a large container costs a goroutine
// for each, and ends.
func TestFilterThatLeavesAlways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := FilterFunc(func(penstock.StreamID, *penstock.Envelope, string) (bool, error) { runtime.Goexit(); return true, nil })
		g := newRig(t, filtered(f), func(_ *rig, c *agentConfig) { c.filterErrors = DropUnfiltered })
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		g.feed(boxOf("s", 1, make([]string, 1000)...), box("s", 2))
		g.pump()
		want(t, "delivered", c.offered(), "")
		want(t, "failures", g.stats().FilterErrors, 1001)
		want(t, "filtered", g.stats().Filtered, 1001)
		g.pump()
		want(t, "progress", g.lastProgress(), "2")
	})
}

// Subscribing again with other data decides about everything that was not
// delivered, also about what was read and asked about before.
func TestChangedFilterIsAskedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, filtered(only))
		g.start()
		defer g.stop()
		c := g.subscribeFiltered("s", "sub", "1 2 4")
		c.gate = make(chan struct{})
		g.feed(boxes("s", 1, 8)...)
		g.pump()
		want(t, "under way", c.offered(), "1")
		c.gate <- struct{}{}
		synctest.Wait()
		want(t, "under way", c.offered(), "1 2")
		if _, err := g.registry.Subscribe(t.Context(), SubscriptionRecord{Stream: g.qualified("s"), Name: "sub", Filter: "3 6"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(c.gate)
		synctest.Wait()
		g.pump()
		want(t, "offered", c.offered(), "1 2 3 6")
		want(t, "progress", g.lastProgress(), "8")
	})
}

// The same while the filter is still at work, and while the group is kept for
// the next poll because nobody was there.
func TestChangedFilterWhileItIsAskedOrKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		f := FilterFunc(func(s penstock.StreamID, e *penstock.Envelope, data string) (bool, error) {
			if data == "1 2" {
				<-hold
			}
			return only(s, e, data)
		})
		g := newRig(t, filtered(f))
		g.start()
		defer g.stop()
		c := g.subscribeFiltered("s", "sub", "1 2")
		g.feed(boxes("s", 1, 5)...)
		g.pump()
		again := func(data string) {
			if _, err := g.registry.Subscribe(t.Context(), SubscriptionRecord{Stream: g.qualified("s"), Name: "sub", Filter: data}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		away := true
		c.onDeliver = func(int, *Delivery) (Answer, error) {
			if away {
				return Answer{}, ErrAway
			}
			return Answer{}, nil
		}
		again("2 3")
		close(hold)
		synctest.Wait()
		want(t, "of the second filter", c.offered(), "2")
		again("3 4 5")
		away = false
		g.pump()
		g.pump()
		offered := strings.Fields(c.offered())
		want(t, "of the third filter", strings.Join(offered[len(offered)-3:], " "), "3 4 5")
		if n := len(slices.DeleteFunc(offered, func(s string) bool { return s != "2" })); n > 2 {
			t.Errorf("offered %d times what the filter no longer passes", n)
		}
		want(t, "progress", g.lastProgress(), "5")
	})
}

// Other data decides from when the agent hears of it, also about what was read
// before, however long the handshake that goes with it takes: what the data of
// before says, or has said, is not acted on any more.
func TestChangedFilterDecidesBeforeItsHandshakeEnds(t *testing.T) {
	for name, c := range map[string]struct {
		old, offered string
		asked        bool // it changes while the filter is asked about the old data
	}{
		"asked":            {"1 2", "3 6", true},
		"groups waiting":   {"1 2 4", "1 3 6", false},
		"all that is left": {"1", "1 3 6", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hold := make(chan struct{})
				g := newRig(t, filtered(FilterFunc(func(s penstock.StreamID, e *penstock.Envelope, data string) (bool, error) {
					if c.asked && data == c.old {
						<-hold
					}
					return only(s, e, data)
				})))
				g.start()
				defer g.stop()
				sub := g.subscribeFiltered("s", "sub", c.old)
				if !c.asked {
					sub.gate = hold
				}
				g.feed(boxes("s", 1, 8)...)
				g.pump()
				answer := make(chan struct{})
				sub.set(func(c *scriptConsumer) { c.shakeGate = answer })
				if _, err := g.registry.Subscribe(t.Context(), SubscriptionRecord{Stream: g.qualified("s"), Name: "sub", Filter: "3 6"}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				close(hold)
				synctest.Wait()
				want(t, "offered before it has answered", sub.offered(), c.offered)
				close(answer)
				synctest.Wait()
				g.pump()
				want(t, "offered", sub.offered(), c.offered)
				want(t, "progress", g.lastProgress(), "8")
			})
		})
	}
}

// A filter that takes its time is not waited for longer than a drain: it is
// stopped between two events, and the next run asks about all of them.
func TestDrainStopsASlowFilterBetweenEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 1})
		defer topic.Close()
		var slow atomic.Bool
		slow.Store(true)
		p := openProvider(t, topic, func(c *Config) {
			c.Queues = 1
			c.Drain = 5 * time.Second
			c.Filter = FilterFunc(func(penstock.StreamID, *penstock.Envelope, string) (bool, error) {
				if slow.Load() {
					time.Sleep(700 * time.Millisecond)
				}
				return true, nil
			})
		})
		defer p.Close()
		s := Of[string](p, "n", "k")
		var r recorder
		subscribe(t, s, "x", r.handle, From(Earliest))
		for i := range 20 {
			publish(t, s, fmt.Sprint(i))
		}
		stop := running(p)
		time.Sleep(time.Second)
		begin := time.Now()
		err := stop()
		var drain *penstock.DrainError
		if !errors.As(err, &drain) || drain.Left != 20 || len(drain.Busy) > 0 {
			t.Errorf("stop: %v, want a *DrainError of 20 events and nobody left behind", err)
		}
		want(t, "the drain took its time and one event's", time.Since(begin) < 6*time.Second, true)
		want(t, "delivered", r.got(), "")
		slow.Store(false)
		stop = running(p)
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
		want(t, "delivered by the next run", len(strings.Fields(r.got())), 20)
	})
}

// A filter that never returns costs its own subscription only, and the drain
// names it.
func TestFilterThatHangsHoldsUpItsSubscriptionOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		f := FilterFunc(func(_ penstock.StreamID, _ *penstock.Envelope, data string) (bool, error) {
			if data == "hangs" {
				<-hold
			}
			return true, nil
		})
		g := newRig(t, filtered(f))
		g.start()
		g.subscribeFiltered("s", "bad", "hangs")
		good, other := g.subscribeFiltered("s", "good", ""), g.subscribeFiltered("t", "good", "")
		g.feed(box("s", 1), box("t", 2), box("s", 3))
		g.pump()
		g.feed(box("s", 4), box("t", 5))
		g.pump()
		want(t, "delivered beside it", good.values()+" "+other.values(), "1 3 4 2 5")
		want(t, "unsubscribed while it hangs", g.stats().Delivered, 5)
		g.unsubscribe("s", "bad")
		close(hold)
		synctest.Wait()
		g.pump()
		want(t, "progress", g.lastProgress(), "5")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A drain that leaves a filter behind says how many events it has, and for how
// long.
func TestDrainTellsOfAFilterThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 1})
		defer topic.Close()
		hold := make(chan struct{})
		p := openProvider(t, topic, func(c *Config) {
			c.Queues = 1
			c.Drain = 5 * time.Second
			c.Filter = FilterFunc(func(penstock.StreamID, *penstock.Envelope, string) (bool, error) { <-hold; return true, nil })
		})
		s := Of[string](p, "n", "k")
		var r recorder
		subscribe(t, s, "x", r.handle, From(Earliest))
		publish(t, s, "1")
		publish(t, s, "2")
		stop := running(p)
		time.Sleep(time.Second)
		err := stop()
		var drain *penstock.DrainError
		if !errors.As(err, &drain) || drain.Left != 2 || !strings.Contains(fmt.Sprint(drain.Busy), "for 7s") {
			t.Errorf("stop: %v, want a *DrainError of 2 events, with the filter for 7s", err)
		}
		close(hold)
		synctest.Wait()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What a filter may do with the provider from inside.
func TestFilterMayUseItsProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 1})
		defer topic.Close()
		var p *Provider
		var s *Stream[string]
		seen := 0
		p = openProvider(t, topic, func(c *Config) {
			c.Queues = 1
			c.Filter = FilterFunc(func(_ penstock.StreamID, e *penstock.Envelope, _ string) (bool, error) {
				seen++
				p.Stats()
				switch string(e.Value) {
				case `"1"`:
					publish(t, s, "3")
				case `"3"`:
					return true, s.Unsubscribe(t.Context(), "x")
				}
				return true, nil
			})
		})
		defer p.Close()
		s = Of[string](p, "n", "k")
		var r recorder
		subscribe(t, s, "x", r.handle, From(Earliest))
		publish(t, s, "1")
		publish(t, s, "2")
		stop := running(p)
		time.Sleep(time.Second)
		publish(t, s, "4")
		time.Sleep(time.Second)
		if err := stop(); err != nil {
			t.Error(err)
		}
		want(t, "delivered", r.got(), "1 2")
		want(t, "asked about", seen, 3)
	})
}
