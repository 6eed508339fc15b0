package stream

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func TestReadDoesNotWaitForRegistration_ORC1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.registry.block = make(chan struct{})
		g.start()
		g.feed(box("s", 1))
		want(t, "read had data", g.pump(), true)
		g.wantTable("s:registering")
		close(g.registry.block)
		synctest.Wait()
		g.wantTable("s:registered")
		before := g.receivers[0].reads()
		g.pump()
		if got := g.receivers[0].reads(); got <= before {
			t.Errorf("%d reads after %d: the next poll did not read", got, before)
		}
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestPumpAfterStopReadsNothing_ORC5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		if err := g.stop(); err != nil {
			t.Fatal(err)
		}
		want(t, "had data", g.pump(), false)
		want(t, "reads", g.receivers[0].reads(), 0)
	})
}

func TestNilReadMeansEmpty_ORC6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		want(t, "had data", g.pump(), false)
		want(t, "reads", g.receivers[0].reads(), 1)
		g.wantTable()

		empty := Container{Stream: box("e", 1).Stream, Token: penstock.Token{Lo: 2}}
		c := g.subscribe("s", "sub")
		g.feed(box("s", 1), empty, box("s", 3))
		want(t, "had data", g.pump(), true)
		want(t, "delivered", c.values(), "1 3")
		g.wantTable("s:registered")
	})
}

func TestNothingIsRegisteredAfterStopBegan_ORC7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		release := make(chan struct{})
		g.receivers[0].block = release
		g.feed(box("s", 1))
		go g.agent.pump() // ends with the run; the bubble waits for it
		synctest.Wait()
		stopped := make(chan error, 1)
		go func() { stopped <- g.stop() }()
		synctest.Wait()
		close(release)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		want(t, "registry calls", g.registry.calls(), 0)
	})
}

func TestInactiveStreamIsDropped_ORC10(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.poll, c.pollOffset = 10*time.Hour, 10*time.Hour })
		g.start()
		defer g.stop()
		g.feed(box("s", 1))
		g.pump()
		time.Sleep(30*time.Minute - time.Second)
		g.pump()
		g.wantTable("s:registered")
		time.Sleep(5 * time.Minute) // the next sweep is due a tenth of the period later
		g.pump()
		g.wantTable()
		if !slices.Contains(g.steps(), "stream inactive") {
			t.Errorf("steps %v do not name the inactive stream", g.steps())
		}
		want(t, "unregistered", g.registry.unregistered, 1)
	})
}

func TestFailedReadsAreTriedSixTimesPerPump_ORC15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.script = func(call, _ int) ([]Container, error) {
			if call <= 6 {
				return nil, errBoom
			}
			return nil, nil
		}
		g.start()
		defer g.stop()
		g.pump()
		want(t, "reads in the first pump", g.receivers[0].reads(), 6)
		want(t, "failures counted", g.stats().ReadFailures, 6)
		g.feed() // nothing; the seventh read succeeds with an empty answer
		g.pump()
		want(t, "reads after the second pump", g.receivers[0].reads(), 7)
	})
}

func TestSixthReadOfAPumpMaySucceed_ORC15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.script = func(call, _ int) ([]Container, error) {
			switch {
			case call <= 5:
				return nil, errBoom
			case call == 6:
				return []Container{box("s", 1)}, nil
			}
			return nil, nil
		}
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		want(t, "had data", g.pump(), true)
		want(t, "delivered", c.values(), "1")
		want(t, "reads", g.receivers[0].reads(), 7) // the last one found nothing
	})
}

func TestRoomOfTheCacheBoundsReads_ORC16(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		defer g.stop()
		room := 0
		g.cache.maxAdd = &room
		g.pump()
		want(t, "reads without room", g.receivers[0].reads(), 0)
		room = -1
		g.pump()
		want(t, "reads", g.receivers[0].reads(), 1)
		want(t, "limit", g.receivers[0].limits[0], -1)
		g.cache.pressure = true
		purges := g.cache.purges
		g.pump()
		want(t, "reads under pressure", g.receivers[0].reads(), 1)
		if g.cache.purges == purges {
			t.Error("nothing was purged under pressure")
		}
	})
}

func TestStopWaitsForReadInFlight_ORC17(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		release := make(chan struct{})
		g.receivers[0].block = release
		go g.agent.pump() // ends with the run
		synctest.Wait()
		stopped := make(chan error, 1)
		go func() { stopped <- g.stop() }()
		synctest.Wait()
		select {
		case <-stopped:
			t.Fatal("stop ended while a read was in flight")
		default:
		}
		want(t, "receiver shutdowns before", g.receivers[0].ended(), 0)
		close(release)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		want(t, "receiver shutdowns after", g.receivers[0].ended(), 1)
	})
}

func TestStopTwiceStopsOnce_ORC18(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		release := make(chan struct{})
		g.receivers[0].block = release
		go g.agent.pump() // ends with the run
		synctest.Wait()
		stopped := make(chan error, 2)
		for range 2 {
			go func() {
				err := g.stop()
				if g.receivers[0].ended() != 1 {
					err = errors.New("returned before the receiver was shut down")
				}
				stopped <- err
			}()
		}
		synctest.Wait()
		want(t, "returned early", len(stopped), 0)
		close(release)
		for range 2 {
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		}
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "receiver shutdowns", g.receivers[0].ended(), 1)
	})
}

func TestAgentReadsAfterItWasStartedAgain_ORC19(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		if err := g.agent.start(context.Background()); !errors.Is(err, penstock.ErrExists) {
			t.Errorf("start of a running agent: %v, want ErrExists", err)
		}
		g.stop()
		g.start()
		defer g.stop()
		g.pump()
		want(t, "receivers", len(g.receivers), 2)
		want(t, "reads of the old one", g.receivers[0].reads(), 0)
		want(t, "reads of the new one", g.receivers[1].reads(), 1)
	})
}

func TestStartWaitsForTheCleanupBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		release := make(chan struct{})
		g.receivers[0].block = release
		go g.agent.pump() // ends with the run
		synctest.Wait()
		go g.stop() // ends when the read is released
		synctest.Wait()
		started := make(chan error, 1)
		go func() { started <- g.agent.start(context.Background()) }()
		synctest.Wait()
		want(t, "started early", len(started), 0)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := g.agent.start(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("start with an ended context: %v", err)
		}
		close(release)
		if err := <-started; err != nil {
			t.Error(err)
		}
		g.stop()
	})
}

func TestTicksDuringAPumpDoNotReadTwiceAtOnce_ORC22(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.poll, c.pollOffset = 100*time.Millisecond, 0 })
		release := make(chan struct{})
		g.agent.newReceiver = func() (Receiver, error) {
			rec := &scriptReceiver{rig: g, block: release}
			g.receivers = append(g.receivers, rec)
			return rec, nil
		}
		g.start()
		defer g.stop()
		time.Sleep(time.Second)
		want(t, "reads while one is in flight", g.receivers[0].reads(), 1)
		close(release)
		time.Sleep(time.Second)
		if g.receivers[0].overlapped() {
			t.Error("two reads were in flight at once")
		}
		if n := g.receivers[0].reads(); n < 9 {
			t.Errorf("%d reads in a second of polling", n)
		}
	})
}

func TestFailedInitCostsOnePoll_OR44(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.failInit = errBoom
		g.start()
		defer g.stop()
		g.pump()
		want(t, "reads in the first poll", g.receivers[0].reads(), 0)
		g.pump()
		want(t, "reads in the second poll", g.receivers[0].reads(), 1)
	})
}

func TestPumpWaitsForInit_OR44(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.blockInit = make(chan struct{})
		g.start()
		defer g.stop()
		go g.agent.pump() // ends when Init is released
		synctest.Wait()
		want(t, "reads before init", g.receivers[0].reads(), 0)
		close(g.blockInit)
		synctest.Wait()
		want(t, "reads after init", g.receivers[0].reads(), 1)
	})
}

func TestRegistrationIsRepeatedUntilItSucceeds_OR61(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.registry.fail = 3
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		g.feed(box("s", 1))
		g.pump()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		want(t, "registrations", g.registry.calls(), 4)
		want(t, "delivered", c.values(), "1")
	})
}

// A queue that gives more than it was asked for, or gives it out of order,
// loses nothing.
func TestMoreThanAskedForIsKept_OR58(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.newCache = func() (Cache, error) { return NewSimpleCache(20) } // reads of 2
		g.script = func(call, _ int) ([]Container, error) {
			if call == 1 {
				return boxes("s", 1, 50), nil
			}
			return nil, nil
		}
		g.start()
		defer g.stop()
		c := g.subscribe("s", "sub")
		for range 50 {
			g.pump()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		want(t, "delivered", len(c.got), 50)
		want(t, "last", c.got[len(c.got)-1], "50")
	})
}

func TestDisorderKeepsTheCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.marks = &spyMarks{}
		g.start()
		g.subscribe("s", "sub")
		g.feed(box("s", 5), box("s", 6))
		g.pump()
		g.pump()
		want(t, "checkpoint", g.marks.at(), 6)
		g.feed(box("s", 9), box("s", 8))
		g.pump()
		g.feed(box("s", 10))
		g.pump()
		g.stop()
		want(t, "checkpoint after disorder", g.marks.at(), 6)
	})
}

type panickyCache struct{ Cache }

func (panickyCache) Add([]Container) error { panic("cache broke") }

func TestPanicOfACacheEndsTheAgentWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.newCache = func() (Cache, error) {
			c, err := NewSimpleCache(10)
			return panickyCache{c}, err
		}
		g.start()
		g.feed(box("s", 1))
		g.pump()
		var p *penstock.PanicError
		if err := g.stop(); !errors.As(err, &p) || p.Value != "cache broke" {
			t.Errorf("stop returned %v, want the panic", err)
		}
		want(t, "receiver shutdowns", g.receivers[0].ended(), 1)
	})
}
