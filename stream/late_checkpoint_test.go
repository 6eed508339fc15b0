package stream

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// failingMarks cannot load for as long as it is told so.
type failingMarks struct {
	*spyMarks
	fail, calls atomic.Int32
}

func (f *failingMarks) Load(ctx context.Context) (penstock.Token, bool, error) {
	f.calls.Add(1)
	if f.fail.Load() > 0 {
		return penstock.Token{}, false, errBoom
	}
	return f.spyMarks.Load(ctx)
}

type failingMarked struct {
	*scriptReceiver
	marks Checkpointer
}

func (f failingMarked) Checkpointer() Checkpointer { return f.marks }

// How far the runs before have come is asked again at polls when it could not be
// loaded. Until then nobody is placed by a time that may lie before what this run
// has read: what lies between would be passed over.
func TestTimeWaitsForACheckpointThatWasNotLoaded(t *testing.T) {
	for name, tt := range map[string]struct {
		failInit bool
		stored   bool
		values   string
		err      error
	}{
		"the checkpoint lies before it": {stored: true, err: ErrCacheMiss},
		"init had failed":               {failInit: true, stored: true, err: ErrCacheMiss},
		"there is none":                 {values: "5 6 7"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				marks := &failingMarks{spyMarks: &spyMarks{has: tt.stored, stored: penstock.Token{Lo: 3}}}
				if marks.fail.Store(1); tt.failInit {
					marks.fail.Store(0)
				}
				g := newRig(t, func(g *rig, c *agentConfig) {
					c.newReceiver = func() (Receiver, error) {
						rec := &scriptReceiver{rig: g}
						g.receivers = append(g.receivers, rec)
						return failingMarked{rec, marks}, nil
					}
				})
				if tt.failInit {
					g.failInit = errBoom
				}
				from := time.Now()
				g.start()
				if tt.failInit {
					want(t, "loads before the receiver is open", marks.calls.Load(), 0)
					marks.fail.Store(1)
					g.pump() // given up: init failed
				}
				holder := g.subscribe("s", "holder")
				gate := make(chan struct{})
				holder.gate = gate
				g.feed(dated(box("s", 5), from), dated(box("s", 6), from.Add(time.Minute)))
				g.pump()
				ask := func(name string, at time.Time) *scriptConsumer {
					c := &scriptConsumer{onShake: func(int) (Position, error) { return AtTime(at).position(), nil }}
					g.consumers["s/"+name] = c
					g.announce("s", name)
					return c
				}
				before := ask("before", from.Add(-time.Minute))
				behind := ask("behind", from.Add(time.Second))
				g.pump()
				want(t, "placed behind what was read first", behind.values(), "6")
				want(t, "placed before it", before.values(), "")
				want(t, "failures", len(g.failed()), 0)
				if s := g.stats().Reason; !strings.Contains(s, "the checkpoint could not be loaded") && !strings.Contains(s, "holder") {
					t.Errorf("reason %q", s)
				}
				marks.fail.Store(0)
				calls := marks.calls.Load()
				g.pump() // loads it
				g.pump() // asks again
				want(t, "loads", marks.calls.Load(), calls+1)
				g.feed(dated(box("s", 7), from.Add(2*time.Minute)))
				g.pump()
				want(t, "then", before.values(), tt.values)
				if failed := g.failed(); tt.err == nil && len(failed) != 0 || tt.err != nil && (len(failed) != 1 || !errors.Is(failed[0].Err, tt.err)) {
					t.Errorf("failures %+v, want %v", failed, tt.err)
				}
				want(t, "loads in all", marks.calls.Load(), calls+1)
				close(gate)
				synctest.Wait()
				if err := g.stop(); err != nil {
					t.Error(err)
				}
				want(t, "checkpoint", marks.at(), 7)
			})
		})
	}
}
