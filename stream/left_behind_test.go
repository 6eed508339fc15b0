package stream

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// A handler that ignores its context is left behind one second after the drain
// deadline: Run returns and says what is left, the checkpoint is stored before
// its event, and the provider is not run again before the handler has returned.
func TestHungHandlerIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) { c.Drain = 5 * time.Second })
		defer p.Close()
		s := Of[string](p, "orders", "7")
		hang := make(chan struct{})
		r := recorder{fail: func(call int, b penstock.Batch[string]) error {
			if call == 2 {
				<-hang
				return errBoom
			}
			return nil
		}}
		subscribe(t, s, "x", r.handle)
		stop := running(p)
		publish(t, s, "one", "two", "three")
		synctest.Wait()
		begin := time.Now()
		err := stop()
		want(t, "time to give up", time.Since(begin), 6*time.Second)
		var d *penstock.DrainError
		if !errors.As(err, &d) || d.Left != 1 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run returned %v, want 1 event left", err)
		}
		want(t, "lag", topic.Queue().Stats().Groups[0].Lag, 2)
		for range 2 {
			if err := p.Run(t.Context()); !errors.Is(err, penstock.ErrExists) {
				t.Errorf("Run beside a handler that was left behind: %v", err)
			}
		}
		close(hang)
		synctest.Wait()
		stop = running(p)
		time.Sleep(time.Second)
		want(t, "settled", r.got(), "one two three")
		if err := stop(); err != nil {
			t.Error(err)
		}
		want(t, "lag", topic.Queue().Stats().Groups[0].Lag, 0)
	})
}

// The same for whoever else is in the way: a handshake, the failure handler,
// the registry. The receiver is shut down all the same.
func TestHungWorkIsLeftBehind(t *testing.T) {
	for name, hang := range map[string]func(g *rig, c *scriptConsumer, never chan struct{}){
		"handshake": func(_ *rig, c *scriptConsumer, never chan struct{}) { c.shakeGate = never },
		"failure handler": func(g *rig, c *scriptConsumer, never chan struct{}) {
			c.onDeliver = func(int, *Delivery) (Answer, error) { return Answer{}, errBoom }
			g.verdict = func(Failure) Verdict { <-never; return Skip }
		},
		"registry": func(g *rig, _ *scriptConsumer, never chan struct{}) { g.registry.block = never },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = 0 })
				g.marks = &spyMarks{}
				g.start()
				never := make(chan struct{})
				hang(g, g.subscribe("s", "sub"), never)
				g.feed(box("s", 1))
				g.pump()
				time.Sleep(10 * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				var d *penstock.DrainError
				if err := g.agent.stop(ctx); !errors.As(err, &d) {
					t.Errorf("stop returned %v", err)
				}
				want(t, "shutdowns of the receiver", g.receivers[0].ended(), 1)
				want(t, "checkpoint", g.marks.at(), 0)
				if err := g.agent.start(t.Context()); !errors.Is(err, penstock.ErrExists) {
					t.Errorf("start beside work that was left behind: %v", err)
				}
				close(never)
				synctest.Wait()
				g.start()
				g.stop()
			})
		})
	}
}

// stubborn is a receiver whose calls do not return before the gate opens.
type stubborn struct {
	*scriptReceiver
	in   string
	gate chan struct{}
}

func (s *stubborn) call(in string) {
	if s.in == in {
		<-s.gate
	}
}

func (s *stubborn) Read(ctx context.Context, limit int) ([]Container, error) {
	s.call("Read")
	return s.scriptReceiver.Read(ctx, limit)
}

func (s *stubborn) Delivered(ctx context.Context, done []Container) error {
	s.call("Delivered")
	return s.scriptReceiver.Delivered(ctx, done)
}

func (s *stubborn) Wait(ctx context.Context) error {
	s.call("Wait")
	<-ctx.Done()
	return penstock.ContextError(ctx)
}

func (s *stubborn) Shutdown(ctx context.Context) error {
	s.call("Shutdown")
	return s.scriptReceiver.Shutdown(ctx)
}

type stubbornRegistry struct {
	*scriptRegistry
	gate chan struct{}
}

func (s *stubbornRegistry) UnregisterProducer(ctx context.Context, id QualifiedStreamID, p Producer) error {
	<-s.gate
	return s.scriptRegistry.UnregisterProducer(ctx, id, p)
}

// Run did not end while one of these calls did not return. It ends, names the
// call, and the receiver is shut down once, when nobody is with it any more.
func TestCallThatHangsIsLeftBehindAndNamed(t *testing.T) {
	for in, expect := range map[string]struct {
		busy  string
		after time.Duration // of the end of the drain's time, which is 1 s
	}{
		"Read":               {"receiver of queue rig-0 (Read) for 2s", time.Second},
		"Wait":               {"receiver of queue rig-0 (Wait) for 2s", time.Second},
		"Delivered":          {"receiver of queue rig-0 (Delivered) for 2s", time.Second},
		"Shutdown":           {"receiver (Shutdown) of queue rig-0 for 31s", 30 * time.Second},
		"UnregisterProducer": {"registry (UnregisterProducer) of queue rig-0 for 31s", 30 * time.Second},
	} {
		t.Run(in, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				gate := make(chan struct{})
				if in == "UnregisterProducer" {
					g.agent.registry = &stubbornRegistry{g.registry, gate}
				}
				inner := g.agent.newReceiver
				g.agent.newReceiver = func() (Receiver, error) {
					rec, err := inner()
					s, _ := rec.(*scriptReceiver)
					return &stubborn{s, in, gate}, err
				}
				g.start()
				c := g.subscribe("s", "sub")
				rec := g.receivers[0]
				g.feed(box("s", 1))
				go func() { // ends with the run
					g.agent.pump()
					g.agent.pump()
				}()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				begin := time.Now()
				var d *penstock.DrainError
				if err := g.agent.stop(ctx); !errors.As(err, &d) || len(d.Busy) != 1 || d.Busy[0] != expect.busy {
					t.Errorf("stop returned %v, want %s", err, expect.busy)
				}
				want(t, "time", time.Since(begin), time.Second+expect.after)
				if in != "UnregisterProducer" {
					want(t, "shutdowns beside the call", rec.ended(), 0)
				}
				for range 2 {
					if err := g.agent.start(t.Context()); !errors.Is(err, penstock.ErrExists) {
						t.Errorf("start beside the call: %v", err)
					}
				}
				close(gate)
				synctest.Wait()
				want(t, "shutdowns", rec.ended(), 1)
				g.start()
				g.feed(box("s", 2))
				g.pump()
				if in != "Read" && in != "Wait" {
					want(t, "settled", c.values(), "1 2")
				}
				if err := g.stop(); err != nil {
					t.Error(err)
				}
				want(t, "shutdowns of the second", g.receivers[1].ended(), 1)
			})
		})
	}
}

// A cache that does not return keeps the loop itself: Run ends nevertheless.
func TestCacheThatHangsIsLeftBehindAndNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		gate := make(chan struct{})
		g.newCache = func() (Cache, error) {
			c, err := NewSimpleCache(10)
			return slowCache{c, gate}, err
		}
		g.start()
		c := g.subscribe("s", "sub")
		g.feed(box("s", 1))
		go g.agent.pump() // ends with the run
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var d *penstock.DrainError
		if err := g.agent.stop(ctx); !errors.As(err, &d) || len(d.Busy) != 1 || d.Busy[0] != "cache of queue rig-0" {
			t.Errorf("stop returned %v", err)
		}
		if err := g.agent.start(t.Context()); !errors.Is(err, penstock.ErrExists) {
			t.Errorf("start beside the cache: %v", err)
		}
		close(gate)
		synctest.Wait()
		want(t, "shutdowns", g.receivers[0].ended(), 1)
		g.start()
		g.feed(box("s", 1))
		g.pump()
		want(t, "settled", c.values(), "1")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A factory that does not return is left behind when the time of Run is over;
// what it makes then is given back.
func TestFactoryThatHangsIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		gate := make(chan struct{})
		inner := g.agent.newReceiver
		g.agent.newReceiver = func() (Receiver, error) {
			<-gate
			return inner()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.agent.start(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("start: %v", err)
		}
		if err := g.agent.start(t.Context()); !errors.Is(err, penstock.ErrExists) {
			t.Errorf("start beside the factory: %v", err)
		}
		close(gate)
		synctest.Wait()
		want(t, "shutdowns", g.receivers[0].ended(), 1)
		g.start()
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "shutdowns of the second", g.receivers[1].ended(), 1)
	})
}

// lookedAtCache panics when it is told to.
type lookedAtCache struct {
	Cache
	broken *atomic.Bool
}

func (p lookedAtCache) Len() int {
	if p.broken.Load() {
		panic("rude")
	}
	return p.Cache.Len()
}

// An agent that failed while a worker was with its receiver never shut it down,
// and one that failed behind the shutdown did it again.
func TestReceiverOfAnAgentThatFailedIsShutDownOnce(t *testing.T) {
	for name, look := range map[string]bool{"while the receiver waits": true, "at the end": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				var broken atomic.Bool
				g.newCache = func() (Cache, error) {
					c, err := NewSimpleCache(10)
					return lookedAtCache{c, &broken}, err
				}
				inner := g.agent.newReceiver
				g.agent.newReceiver = func() (Receiver, error) {
					rec, err := inner()
					s, _ := rec.(*scriptReceiver)
					return &stubborn{scriptReceiver: s}, err
				}
				g.start()
				g.subscribe("s", "sub")
				g.feed(box("s", 1))
				g.pump()
				broken.Store(true)
				if look {
					g.stats()
				}
				var p *penstock.PanicError
				if err := g.stop(); !errors.As(err, &p) {
					t.Errorf("stop: %v", err)
				}
				want(t, "shutdowns", g.receivers[0].ended(), 1)
			})
		})
	}
}
