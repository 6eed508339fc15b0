package stream

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func (g *rig) wantReason(want string) {
	g.t.Helper()
	if got := g.stats().Reason; got != want {
		g.t.Errorf("reason %q, want %q", got, want)
	}
}

// A queue that does not move says in words why not, and who holds it.
func TestStatsSayWhatHoldsTheQueue(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(g *rig, c *scriptConsumer, block chan struct{})
		want    string
	}{
		"nothing": {func(*rig, *scriptConsumer, chan struct{}) {}, ""},
		"busy handler": {func(_ *rig, c *scriptConsumer, block chan struct{}) {
			c.gate = block
		}, `subscription "sub" of stream n/s: handler is busy with 1 event for 3s`},
		"failing handler": {func(g *rig, c *scriptConsumer, block chan struct{}) {
			c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
				if n == 2 {
					<-block
				}
				return Answer{}, errBoom
			}
		}, `subscription "sub" of stream n/s: 1 event, attempt 2 after 3s: boom`},
		"kept events": {func(g *rig, c *scriptConsumer, block chan struct{}) {
			g.verdict = func(Failure) Verdict { return Retry }
			c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
				time.Sleep(2 * time.Minute)
				return Answer{}, errBoom
			}
		}, `subscription "sub" of stream n/s: 1 event failed, to be offered again at the next poll: boom`},
		"handshake": {func(_ *rig, c *scriptConsumer, block chan struct{}) {
			c.shakeGate = block
		}, `subscription "sub" of stream n/s: asked where to start, no answer for 3s`},
		"handshake that failed": {func(_ *rig, c *scriptConsumer, block chan struct{}) {
			c.onShake = func(n int) (Position, error) {
				if n == 1 {
					return Position{}, errBoom
				}
				<-block
				return Position{}, nil
			}
		}, `subscription "sub" of stream n/s: could not be attached, and has been asked again for 3s: boom`},
		"registry": {func(g *rig, _ *scriptConsumer, block chan struct{}) {
			g.registry.block = block
		}, `stream n/s: waiting for the registry for 3s`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				g.start()
				block := make(chan struct{})
				tt.prepare(g, g.subscribe("s", "sub"), block)
				g.subscribe("s", "other")
				g.feed(boxes("s", 1, 3)...)
				g.pump()
				time.Sleep(3 * time.Second)
				if name == "kept events" {
					time.Sleep(3 * time.Minute)
				}
				g.wantReason(tt.want)
				close(block)
				synctest.Wait()
				g.stop()
				g.wantReason("")
			})
		})
	}
}

// A slow subscription holds a full cache: others go on up to the pressure
// limit, not a container further, and then the reason names who holds it.
func TestSlowSubscriptionHoldsOthersAtThePressureLimitOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.newCache = func() (Cache, error) { return NewSimpleCache(100) }
		g.start()
		slow, fast := g.subscribe("s", "slow"), g.subscribe("f", "fast")
		block := make(chan struct{})
		slow.gate = block
		g.feed(box("s", 1))
		g.feed(boxes("f", 2, 300)...)
		g.pump()
		time.Sleep(3 * time.Second)
		g.pump()
		st := g.stats()
		if n := len(strings.Fields(fast.values())); n < 90 || n > 99 {
			t.Errorf("fast subscription got %d events, want 90 to 99 of a cache of 100", n)
		}
		want(t, "under pressure", st.UnderPressure, true)
		g.wantReason(`the cache is full: subscription "slow" of stream n/s: handler is busy with 1 event for 3s`)
		close(block)
		synctest.Wait()
		g.pump()
		want(t, "fast at last", len(strings.Fields(fast.values())), 299)
		g.wantReason("")
		g.stop()
	})
}

func TestStatsSayThatTheQueueCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		fail := true
		g.script = func(int, int) ([]Container, error) {
			if fail {
				return nil, fmt.Errorf("partition 0: %w", penstock.ErrCorrupt)
			}
			return nil, nil
		}
		g.start()
		g.pump()
		time.Sleep(time.Second)
		g.wantReason("reading the queue has failed for 1.005s: partition 0: corrupt")
		fail = false
		g.pump()
		g.wantReason("")
		g.stop()
	})
}

func TestStatsSayWhyAnAgentFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		bad := -2
		g.cache.maxAdd = &bad
		g.pump()
		st := g.stats()
		want(t, "queue", st.Queue.String(), "rig-0")
		want(t, "running", st.Running, false)
		if !strings.Contains(st.Reason, "agent failed") || !strings.Contains(st.Reason, "MaxAdd returned -2") {
			t.Errorf("reason %q", st.Reason)
		}
		if err := g.stop(); err == nil {
			t.Error("stop hides the failure")
		}
	})
}
