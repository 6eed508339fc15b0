package stream

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// What user code beside handlers and receivers may do wrong: cursors, backoffs,
// patterns, errors, a cache that evicts. The agent goes on, and says so.

// nothingCursors makes Next return nothing though Peek has said that there is
// something, for as long as broken is set.
type nothingCursors struct {
	Cache
	broken *atomic.Bool
}

func (n nothingCursors) Cursor(s penstock.StreamID, at Position) (Cursor, error) {
	c, err := n.Cache.Cursor(s, at)
	return nothingCursor{c, n.broken}, err
}

type nothingCursor struct {
	Cursor
	broken *atomic.Bool
}

func (c nothingCursor) Next() (Container, bool, error) {
	if c.broken.Load() {
		return Container{}, false, nil
	}
	return c.Cursor.Next()
}

// It overflowed the stack, which ends the process.
func TestCursorThatContradictsItselfIsAskedAtTheNextPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		g := newRig(t)
		g.newCache = func() (Cache, error) {
			c, err := NewSimpleCache(100)
			return nothingCursors{c, &broken}, err
		}
		g.start()
		c := g.subscribe("s", "sub")
		broken.Store(true)
		g.feed(boxes("s", 1, 3)...)
		g.pump()
		g.pump()
		want(t, "settled", c.values(), "")
		broken.Store(false)
		g.pump()
		want(t, "settled once the cursor is right", c.values(), "1 2 3")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// missingCursors always miss.
type missingCursors struct{ Cache }

func (m missingCursors) Cursor(s penstock.StreamID, at Position) (Cursor, error) {
	c, err := m.Cache.Cursor(s, at)
	return missingCursor{c}, err
}

type missingCursor struct{ Cursor }

func (missingCursor) Next() (Container, bool, error) { return Container{}, false, &CacheMissError{} }

// It overflowed the stack, which ends the process.
func TestPlaceThatIsLostAgainStaysLost(t *testing.T) {
	for _, policy := range []MissPolicy{MissEarliest, MissLatest} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.onMiss = policy })
				g.newCache = func() (Cache, error) {
					c, err := NewSimpleCache(100)
					return missingCursors{c}, err
				}
				g.start()
				g.subscribe("s", "sub")
				for seq := uint64(1); seq <= 3; seq++ {
					g.feed(box("s", seq))
					g.pump()
				}
				want(t, "condition", g.stats().Condition, ConditionLost)
				want(t, "misses", g.stats().Missed, 2)
				if err := g.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

type slowFault struct {
	*scriptRegistry
	gate  chan struct{}
	calls atomic.Int64
}

func (s *slowFault) Fault(ctx context.Context, r SubscriptionRecord) (bool, error) {
	s.calls.Add(1)
	<-s.gate
	return s.scriptRegistry.Fault(ctx, r)
}

// Each container that came meanwhile began it anew.
func TestSubscriptionThatLostItsPlaceIsFaultedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		slow := &slowFault{scriptRegistry: g.registry, gate: make(chan struct{})}
		g.agent.registry, g.agent.onMiss = slow, MissFault
		g.newCache = func() (Cache, error) {
			c, err := NewSimpleCache(100)
			return missingCursors{c}, err
		}
		g.start()
		g.subscribe("s", "sub")
		for seq := uint64(1); seq <= 3; seq++ {
			g.feed(box("s", seq))
			g.pump()
		}
		want(t, "misses", g.stats().Missed, 1)
		close(slow.gate)
		synctest.Wait()
		want(t, "calls of Fault", slow.calls.Load(), 1)
		want(t, "faulted", g.stats().Faulted, 1)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A registry that was slower than the eviction made the agent fail: what its
// streams began with was gone.
func TestEvictedBeforeItsSubscriptionsAreKnown(t *testing.T) {
	for policy, settled := range map[MissPolicy]string{MissStay: "", MissEarliest: "28 29 30 31", MissLatest: "31"} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.onMiss = policy })
				g.newCache = func() (Cache, error) {
					return NewLogCache(LogCacheConfig{MaxContainers: 4, MaxAdd: 1, EvictUnderCursors: true})
				}
				g.registry.block = make(chan struct{})
				g.start()
				c := g.subscribe("s", "sub")
				for seq := uint64(1); seq <= 30; seq++ {
					g.feed(box("s", seq))
					g.pump()
				}
				close(g.registry.block)
				synctest.Wait()
				want(t, "running", g.stats().Running, true)
				want(t, "misses", g.stats().Missed, 1)
				g.feed(box("s", 31))
				g.pump()
				want(t, "settled", c.values(), settled)
				if policy == MissStay {
					want(t, "condition", g.stats().Condition, ConditionLost)
				}
				if err := g.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

type backoffFunc func(n int) time.Duration

func (f backoffFunc) Next(n int) time.Duration { return f(n) }

var rudeBackoffs = map[string]Backoff{
	"panics":             backoffFunc(func(int) time.Duration { panic("rude") }),
	"leaves":             backoffFunc(func(int) time.Duration { runtime.Goexit(); return 0 }),
	"nil pointer":        (*Exponential)(nil),
	"random that panics": Exponential{Max: time.Second, Step: time.Second, Rand: func(int64) int64 { panic("rude") }},
	"negative":           Fixed(-time.Hour),
	"least":              Fixed(math.MinInt64),
}

// A backoff that panicked made attempts follow each other without a pause; one
// for reads ended the agent.
func TestBackoffThatFailsPausesForASecond(t *testing.T) {
	for name, b := range rudeBackoffs {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.deliveryBackoff, c.readBackoff = b, b })
				g.registry.fail = 2
				g.script = func(call, _ int) ([]Container, error) {
					if call < 4 {
						return nil, errBoom
					}
					return nil, nil
				}
				g.start()
				c := g.subscribe("s", "sub")
				c.onShake = func(n int) (Position, error) {
					if n < 3 {
						return Position{}, errBoom
					}
					return Position{}, nil
				}
				c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
					if n < 3 {
						return Answer{}, errBoom
					}
					return Answer{}, nil
				}
				begin := time.Now()
				g.pump()
				want(t, "reads", g.receivers[0].reads(), 4)
				g.feed(box("s", 1))
				g.pump()
				time.Sleep(time.Minute)
				want(t, "settled", c.values(), "1")
				if len(c.times) < 3 {
					t.Fatalf("%d deliveries", len(c.times))
				}
				pause := brokenPause
				if _, ok := b.(Fixed); ok {
					pause = 0
				}
				want(t, "from the first delivery to the third", c.times[2].Sub(c.times[0]), 2*pause)
				want(t, "third delivery after", c.times[2].Sub(begin), 9*pause) // 3 reads failed; 2 registrations, handshakes and deliveries
				if err := g.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A wait that is longer than the time for attempts was waited for.
func TestBackoffBeyondTheTimeForAttemptsEndsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.deliveryBackoff = Fixed(math.MaxInt64) })
		g.start()
		c := g.subscribe("s", "sub")
		c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
			if d.Items[0].Token.Lo == 1 {
				return Answer{}, errBoom
			}
			return Answer{}, nil
		}
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		want(t, "settled", c.values(), "2")
		want(t, "skipped", g.stats().Skipped, 1)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// wrong is an error that panics when it is asked; a nil *wrong is what a
// function returns that forgets that an error of a type is never nil.
type wrong struct{ inner error }

func (w *wrong) Error() string { return w.inner.Error() }
func (w *wrong) Unwrap() error { return w.inner }

type worse struct{}

func (worse) Error() string   { return "worse" }
func (worse) Is(error) bool   { panic("asked") }
func (worse) Unwrap() []error { panic("asked") }

// An error that cannot be asked ended the agent, or kept an event for ever from
// being a dead letter.
func TestErrorThatPanicsIsAFailureOfWhoReturnsIt(t *testing.T) {
	for name, broken := range map[string]error{"nil pointer": (*wrong)(nil), "panics": worse{}} {
		for _, where := range []string{"deliver", "item", "panic", "handshake", "registry", "read"} {
			t.Run(name+" of "+where, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newRig(t, func(_ *rig, c *agentConfig) { c.maxDelivery = 3 * time.Millisecond })
					g.agent.deadLetter = g.deadLetter
					g.verdict = func(Failure) Verdict { return DeadLetter }
					brokenRegistry := &brokenRegistry{scriptRegistry: g.registry}
					g.agent.registry = brokenRegistry
					g.start()
					c := g.subscribe("s", "sub")
					fails, calls := map[string]int{}, 0
					once := func(w string) bool { calls++; fails[w]++; return w == where && fails[w] == 1 }
					c.onShake = func(int) (Position, error) {
						if once("handshake") {
							return Position{}, broken
						}
						return Position{}, nil
					}
					c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
						if d.Items[0].Token.Lo != 1 {
							return Answer{}, nil
						}
						switch where {
						case "deliver":
							return Answer{}, broken
						case "item":
							return Answer{Failed: []ItemFailure{{Index: 0, Err: broken}}}, nil
						case "panic":
							panic(broken)
						}
						return Answer{}, nil
					}
					if where == "registry" {
						brokenRegistry.err = broken
					}
					g.script = func(call, _ int) ([]Container, error) {
						if where == "read" && call == 1 {
							return nil, broken
						}
						return nil, nil
					}
					g.pump()
					g.feed(boxes("s", 1, 2)...)
					g.pump()
					time.Sleep(time.Second)
					g.pump()
					if where == "deliver" || where == "item" || where == "panic" {
						want(t, "settled", c.values(), "2")
						want(t, "dead letters", len(g.dead), 1)
					} else {
						want(t, "settled", c.values(), "1 2")
					}
					want(t, "running", g.stats().Running, true)
					if err := g.stop(); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// brokenRegistry fails the first registration with err.
type brokenRegistry struct {
	*scriptRegistry
	err error
}

func (b *brokenRegistry) RegisterProducer(ctx context.Context, s QualifiedStreamID, p Producer) (Roster, error) {
	if err := b.err; err != nil {
		b.err = nil
		return Roster{}, err
	}
	return b.scriptRegistry.RegisterProducer(ctx, s, p)
}

// newsReceiver says when data comes, and stops a test that would read for
// ever.
type newsReceiver struct {
	*scriptReceiver
	news chan struct{}
}

func (w *newsReceiver) Wait(ctx context.Context) error {
	select {
	case <-w.news:
		return nil
	case <-ctx.Done():
		return penstock.ContextError(ctx)
	}
}

// With many subscriptions that wait, each delivery of another one made the agent
// read an empty queue again and again, until its next poll.
func TestIdleQueueIsNotReadInALoopWhileSubscriptionsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.unresolved = errUnattached
		w := &newsReceiver{news: make(chan struct{}, 1)}
		inner := g.agent.newReceiver
		g.agent.newReceiver = func() (Receiver, error) {
			rec, err := inner()
			w.scriptReceiver, _ = rec.(*scriptReceiver)
			return w, err
		}
		g.script = func(call, _ int) ([]Container, error) {
			if call > 1000 {
				time.Sleep(time.Hour) // or the bubble would never end
			}
			return nil, nil
		}
		g.start()
		for i := range 50 {
			s := fmt.Sprint("held", i)
			g.announce(s, "sub")
			g.feed(box(s, uint64(i+1)))
		}
		c := g.subscribe("s", "sub")
		w.news <- struct{}{}
		synctest.Wait()
		g.feed(box("s", 100))
		w.news <- struct{}{}
		synctest.Wait()
		want(t, "settled", c.values(), "100")
		if n := w.reads(); n > 20 {
			t.Errorf("%d reads of two batches", n)
		}
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A pattern's function ran in the agent's turn: its panic ended the delivery of
// all streams of the queue.
func TestPatternThatPanicsHoldsOnlyItsStream(t *testing.T) {
	for how, fail := range map[string]func(){"panics": func() { panic("rude") }, "leaves": runtime.Goexit} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topic := memoryTopic(t, queue.Config[Container]{Partitions: 1})
				defer topic.Close()
				p := openProvider(t, topic, func(c *Config) { c.Queues, c.DeliveryBackoff = 1, Fixed(time.Second) })
				defer p.Close()
				var broken atomic.Bool
				broken.Store(true)
				var r recorder
				err := Bind(p, "all", Matching(func(s penstock.StreamID) bool {
					if s.Key == "bad" && broken.Load() {
						fail()
					}
					return true
				}), r.handle)
				if err != nil {
					t.Fatal(err)
				}
				publish(t, Of[string](p, "n", "bad"), "held")
				publish(t, Of[string](p, "n", "good"), "one")
				stop := running(p)
				time.Sleep(time.Minute)
				want(t, "settled", r.got(), "one")
				if reason := p.Stats()[0].Reason; !strings.Contains(reason, "stream n/bad") {
					t.Errorf("reason %q does not name the stream", reason)
				}
				broken.Store(false)
				time.Sleep(time.Minute)
				want(t, "settled", r.got(), "one held")
				if err := stop(); err != nil {
					t.Error(err)
				}
				want(t, "lag", topic.Queue().Stats().Groups[0].Lag, 0)
			})
		})
	}
}
