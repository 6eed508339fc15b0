package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// openShop is a provider over a topic in memory with one queue.
func openShop(t *testing.T, change func(c *Config)) *Provider {
	t.Helper()
	topic, err := OpenTopic(queue.Config[Container]{Name: "t", Partitions: 1, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Name: "shop", Factory: topic, Queues: 1, Logger: quiet, DeliveryBackoff: Fixed(time.Millisecond)}
	if change != nil {
		change(&c)
	}
	p, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), topic.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// keepRunning runs a provider until the function returned is called.
func keepRunning(t *testing.T, p *Provider) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }() // ended by stop, which waits
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A handler that fails with an error that a consumer may say of itself has
// failed, and nothing else: its subscription stays, and its attempts count.
func TestErrorOfAHandlerSaysNothingAboutItsConsumer(t *testing.T) {
	for _, said := range []error{ErrConsumerGone, ErrAway, fmt.Errorf("far: %w", ErrConsumerGone), errors.Join(errBoom, ErrAway)} {
		t.Run(said.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := openShop(t, nil)
				s := Of[int](p, "n", "k")
				var attempts []int
				if _, err := s.Subscribe(t.Context(), "sub", func(_ context.Context, b penstock.Batch[int]) error {
					if attempts = append(attempts, b.Attempt(0)); len(attempts) < 3 {
						return said
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				stop := keepRunning(t, p)
				if err := s.Publish(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				stop()
				want(t, "attempts", fmt.Sprint(attempts), "[1 2 3]")
				subs, err := p.registry().Subscriptions(t.Context(), p.qualified(s.id))
				want(t, "subscriptions", len(subs), 1)
				if err != nil {
					t.Error(err)
				}
			})
		})
	}
	err := ofHandler(fmt.Errorf("%w: %w", ErrAway, &penstock.FieldError{Field: "x"}))
	var f *penstock.FieldError
	if errors.Is(err, ErrAway) || !errors.As(err, &f) || !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("%v: of its other parts nothing is hidden", err)
	}
}

// The consumer of a subscription that was removed elsewhere, or that is gone,
// is given up; one that was faulted may come back, and one that was attached
// since stays.
func TestConsumerOfARemovedSubscriptionIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := openShop(t, nil)
		none := func(context.Context, penstock.Batch[int]) error { return nil }
		s := Of[int](p, "n", "k")
		for _, name := range []string{"removed", "faulted", "again"} {
			if _, err := s.Subscribe(t.Context(), name, none); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Attach(t.Context(), s.id, "gone", goneConsumer{}); err != nil {
			t.Fatal(err)
		}
		stop := keepRunning(t, p)
		if err := s.Publish(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		names := func() (out []string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			for key := range p.consumers {
				out = append(out, key.name)
			}
			slices.Sort(out)
			return out
		}
		want(t, "with one gone", fmt.Sprint(names()), "[again faulted removed]")
		r := p.registry() // as another node has it
		rec := func(name string) SubscriptionRecord {
			return SubscriptionRecord{Stream: p.qualified(s.id), Name: name}
		}
		subs, err := r.Subscriptions(t.Context(), p.qualified(s.id))
		if err != nil {
			t.Fatal(err)
		}
		for _, sub := range subs {
			if sub.Name == "faulted" {
				_, err = r.Fault(t.Context(), sub)
			}
		}
		err = errors.Join(err, r.Unsubscribe(t.Context(), rec("removed")), r.Unsubscribe(t.Context(), rec("again")))
		if _, more := s.Subscribe(t.Context(), "again", none); err != nil || more != nil {
			t.Fatal(err, more)
		}
		synctest.Wait()
		want(t, "behind what another node did", fmt.Sprint(names()), "[again faulted]")
		stop()
	})
}

type goneConsumer struct{}

func (goneConsumer) Handshake(context.Context, Handshake) (Position, error) {
	return Position{}, ErrConsumerGone
}
func (goneConsumer) Deliver(context.Context, *Delivery) (Answer, error) { return Answer{}, nil }

// A notice that overtakes the answer of the registry gives up what it was about,
// and a later one nothing.
func TestNoticeBesideASubscribeGivesUpItsConsumer(t *testing.T) {
	p := openShop(t, nil)
	s := Of[int](p, "n", "k")
	rec := SubscriptionRecord{Stream: p.qualified(s.id), Name: "sub", Incarnation: 7}
	key := consumerKey{s.id, "sub"}
	a := &attachment{}
	p.mu.Lock()
	p.consumers[key] = a
	p.mu.Unlock()
	p.forget(rec)
	want(t, "told meanwhile", a.withdrawn, 7)
	a.incarnation = 8
	p.forget(rec)
	want(t, "another incarnation stays", p.consumers[key] == a, true)
	a.incarnation = 7
	p.forget(rec)
	want(t, "its own does not", p.consumers[key] == nil, true)
}

// panicky is a slog.Handler that panics on every line.
type panicky struct{ slog.Handler }

func (panicky) Enabled(context.Context, slog.Level) bool  { return true }
func (panicky) Handle(context.Context, slog.Record) error { panic("log") }
func (panicky) WithAttrs([]slog.Attr) slog.Handler        { panic("attrs") }
func (panicky) WithGroup(string) slog.Handler             { panic("group") }

// A logger that panics takes its lines with it, and nothing else.
func TestLoggerThatPanicsEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := openShop(t, func(c *Config) { c.Logger = slog.New(panicky{}) })
		s := Of[int](p, "n", "k")
		calls := 0
		if _, err := s.Subscribe(t.Context(), "sub", func(context.Context, penstock.Batch[int]) error {
			if calls++; calls == 1 {
				return errBoom // which is logged
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		stop := keepRunning(t, p)
		if err := s.Publish(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		p.config.Logger.With("a", 1).WithGroup("g").Info("line")
		stop()
		want(t, "calls", calls, 2)
	})
}

// badChecker is an adapter whose token check panics.
type badChecker struct{ Adapter }

func (badChecker) CheckToken(QueueID, penstock.Token) error { panic("check") }

type badCheckerFactory struct{ Factory }

func (f badCheckerFactory) NewAdapter(ctx context.Context, e Environment) (Adapter, error) {
	a, err := f.Factory.NewAdapter(ctx, e)
	return badChecker{a}, err
}

// A token check that panics refuses the token.
func TestTokenCheckThatPanicsRefuses(t *testing.T) {
	p := openShop(t, func(c *Config) { c.Factory = badCheckerFactory{c.Factory} })
	_, err := Of[int](p, "n", "k").Subscribe(t.Context(), "sub", func(context.Context, penstock.Batch[int]) error { return nil }, From(At(penstock.Token{})))
	var bad *penstock.PanicError
	if !errors.As(err, &bad) {
		t.Errorf("subscribe: %v, want the panic", err)
	}
}

// fickle is a mapper that has other queues each time that it is asked.
type fickle struct {
	Mapper
	calls *atomic.Int64
}

func (f fickle) Queues() []QueueID {
	if q := f.Mapper.Queues(); f.calls.Load() == 0 {
		return q
	}
	return make([]QueueID, 9)
}

func (f fickle) QueueFor(s penstock.StreamID) QueueID {
	if f.calls.Load() == 0 {
		return f.Mapper.QueueFor(s)
	}
	return QueueID{Number: 8}
}

type fickleFactory struct {
	*VisibilityQueue
	calls *atomic.Int64
}

func (f fickleFactory) NewMapper(provider string, queues int) (Mapper, error) {
	m, err := NewRingMapper(provider, queues)
	return fickle{m, f.calls}, err
}

// What a mapper says after Open ends no run, and is refused where it makes no
// sense.
func TestMapperThatChangesItsMindEndsNothing(t *testing.T) {
	q, err := OpenVisibilityQueue(VisibilityConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	f := fickleFactory{q, new(atomic.Int64)}
	p, err := Open(Config{Name: "shop", Factory: f, Queues: 2, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	f.calls.Store(1)
	stop := keepRunning(t, p)
	if err := Of[int](p, "n", "k").Publish(t.Context(), 1); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("publish: %v, want it refused", err)
	}
	want(t, "agents", len(p.Stats()), 2)
	stop()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// Diagnostics of a provider that was closed are closed, too.
func TestDiagnosticsOfAClosedProviderEnd(t *testing.T) {
	p := &Provider{}
	before := p.Diagnostics(1)
	p.hub.close()
	for what, d := range map[string]*Diagnostics{"before": before, "behind": p.Diagnostics(1)} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := d.Next(ctx); !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", what, err)
		}
		cancel()
	}
	want(t, "heard", p.hub.heard(), false)
}

// brokenReports is a receiver whose reports panic.
type brokenReports struct{ Receiver }

func (brokenReports) Delivered(context.Context, []Container) error { panic("delivered") }
func (brokenReports) Checkpointer() Checkpointer                   { return panickyMarks{} }

type panickyMarks struct{}

func (panickyMarks) Load(context.Context) (penstock.Token, bool, error) {
	return penstock.Token{}, false, nil
}
func (panickyMarks) Update(context.Context, penstock.Token, time.Time) error { panic("update") }
func (panickyMarks) Flush(context.Context) error                             { return nil }

// A report that panics does not take the read of its turn with it.
func TestReportThatPanicsCostsNoRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		inner := g.agent.newReceiver
		g.agent.newReceiver = func() (Receiver, error) {
			rec, err := inner()
			return brokenReports{rec}, err
		}
		c := g.subscribe("s", "sub")
		g.start()
		for i := range uint64(4) {
			g.feed(box("s", i+1))
			g.pump()
		}
		want(t, "settled", c.values(), "1 2 3 4")
		want(t, "failed reads", g.stats().ReadFailures, 0)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A container that the cache never kept is reported behind those that were read
// before it, whenever it became a dead letter.
func TestRefusedContainerIsReportedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(g *rig, a *agentConfig) {
			a.deadLetter = g.deadLetter
			g.newCache = func() (Cache, error) {
				c, err := NewSimpleCache(DefaultCapacity)
				return pickyCache{c}, err
			}
		})
		c := g.subscribe("s", "sub")
		c.gate = make(chan struct{})
		g.start()
		g.feed(box("s", 1), box("s", 2), boxOf("s", 3, "x", "y"), box("s", 4))
		g.pump()
		g.pump()
		want(t, "dead letters", len(g.dead), 2)
		want(t, "reported while earlier ones are being delivered", g.receivers[0].acks(), "")
		close(c.gate)
		synctest.Wait()
		g.pump()
		want(t, "reported", g.receivers[0].acks(), "1 2 3 4")
		g.feed(boxOf("s", 5, "x", "y"))
		g.pump()
		g.pump()
		want(t, "reported with nothing before it", g.receivers[0].acks(), "1 2 3 4 5")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		want(t, "reported at the end", g.receivers[0].acks(), "1 2 3 4 5")
	})
}

// A consumer that has part of a delivery, and says so where the place cannot be
// asked for, goes on behind what it has; one that has nothing has it offered
// again, as after any failure.
func TestConsumerGoesOnBehindWhatItHas(t *testing.T) {
	for name, change := range map[string]func(c *agentConfig){
		"cannot rewind": func(c *agentConfig) { c.rewindable = false },
		"unknown token": func(c *agentConfig) {
			c.tokenCheck = func(penstock.Token) error { return penstock.ErrOffsetOutOfRange }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { c.groupSize = 2; change(c) })
				c := g.subscribe("s", "sub")
				has := penstock.Token{Lo: 2, Index: 0}
				c.onDeliver = func(n int, d *Delivery) (Answer, error) {
					switch n {
					case 1, 3:
						return Answer{Rewind: Position{Kind: PositionResume, Token: has}}, nil
					}
					return Answer{}, nil
				}
				g.start()
				g.feed(box("s", 1), boxOf("s", 2, "2a", "2b"), box("s", 3), box("s", 4), box("s", 5))
				g.pump()
				time.Sleep(time.Second)
				// The third says that it has less than it is given: that is offered again.
				want(t, "offered", c.tries(), "1:1 2:1 2:1 2:2 3:1 4:1 3:2 4:2 5:1")
				want(t, "settled", c.values(), "2b 3 4 5")
				want(t, "asked the failure handler", len(g.failed()), 0)
				if err := g.stop(); err != nil {
					t.Error(err)
				}
				want(t, "progress", g.lastProgress(), "5")
			})
		})
	}
}

// Giving back n containers looks at what is ready once.
func TestShutdownOfAVisibilityReceiverGivesBackInOneGo(t *testing.T) {
	v := newVisible(t, VisibilityConfig{Capacity: 100_000})
	for i := range 60_000 {
		v.put(fmt.Sprint(i))
	}
	r := v.receiver()
	v.read(r, 20_000)
	v.shutdown(r) // took minutes, one by one
	again := v.receiver()
	got := v.read(again, 3)
	want(t, "handed out again, in order", inWords(got), "0@20001+1 1@20002+1 2@20003+1")
	want(t, "ready", v.queue.Stats()[0].Ready, 60_000-3)
	v.shutdown(again)
}
