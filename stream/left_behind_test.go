package stream

import (
	"context"
	"errors"
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

// A receiver cannot be left behind: it is shut down after its last call only.
func TestReceiverInUseIsNotShutDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		rec := g.receivers[0]
		release := make(chan struct{})
		rec.mu.Lock()
		rec.block = release
		rec.mu.Unlock()
		go g.agent.pump() // ends with the run
		synctest.Wait()
		time.AfterFunc(10*time.Second, func() {
			want(t, "shutdowns while Read is under way", rec.ended(), 0)
			close(release)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		g.agent.stop(ctx)
		want(t, "shutdowns", rec.ended(), 1)
	})
}
