package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
)

// failsAt fails deliveries that hold the container at lo, and takes others.
func failsAt(lo uint64) func(int, *Delivery) (Answer, error) {
	return func(_ int, d *Delivery) (Answer, error) {
		if d.Items[0].From.Token.Lo == lo {
			return Answer{}, errBoom
		}
		return Answer{}, nil
	}
}

// tries returns "token+index:attempt" of what a consumer was offered.
func (c *scriptConsumer) tries() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	i := 0
	for _, g := range c.groups {
		for _, token := range strings.Split(g, ",") {
			out = append(out, fmt.Sprintf("%s:%d", token, c.attempts[i]))
			i++
		}
	}
	return strings.Join(out, " ")
}

// An event that failed and is offered again because its consumer rewinds goes on
// counting; those that had been settled begin anew.
func TestAttemptsOutliveARewind_G8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			switch n {
			case 2:
				return Answer{}, errBoom
			case 3:
				return Answer{Rewind: Position{Kind: PositionAt, Token: penstock.Token{Lo: 1}}}, nil
			}
			return Answer{}, nil
		}
		g.start()
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		time.Sleep(time.Second)
		want(t, "offered", c.tries(), "1:1 2:1 2:2 1:1 2:2 3:1")
		// Settled, it is forgotten.
		c.set(func(c *scriptConsumer) {
			c.onShake = func(int) (Position, error) { return Position{Kind: PositionEarliest}, nil }
			c.groups, c.attempts, c.onDeliver = nil, nil, nil
		})
		g.announce("s", "sub")
		want(t, "offered again", c.tries(), "1:1 2:1 3:1")
		want(t, "ledger", g.agent.ledger.size, 0)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A new handshake that moves the subscription does not make attempts anew, nor
// does an answer that comes too late.
func TestAttemptsOutliveAHandshake_G8(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%t", late), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = 0 })
				g.verdict = func(Failure) Verdict { return Retry }
				c := g.subscribe("s", "sub")
				c.onDeliver = failsAt(2)
				g.start()
				gate := make(chan struct{})
				if late {
					c.gate = gate
				} else {
					close(gate)
				}
				g.feed(boxes("s", 1, 2)...)
				g.pump()
				if late {
					gate <- struct{}{} // the first is settled, the second under way
					synctest.Wait()
				}
				c.set(func(c *scriptConsumer) {
					c.onShake = func(int) (Position, error) {
						return Position{Kind: PositionAt, Token: penstock.Token{Lo: 1}}, nil
					}
				})
				g.announce("s", "sub")
				if !late {
					want(t, "offered", c.tries(), "1:1 2:1 1:1 2:2")
				}
				c.set(func(c *scriptConsumer) { c.groups, c.attempts, c.onDeliver, c.gate = nil, nil, nil, nil })
				if late {
					close(gate)
					synctest.Wait()
					want(t, "offered", c.tries(), "1:1 2:2")
				} else {
					want(t, "settled", c.values(), "1 1")
				}
				if err := g.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Attempts that a run has made count in the next one, unless tokens mean
// nothing there.
func TestAttemptsOutliveARunOfTheAgent_G8(t *testing.T) {
	for _, rewindable := range []bool{true, false} {
		t.Run(fmt.Sprintf("rewindable=%t", rewindable), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery, c.rewindable = 0, rewindable })
				g.verdict = func(Failure) Verdict { return Retry }
				c := g.subscribe("s", "sub")
				c.onDeliver = failsAt(2)
				g.start()
				g.feed(boxes("s", 1, 2)...)
				g.pump()
				time.Sleep(time.Second)
				g.pump() // offers it again
				time.Sleep(time.Second)
				want(t, "offered", c.tries(), "1:1 2:1 2:2")
				if err := g.stop(); err != nil {
					t.Error(err)
				}
				c.set(func(c *scriptConsumer) { c.groups, c.attempts, c.onDeliver = nil, nil, nil })
				g.start()
				g.feed(boxes("s", 2, 3)...)
				g.pump()
				if rewindable {
					want(t, "offered in the next run", c.tries(), "2:3 3:1")
				} else {
					want(t, "offered in the next run", c.tries(), "2:1 3:1")
				}
				if err := g.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A drain that cuts an attempt does not forget it.
func TestAttemptThatADrainCutsCounts_G8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		c := g.subscribe("s", "sub")
		cut, cancel := context.WithCancel(context.Background())
		c.onDeliver = func(int, *Delivery) (Answer, error) {
			<-cut.Done()
			return Answer{}, context.Canceled
		}
		g.start()
		g.feed(box("s", 1))
		g.pump()
		cancel()
		stopped, end := context.WithCancel(context.Background())
		end()
		var drain *penstock.DrainError
		if err := g.agent.stop(stopped); !errors.As(err, &drain) || drain.Left != 1 {
			t.Errorf("stop: %v, want one event left", err)
		}
		c.set(func(c *scriptConsumer) { c.groups, c.attempts, c.onDeliver = nil, nil, nil })
		g.start()
		g.feed(box("s", 1))
		g.pump()
		if got := c.tries(); got == "1:1" || !strings.HasPrefix(got, "1:") {
			t.Errorf("offered %q, want it to count on", got)
		}
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// An event that was offered as often as it may be is given to the failure
// handler, whoever counted; what it was offered with goes on.
func TestAttemptsAreBoundedInNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(g *rig, c *agentConfig) { c.maxAttempts, c.groupSize, c.deadLetter = 3, 2, g.deadLetter })
		var failed []string
		g.verdict = func(f Failure) Verdict {
			failed = append(failed, string(f.Items[0].Value()))
			return DeadLetter
		}
		c := g.subscribe("s", "sub")
		c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
			for i := range d.Items {
				if string(d.Items[i].Value()) == "bad" {
					return Answer{Failed: []ItemFailure{{Index: i, Err: errBoom}}}, nil
				}
			}
			return Answer{}, nil
		}
		g.start()
		spent := boxOf("s", 3, "spent")
		spent.Attempts = 3 // that the queue has counted: a process may have ended each time
		g.feed(boxOf("s", 1, "a", "bad", "b"), box("s", 2), spent, box("s", 4))
		g.pump()
		time.Sleep(time.Minute)
		want(t, "settled", c.values(), "a b 2 4")
		want(t, "offered", c.tries(), "1:1 1:1 1:1 2:1 1:2 1:3 4:1")
		f := g.failed()
		want(t, "failures", len(f), 2)
		for i, value := range []string{"bad", "spent"} {
			want(t, "failed items", len(f[i].Items), 1)
			want(t, "failed item", failed[i], value)
			want(t, "its attempts", f[i].Items[0].Attempt, 3)
			want(t, "attempts are used up", errors.Is(f[i].Err, ErrAttempts), true)
			want(t, "dead letter", string(g.dead[i].Value), value)
		}
		want(t, "the error of the last attempt is told", errors.Is(f[0].Err, errBoom), true)
		s := g.stats()
		want(t, "dead letters", s.DeadLettered, 2)
		want(t, "delivered", s.Delivered, 4)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "progress", g.lastProgress(), "4")
	})
}

// Retry allows one attempt more, each time that it is answered. Skip leaves the
// container out of what is acknowledged.
func TestVerdictOnUsedUpAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxAttempts = 2 })
		asked := 0
		g.verdict = func(Failure) Verdict {
			if asked++; asked < 3 {
				return Retry
			}
			return Skip
		}
		c := g.subscribe("s", "sub")
		c.onDeliver = failsAt(1)
		g.start()
		g.feed(boxes("s", 1, 2)...)
		for range 4 {
			g.pump()
			time.Sleep(time.Second)
		}
		want(t, "offered", c.tries(), "1:1 1:2 1:3 1:4 2:1")
		want(t, "skipped", g.stats().Skipped, 1)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "acknowledged", g.receivers[0].acks(), "2")
	})
}

// An implicit subscription, and a failure handler that fails, do not have the
// event offered again either.
func TestUsedUpEventIsNotOfferedWithoutAVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.maxAttempts = 1 })
		asked := 0
		g.verdict = func(Failure) Verdict {
			if asked++; asked < 3 {
				panic("boom")
			}
			return Skip
		}
		c := g.subscribe("s", "sub")
		c.onDeliver = failsAt(1)
		g.start()
		g.feed(boxes("s", 1, 2)...)
		for range 4 {
			g.pump()
			time.Sleep(time.Second)
		}
		want(t, "offered", c.tries(), "1:1 2:1")
		want(t, "asked", asked, 3)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// The ledger is a map from event to attempts, written shorter.
func TestLedgerIsAMapOfEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l ledger
		model := map[triedKey]map[uint32]int{}
		keys := []triedKey{{incarnation: 1}, {incarnation: 2}}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			key := rapid.SampledFrom(keys).Draw(t, "key")
			from := rapid.Uint32Range(0, 10).Draw(t, "from")
			to := from + rapid.Uint32Range(1, 4).Draw(t, "events")
			first, end := penstock.Token{Lo: 1, Index: from}, penstock.Token{Lo: 1, Index: to}
			if rapid.Bool().Draw(t, "note") {
				n := rapid.IntRange(1, 5).Draw(t, "attempts")
				l.note(key, tried{first: first, end: end, n: n}, func(penstock.Token) bool { return false })
				if model[key] == nil {
					model[key] = map[uint32]int{}
				}
				for i := from; i < to; i++ {
					model[key][i] = n
				}
			} else if x := l.subs[key]; x != nil {
				l.forget(x, first, end)
				for i := from; i < to; i++ {
					delete(model[key], i)
				}
			}
			size := 0
			for _, key := range keys {
				got := map[uint32]int{}
				if x := l.subs[key]; x != nil {
					size += len(x.list)
					for i, o := range x.list {
						if o.first.Compare(o.end) >= 0 || i > 0 && x.list[i-1].end.Compare(o.first) > 0 {
							t.Fatalf("ranges %v", x.list)
						}
						for e := o.first.Index; e < o.end.Index; e++ {
							got[e] = o.n
						}
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(model[key]) && len(got)+len(model[key]) > 0 {
					t.Fatalf("holds %v, want %v", got, model[key])
				}
			}
			if size != l.size {
				t.Fatalf("size %d, holds %d", l.size, size)
			}
		}
	})
}

// The ledger is bounded: what cannot be offered again makes room, and without
// room nothing is known of further events.
func TestLedgerIsBounded(t *testing.T) {
	var l ledger
	key := triedKey{incarnation: 1}
	never := func(penstock.Token) bool { return false }
	range1 := func(i int) tried {
		t := penstock.Token{Lo: uint64(i)}
		return tried{first: t, end: after(t), n: 1}
	}
	for i := range attemptsKept {
		l.note(key, range1(i), never)
	}
	if l.size > attemptsKept || l.size < attemptsKept-2 {
		t.Errorf("size %d, at most %d", l.size, attemptsKept)
	}
	if _, ok := l.note(triedKey{incarnation: 2}, range1(1), never); ok {
		t.Error("there was room")
	}
	half := func(t penstock.Token) bool { return t.Lo < attemptsKept/2 }
	if _, ok := l.note(triedKey{incarnation: 2}, range1(1), half); !ok {
		t.Error("what was passed over made no room")
	}
	if l.size > attemptsKept/2+1 {
		t.Errorf("size %d after half of them was passed", l.size)
	}
}
