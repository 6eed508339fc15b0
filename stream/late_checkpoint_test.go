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

// markedRig is a rig whose receiver has the checkpointer marks.
func markedRig(t *testing.T, marks Checkpointer, more ...func(*rig, *agentConfig)) *rig {
	return newRig(t, append(more, func(g *rig, c *agentConfig) {
		c.newReceiver = func() (Receiver, error) {
			rec := &scriptReceiver{rig: g}
			g.receivers = append(g.receivers, rec)
			return failingMarked{rec, marks}, nil
		}
	})...)
}

// ofSize bounds the cache of a rig.
func ofSize(containers int) func(*rig, *agentConfig) {
	return func(g *rig, _ *agentConfig) {
		g.newCache = func() (Cache, error) { return NewSimpleCache(containers) }
	}
}

// wantsTime adds a subscription of stream s whose consumer asks for a time.
func (g *rig) wantsTime(name string, at time.Time) *scriptConsumer {
	c := &scriptConsumer{onShake: func(int) (Position, error) { return AtTime(at).position(), nil }}
	g.consumers["s/"+name] = c
	g.announce("s", name)
	return c
}

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
				g := markedRig(t, marks)
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
				before := g.wantsTime("before", from.Add(-time.Minute))
				behind := g.wantsTime("behind", from.Add(time.Second))
				g.pump()
				want(t, "placed behind what was read first", behind.values(), "6")
				want(t, "placed before it", before.values(), "")
				want(t, "failures", len(g.failed()), 0)
				if s := g.stats().Reason; !strings.Contains(s, "the checkpoint could not be loaded") && !strings.Contains(s, "holder") {
					t.Errorf("reason %q", s)
				}
				marks.fail.Store(0)
				calls := marks.calls.Load()
				g.pump() // loads it, and asks again
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

// A turn with the receiver that only reports, because the cache is full, is no
// answer that there is no checkpoint.
func TestReportIsNoAnswerAboutTheCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		marks := &failingMarks{spyMarks: &spyMarks{has: true, stored: penstock.Token{Lo: 3}}}
		marks.fail.Store(1)
		g := markedRig(t, marks, ofSize(10))
		from := time.Now()
		g.start()
		g.pump() // given up
		holder := g.subscribe("s", "holder")
		g.feed(dated(box("s", 5), from))
		g.pump()
		g.pump() // the checkpoint of this run: 5
		gate := make(chan struct{})
		holder.set(func(c *scriptConsumer) { c.gate = gate })
		for i := range uint64(10) {
			g.feed(dated(box("s", 6+i), from.Add(time.Duration(i)*time.Minute)))
		}
		g.pump()
		c := g.wantsTime("before", from.Add(-time.Minute))
		for range 3 {
			g.pump()
		}
		want(t, "given to who waits for it", c.values(), "")
		want(t, "failures", len(g.failed()), 0)
		marks.fail.Store(0)
		g.pump()
		if f := g.failed(); len(f) != 1 || !errors.Is(f[0].Err, ErrCacheMiss) {
			t.Errorf("failures %+v, want one that is a cache miss", f)
		}
		close(gate)
		synctest.Wait()
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Who waits for the checkpoint holds the cache. When that is full nothing is read,
// and the checkpoint is loaded all the same: else they wait for each other for ever.
func TestFullCacheDoesNotKeepTheCheckpointFromBeingLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		marks := &failingMarks{spyMarks: &spyMarks{}}
		marks.fail.Store(1)
		g := markedRig(t, marks, ofSize(10))
		from := time.Now()
		g.start()
		g.pump() // given up
		c := g.wantsTime("sub", from.Add(-time.Minute))
		for i := range uint64(12) {
			g.feed(dated(box("s", 1+i), from.Add(time.Duration(i)*time.Minute)))
		}
		g.pump() // fills the cache; the load has failed once more
		want(t, "delivered", c.values(), "")
		marks.fail.Store(0)
		calls := marks.calls.Load()
		g.pump()
		g.pump()
		want(t, "loads since the store is there again", marks.calls.Load()-calls, 1)
		want(t, "delivered then", c.values(), "1 2 3 4 5 6 7 8 9 10 11 12")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A consumer that answers a delivery with a place by time waits for the checkpoint,
// as one does that is asked for a place: its events have had no attempt meanwhile.
func TestRewindByTimeWaitsForTheCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		marks := &failingMarks{spyMarks: &spyMarks{}}
		marks.fail.Store(1)
		g := markedRig(t, marks, func(_ *rig, c *agentConfig) { c.deliveryBackoff, c.maxAttempts = Fixed(10*time.Second), 3 })
		from := time.Now()
		g.start()
		g.pump() // given up
		c := g.subscribe("s", "sub")
		rewound := false
		c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
			if !rewound {
				rewound = marks.fail.Load() == 0
				want(t, "attempt", d.Items[0].Attempt, 1)
				return Answer{Rewind: AtTime(from.Add(-time.Minute)).position()}, nil
			}
			return Answer{}, nil
		}
		g.feed(dated(box("s", 1), from), dated(box("s", 2), from.Add(time.Minute)))
		g.pump()
		for range 30 {
			time.Sleep(5 * time.Second)
			g.pump()
		}
		want(t, "failures", len(g.failed()), 0)
		want(t, "failed attempts", g.stats().Failed, 0)
		want(t, "delivered", c.values(), "")
		marks.fail.Store(0)
		g.pump()
		g.pump()
		want(t, "then", c.values(), "1 2")
		want(t, "given up", g.stats().Skipped, 0)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A checkpoint of this run does not take the place of the one that it began at, as
// long as that is not known: what Load returns later would be taken for it. After a
// minute it is stored, known or not.
func TestCheckpointIsNotStoredOverOneThatIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		marks := &failingMarks{spyMarks: &spyMarks{}}
		marks.fail.Store(1)
		g := markedRig(t, marks)
		from := time.Now()
		g.start()
		g.pump() // given up
		quick := g.subscribe("s", "quick")
		g.feed(dated(box("s", 1), from))
		g.pump()
		g.pump()
		want(t, "quick", quick.values(), "1")
		want(t, "checkpoint meanwhile", marks.at(), 0)
		marks.fail.Store(0)
		g.pump()
		g.pump()
		want(t, "checkpoint then", marks.at(), 1)
		g.wantsTime("sub", from.Add(-time.Minute))
		var miss *CacheMissError
		if f := g.failed(); len(f) != 1 || !errors.As(f[0].Err, &miss) || miss.Checkpoint {
			t.Errorf("failures %+v, want one: what was dropped from the cache", f)
		}
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		marks := &failingMarks{spyMarks: &spyMarks{}}
		marks.fail.Store(1)
		g := markedRig(t, marks)
		g.start()
		g.pump() // given up
		g.subscribe("s", "quick")
		g.feed(box("s", 1))
		g.pump()
		time.Sleep(markHeld - time.Second)
		g.pump()
		want(t, "checkpoint before a minute is over", marks.at(), 0)
		time.Sleep(time.Second)
		g.pump()
		want(t, "checkpoint after it", marks.at(), 1)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// hangingMarks has a Load that returns when its context has ended.
type hangingMarks struct {
	*spyMarks
	calls atomic.Int32
}

func (h *hangingMarks) Load(ctx context.Context) (penstock.Token, bool, error) {
	h.calls.Add(1)
	<-ctx.Done()
	return penstock.Token{}, false, ctx.Err()
}

// A store of checkpoints that hangs takes a tenth of the receiver's time.
func TestHangingLoadHoldsReadsBackForATenth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		marks := &hangingMarks{spyMarks: &spyMarks{}}
		g := markedRig(t, marks, func(_ *rig, c *agentConfig) { c.poll, c.pollOffset = 100*time.Millisecond, 0 })
		c := g.subscribe("s", "sub")
		g.start()
		time.Sleep(6 * time.Second) // the load at the start has failed after 5
		for i := range uint64(580) {
			g.feed(box("s", i+1))
			time.Sleep(time.Second)
		}
		want(t, "loads in ten minutes", marks.calls.Load(), 12)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		var late int
		for i, at := range c.times {
			if at.Sub(c.times[0]) > time.Duration(i)*time.Second+time.Second {
				late++
			}
		}
		want(t, "delivered", len(c.times) > 500, true)
		if late > 580/lateShare {
			t.Errorf("%d of %d deliveries were late", late, len(c.times))
		}
	})
}

// A container without a time says nothing of when the run began: a place by time
// that may lie below the checkpoint is refused. A queue that gives no times has none.
func TestTimeBehindAContainerWithoutOne(t *testing.T) {
	for name, tt := range map[string]struct {
		at  time.Duration // of the second container; 0 for no time
		err error
	}{
		"the next one has one": {time.Minute, ErrCacheMiss},
		"none has one":         {0, penstock.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := markedRig(t, &spyMarks{has: true, stored: penstock.Token{Lo: 3}})
				from := time.Now()
				second := box("s", 5)
				if tt.at > 0 {
					second = dated(second, from.Add(tt.at))
				}
				g.start()
				gate := make(chan struct{})
				g.subscribe("s", "holder").gate = gate
				g.feed(box("x", 4), second)
				g.pump()
				c := g.wantsTime("sub", from)
				g.pump()
				want(t, "delivered", c.values(), "")
				if f := g.failed(); len(f) == 0 || !errors.Is(f[0].Err, tt.err) {
					t.Errorf("failures %+v, want %v", f, tt.err)
				}
				close(gate)
				synctest.Wait()
				if err := g.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
