package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// A consumer that has a part of a container gets the rest of it. It used to go on
// behind the container, and the checkpoint passed what it never had.
func TestResumeInsideAContainerLosesNothing_OR149(t *testing.T) {
	for index, rest := range map[uint32]string{
		0: "2b 2c 2d 3 4", 1: "2c 2d 3 4", 2: "2d 3 4", 3: "3 4", 9: "3 4", math.MaxUint32: "3 4",
	} {
		for _, size := range []int{1, 2, 3} {
			t.Run(fmt.Sprint("behind ", index, " in groups of ", size), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newRig(t, func(_ *rig, c *agentConfig) { c.groupSize = size })
					c := g.subscribe("s", "sub")
					c.onShake = func(int) (Position, error) {
						return Position{Kind: PositionResume, Token: penstock.Token{Lo: 2, Index: index}}, nil
					}
					g.start()
					g.feed(box("s", 1), boxOf("s", 2, "2a", "2b", "2c", "2d"), box("s", 3), box("s", 4))
					g.pump()
					want(t, "settled", c.values(), rest)
					if err := g.stop(); err != nil {
						t.Error(err)
					}
					want(t, "progress", g.lastProgress(), "4")
				})
			})
		}
	}
}

// The same for one that says so in its answer to a delivery.
func TestResumeInsideADeliveryLosesNothing_OR93(t *testing.T) {
	for index, rest := range map[uint32]string{0: "2b 2c 3 4", 1: "2c 3 4", 2: "3 4", math.MaxUint32: "3 4"} {
		for _, size := range []int{2, 3} {
			t.Run(fmt.Sprint("behind ", index, " in groups of ", size), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newRig(t, func(_ *rig, c *agentConfig) { c.groupSize = size })
					c := g.subscribe("s", "sub")
					c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
						if n == 1 {
							return Answer{Rewind: Position{Kind: PositionResume, Token: penstock.Token{Lo: 2, Index: index}}}, nil
						}
						return Answer{}, nil
					}
					g.start()
					g.feed(box("s", 1), boxOf("s", 2, "2a", "2b", "2c"), box("s", 3), box("s", 4))
					g.pump()
					want(t, "settled", c.values(), rest)
					if err := g.stop(); err != nil {
						t.Error(err)
					}
					want(t, "progress", g.lastProgress(), "4")
				})
			})
		}
	}
}

// What a consumer has of a container stays passed over when the delivery of the
// rest is revoked by a new handshake, or cut by its failures.
func TestPartOfAContainerStaysPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		c := g.subscribe("s", "sub")
		c.onShake = func(int) (Position, error) {
			return Position{Kind: PositionResume, Token: penstock.Token{Lo: 2, Index: 0}}, nil
		}
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if n == 1 {
				return Answer{}, errors.New("not yet")
			}
			return Answer{}, nil
		}
		gate := make(chan struct{})
		c.gate = gate
		g.start()
		g.feed(box("s", 1), boxOf("s", 2, "2a", "2b"), box("s", 3))
		g.pump()
		g.announce("s", "sub")
		close(gate)
		time.Sleep(time.Second)
		want(t, "settled", c.values(), "2b 3")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A binding whose handler has a part of a container, over the queue in memory.
func TestRecoverInsideAContainerLosesNothing_OR149(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 1})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) { c.Queues = 1 })
		defer p.Close()
		var r recorder
		if err := Bind(p, "sub", EveryNamespace(), r.handle, Recover(
			func(context.Context, penstock.StreamID) (penstock.Token, bool, error) {
				return penstock.Token{Lo: 0, Index: 1}, true, nil
			})); err != nil {
			t.Fatal(err)
		}
		if err := Of[string](p, "n", "k").Publish(t.Context(), "a", "b", "c", "d"); err != nil {
			t.Fatal(err)
		}
		publish(t, Of[string](p, "n", "k"), "e")
		stop := running(p)
		time.Sleep(time.Second)
		stop()
		want(t, "got", r.got(), "c d e")
	})
}

// A rewind to a place that cannot be had is a failed attempt: the events are
// offered again. The failure handler was asked at once, and could pass them.
func TestRefusedRewindOffersAgain_OR93(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if n == 3 {
				return Answer{Rewind: at(PositionAt, 1)}, nil
			}
			return Answer{}, nil
		}
		g.start()
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		g.pump()
		want(t, "checkpoint", g.marks.at(), 2)
		g.feed(boxes("s", 3, 4)...)
		g.pump()
		time.Sleep(time.Second)
		want(t, "settled", c.values(), "1 2 3 4")
		want(t, "offered", c.tries(), "1:1 2:1 3:1 3:2 4:1")
		want(t, "asked the failure handler", len(g.failed()), 0)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// The same for one that had failed the container before: what is known of its
// attempts does not bring back what it has.
func TestResumeAfterAFailedAttemptGivesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			switch n {
			case 1:
				return Answer{}, errBoom
			case 2:
				return Answer{Rewind: Position{Kind: PositionResume, Token: penstock.Token{Lo: 1, Index: 1}}}, nil
			}
			return Answer{}, nil
		}
		g.start()
		g.feed(boxOf("s", 1, "1a", "1b", "1c", "1d"), box("s", 2))
		g.pump()
		time.Sleep(time.Second)
		want(t, "offered", c.tries(), "1:1 1:1 1:1 1:1 1:2 1:2 1:2 1:2 1:2 1:2 2:1")
		want(t, "settled", c.values(), "1c 1d 2")
		want(t, "delivered", g.stats().Delivered, 5)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}
