package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// tracedCache and tracedReceiver record what they are called for.
type tracedCache struct {
	Cache
	rig *rig
}

func (c tracedCache) Purge() []Container { c.rig.step("purge"); return c.Cache.Purge() }
func (c tracedCache) Add(b []Container) error {
	c.rig.step(fmt.Sprint("add ", len(b)))
	return c.Cache.Add(b)
}

type tracedReceiver struct {
	Receiver
	rig *rig
}

func (r tracedReceiver) Read(ctx context.Context, limit int) ([]Container, error) {
	r.rig.step("read")
	return r.Receiver.Read(ctx, limit)
}

func (r tracedReceiver) Delivered(ctx context.Context, done []Container) error {
	r.rig.step(fmt.Sprint("delivered ", len(done)))
	return r.Receiver.Delivered(ctx, done)
}

// One turn goes in this order: sweep, purge, report, read, add, wake; under pressure
// it ends before the read, and what was purged is reported all the same.
func TestOrderInsideOneRead_OR49(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(g *rig, c *agentConfig) {
			made := c.newReceiver
			c.newReceiver = func() (Receiver, error) {
				r, err := made()
				return tracedReceiver{r, g}, err
			}
			g.newCache = func() (Cache, error) {
				c, err := NewSimpleCache(DefaultCapacity)
				return tracedCache{c, g}, err
			}
		})
		g.start()
		defer g.stop()
		g.subscribe("old", "sub")
		c := g.subscribe("s", "sub")
		c.onDeliver = func(int, *Delivery) (Answer, error) { g.step("deliver"); return Answer{}, nil }
		g.feed(box("old", 1), box("s", 2))
		g.pump()
		turn := func(feed ...Container) string {
			g.mu.Lock()
			g.trace = nil
			g.mu.Unlock()
			g.feed(feed...)
			g.pump()
			steps := g.steps()
			added := slices.IndexFunc(steps, func(s string) bool { return strings.HasPrefix(s, "add") })
			if woken := slices.Index(steps, "deliver"); woken >= 0 && woken < added || woken < 0 && added >= 0 {
				t.Errorf("steps %v, want the delivery behind the cache", steps)
			}
			if added >= 0 { // what follows goes on beside the delivery
				steps = steps[:added+1]
			}
			return strings.Join(slices.DeleteFunc(steps, func(s string) bool {
				return strings.HasPrefix(s, "removed") || s == "progress"
			}), ", ")
		}
		want(t, "a turn that finds nothing", turn(), "purge, delivered 2, read, pump ended")
		time.Sleep(20 * time.Minute)
		want(t, "a turn with data", turn(box("s", 3)), "purge, read, add 1")
		time.Sleep(11 * time.Minute)
		want(t, "a turn with a sweep", turn(box("s", 4), box("s", 5)), "stream inactive, purge, delivered 1, read, add 2")
		turn(box("s", 6))
		g.feed(box("s", 7))
		c.gate = make(chan struct{})
		g.pump()
		close(c.gate)
		synctest.Wait()
		g.cache.pressure = true
		want(t, "a turn under pressure", turn(box("s", 8)), "purge, delivered 1, pump ended")
	})
}

// Failed reads are tried again after the read backoff, each asked with its
// number, and not any more once the agent is stopped.
func TestReadBackoffBetweenFailedReads_OR48(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.readBackoff = growing{} })
		var mu sync.Mutex
		var times []time.Duration
		from := time.Now()
		g.script = func(int, int) ([]Container, error) {
			mu.Lock()
			defer mu.Unlock()
			times = append(times, time.Since(from))
			return nil, errBoom
		}
		read := func() string {
			mu.Lock()
			defer mu.Unlock()
			return fmt.Sprint(times)
		}
		g.start()
		go g.agent.pump() // ends with its reads
		time.Sleep(time.Minute)
		want(t, "reads", read(), "[0s 1s 3s 7s 15s 31s]")
		times, from = nil, time.Now()
		go g.agent.pump() // ends with the agent
		time.Sleep(4 * time.Second)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		want(t, "reads of a pump that was stopped", read(), "[0s 1s 3s]")
	})
}

// refreshes records what the cursors of a cache are told.
type refreshes struct {
	Cache
	mu   sync.Mutex
	told []string
}

func (r *refreshes) Cursor(id penstock.StreamID, at Position) (Cursor, error) {
	c, err := r.Cache.Cursor(id, at)
	return &refreshed{Cursor: c, all: r, id: id}, err
}

type refreshed struct {
	Cursor
	all *refreshes
	id  penstock.StreamID
}

func (c *refreshed) Refresh(t penstock.Token) {
	c.all.mu.Lock()
	c.all.told = append(c.all.told, fmt.Sprintf("%s@%d", c.id.Key, t.Lo))
	c.all.mu.Unlock()
	c.Cursor.Refresh(t)
}

// New containers of a known stream tell its cursors, and only its own, wake its
// idle subscriptions and keep it from being swept.
func TestKnownStreamIsRefreshed_OR54(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		all := &refreshes{}
		g.newCache = func() (c Cache, err error) {
			all.Cache, err = NewSimpleCache(DefaultCapacity)
			return all, err
		}
		if err := g.agent.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		a, b := g.subscribe("a", "sub"), g.subscribe("b", "sub")
		g.feed(box("a", 1), box("b", 2))
		g.pump()
		want(t, "before there was anything new", strings.Join(all.told, " "), "")
		time.Sleep(20 * time.Minute)
		g.feed(box("a", 3), box("a", 4))
		g.pump()
		want(t, "told", strings.Join(all.told, " "), "a@3 a@4")
		want(t, "idle one goes on", a.values(), "1 3 4")
		want(t, "the other one", b.values(), "2")
		time.Sleep(15 * time.Minute)
		g.pump()
		g.wantTable("a:registered") // 35 minutes after its first container, 15 after its last one
		time.Sleep(16 * time.Minute)
		g.pump()
		g.wantTable()
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A registration that fails is repeated as long as it takes, after the delivery
// backoff, and not any more once the agent is stopped.
func TestRegistrationHasNoLimit_OR61(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.deliveryBackoff, c.maxDelivery = Fixed(time.Second), 0 })
		g.registry.fail = 200
		g.start()
		c := g.subscribe("s", "sub")
		g.feed(box("s", 1))
		g.pump()
		time.Sleep(199*time.Second + time.Millisecond)
		want(t, "registrations", g.registry.calls(), 200)
		want(t, "delivered", c.values(), "")
		want(t, "cached", g.stats().Cached, 1)
		time.Sleep(time.Second)
		want(t, "registrations", g.registry.calls(), 201)
		want(t, "delivered", c.values(), "1")
		g.registry.mu.Lock()
		g.registry.fail = 200
		g.registry.mu.Unlock()
		g.feed(box("other", 2))
		g.pump()
		time.Sleep(10*time.Second + time.Millisecond)
		before := g.registry.calls()
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		want(t, "registrations after the stop", g.registry.calls(), before)
		want(t, "registrations until then", before, 212)
	})
}

// The sweep is due a tenth of the period after the last one: not before, and then
// it is.
func TestSweepIsDueEachTenthOfThePeriod_OR71(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(_ *rig, c *agentConfig) { c.poll, c.pollOffset = 10*time.Hour, 10*time.Hour })
		g.start()
		defer g.stop()
		g.feed(box("s", 1))
		g.pump()
		time.Sleep(30*time.Minute - time.Second)
		g.pump() // sweeps, one second too early for s
		time.Sleep(3*time.Minute - time.Millisecond)
		g.pump()
		g.wantTable("s:registered")
		time.Sleep(time.Millisecond)
		g.pump()
		g.wantTable()
	})
}

// logged is a logger that keeps its lines.
func logged() (*slog.Logger, func() string) {
	var mu sync.Mutex
	var b strings.Builder
	return slog.New(slog.NewTextHandler(lockedWriter{&mu, &b}, nil)), func() string {
		mu.Lock()
		defer mu.Unlock()
		return b.String()
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *strings.Builder
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

// Init is called once per run, however it ends; an error is in the log, and
// nobody but the next run repeats the call.
func TestInitIsCalledOncePerRun_OR39(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, lines := logged()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.log = log })
		g.failInit = errBoom
		for run := range 2 {
			g.start()
			for range 3 {
				g.pump()
			}
			want(t, "calls of Init", g.receivers[run].inits, 1)
			want(t, "log lines", strings.Count(lines(), "receiver init failed; reading goes on at the next poll"), run+1)
			want(t, "the error is named", strings.Contains(lines(), "boom"), true)
			if err := g.stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

// gatedQueues is a factory whose receivers are made, and shut down, when its
// functions return.
type gatedQueues struct {
	DefaultParts
	making, ending func(q QueueID) error
}

func (f *gatedQueues) NewAdapter(context.Context, Environment) (Adapter, error) {
	return &gatedAdapter{fixedAdapter{}, f}, nil
}

type gatedAdapter struct {
	fixedAdapter
	f *gatedQueues
}

func (a *gatedAdapter) NewReceiver(q QueueID) (Receiver, error) {
	if err := a.f.making(q); err != nil {
		return nil, err
	}
	return gatedReceiver{q, a.f}, nil
}

type gatedReceiver struct {
	q QueueID
	f *gatedQueues
}

func (gatedReceiver) Init(context.Context) error                     { return nil }
func (gatedReceiver) Read(context.Context, int) ([]Container, error) { return nil, nil }
func (gatedReceiver) Delivered(context.Context, []Container) error   { return nil }
func (r gatedReceiver) Shutdown(context.Context) error               { return r.f.ending(r.q) }

// What a change of ownership adds and removes goes on at the same time: here each
// waits for the other.
func TestAdditionsAndRemovalsGoOnTogether_OR34(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		adding, removing := make(chan struct{}), make(chan struct{})
		met := func(mine, other chan struct{}) error {
			close(mine)
			select {
			case <-other:
				return nil
			case <-time.After(time.Minute):
				t.Error("one waited for the other")
				return nil
			}
		}
		f := &gatedQueues{
			making: func(q QueueID) error {
				if q.Number == 2 {
					return met(adding, removing)
				}
				return nil
			},
			ending: func(q QueueID) error {
				if q.Number == 0 {
					return met(removing, adding)
				}
				return nil
			},
		}
		p := openProvider(t, f, func(c *Config) { c.Queues = 3 })
		defer p.Close()
		all := p.mapper.Queues()
		var mu sync.Mutex
		own := Ownership{Seq: 1, Queues: all[:2]}
		p.manager.owned = func() Ownership { mu.Lock(); defer mu.Unlock(); return own }
		stop := running(p)
		synctest.Wait()
		want(t, "at first", p.stateWords(), "started 2")
		mu.Lock()
		own = Ownership{Seq: 2, Queues: all[1:]}
		mu.Unlock()
		p.manager.ownershipChanged()
		synctest.Wait()
		want(t, "afterwards", fmt.Sprint(p.stateWords(), p.manager.running()), "started 2[1 2]")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// An agent that cannot start when ownership changes is in the log, and the other
// queues go on; at the start it ends the run (TestRunReturnsTheFailureToStart).
func TestAgentThatCannotStartLaterHoldsNoOther_OR38(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &gatedQueues{
			making: func(q QueueID) error {
				if q.Number == 1 {
					return errBoom
				}
				return nil
			},
			ending: func(QueueID) error { return nil },
		}
		log, lines := logged()
		p := openProvider(t, f, func(c *Config) { c.Queues, c.Logger = 3, log })
		defer p.Close()
		all := p.mapper.Queues()
		var mu sync.Mutex
		own := Ownership{Seq: 1, Queues: all[:1]}
		p.manager.owned = func() Ownership { mu.Lock(); defer mu.Unlock(); return own }
		stop := running(p)
		synctest.Wait()
		mu.Lock()
		own = Ownership{Seq: 2, Queues: all}
		mu.Unlock()
		p.manager.ownershipChanged()
		synctest.Wait()
		want(t, "running", fmt.Sprint(p.manager.running()), "[0 2]")
		want(t, "log", strings.Contains(lines(), "ownership not applied as a whole") && strings.Contains(lines(), "boom"), true)
		if err := stop(); err != nil {
			t.Errorf("the run ends with %v", err)
		}
	})
}

// A failure names its queue, whatever it is about.
func TestFailureNamesItsQueue_OR41(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := QueueID{Name: "rig", Number: 3, Ring: 7}
		g := newRig(t, func(_ *rig, c *agentConfig) { c.queue, c.maxDelivery = q, time.Nanosecond })
		g.subFailed = func(Failure) Verdict { return Skip }
		c := g.subscribe("s", "sub")
		c.onDeliver = failing(1)
		unattached := g.subscribe("s", "cannot")
		unattached.onShake = func(int) (Position, error) { return Position{}, errors.New("no place") }
		g.start()
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		time.Sleep(time.Second)
		synctest.Wait()
		f := g.failed()
		want(t, "failures", len(f), 2)
		for _, f := range f {
			want(t, "queue", f.Queue, q)
		}
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}
