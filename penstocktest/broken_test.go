package penstocktest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/penstocktest"
	"github.com/penstock/penstock/stream"
)

// brokenChild makes a process of this test binary run the suites over broken
// implementations.
const brokenChild = "PENSTOCK_BROKEN_CHILD"

// broken is an implementation with one fault, and the subtest of its suite that
// must turn red by it.
type broken struct {
	name, subtest string
	run           func(t *testing.T)
}

// A suite that passes over everything is worse than none: each of these faults
// turns the subtest red that is named beside it.
func TestSuitesNoticeBrokenImplementations(t *testing.T) {
	all := map[string][]broken{
		"Adapter": brokenAdapters(), "Registry": brokenRegistries(), "Cache": brokenCaches(),
		"CheckpointStore": brokenStores(), "AttemptStore": brokenAttempts(), "Checkpointer": brokenCheckpointers(), "StreamConsumer": brokenConsumers(),
	}
	if os.Getenv(brokenChild) != "" {
		for suite, list := range all {
			for _, b := range list {
				t.Run(suite+"/"+b.name, b.run)
			}
		}
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	places := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for suite, list := range all {
		for _, b := range list {
			wg.Go(func() { // ends with its process, which ctx ends
				places <- struct{}{}
				defer func() { <-places }()
				noticed(ctx, t, suite, b)
			})
		}
	}
	wg.Wait()
}

// noticed runs one subtest over one broken implementation in a process of its
// own: a test that fails fails its parents.
func noticed(ctx context.Context, t *testing.T, suite string, b broken) {
	name := "TestSuitesNoticeBrokenImplementations/" + suite + "/" + b.name + "/" + b.subtest
	pattern := "^" + strings.ReplaceAll(name, "/", "$/^") + "$"
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run="+pattern, "-test.v")
	cmd.Env = append(os.Environ(), brokenChild+"=1")
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || !bytes.Contains(out, []byte("--- FAIL: "+name+" ")) {
		t.Errorf("suite %s did not notice by %s: %s (%v)\n%s", suite, b.subtest, b.name, err, out)
	}
}

// faultyFactory is an engine behind a faulty adapter.
type faultyFactory struct {
	stream.Factory
	adapter func(a stream.Adapter) stream.Adapter
}

func (f faultyFactory) NewAdapter(ctx context.Context, e stream.Environment) (stream.Adapter, error) {
	a, err := f.Factory.NewAdapter(ctx, e)
	return f.adapter(a), err
}

// faultyAdapter keeps to what the test does not change.
type faultyAdapter struct {
	stream.Adapter
	enqueue  func(ctx context.Context, c stream.Container) error
	receiver func(r stream.Receiver) stream.Receiver
	queue    func(q stream.QueueID) stream.QueueID
	anyToken bool
}

func (a *faultyAdapter) Enqueue(ctx context.Context, c stream.Container) error {
	if a.enqueue != nil {
		return a.enqueue(ctx, c)
	}
	return a.Adapter.Enqueue(ctx, c)
}

func (a *faultyAdapter) NewReceiver(q stream.QueueID) (stream.Receiver, error) {
	if a.queue != nil {
		q = a.queue(q)
	}
	r, err := a.Adapter.NewReceiver(q)
	if a.receiver != nil && err == nil {
		r = a.receiver(r)
	}
	return r, err
}

func (a *faultyAdapter) CheckToken(q stream.QueueID, t penstock.Token) error {
	if c, ok := a.Adapter.(stream.TokenChecker); ok && !a.anyToken {
		return c.CheckToken(q, t)
	}
	return nil
}

// faultyReceiver is a receiver whose Read, Delivered or Wait is faulty. It is
// of a queue with receipts and without Wait unless embedded further.
type faultyReceiver struct {
	stream.Receiver
	read      func(ctx context.Context, limit int) ([]stream.Container, error)
	delivered func(ctx context.Context, done []stream.Container) error
}

func (r *faultyReceiver) Read(ctx context.Context, limit int) ([]stream.Container, error) {
	if r.read != nil {
		return r.read(ctx, limit)
	}
	return r.Receiver.Read(ctx, limit)
}

func (r *faultyReceiver) Delivered(ctx context.Context, done []stream.Container) error {
	if r.delivered != nil {
		return r.delivered(ctx, done)
	}
	return r.Receiver.Delivered(ctx, done)
}

// faultyLogReceiver adds what a queue that is read by position has.
type faultyLogReceiver struct {
	faultyReceiver
	marks stream.Checkpointer
}

func (r *faultyLogReceiver) Checkpointer() stream.Checkpointer { return r.marks }

type nilWaiter struct{ stream.Receiver }

func (nilWaiter) Wait(context.Context) error { return nil }

func onReceipts(change func(a *faultyAdapter)) func(t *testing.T) {
	return onEngine(func() *penstocktest.Engine { return penstocktest.NewReceiptEngine(time.Minute) }, change)
}

func onLog(change func(a *faultyAdapter)) func(t *testing.T) {
	return onEngine(penstocktest.NewLogEngine, change)
}

func onEngine(open func() *penstocktest.Engine, change func(a *faultyAdapter)) func(t *testing.T) {
	return func(t *testing.T) {
		penstocktest.Adapter(t, func(*testing.T, int) stream.Factory {
			return faultyFactory{open(), func(a stream.Adapter) stream.Adapter {
				f := &faultyAdapter{Adapter: a}
				change(f)
				return f
			}}
		})
	}
}

func reads(change func(r stream.Receiver) *faultyReceiver) func(a *faultyAdapter) {
	return func(a *faultyAdapter) {
		a.receiver = func(r stream.Receiver) stream.Receiver { return change(r) }
	}
}

func brokenAdapters() []broken {
	return []broken{
		{"header-is-lost", "ContainersComeBackAsTheyWere", onLog(func(a *faultyAdapter) {
			a.enqueue = func(ctx context.Context, c stream.Container) error {
				c.Header = nil
				return a.Adapter.Enqueue(ctx, c)
			}
		})},
		{"one-queue-for-all", "StreamsComeFromTheirQueue", onReceipts(func(a *faultyAdapter) {
			a.queue = func(q stream.QueueID) stream.QueueID { q.Number = 0; return q }
		})},
		{"limit-is-ignored", "TokensRiseAndLimitsHold", onReceipts(reads(func(r stream.Receiver) *faultyReceiver {
			return &faultyReceiver{Receiver: r, read: func(ctx context.Context, _ int) ([]stream.Container, error) { return r.Read(ctx, -1) }}
		}))},
		{"tokens-do-not-rise", "TokensRiseAndLimitsHold", onReceipts(reads(func(r stream.Receiver) *faultyReceiver {
			return &faultyReceiver{Receiver: r, read: func(ctx context.Context, limit int) ([]stream.Container, error) {
				got, err := r.Read(ctx, limit)
				for i := range got {
					got[i].Token.Lo = 1
				}
				return got, err
			}}
		}))},
		{"read-acknowledges", "WhatWasNotAcknowledgedComesAgain", onReceipts(reads(func(r stream.Receiver) *faultyReceiver {
			return &faultyReceiver{Receiver: r, read: func(ctx context.Context, limit int) ([]stream.Container, error) {
				got, err := r.Read(ctx, limit)
				return got, errors.Join(err, r.Delivered(ctx, got))
			}}
		}))},
		{"passed-is-acknowledged", "WhatWasPassedIsNotAcknowledged", onReceipts(reads(func(r stream.Receiver) *faultyReceiver {
			var held []stream.Container
			return &faultyReceiver{Receiver: r,
				read: func(ctx context.Context, limit int) ([]stream.Container, error) {
					got, err := r.Read(ctx, limit)
					held = append(held, got...)
					return got, err
				},
				delivered: func(ctx context.Context, done []stream.Container) error {
					n := 0
					for n < len(held) && held[n].Token.Compare(done[len(done)-1].Token) <= 0 {
						n++
					}
					return r.Delivered(ctx, held[:n])
				},
			}
		}))},
		{"acknowledgements-are-ignored", "CheckpointIsWhereTheNextReceiverBegins", onReceipts(reads(func(r stream.Receiver) *faultyReceiver {
			return &faultyReceiver{Receiver: r, delivered: func(context.Context, []stream.Container) error { return nil }}
		}))},
		{"checkpoint-is-forgotten", "CheckpointIsWhereTheNextReceiverBegins", onLog(func(a *faultyAdapter) {
			a.receiver = func(r stream.Receiver) stream.Receiver {
				return &faultyLogReceiver{faultyReceiver{Receiver: r}, idleCheckpointer{}}
			}
		})},
		{"any-token-is-its-own", "TokensOfOthersAreRefused", onLog(func(a *faultyAdapter) { a.anyToken = true })},
		{"wait-returns-at-once", "WaitEndsWhenDataComes", onReceipts(func(a *faultyAdapter) {
			a.receiver = func(r stream.Receiver) stream.Receiver { return nilWaiter{r} }
		})},
		{"producers-overtake-each-other", "ConcurrentProducersLoseNothing", onReceipts(func(a *faultyAdapter) {
			var mu sync.Mutex
			var held *stream.Container
			a.enqueue = func(ctx context.Context, c stream.Container) error {
				mu.Lock()
				defer mu.Unlock()
				if c.Events.Len() == 1 && strings.HasSuffix(string(c.Events.Value(0)), ".010") {
					held = &c // behind the next one
					return nil
				}
				err := a.Adapter.Enqueue(ctx, c)
				if held != nil {
					err = errors.Join(err, a.Adapter.Enqueue(ctx, *held))
					held = nil
				}
				return err
			}
		})},
		{"error-with-containers", "EndedContextIsNoContainer", onReceipts(reads(func(r stream.Receiver) *faultyReceiver {
			return &faultyReceiver{Receiver: r, read: func(ctx context.Context, limit int) ([]stream.Container, error) {
				got, err := r.Read(context.WithoutCancel(ctx), limit)
				return got, errors.Join(err, ctx.Err())
			}}
		}))},
	}
}

type idleCheckpointer struct{}

func (idleCheckpointer) Load(context.Context) (penstock.Token, bool, error) {
	return penstock.Token{}, false, nil
}
func (idleCheckpointer) Update(context.Context, penstock.Token, time.Time) error { return nil }
func (idleCheckpointer) Flush(context.Context) error                             { return nil }

// faultyRegistry is a registry in memory with one faulty method.
type faultyRegistry struct {
	*stream.MemoryRegistry
	subscribe   func(ctx context.Context, r stream.SubscriptionRecord) (stream.SubscriptionRecord, error)
	unsubscribe func(ctx context.Context, r stream.SubscriptionRecord) error
	deaf        bool
}

func (f *faultyRegistry) Subscribe(ctx context.Context, r stream.SubscriptionRecord) (stream.SubscriptionRecord, error) {
	if f.subscribe != nil {
		return f.subscribe(ctx, r)
	}
	return f.MemoryRegistry.Subscribe(ctx, r)
}

func (f *faultyRegistry) Unsubscribe(ctx context.Context, r stream.SubscriptionRecord) error {
	if f.unsubscribe != nil {
		return f.unsubscribe(ctx, r)
	}
	return f.MemoryRegistry.Unsubscribe(ctx, r)
}

func (f *faultyRegistry) RegisterProducer(ctx context.Context, s stream.QualifiedStreamID, p stream.Producer) (stream.Roster, error) {
	r, err := f.MemoryRegistry.RegisterProducer(ctx, s, p)
	if f.deaf {
		err = errors.Join(err, f.MemoryRegistry.UnregisterProducer(ctx, s, p))
	}
	return r, err
}

func brokenRegistries() []broken {
	with := func(change func(f *faultyRegistry)) func(t *testing.T) {
		return func(t *testing.T) {
			penstocktest.Registry(t, func(*testing.T) stream.Registry {
				f := &faultyRegistry{MemoryRegistry: stream.NewMemoryRegistry()}
				change(f)
				return f
			})
		}
	}
	return []broken{
		{"producers-are-not-told", "ProducersLearnOfChanges", with(func(f *faultyRegistry) { f.deaf = true })},
		{"incarnation-is-always-new", "SubscribingAgainKeepsTheIncarnation", with(func(f *faultyRegistry) {
			f.subscribe = func(ctx context.Context, r stream.SubscriptionRecord) (stream.SubscriptionRecord, error) {
				rec, err := f.MemoryRegistry.Subscribe(ctx, r)
				rec.Incarnation = rec.Attached
				return rec, err
			}
		})},
		{"faulted-ones-may-subscribe", "FaultedIsRefusedUntilUnsubscribed", with(func(f *faultyRegistry) {
			f.subscribe = func(ctx context.Context, r stream.SubscriptionRecord) (stream.SubscriptionRecord, error) {
				rec, err := f.MemoryRegistry.Subscribe(ctx, r)
				if errors.Is(err, stream.ErrFaulted) {
					err = nil
				}
				return rec, err
			}
		})},
		{"incarnations-do-not-count", "IncarnationsAreToldApart", with(func(f *faultyRegistry) {
			f.unsubscribe = func(ctx context.Context, r stream.SubscriptionRecord) error {
				r.Incarnation = 0
				return f.MemoryRegistry.Unsubscribe(ctx, r)
			}
		})},
	}
}

// faultyCache is a simple cache with faulty methods.
type faultyCache struct {
	stream.Cache
	cursor func(s penstock.StreamID, at stream.Position) (stream.Cursor, error)
	add    func(batch []stream.Container) error
}

func (f *faultyCache) Cursor(s penstock.StreamID, at stream.Position) (stream.Cursor, error) {
	if f.cursor != nil {
		return f.cursor(s, at)
	}
	return f.Cache.Cursor(s, at)
}

func (f *faultyCache) Add(batch []stream.Container) error {
	if f.add != nil {
		return f.add(batch)
	}
	return f.Cache.Add(batch)
}

type neverFails struct{ stream.Cursor }

func (neverFails) Fail(penstock.Token) error { return nil }

func brokenCaches() []broken {
	with := func(change func(f *faultyCache)) func(t *testing.T) {
		return func(t *testing.T) {
			penstocktest.Cache(t, func(t *testing.T) stream.Cache {
				c, err := stream.NewSimpleCache(1000)
				if err != nil {
					t.Fatal(err)
				}
				f := &faultyCache{Cache: c}
				change(f)
				return f
			})
		}
	}
	return []broken{
		{"every-stream-is-the-first", "CursorsSeeTheirStreamInOrder", with(func(f *faultyCache) {
			f.cursor = func(_ penstock.StreamID, at stream.Position) (stream.Cursor, error) {
				return f.Cache.Cursor(penstock.StreamID{Namespace: "suite", Key: "a"}, at)
			}
		})},
		{"latest-is-the-newest-one", "PositionsMeanTheSame", with(func(f *faultyCache) {
			var newest penstock.Token
			f.add = func(batch []stream.Container) error {
				newest = batch[len(batch)-1].Token
				return f.Cache.Add(batch)
			}
			f.cursor = func(s penstock.StreamID, at stream.Position) (stream.Cursor, error) {
				if at.Kind == stream.PositionLatest {
					at = stream.Position{Kind: stream.PositionAt, Token: newest}
				}
				return f.Cache.Cursor(s, at)
			}
		})},
		{"cursors-do-not-hold", "PurgeSparesWhatIsNeeded", func(t *testing.T) {
			penstocktest.Cache(t, func(t *testing.T) stream.Cache {
				c, err := stream.NewLogCache(stream.LogCacheConfig{
					EvictUnderCursors: true,
					Evict:             func(stream.CacheMeta, stream.CacheMeta, time.Time) bool { return true },
				})
				if err != nil {
					t.Fatal(err)
				}
				return c
			})
		}},
		{"failed-is-delivered", "FailedIsNotReported", with(func(f *faultyCache) {
			f.cursor = func(s penstock.StreamID, at stream.Position) (stream.Cursor, error) {
				c, err := f.Cache.Cursor(s, at)
				return neverFails{c}, err
			}
		})},
		{"half-a-batch-is-added", "AddIsAllOrNothing", with(func(f *faultyCache) {
			f.add = func(batch []stream.Container) error {
				for i := range batch {
					if err := f.Cache.Add(batch[i : i+1]); err != nil {
						return err
					}
				}
				return nil
			}
		})},
		{"lost-position-is-the-earliest", "LostPositionIsAMiss", with(func(f *faultyCache) {
			f.cursor = func(s penstock.StreamID, at stream.Position) (stream.Cursor, error) {
				c, err := f.Cache.Cursor(s, at)
				if errors.Is(err, stream.ErrCacheMiss) {
					return f.Cache.Cursor(s, stream.Position{Kind: stream.PositionEarliest})
				}
				return c, err
			}
		})},
	}
}

// looseStore stores whatever rule lets it.
type looseStore struct {
	mu     sync.Mutex
	stored map[string]stream.Checkpoint
	key    func(provider string, q stream.QueueID) string
	rule   func(now, from, to stream.Checkpoint) bool
}

func (l *looseStore) LoadCheckpoint(_ context.Context, p string, q stream.QueueID) (stream.Checkpoint, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stored[l.key(p, q)], nil
}

func (l *looseStore) SwapCheckpoint(_ context.Context, p string, q stream.QueueID, from, to stream.Checkpoint) (stream.Checkpoint, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.key(p, q)
	if !l.rule(l.stored[k], from, to) {
		return l.stored[k], false, nil
	}
	l.stored[k] = to
	return to, true, nil
}

func brokenStores() []broken {
	apart := func(p string, q stream.QueueID) string { return p + "\x00" + q.String() }
	rises := func(now, to stream.Checkpoint) bool {
		return !now.Stored || to.Position.Compare(now.Position) > 0 || to.Epoch > now.Epoch && to.Position == now.Position
	}
	with := func(key func(string, stream.QueueID) string, rule func(now, from, to stream.Checkpoint) bool) func(t *testing.T) {
		return func(t *testing.T) {
			penstocktest.CheckpointStore(t, func(*testing.T) (stream.CheckpointStore, func() stream.CheckpointStore) {
				return &looseStore{stored: map[string]stream.Checkpoint{}, key: key, rule: rule}, nil
			})
		}
	}
	return []broken{
		{"expectation-does-not-count", "SwapsOnlyWhatItExpects", with(apart, func(now, _, to stream.Checkpoint) bool { return to.Epoch >= now.Epoch && rises(now, to) })},
		{"goes-back", "NeverGoesBack", with(apart, func(now, from, to stream.Checkpoint) bool { return now == from && to.Epoch >= now.Epoch })},
		{"epoch-does-not-count", "LowerEpochIsRefused", with(apart, func(now, from, to stream.Checkpoint) bool { return now == from && rises(now, to) })},
		{"queues-are-mixed-up", "QueuesAndProvidersAreApart", with(func(string, stream.QueueID) string { return "" },
			func(now, from, to stream.Checkpoint) bool {
				return now == from && to.Epoch >= now.Epoch && rises(now, to)
			})},
		{"restart-forgets", "OutlivesARestart", func(t *testing.T) {
			penstocktest.CheckpointStore(t, func(*testing.T) (stream.CheckpointStore, func() stream.CheckpointStore) {
				return stream.NewMemoryCheckpoints(), func() stream.CheckpointStore { return stream.NewMemoryCheckpoints() }
			})
		}},
	}
}

// attemptTable is a store in memory whose entries are named by key.
type attemptTable struct {
	mu     sync.Mutex
	stored map[string]stream.Attempt
	where  func(provider string, q stream.QueueID) string
	key    func(a stream.Attempt) string
	trim   func(a *stream.Attempt)
}

func newAttemptTable() *attemptTable {
	return &attemptTable{
		stored: map[string]stream.Attempt{},
		where:  func(p string, q stream.QueueID) string { return p + "\x00" + q.String() },
		key:    func(a stream.Attempt) string { return fmt.Sprint(a.Subscription, a.Incarnation, a.First) },
		trim:   func(*stream.Attempt) {},
	}
}

func (s *attemptTable) LoadAttempts(_ context.Context, p string, q stream.QueueID) (out []stream.Attempt, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, a := range s.stored {
		if strings.HasPrefix(key, s.where(p, q)+"\x01") {
			out = append(out, a)
		}
	}
	return out, nil
}

func (s *attemptTable) StoreAttempt(_ context.Context, p string, q stream.QueueID, a stream.Attempt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.where(p, q) + "\x01" + s.key(a)
	if a.N == 0 {
		delete(s.stored, key)
		return nil
	}
	s.trim(&a)
	s.stored[key] = a
	return nil
}

func brokenAttempts() []broken {
	with := func(change func(s *attemptTable)) func(t *testing.T) {
		return func(t *testing.T) {
			penstocktest.AttemptStore(t, func(*testing.T) (stream.AttemptStore, func() stream.AttemptStore) {
				s := newAttemptTable()
				change(s)
				return s, func() stream.AttemptStore { return newAttemptTable() }
			})
		}
	}
	keyed := func(key func(a stream.Attempt) string) func(t *testing.T) {
		return with(func(s *attemptTable) { s.key = key })
	}
	n := 0
	return []broken{
		{"one-entry-per-subscription", "EntriesOfOneSubscriptionAreApart", keyed(func(a stream.Attempt) string { return fmt.Sprint(a.Subscription, a.Incarnation) })},
		{"incarnations-are-mixed-up", "EntriesOfOneSubscriptionAreApart", keyed(func(a stream.Attempt) string { return fmt.Sprint(a.Subscription, a.First) })},
		{"index-does-not-count", "OverlappingEntriesStay", keyed(func(a stream.Attempt) string { return fmt.Sprint(a.Subscription, a.Incarnation, a.First.Lo) })},
		{"end-is-in-the-name", "EntryTakesThePlaceOfItsName", keyed(func(a stream.Attempt) string { return fmt.Sprint(a.Subscription, a.Incarnation, a.First, a.End) })},
		{"appends", "ZeroRemovesOneEntry", keyed(func(stream.Attempt) string { n++; return fmt.Sprint(n) })},
		{"answer-is-not-stored", "ValuesComeBackAsTheyWere", with(func(s *attemptTable) { s.trim = func(a *stream.Attempt) { a.Open = false } })},
		{"number-is-cut", "ValuesComeBackAsTheyWere", with(func(s *attemptTable) { s.trim = func(a *stream.Attempt) { a.Incarnation &= 1<<63 - 1 } })},
		{"queues-are-mixed-up", "QueuesAndProvidersAreApart", with(func(s *attemptTable) { s.where = func(string, stream.QueueID) string { return "" } })},
		{"restart-forgets", "OutlivesARestart", with(func(*attemptTable) {})},
	}
}

// The suite passes for a store that keeps it.
func TestAttemptsInMemory(t *testing.T) {
	penstocktest.AttemptStore(t, func(*testing.T) (stream.AttemptStore, func() stream.AttemptStore) { return newAttemptTable(), nil })
}

// lastWins stores the position given last, and nothing when it is lazy.
type lastWins struct {
	stored *penstock.Token
	next   penstock.Token
	any    bool
	lazy   bool
}

func (l *lastWins) Load(context.Context) (penstock.Token, bool, error) {
	if l.stored == nil || *l.stored == (penstock.Token{}) {
		return penstock.Token{}, false, nil
	}
	return *l.stored, true, nil
}

func (l *lastWins) Update(_ context.Context, pos penstock.Token, _ time.Time) error {
	l.next, l.any = pos, true
	return nil
}

func (l *lastWins) Flush(context.Context) error {
	if !l.lazy && l.any {
		*l.stored = l.next
	}
	return nil
}

func brokenCheckpointers() []broken {
	with := func(lazy bool) func(t *testing.T) {
		return func(t *testing.T) {
			penstocktest.Checkpointer(t, func(*testing.T) func() stream.Checkpointer {
				stored := new(penstock.Token)
				return func() stream.Checkpointer { return &lastWins{stored: stored, lazy: lazy} }
			})
		}
	}
	return []broken{
		{"flush-stores-nothing", "FlushStoresTheNewest", with(true)},
		{"the-last-one-wins", "PositionsNeverGoBack", with(false)},
	}
}

// faultyWire changes what goes to a consumer, and what comes back.
type faultyWire struct {
	far     stream.Consumer
	there   func(d *stream.Delivery) *stream.Delivery
	back    func(a stream.Answer, err error) (stream.Answer, error)
	answers func(p stream.Position, err error) (stream.Position, error)
}

func (f *faultyWire) Handshake(ctx context.Context, h stream.Handshake) (stream.Position, error) {
	p, err := f.far.Handshake(ctx, h)
	if f.answers != nil {
		return f.answers(p, err)
	}
	return p, err
}

func (f *faultyWire) Deliver(ctx context.Context, d *stream.Delivery) (stream.Answer, error) {
	if f.there != nil {
		if d = f.there(d); d == nil {
			return stream.Answer{}, nil
		}
	}
	a, err := f.far.Deliver(ctx, d)
	if f.back != nil {
		return f.back(a, err)
	}
	return a, err
}

func brokenConsumers() []broken {
	with := func(change func(f *faultyWire)) func(t *testing.T) {
		return func(t *testing.T) {
			penstocktest.StreamConsumer(t, func(_ *testing.T, far stream.Consumer) stream.Consumer {
				f := &faultyWire{far: far}
				change(f)
				return f
			})
		}
	}
	return []broken{
		{"index-of-the-token-is-cut", "AnswersToHandshakesComeBack", with(func(f *faultyWire) {
			f.answers = func(p stream.Position, err error) (stream.Position, error) { p.Token.Index = 0; return p, err }
		})},
		{"delivery-is-lost", "DeliveriesArriveAsTheyAre", with(func(f *faultyWire) {
			f.there = func(*stream.Delivery) *stream.Delivery { return nil }
		})},
		{"attempt-is-lost", "DeliveriesArriveAsTheyAre", with(func(f *faultyWire) {
			f.there = func(d *stream.Delivery) *stream.Delivery {
				for i := range d.Items {
					d.Items[i].Attempt = 0
				}
				return d
			}
		})},
		{"failures-are-settled", "FailuresComeBackByIndex", with(func(f *faultyWire) {
			f.back = func(a stream.Answer, err error) (stream.Answer, error) { a.Failed = nil; return a, err }
		})},
		{"rewind-is-lost", "RewindsComeBack", with(func(f *faultyWire) {
			f.back = func(a stream.Answer, err error) (stream.Answer, error) { a.Rewind = stream.Position{}; return a, err }
		})},
		{"errors-are-settled", "ErrorsComeBack", with(func(f *faultyWire) {
			f.back = func(a stream.Answer, _ error) (stream.Answer, error) { return a, nil }
		})},
		{"gone-is-any-error", "ErrorsComeBack", with(func(f *faultyWire) {
			f.back = func(a stream.Answer, err error) (stream.Answer, error) {
				if err != nil {
					err = errors.New(err.Error())
				}
				return a, err
			}
		})},
		{"repeats-the-first", "ManyDeliveriesKeepTheirOrder", with(func(f *faultyWire) {
			f.there = func(d *stream.Delivery) *stream.Delivery { d.Items[0].Token.Lo = 1; return d }
		})},
	}
}
