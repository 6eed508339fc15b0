package stream

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func TestFinalProgressIsTheEarliest_ORC63(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = time.Nanosecond })
		g.verdict = func(Failure) Verdict { return Retry }
		g.start()
		a, b := g.subscribe("a", "sub"), g.subscribe("b", "sub")
		b.onDeliver = func(_ int, d *Delivery) (Answer, error) {
			if d.Items[0].Token.Lo == 150 {
				return Answer{}, errBoom
			}
			return Answer{}, nil
		}
		g.feed(box("b", 95), box("b", 150), box("a", 200))
		g.pump()
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		want(t, "a", a.values(), "200")
		want(t, "b", b.values(), "95")
		g.forgetProgress()
		g.stop()
		g.wantProgress("95")
	})
}

func TestFinalProgressWithoutStreams_ORC65(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		g.stop()
		g.wantProgress("nil")
	})
}

func TestNoFinalProgressWhileOneIsAttaching_ORC67(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		g.start()
		good := g.subscribe("s", "good")
		bad := g.subscribe("s", "bad")
		bad.set(func(c *scriptConsumer) { c.onShake = func(int) (Position, error) { return Position{}, errBoom } })
		g.forgetProgress()
		g.feed(box("s", 200))
		g.pump()
		want(t, "good", good.values(), "200")
		g.forgetProgress()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the handshake would go on for a minute
		defer cancel()
		if err := g.agent.stop(ctx); err != nil {
			t.Errorf("stop: %v; no event was left", err)
		}
		g.wantProgress()
		want(t, "checkpoint stored", g.marks.has, false)
	})
}

// A registration that was pending when the drain began keeps the checkpoint,
// even if it ends during the drain.
func TestPendingRegistrationKeepsTheCheckpoint_OR139(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		g.registry.block = make(chan struct{})
		g.start()
		g.feed(box("s", 1))
		g.pump()
		g.forgetProgress()
		stopped := make(chan error, 1)
		go func() { stopped <- g.stop() }()
		synctest.Wait()
		close(g.registry.block)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		g.wantProgress()
		want(t, "checkpoint stored", g.marks.has, false)
	})
}

func TestOrderOfShutdown_ORC69(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		g.blockInit = make(chan struct{})
		g.start()
		go g.agent.pump() // joins the init; ends with the run
		synctest.Wait()
		stopped := make(chan error, 1)
		go func() { stopped <- g.stop() }()
		synctest.Wait()
		close(g.blockInit)
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
		want(t, "with a blocked init", strings.Join(g.steps(), " < "),
			"admission closed < receiver init ended < pump ended < work ended < progress < cursors closed < receiver shut down < producers unregistered < ended")
	})
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		g.start()
		c, late := g.subscribe("s", "sub"), g.subscribe("s", "late")
		deliver, shake := make(chan struct{}), make(chan struct{})
		c.gate, late.shakeGate = deliver, shake
		g.feed(box("other", 1), box("s", 2), box("s", 3))
		g.pump()
		read := make(chan struct{})
		g.receivers[0].mu.Lock()
		g.receivers[0].block = read
		g.receivers[0].mu.Unlock()
		go g.agent.pump() // ends with the run
		synctest.Wait()
		g.mu.Lock()
		g.trace = nil
		g.mu.Unlock()
		stopped := make(chan error, 1)
		go func() { stopped <- g.stop() }()
		synctest.Wait()
		want(t, "steps with everything in flight", strings.Join(g.steps(), " < "), "admission closed")
		close(read)
		synctest.Wait()
		close(shake)
		synctest.Wait()
		want(t, "receiver shutdowns while a delivery is in flight", g.receivers[0].ended(), 0)
		close(deliver)
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
		want(t, "steps", strings.Join(g.steps(), " < "),
			"admission closed < pump ended < attached late < work ended < progress < cursors closed < receiver shut down < producers unregistered < ended")
		want(t, "delivered", c.values(), "2")  // nothing began after the drain
		want(t, "checkpoint", g.marks.at(), 1) // late was attached and has settled nothing
		want(t, "unregistered", g.registry.unregistered, 2)
	})
}

// What was accepted completes its bookkeeping while the cache and the receiver
// exist, and the checkpoint observes it (OR-162).
func TestDrainCompletesAcceptedDelivery_OR162(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.deliveryBackoff = Fixed(time.Second) })
		g.marks = &spyMarks{}
		g.start()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if n < 4 {
				return Answer{}, errBoom
			}
			return Answer{}, nil
		}
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		if err := g.stop(); err != nil { // retries go on during the drain (OR-140)
			t.Fatal(err)
		}
		want(t, "offered", c.offered(), "1 1 1 1")
		want(t, "checkpoint", g.marks.at(), 1)
		want(t, "shutdowns", g.receivers[0].ended(), 1)
	})
}

func TestDrainDeadlineCutsAndSaysWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		g.start()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, d *Delivery) (Answer, error) {
			if d.Items[0].Token.Lo == 2 {
				return Answer{}, errBoom
			}
			return Answer{}, nil
		}
		g.feed(box("s", 1), boxOf("s", 2, "a", "b", "c"))
		g.pump()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var d *penstock.DrainError
		if err := g.agent.stop(ctx); !errors.As(err, &d) || d.Left != 3 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stop returned %v, want 3 events left", err)
		}
		want(t, "failures reported", len(g.failed()), 0)
		want(t, "checkpoint", g.marks.at(), 1)

		// The next run gets it all again.
		c.set(func(c *scriptConsumer) { c.onDeliver = nil })
		g.start()
		g.feed(boxOf("s", 2, "a", "b", "c"))
		g.pump()
		want(t, "settled", c.values(), "1 a b c")
		g.stop()
		want(t, "checkpoint", g.marks.at(), 2)
	})
}

func TestIdleStreamDoesNotHoldTheCheckpoint_ORC72(t *testing.T) {
	bothCaches(t, func(t *testing.T, cache func() (Cache, error), group int) {
		g := newRig(t, func(g *rig, c *agentConfig) { c.groupSize, g.newCache = group, cache })
		g.start()
		idle, busy := g.subscribe("idle", "I"), g.subscribe("busy", "B")
		g.feed(box("idle", 1), box("busy", 2))
		g.pump()
		g.forgetProgress()
		g.pump()
		g.wantProgress("2")
		g.feed(box("busy", 100), box("busy", 200))
		g.pump()
		g.pump()
		want(t, "progress", g.lastProgress(), "200")
		want(t, "idle", idle.values(), "1")
		want(t, "busy", busy.values(), "2 100 200")
		g.agent.ask(func(r *run) {
			want(t, "what the idle one was given last", r.streams[box("idle", 1).Stream].subs[0].offered.Lo, 1)
		})
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A busy pump publishes progress before each read, so a queue that is never
// empty still checkpoints (OR-59).
func TestBusyPumpCheckpoints_OR59(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		seq := uint64(0)
		var seen []uint64
		g.script = func(int, int) ([]Container, error) {
			time.Sleep(time.Millisecond) // deliveries end meanwhile
			if seen = append(seen, g.marks.at()); len(seen) > 50 {
				return nil, nil
			}
			seq++
			return []Container{box("s", seq)}, nil
		}
		g.start()
		g.subscribe("s", "sub")
		go g.agent.pump() // ends after 50 reads
		time.Sleep(time.Second)
		synctest.Wait()
		if !slices.IsSorted(seen) || seen[len(seen)-1] < 45 {
			t.Errorf("checkpoints during the pump: %v", seen)
		}
		g.stop()
		want(t, "final checkpoint", g.marks.at(), 50)
	})
}

// A checkpointer that holds back is reminded at each poll.
func TestPositionIsRepeatedAtEachPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		g.start()
		defer g.stop()
		g.subscribe("s", "sub")
		g.pump()
		want(t, "updates before anything was read", g.marks.calls, 0)
		g.feed(box("s", 1))
		g.pump()
		g.pump()
		before := g.marks.calls
		g.pump()
		g.pump()
		want(t, "updates", g.marks.calls, before+2)
		want(t, "checkpoint", g.marks.at(), 1)
	})
}

// A subscription that is removed during the drain is not waited for: its
// retries end, and the checkpoint does not wait for its events.
func TestUnsubscribedDuringTheDrain_OR83(t *testing.T) {
	for _, during := range []string{"delivery", "handshake", "failure handler"} {
		t.Run(during, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = NoLimit })
				g.marks = &spyMarks{}
				g.start()
				c := g.subscribe("s", "sub")
				block := make(chan struct{})
				switch during {
				case "delivery":
					c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{}, errBoom }
				case "handshake":
					c.onShake = func(int) (Position, error) { return Position{}, errBoom }
				case "failure handler":
					g.agent.maxDelivery = 0
					c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{}, errBoom }
					g.verdict = func(Failure) Verdict { <-block; return Retry }
				}
				g.feed(boxes("s", 1, 3)...)
				g.pump()
				time.Sleep(10 * time.Millisecond)
				ended := make(chan error, 1)
				go func() { ended <- g.stop() }() // ends when the drain has
				time.Sleep(10 * time.Millisecond)
				g.unsubscribe("s", "sub")
				close(block)
				time.Sleep(10 * time.Millisecond)
				select {
				case err := <-ended:
					if err != nil {
						t.Error(err)
					}
				default:
					t.Error("the drain waits for a subscription that was removed")
					g.agent.last().cancel(nil)
					<-ended
				}
				want(t, "checkpoint", g.marks.at(), 3)
			})
		})
	}
}

// A place that a consumer has asked for is no progress: what lies there has not
// been delivered. An answer that comes during a drain leaves the checkpoint
// before it (OR-81).
func TestAPlaceIsNoProgress_OR81(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		g.start()
		c := &scriptConsumer{shakeGate: make(chan struct{}), onShake: func(int) (Position, error) { return at(PositionAt, 2), nil }}
		g.consumers["s/sub"] = c
		g.announce("s", "sub")
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		stopped := make(chan error, 1)
		go func() { stopped <- g.stop() }() // ends when the handshake has
		synctest.Wait()
		close(c.shakeGate)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		want(t, "delivered", c.values(), "")
		want(t, "checkpoint", g.marks.at(), 1)
	})
}
