package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func memoryTopic(t testing.TB, c queue.Config[Container]) *Topic {
	t.Helper()
	c.Name, c.Logger = "topic", quiet
	topic, err := OpenTopic(c)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

func openProvider(t testing.TB, f Factory, configure ...func(*Config)) *Provider {
	t.Helper()
	c := Config{Name: "shop", Factory: f, Queues: 2, Logger: quiet, DeliveryBackoff: Fixed(time.Millisecond)}
	for _, f := range configure {
		f(&c)
	}
	p, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// running runs the provider; stop ends it and returns Run's result.
func running(p *Provider) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }() // ended by stop
	return func() error { cancel(); return <-ended }
}

// recorder is a handler that records.
type recorder struct {
	mu     sync.Mutex
	values []string
	fail   func(call int, b penstock.Batch[string]) error
	calls  int
}

func (r *recorder) handle(_ context.Context, b penstock.Batch[string]) error {
	r.mu.Lock()
	r.calls++
	n, fail := r.calls, r.fail
	r.mu.Unlock()
	if fail != nil {
		if err := fail(n, b); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values = append(r.values, b.Values()...)
	return nil
}

func (r *recorder) got() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.values, " ")
}

func publish(t testing.TB, s *Stream[string], values ...string) {
	t.Helper()
	for _, v := range values {
		if err := s.Publish(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
}

func subscribe(t testing.TB, s *Stream[string], name string, h penstock.Handler[string], o ...SubscribeOption) *Subscription {
	t.Helper()
	sub, err := s.Subscribe(t.Context(), name, h, o...)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func TestPublishAndSubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		a, b := Of[string](p, "orders", "a"), Of[string](p, "orders", "b")
		var ra, rb recorder
		subscribe(t, a, "billing", ra.handle)
		subscribe(t, b, "billing", rb.handle)
		publish(t, a, "a1")
		stop := running(p)
		publish(t, b, "b1")
		synctest.Wait() // no poll has passed: the receiver says when data comes
		publish(t, a, "a2", "a3")
		synctest.Wait()
		time.Sleep(time.Second)
		want(t, "a", ra.got(), "a1 a2 a3")
		want(t, "b", rb.got(), "b1")
		if err := stop(); err != nil {
			t.Error(err)
		}
		lag := topic.Queue().Stats().Groups[0].Lag
		want(t, "lag after the drain", lag, 0)
	})
}

// Latency is not bounded below by the poll period.
func TestDeliveryDoesNotWaitForThePoll_OR60(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) { c.Poll = time.Hour; c.Rand = func(int64) int64 { return 0 } })
		defer p.Close()
		s := Of[string](p, "orders", "a")
		var r recorder
		subscribe(t, s, "x", r.handle)
		stop := running(p)
		synctest.Wait()
		start := time.Now()
		for i := range 100 {
			publish(t, s, fmt.Sprint(i))
			synctest.Wait()
		}
		want(t, "delivered", len(r.values), 100)
		want(t, "time passed", time.Since(start), 0)
		// The checkpoint follows as promptly, so a bounded topic goes on.
		want(t, "lag", topic.Queue().Stats().Groups[0].Lag, 0)
		stop()
	})
}

func TestBoundedTopicGetsItsCapacityBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2, Capacity: 3})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		s := Of[string](p, "orders", "a")
		var r recorder
		subscribe(t, s, "x", r.handle)
		stop := running(p)
		for i := range 200 {
			publish(t, s, fmt.Sprint(i))
		}
		synctest.Wait()
		want(t, "delivered", len(r.values), 200)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestBatchTellsWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		s := Of[string](p, "orders", "7")
		var lines []string
		first := true
		subscribe(t, s, "x", func(_ context.Context, b penstock.Batch[string]) error {
			for i, v := range b.All() {
				lines = append(lines, fmt.Sprintf("%s/%s/%d %s %s %s#%d id=%s h=%s,%s t=%v", b.Topic(), b.Stream(), b.Partition(),
					b.Token(i), v, b.Meta(i).Key, b.Attempt(i), b.ID(i), b.Meta(i).Header.Get("own"), b.Meta(i).Header.Get("all"), !b.Time(i).IsZero()))
			}
			if first {
				first = false
				b.Fail(1, errBoom)
			}
			return nil
		})
		stop := running(p)
		err := s.PublishEvents(t.Context(), penstock.Header{{Name: "all", Value: "A"}},
			penstock.Event[string]{Value: "one", Meta: penstock.Meta{ID: "i1", Key: "k", Header: penstock.Header{{Name: "own", Value: "O"}}}},
			penstock.Event[string]{Value: "two"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		stop()
		q := s.Queue().Number
		want(t, "seen", strings.Join(lines, "\n"), fmt.Sprintf(
			"shop/orders/7/%d t1:0:0:0 one k#1 id=i1 h=O,A t=true\n"+
				"shop/orders/7/%d t1:0:0:1 two #1 id= h=,A t=true\n"+
				"shop/orders/7/%d t1:0:0:1 two #2 id= h=,A t=true", q, q, q))
	})
}

// A provider that is killed, not drained, and opened again over the same
// topic: nothing is lost, what was under way comes again.
func TestKilledProviderLosesNothing_OR153(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		keys := []string{"a", "b", "c", "d", "e"}
		seen := map[string]map[string][]string{} // by subscription and stream
		var mu sync.Mutex
		record := func(name string, block func(v string) bool) penstock.Handler[string] {
			return func(ctx context.Context, b penstock.Batch[string]) error {
				for _, v := range b.Values() {
					if block != nil && block(v) {
						<-ctx.Done() // until the drain is cut
						return ctx.Err()
					}
				}
				mu.Lock()
				defer mu.Unlock()
				if seen[name] == nil {
					seen[name] = map[string][]string{}
				}
				seen[name][b.Stream().Key] = append(seen[name][b.Stream().Key], b.Values()...)
				return nil
			}
		}
		published := map[string][]string{}
		for life := range 4 {
			p := openProvider(t, topic, func(c *Config) { c.Drain = time.Nanosecond; c.Poll = 10 * time.Millisecond })
			for _, k := range keys {
				s := Of[string](p, "orders", k)
				subscribe(t, s, "fast", record("fast", nil))
				subscribe(t, s, "slow", record("slow", func(v string) bool {
					return life < 3 && strings.HasSuffix(v, fmt.Sprintf("%d-15", life))
				}))
			}
			stop := running(p)
			for i := range 20 {
				for _, k := range keys {
					v := fmt.Sprintf("%s%d-%d", k, life, i)
					publish(t, Of[string](p, "orders", k), v)
					published[k] = append(published[k], v)
				}
			}
			time.Sleep(time.Second)
			err := stop()
			var d *penstock.DrainError
			if life < 3 && (!errors.As(err, &d) || d.Left != len(keys)) {
				t.Errorf("life %d ended with %v, want %d events left", life, err, len(keys))
			}
			if life == 3 && err != nil {
				t.Error(err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, name := range []string{"fast", "slow"} {
			for _, k := range keys {
				var first []string // deliveries without repetitions keep the order
				for _, v := range seen[name][k] {
					if !slices.Contains(first, v) {
						first = append(first, v)
					}
				}
				if !slices.Equal(first, published[k]) {
					t.Errorf("%s of stream %s got %v", name, k, seen[name][k])
				}
			}
		}
		want(t, "lag", topic.Queue().Stats().Groups[0].Lag, 0)
	})
}

// A clean stop leaves no duplicate behind.
func TestDrainedProviderRepeatsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		var r recorder
		n := 0
		for range 5 {
			p := openProvider(t, topic)
			s := Of[string](p, "orders", "a")
			subscribe(t, s, "x", r.handle)
			stop := running(p)
			for range 100 {
				publish(t, s, fmt.Sprint(n))
				n++
			}
			if err := stop(); err != nil { // at any moment
				t.Fatal(err)
			}
			p.Close()
		}
		p := openProvider(t, topic)
		subscribe(t, Of[string](p, "orders", "a"), "x", r.handle)
		stop := running(p)
		synctest.Wait()
		stop()
		p.Close()
		var expected []string
		for i := range n {
			expected = append(expected, fmt.Sprint(i))
		}
		want(t, "delivered", r.got(), strings.Join(expected, " "))
	})
}

func TestRunTwiceInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		s := Of[string](p, "orders", "a")
		var r recorder
		sub := subscribe(t, s, "x", r.handle)
		for i := range 3 {
			stop := running(p)
			synctest.Wait()
			if err := p.Run(t.Context()); !errors.Is(err, penstock.ErrExists) {
				t.Errorf("second Run: %v, want ErrExists", err)
			}
			if err := p.Close(); !errors.Is(err, penstock.ErrExists) {
				t.Errorf("Close while running: %v, want ErrExists", err)
			}
			publish(t, s, fmt.Sprint(i))
			synctest.Wait()
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
		want(t, "delivered", r.got(), "0 1 2")
		want(t, "running", p.Stats()[0].Running, false)
		if err := sub.Unsubscribe(t.Context()); err != nil {
			t.Error(err)
		}
		if err := sub.Unsubscribe(t.Context()); !errors.Is(err, penstock.ErrNotFound) {
			t.Errorf("second Unsubscribe: %v", err)
		}
		p.Close()
		p.Close()
		if err := p.Run(t.Context()); !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("Run after Close: %v", err)
		}
		if err := s.Publish(t.Context(), "x"); !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("Publish after Close: %v", err)
		}
	})
}

// Subscribing with a known name resumes: the handler is replaced, the position
// stays unless From moves it.
func TestSubscribeAgainResumes_ORC130(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		s := Of[string](p, "orders", "a")
		var old, fresh, holder, moved recorder
		gate := make(chan struct{})
		holder.fail = func(n int, _ penstock.Batch[string]) error {
			if n == 2 {
				<-gate // keeps b and later in the cache
			}
			return nil
		}
		subscribe(t, s, "holder", holder.handle)
		subscribe(t, s, "x", old.handle)
		stop := running(p)
		publish(t, s, "a", "b", "c")
		synctest.Wait()
		subscribe(t, s, "x", fresh.handle)
		synctest.Wait()
		publish(t, s, "d")
		synctest.Wait()
		want(t, "old handler", old.got(), "a b c")
		want(t, "new handler", fresh.got(), "d")
		subscribe(t, s, "x", moved.handle, From(At(penstock.Token{Lo: 2})))
		synctest.Wait()
		want(t, "moved back", moved.got(), "c d")
		subscribe(t, s, "x", moved.handle, From(Earliest))
		synctest.Wait()
		want(t, "moved to the earliest", moved.got(), "c d b c d")
		subscribe(t, s, "late", fresh.handle, From(Latest))
		subscribe(t, s, "after", old.handle, From(After(penstock.Token{Lo: 2})))
		synctest.Wait()
		publish(t, s, "e")
		synctest.Wait()
		want(t, "late", fresh.got(), "d e")
		want(t, "after", old.got(), "a b c d e")
		close(gate)
		stop()
		p.Close()
	})
}

func TestLostPositionFaultsByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		s := Of[string](p, "orders", "a")
		var r, lost recorder
		subscribe(t, s, "x", r.handle)
		stop := running(p)
		publish(t, s, "a", "b", "c")
		time.Sleep(time.Second) // the checkpoint passes them
		subscribe(t, s, "lost", lost.handle, From(At(penstock.Token{Lo: 1})))
		time.Sleep(time.Second)
		publish(t, s, "d")
		time.Sleep(time.Second)
		want(t, "delivered", lost.got(), "")
		if _, err := s.Subscribe(t.Context(), "lost", lost.handle); !errors.Is(err, ErrFaulted) {
			t.Errorf("subscribe again: %v, want ErrFaulted", err)
		}
		if err := s.Unsubscribe(t.Context(), "lost"); err != nil {
			t.Error(err)
		}
		subscribe(t, s, "lost", lost.handle)
		publish(t, s, "e")
		time.Sleep(time.Second)
		want(t, "delivered after a fresh start", lost.got(), "e")
		stop()
		p.Close()
	})
}

func TestUndecodableEventIsADeadLetter_OR103(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		var dead []penstock.Envelope
		p := openProvider(t, topic, func(c *Config) {
			c.MaxDeliveryTime = time.Nanosecond
			c.DeadLetter = func(_ context.Context, events ...penstock.Envelope) error {
				dead = append(dead, events...)
				return nil
			}
		})
		raw := OfCodec(p, "n", "k", penstock.Raw())
		typed := Of[string](p, "n", "k")
		var r recorder
		subscribe(t, typed, "x", r.handle)
		stop := running(p)
		if err := raw.Publish(t.Context(), []byte(`"good"`), []byte("{not json"), []byte(`"fine"`)); err != nil {
			t.Fatal(err)
		}
		publish(t, typed, "next")
		time.Sleep(time.Second)
		stop()
		want(t, "delivered", r.got(), "good fine next")
		want(t, "dead letters", len(dead), 1)
		want(t, "payload", string(dead[0].Value), "{not json")
		if dead[0].Origin.Cause == "" || dead[0].Origin.Group != "x" {
			t.Errorf("origin %+v", dead[0].Origin)
		}
		p.Close()
	})
}

func TestFailuresKeepTheirPlaceInTheBatch(t *testing.T) {
	d := deliverTo(penstock.JSON[int](), func(_ context.Context, b penstock.Batch[int]) error {
		for i, v := range b.All() {
			if v%2 == 0 {
				b.Fail(i, fmt.Errorf("even %d", v))
			}
		}
		return nil
	})
	var del Delivery
	from := boxOf("s", 1, "1", "bad", "2", "3", "worse", "4")
	for i := range from.Events.Len() {
		del.Items = append(del.Items, Item{From: &from, Index: i})
	}
	a, err := d(t.Context(), "p", &del)
	if err != nil {
		t.Fatal(err)
	}
	var index []int
	for _, f := range a.Failed {
		index = append(index, f.Index)
	}
	want(t, "failed", fmt.Sprint(index), "[1 2 4 5]")
}

// Case ORC-140 and its relatives: refused at once, nothing registered.
func TestWhatTheAdapterCannotDoIsRefused_ORC140(t *testing.T) {
	p := openProvider(t, &fixedFactory{adapter: fixedAdapter{direction: ReadOnly}})
	s := Of[string](p, "n", "k")
	nop := func(context.Context, penstock.Batch[string]) error { return nil }
	if _, err := s.Subscribe(t.Context(), "x", nop, From(At(penstock.Token{}))); !errors.Is(err, penstock.ErrUnsupported) {
		t.Errorf("token on an adapter that cannot rewind: %v", err)
	}
	subs, _ := p.config.Registry.Subscriptions(t.Context(), p.qualified(s.ID()))
	want(t, "registered", len(subs), 0)
	if err := s.Publish(t.Context(), "v"); !errors.Is(err, penstock.ErrUnsupported) || !strings.Contains(err.Error(), "shop") {
		t.Errorf("publish to a read-only provider: %v", err)
	}
	w := openProvider(t, &fixedFactory{adapter: fixedAdapter{direction: WriteOnly}})
	if _, err := Of[string](w, "n", "k").Subscribe(t.Context(), "x", nop); !errors.Is(err, penstock.ErrUnsupported) {
		t.Errorf("subscribe to a write-only provider: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Run(ctx); err != nil {
		t.Errorf("run of a write-only provider: %v", err)
	}
}

func TestArgumentsAreChecked(t *testing.T) {
	p := openProvider(t, &fixedFactory{})
	nop := func(context.Context, penstock.Batch[string]) error { return nil }
	for name, err := range map[string]error{
		"blank name":      second(Of[string](p, "n", "k").Subscribe(t.Context(), " ", nop)),
		"nil handler":     second(Of[string](p, "n", "k").Subscribe(t.Context(), "x", nil)),
		"blank namespace": second(Of[string](p, "", "k").Subscribe(t.Context(), "x", nop)),
		"publish there":   Of[string](p, "", "k").Publish(t.Context(), "v"),
	} {
		if !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if err := Of[string](p, "n", "k").Publish(t.Context()); err != nil {
		t.Errorf("publishing nothing: %v", err)
	}
	if err := Of[string](p, "n", "k").Publish(t.Context(), make([]string, MaxContainerEvents+1)...); !errors.Is(err, penstock.ErrTooLarge) {
		t.Errorf("publishing too many: %v", err)
	}
}

func second(_ *Subscription, err error) error { return err }

func TestConfigNamesTheBadField(t *testing.T) {
	good := func() Config { return Config{Name: "p", Factory: &fixedFactory{}} }
	for field, spoil := range map[string]func(*Config){
		"Name":            func(c *Config) { c.Name = " " },
		"Factory":         func(c *Config) { c.Factory = nil },
		"Queues":          func(c *Config) { c.Queues = -1 },
		"GroupSize":       func(c *Config) { c.GroupSize = -1 },
		"ReadAttempts":    func(c *Config) { c.ReadAttempts = -1 },
		"Poll":            func(c *Config) { c.Poll = -1 },
		"InitTimeout":     func(c *Config) { c.InitTimeout = -1 },
		"ShutdownTimeout": func(c *Config) { c.ShutdownTimeout = -1 },
		"Inactivity":      func(c *Config) { c.Inactivity = -1 },
		"Drain":           func(c *Config) { c.Drain = -1 },
		"MaxDeliveryTime": func(c *Config) { c.MaxDeliveryTime = -2 },
		"DeliveryBackoff": func(c *Config) { c.DeliveryBackoff = Exponential{Min: 2, Max: 1} },
		"ReadBackoff":     func(c *Config) { c.ReadBackoff = &Exponential{Min: 2, Max: 1} },
		"OnMiss":          func(c *Config) { c.OnMiss = MissFault + 1 },
		"Subscriptions":   func(c *Config) { c.Subscriptions = ImplicitOnly + 1 },
		"FilterErrors":    func(c *Config) { c.FilterErrors = DropUnfiltered + 1 },
		"Unattached":      func(c *Config) { c.Unattached = RemoveUnattached + 1 },
		"Startup":         func(c *Config) { c.Startup = AgentsStopped + 1 },
	} {
		c := good()
		spoil(&c)
		_, err := Open(c)
		var f *penstock.FieldError
		if !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	c := good()
	c.OnMiss = 9
	if _, err := Open(c); err == nil || !strings.Contains(err.Error(), "9 is none of MissStay, MissEarliest, MissLatest, MissFault") {
		t.Errorf("%v, which does not say what there is", err)
	}
	c = good()
	c.MaxDeliveryTime = NoLimit
	if _, err := Open(c); err != nil {
		t.Error(err)
	}
}

func TestOpenTopicChecks(t *testing.T) {
	for field, c := range map[string]queue.Config[Container]{
		"Key":        {Name: "t", Key: func(Container) string { return "" }},
		"Codec":      {Name: "t", Codec: ContainerCodec()},
		"Partitions": {Name: "t", Partitions: -1},
	} {
		_, err := OpenTopic(c)
		var f *penstock.FieldError
		if !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	topic := memoryTopic(t, queue.Config[Container]{})
	defer topic.Close()
	want(t, "partitions by default", topic.Queue().Partitions(), 8)
	_, err := Open(Config{Name: "p", Factory: topic, Queues: 3, Logger: quiet})
	var f *penstock.FieldError
	if !errors.As(err, &f) || f.Field != "Queues" {
		t.Errorf("wrong number of queues: %v", err)
	}
}

// An agent that ends by itself ends Run, with its error and everything shut
// down.
func TestRunReturnsTheFailureOfAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, brokenCache{topic})
		s := Of[string](p, "n", "k")
		var r recorder
		subscribe(t, s, "x", r.handle)
		publish(t, s, "v")
		err := p.Run(context.Background())
		var pe *penstock.PanicError
		if !errors.As(err, &pe) {
			t.Errorf("Run returned %v, want the panic", err)
		}
		p.Close()
	})
}

func TestRunReturnsTheFailureToStart(t *testing.T) {
	f := &fixedFactory{cacheErr: errBoom}
	p := openProvider(t, f)
	if err := p.Run(t.Context()); !errors.Is(err, errBoom) {
		t.Errorf("Run: %v", err)
	}
	f.cacheErr = nil
	f.adapter.receiverErr = errBoom
	if err := openProvider(t, f).Run(t.Context()); !errors.Is(err, errBoom) {
		t.Errorf("Run: %v", err)
	}
}

type brokenCache struct{ *Topic }

func (brokenCache) NewCache(QueueID) (Cache, error) {
	c, err := NewSimpleCache(10)
	return panickyCache{c}, err
}

type fixedFactory struct {
	DefaultParts
	adapter  fixedAdapter
	cacheErr error
}

func (f *fixedFactory) NewAdapter(context.Context, Environment) (Adapter, error) {
	return &f.adapter, nil
}

func (f *fixedFactory) NewCache(q QueueID) (Cache, error) {
	if f.cacheErr != nil {
		return nil, f.cacheErr
	}
	return f.DefaultParts.NewCache(q)
}

type fixedAdapter struct {
	direction   Direction
	receiverErr error
}

func (a *fixedAdapter) Rewindable() bool                         { return false }
func (a *fixedAdapter) Direction() Direction                     { return a.direction }
func (a *fixedAdapter) Enqueue(context.Context, Container) error { return nil }
func (a *fixedAdapter) NewReceiver(QueueID) (Receiver, error)    { return nil, a.receiverErr }
func (a *fixedAdapter) Close() error                             { return nil }

// A run that begins at the checkpoint repeats nothing for a consumer that
// lives on and knows what it has.
func TestSecondRunSparesRepetitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) { c.Drain = time.Nanosecond })
		s := Of[string](p, "orders", "a")
		var fast recorder
		subscribe(t, s, "fast", fast.handle)
		subscribe(t, s, "slow", func(ctx context.Context, _ penstock.Batch[string]) error {
			<-ctx.Done() // holds the checkpoint
			return ctx.Err()
		})
		for i := range 3 {
			stop := running(p)
			publish(t, s, fmt.Sprint(i))
			time.Sleep(time.Second)
			var d *penstock.DrainError
			if err := stop(); !errors.As(err, &d) {
				t.Errorf("stop: %v", err)
			}
		}
		want(t, "fast", fast.got(), "0 1 2")
		p.Close()
	})
}

// The same over a topic on disk that is closed and opened again in each life.
func TestKilledProviderLosesNothingOnDisk_OR153(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	seen := map[string]int{}
	total := 0
	for life := range 3 {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2, Dir: dir, Durability: penstock.Written})
		p := openProvider(t, topic, func(c *Config) { c.Drain = time.Nanosecond })
		all, stuck := make(chan struct{}), make(chan struct{})
		total += 100
		expect := total
		for _, key := range []string{"a", "b", "c"} {
			subscribe(t, Of[string](p, "orders", key), "x", func(ctx context.Context, b penstock.Batch[string]) error {
				if v := b.Value(0); life < 2 && v == fmt.Sprintf("%d-90", life) {
					close(stuck)
					<-ctx.Done()
					return ctx.Err()
				}
				mu.Lock()
				defer mu.Unlock()
				for _, v := range b.Values() {
					if seen[v]++; seen[v] == 1 && len(seen) == expect {
						close(all)
					}
				}
				return nil
			})
		}
		stop := running(p)
		for i := range 100 {
			publish(t, Of[string](p, "orders", string("abc"[i%3])), fmt.Sprintf("%d-%d", life, i))
		}
		reached := stuck
		if life == 2 {
			reached = all
		}
		select {
		case <-reached:
		case <-time.After(10 * time.Second):
			t.Fatalf("life %d: %d of %d events seen", life, len(seen), expect)
		}
		err := stop()
		var d *penstock.DrainError
		if life < 2 && !errors.As(err, &d) {
			t.Errorf("life %d ended with %v", life, err)
		}
		if err := errors.Join(p.Close(), topic.Close()); err != nil {
			t.Error(err)
		}
	}
	want(t, "events seen", len(seen), total)
}

// On disk a commit may be a flush, so the checkpoint is held back, but neither
// for long nor so that producers wait for it.
func TestCheckpointOfADiskTopicIsHeldBack(t *testing.T) {
	topic := memoryTopic(t, queue.Config[Container]{Partitions: 1, Dir: t.TempDir(), Durability: penstock.Written, Capacity: 40})
	defer topic.Close()
	p := openProvider(t, topic, func(c *Config) { c.Queues = 1 })
	defer p.Close()
	rec, err := p.adapter.NewReceiver(p.mapper.Queues()[0])
	if err != nil {
		t.Fatal(err)
	}
	r := rec.(*topicReceiver)
	if err := r.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		publish(t, Of[string](p, "n", "k"), fmt.Sprint(i))
	}
	for read := 0; read < 30; {
		got, err := r.Read(t.Context(), 30)
		if err != nil {
			t.Fatal(err)
		}
		read += len(got)
	}
	start := time.Now()
	for _, step := range []struct {
		pos   uint64
		after time.Duration
		want  penstock.Offset
	}{
		{0, 0, 1}, // the first at once
		{1, 50 * time.Millisecond, 1},
		{1, 99 * time.Millisecond, 1},
		{1, 100 * time.Millisecond, 2},
		{10, 101 * time.Millisecond, 2},
		{11, 102 * time.Millisecond, 12}, // a quarter of the capacity is waiting
		{12, 103 * time.Millisecond, 12},
	} {
		if err := r.Update(t.Context(), penstock.Token{Lo: step.pos}, start.Add(step.after)); err != nil {
			t.Fatal(err)
		}
		want(t, fmt.Sprintf("committed after %d at %v", step.pos, step.after), r.reader.Committed(), step.want)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "lag after shutdown", topic.Queue().Stats().Groups[0].Lag, 30-13)
}

// Bare events cost no metadata; each still has its container's time.
func TestBareEventsHaveTheirContainersTime(t *testing.T) {
	one, two := boxOf("s", 1, `"1"`), boxOf("s", 2, `"a"`, "bad", `"b"`)
	one.Time, two.Time = time.Unix(10, 0).UTC(), time.Unix(20, 0).UTC()
	d := &delivery{containers: []Container{one, two}}
	d.unpack()
	var seen []string
	a, err := deliverTo(penstock.JSON[string](), func(_ context.Context, b penstock.Batch[string]) error {
		for i, v := range b.All() {
			seen = append(seen, fmt.Sprintf("%s@%d id=%q", v, b.Time(i).Unix(), b.ID(i)))
		}
		return nil
	})(t.Context(), "p", &Delivery{Items: d.items})
	if err != nil || len(a.Failed) != 1 || a.Failed[0].Index != 2 {
		t.Errorf("%+v, %v; want item 2 failed", a, err)
	}
	want(t, "seen", strings.Join(seen, " "), `1@10 id="" a@20 id="" b@20 id=""`)
	about := (&room{index: []int{0, 1}}).describe("p", &Delivery{Items: d.items})
	want(t, "metadata", about.Metas == nil, true)
}
