package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// pickyCache refuses containers of more than one event as too large.
type pickyCache struct{ Cache }

func (p pickyCache) Add(batch []Container) error {
	for i := range batch {
		if batch[i].Events.Len() > 1 {
			return fmt.Errorf("container of %d events: %w", batch[i].Events.Len(), penstock.ErrTooLarge)
		}
	}
	return p.Cache.Add(batch)
}

// A container that the cache can never keep becomes a dead letter; until it is
// one nothing more is read and the checkpoint waits, and then both go on.
func TestContainerThatCannotBeKeptIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail := atomic.Bool{}
		fail.Store(true)
		g := newRig(t, func(g *rig, a *agentConfig) {
			g.marks = &spyMarks{}
			g.newCache = func() (Cache, error) {
				c, err := NewSimpleCache(DefaultCapacity)
				return pickyCache{c}, err
			}
			a.deadLetter = func(ctx context.Context, events ...penstock.Envelope) error {
				if fail.Load() {
					return errBoom
				}
				return g.deadLetter(ctx, events...)
			}
		})
		g.start()
		c := g.subscribe("s", "sub")
		g.feed(box("s", 1), box("s", 2))
		g.pump()
		g.pump()
		want(t, "checkpoint", g.marks.at(), 2)
		g.feed(box("s", 3), boxOf("s", 4, "x", "y"), box("s", 3), box("s", 5), boxOf("s", 6, "z", "u"))
		g.pump()
		want(t, "delivered", c.values(), "1 2 3 5")
		reads := g.receivers[0].reads()
		g.feed(box("s", 7))
		g.pump()
		g.pump()
		want(t, "reads while one waits", g.receivers[0].reads(), reads)
		want(t, "checkpoint while one waits", g.marks.at(), 2)
		st := g.stats()
		want(t, "condition", st.Condition, ConditionRefused)
		want(t, "refused", st.Refused, 3)
		if !strings.Contains(st.Reason, "the cache can never keep container t1:0:4:0") || !strings.Contains(st.Reason, "boom") {
			t.Errorf("reason %q", st.Reason)
		}
		fail.Store(false)
		g.pump()
		time.Sleep(time.Second)
		g.pump()
		want(t, "delivered", c.values(), "1 2 3 5 7")
		want(t, "checkpoint", g.marks.at(), 7)
		var dead []string
		for _, e := range g.dead {
			dead = append(dead, fmt.Sprintf("%s@%d", e.Value, e.Origin.Offset))
			want(t, "stream", e.Stream.Key, "s")
			want(t, "subscription", e.Origin.Group, "")
			want(t, "cause", strings.HasPrefix(e.Origin.Cause, "the cache can never keep it: "), true)
		}
		want(t, "dead letters", strings.Join(dead, " "), "x@4 y@4 3@3 z@6 u@6")
		st = g.stats()
		want(t, "dead-lettered", st.DeadLettered, 5)
		want(t, "condition", st.Condition, ConditionIdle)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		if acks := " " + g.receivers[0].acks() + " "; !strings.Contains(acks, " 4 ") || !strings.Contains(acks, " 6 ") {
			t.Errorf("acknowledged: %q", acks)
		}
	})
}

// One that is refused at the end of what was read holds the checkpoint back
// when the drain begins before its dead letter is taken.
func TestDrainKeepsTheCheckpointBeforeARefusedContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(g *rig, a *agentConfig) {
			g.marks = &spyMarks{}
			a.deadLetter = func(context.Context, ...penstock.Envelope) error { return errBoom }
		})
		g.start()
		c := g.subscribe("s", "sub")
		g.feed(box("s", 3), box("s", 4))
		g.pump()
		g.pump()
		g.feed(box("s", 2), box("s", 5))
		g.pump()
		want(t, "delivered", c.values(), "3 4 5")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "checkpoint", g.marks.at(), 4)
	})
}

// recoveringReceiver says when it has recovered.
type recoveringReceiver struct {
	Receiver
	marks   Checkpointer
	recover func() error
}

func (r recoveringReceiver) Recover(context.Context) error { return r.recover() }
func (r recoveringReceiver) Checkpointer() Checkpointer    { return r.marks }

// After a read of unknown outcome nothing is reported as progress until the
// receiver certifies that it has recovered; a recovery that fails does not clear
// it, and one that is not offered leaves it to the next run.
func TestProgressWaitsForRecovery_OR137(t *testing.T) {
	for _, offered := range []bool{true, false} {
		t.Run(fmt.Sprintf("recovery offered %v", offered), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				recoveries, fail := atomic.Int32{}, atomic.Bool{}
				fail.Store(true)
				g := newRig(t, func(g *rig, a *agentConfig) {
					g.marks = &spyMarks{}
					make := a.newReceiver
					a.newReceiver = func() (Receiver, error) {
						r, err := make()
						if !offered {
							return r, err
						}
						return recoveringReceiver{r, g.marks, func() error {
							recoveries.Add(1)
							if fail.Load() {
								return errors.New("still down")
							}
							return nil
						}}, err
					}
				})
				g.start()
				c := g.subscribe("s", "sub")
				g.feed(box("s", 1))
				g.pump()
				g.pump()
				want(t, "checkpoint", g.marks.at(), 1)
				calls := 0
				g.script = func(int, int) ([]Container, error) {
					if calls++; calls == 2 {
						return nil, fmt.Errorf("reply lost: %w", penstock.ErrUnknownOutcome)
					}
					return nil, nil
				}
				block := make(chan struct{})
				c.set(func(c *scriptConsumer) { c.gate = block })
				g.feed(box("s", 2))
				g.pump()
				g.pump() // its outcome is not known
				close(block)
				synctest.Wait()
				if offered {
					want(t, "recoveries", recoveries.Load(), 5)
					want(t, "condition", g.stats().Condition, ConditionUnrecovered)
				} else {
					want(t, "recoveries", recoveries.Load(), 0)
				}
				want(t, "delivered", c.values(), "1 2")
				g.pump()
				want(t, "checkpoint", g.marks.at(), 1)
				fail.Store(false)
				g.feed(box("s", 3))
				g.pump()
				g.pump()
				want(t, "delivered", c.values(), "1 2 3")
				if offered {
					want(t, "condition", g.stats().Condition, ConditionIdle)
					want(t, "checkpoint after recovery", g.marks.at(), 3)
				} else {
					want(t, "condition", g.stats().Condition, ConditionUnrecovered)
				}
				g.stop()
				if !offered {
					want(t, "checkpoint of the run", g.marks.at(), 1)
				}
			})
		})
	}
}

// Dead letters that wait to be reported behind a container that is stuck are
// bounded, although they take no room in the cache: reading stops, says why, and
// goes on when that one is settled.
func TestRefusedBehindAStuckContainerStopReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(g *rig, c *agentConfig) { c.deadLetter = g.deadLetter })
		seq := uint64(1)
		g.script = func(int, int) ([]Container, error) {
			if seq > 3000 { // without a bound this would not end
				return nil, nil
			}
			out := make([]Container, 100)
			for i := range out {
				seq++
				out[i] = boxOf("s", seq, "x", "y") // the cache can never keep it
			}
			return out, nil
		}
		g.newCache = func() (Cache, error) {
			c, err := NewSimpleCache(DefaultCapacity)
			return pickyCache{c}, err
		}
		c := g.subscribe("s", "sub")
		gate := make(chan struct{})
		c.gate = gate
		g.start()
		g.feed(box("s", 1))
		for range 30 {
			g.pump()
		}
		want(t, "refused", g.stats().Refused, 1100)
		s := g.stats()
		want(t, "condition", s.Condition >= ConditionFull, true)
		want(t, "reason", strings.Contains(s.Reason, `1100 containers that never were in the cache wait to be reported behind what was read before them: subscription "sub"`), true)
		g.receivers[0].mu.Lock()
		g.script = func(int, int) ([]Container, error) { return nil, nil }
		g.receivers[0].mu.Unlock()
		g.feed(box("s", 5000))
		close(gate)
		synctest.Wait()
		g.pump()
		want(t, "settled", c.values(), "1 5000")
		g.pump()
		want(t, "reported", len(strings.Fields(g.receivers[0].acks())), 1102)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A cache that keeps what nobody needs any more does not hold them: what was
// read before them is settled.
func TestRefusedAreReportedWhenProgressHasPassedThem(t *testing.T) {
	var f refusals
	for i := range uint64(finishedMax + 1) {
		f.finished = append(f.finished, box("s", i))
	}
	want(t, "nothing is certain", len(f.passed(progress{at: penstock.Token{Lo: 9}})), 0)
	want(t, "passed", len(f.passed(progress{certain: true, at: penstock.Token{Lo: 9}})), 10)
	want(t, "left", len(f.finished), finishedMax-9)
	want(t, "there is room", len(f.passed(progress{certain: true, at: penstock.Token{Lo: 99}})), 0)
}
