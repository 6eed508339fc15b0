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
)

// rig is one agent in a synctest bubble with scripted surroundings. Its poll
// is driven by hand unless poll is set; backoffs are fixed at 1 ms.
type rig struct {
	t         *testing.T
	agent     *agent
	registry  *scriptRegistry
	cache     *spyCache // of the latest run
	newCache  func() (Cache, error)
	receivers []*scriptReceiver
	script    func(call, limit int) ([]Container, error) // of every receiver
	marks     *spyMarks                                  // nil: no checkpoint
	blockInit chan struct{}
	failInit  error

	mu        sync.Mutex
	consumers map[string]*scriptConsumer
	trace     []string
	progress  []string // tokens given to the cache; "nil" for no constraint
	failures  []Failure
	verdict   func(Failure) Verdict
	subFailed func(Failure) Verdict
	dead      []penstock.Envelope

	unresolved    error         // of a subscription without a scripted consumer
	after         time.Duration // of each verdict of a delivery
	verdictReason string
}

func newRig(t *testing.T, configure ...func(*rig, *agentConfig)) *rig {
	g := &rig{t: t, registry: &scriptRegistry{MemoryRegistry: NewMemoryRegistry()}, consumers: map[string]*scriptConsumer{}, unresolved: ErrConsumerGone}
	g.newCache = func() (Cache, error) { return NewSimpleCache(DefaultCapacity) }
	g.script = func(int, int) ([]Container, error) { return nil, nil }
	g.verdict = func(Failure) Verdict { return Skip }
	g.subFailed = func(f Failure) Verdict { return defaultFailure{}.SubscribeFailed(context.Background(), f).Verdict }
	c := agentConfig{
		provider: "rig", queue: QueueID{Name: "rig"},
		registry: g.registry, resolve: g.resolve, failure: g,
		implicit:   func(penstock.StreamID) []SubscriptionRecord { return nil },
		rewindable: true, tokenCheck: func(penstock.Token) error { return nil }, groupSize: 1, poll: time.Hour, pollOffset: time.Hour,
		initTimeout: 5 * time.Second, shutdownTimeout: 30 * time.Second,
		maxDelivery: time.Minute, inactivity: 30 * time.Minute, readAttempts: 6,
		deliveryBackoff: Fixed(time.Millisecond), readBackoff: Fixed(time.Millisecond),
		log: slog.New(slog.NewTextHandler(io.Discard, nil)), trace: g.step,
	}
	c.newCache = func() (Cache, error) {
		inner, err := g.newCache()
		g.cache = &spyCache{Cache: inner, rig: g}
		return g.cache, err
	}
	c.newReceiver = func() (Receiver, error) {
		rec := &scriptReceiver{rig: g}
		g.receivers = append(g.receivers, rec)
		return rec.as()
	}
	for _, f := range configure {
		f(g, &c)
	}
	g.agent = newAgent(c)
	return g
}

// start begins a run and stops it at the end of the test.
func (g *rig) start() {
	g.t.Helper()
	if err := g.agent.start(context.Background()); err != nil {
		g.t.Fatal(err)
	}
	synctest.Wait()
	g.unspy()
}

// unspy tells a run that is without work of the shelf behind the spy, as it knows
// that of a cache of this package.
func (g *rig) unspy() {
	if g.cache == nil {
		return // the test makes caches of its own
	}
	g.agent.ask(func(r *run) {
		if r.shelf = shelfOf(g.cache.Cache); r.shelf != nil {
			r.shelf.listed = true
		}
	})
}

func (g *rig) stop() error { return g.agent.stop(context.Background()) }

// pump polls once and waits until everything has settled.
func (g *rig) pump() bool {
	had := g.agent.pump()
	synctest.Wait()
	return had
}

func (g *rig) step(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trace = append(g.trace, name)
}

func (g *rig) steps() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.trace)
}

func (g *rig) reported() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.progress)
}

func (g *rig) wantProgress(want ...string) {
	g.t.Helper()
	if got := g.reported(); !slices.Equal(got, want) {
		g.t.Errorf("progress %v, want %v", got, want)
	}
}

// forgetProgress leaves out what was reported before everything was attached.
func (g *rig) forgetProgress() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.progress = nil
}

// lastProgress is the progress reported last, "none" when there was none.
func (g *rig) lastProgress() string {
	if p := g.reported(); len(p) > 0 {
		return p[len(p)-1]
	}
	return "none"
}

func (g *rig) DeliveryFailed(_ context.Context, f Failure) Decision {
	g.mu.Lock()
	f.Items = slices.Clone(f.Items)
	g.failures = append(g.failures, f)
	v, after, reason := g.verdict, g.after, g.verdictReason
	g.mu.Unlock()
	return Decision{Verdict: v(f), After: after, Reason: reason}
}

func (g *rig) SubscribeFailed(_ context.Context, f Failure) Decision {
	g.mu.Lock()
	g.failures = append(g.failures, f)
	v := g.subFailed
	g.mu.Unlock()
	return Decision{Verdict: v(f)}
}

func (g *rig) failed() []Failure {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.failures)
}

func (g *rig) deadLetter(_ context.Context, events ...penstock.Envelope) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead = append(g.dead, events...)
	return nil
}

// subscribe registers a scripted consumer.
func (g *rig) subscribe(stream, name string) *scriptConsumer {
	g.t.Helper()
	c := &scriptConsumer{}
	g.mu.Lock()
	g.consumers[stream+"/"+name] = c
	g.mu.Unlock()
	g.announce(stream, name)
	return c
}

func (g *rig) announce(stream, name string) {
	g.t.Helper()
	if _, err := g.registry.Subscribe(context.Background(), SubscriptionRecord{Stream: g.qualified(stream), Name: name}); err != nil {
		g.t.Fatal(err)
	}
	synctest.Wait()
}

func (g *rig) unsubscribe(stream, name string) {
	g.t.Helper()
	if err := g.registry.Unsubscribe(context.Background(), SubscriptionRecord{Stream: g.qualified(stream), Name: name}); err != nil {
		g.t.Fatal(err)
	}
	synctest.Wait()
}

func (g *rig) qualified(stream string) QualifiedStreamID {
	return QualifiedStreamID{Provider: "rig", StreamID: penstock.StreamID{Namespace: "n", Key: stream}}
}

func (g *rig) resolve(_ context.Context, rec SubscriptionRecord) (Consumer, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.consumers[rec.Stream.Key+"/"+rec.Name]; c != nil {
		return c, nil
	}
	return nil, g.unresolved
}

// table is the agent's streams with their state, sorted.
func (g *rig) table() []string {
	var out []string
	g.agent.ask(func(r *run) {
		for id, e := range r.streams {
			out = append(out, id.Key+":"+[]string{"registering", "registered", "leaving"}[e.state])
		}
	})
	slices.Sort(out)
	return out
}

func (g *rig) wantTable(want ...string) {
	g.t.Helper()
	if got := g.table(); !slices.Equal(got, want) {
		g.t.Errorf("stream table %v, want %v", got, want)
	}
}

func (g *rig) stats() QueueStats { return g.agent.statistics() }

// feed makes the receiver return the containers in one read, then nothing.
func (g *rig) feed(cs ...Container) {
	rec := g.receivers[len(g.receivers)-1]
	rec.mu.Lock()
	rec.queue = append(rec.queue, cs...)
	rec.mu.Unlock()
}

// box is a container of stream s with one event whose value is its token.
func box(s string, seq uint64) Container { return boxOf(s, seq, fmt.Sprint(seq)) }

func boxOf(s string, seq uint64, values ...string) Container {
	c := Container{Stream: penstock.StreamID{Namespace: "n", Key: s}, Token: penstock.Token{Lo: seq}}
	var events []penstock.Envelope
	for _, v := range values {
		events = append(events, penstock.Envelope{Value: []byte(v)})
	}
	c.Events = EventsOf(events...)
	return c
}

func boxes(s string, from, to uint64) (out []Container) {
	for i := from; i <= to; i++ {
		out = append(out, box(s, i))
	}
	return out
}

// scriptReceiver returns what was fed, or what the rig's script says.
type scriptReceiver struct {
	rig *rig

	mu        sync.Mutex
	queue     []Container
	calls     int
	limits    []int
	inRead    int
	overlap   bool
	inits     int
	shutdowns int
	delivered []string
	reports   []int         // containers in each call of Delivered
	block     chan struct{} // Read waits for it
}

func (s *scriptReceiver) as() (Receiver, error) {
	if s.rig.marks != nil {
		return markedReceiver{s, s.rig.marks}, nil
	}
	return s, nil
}

type markedReceiver struct {
	*scriptReceiver
	marks *spyMarks
}

func (m markedReceiver) Checkpointer() Checkpointer { return m.marks }

func (s *scriptReceiver) Init(context.Context) error {
	s.mu.Lock()
	s.inits++
	s.mu.Unlock()
	if s.rig.blockInit != nil {
		<-s.rig.blockInit
	}
	return s.rig.failInit
}

func (s *scriptReceiver) Read(_ context.Context, limit int) ([]Container, error) {
	s.mu.Lock()
	s.calls++
	call := s.calls
	s.limits = append(s.limits, limit)
	s.inRead++
	s.overlap = s.overlap || s.inRead > 1
	block := s.block
	s.mu.Unlock()
	if block != nil {
		<-block
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inRead--
	if n := len(s.queue); n > 0 {
		if limit >= 0 {
			n = min(n, limit)
		}
		out := s.queue[:n:n]
		s.queue = s.queue[n:]
		return out, nil
	}
	return s.rig.script(call, limit)
}

func (s *scriptReceiver) Delivered(_ context.Context, done []Container) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, len(done))
	for _, c := range done {
		s.delivered = append(s.delivered, fmt.Sprint(c.Token.Lo))
	}
	return nil
}

func (s *scriptReceiver) Shutdown(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shutdowns++
	return nil
}

func (s *scriptReceiver) reads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *scriptReceiver) overlapped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overlap
}

func (s *scriptReceiver) ended() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shutdowns
}

func (s *scriptReceiver) acks() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.delivered, " ")
}

// spyMarks is a checkpointer that records.
type spyMarks struct {
	mu     sync.Mutex
	stored penstock.Token
	has    bool
	calls  int
}

func (m *spyMarks) Load(context.Context) (penstock.Token, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stored, m.has, nil
}

func (m *spyMarks) Update(_ context.Context, pos penstock.Token, _ time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stored, m.has = pos, true
	m.calls++
	return nil
}

func (m *spyMarks) Flush(context.Context) error { return nil }

func (m *spyMarks) at() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stored.Lo
}

// spyCache records the progress it is given.
type spyCache struct {
	Cache
	rig      *rig
	pressure bool
	maxAdd   *int
	purges   int
}

func (s *spyCache) Progress(earliest *penstock.Token, now time.Time) {
	s.rig.mu.Lock()
	if earliest == nil {
		s.rig.progress = append(s.rig.progress, "nil")
	} else {
		s.rig.progress = append(s.rig.progress, fmt.Sprint(earliest.Lo))
	}
	s.rig.mu.Unlock()
	s.Cache.Progress(earliest, now)
}

func (s *spyCache) CursorAtTime(id penstock.StreamID, t time.Time) (Cursor, error) {
	return s.Cache.(TimeCache).CursorAtTime(id, t)
}

func (s *spyCache) UnderPressure() bool { return s.pressure || s.Cache.UnderPressure() }

func (s *spyCache) MaxAdd() int {
	if s.maxAdd != nil {
		return *s.maxAdd
	}
	return s.Cache.MaxAdd()
}

func (s *spyCache) Purge() []Container {
	s.purges++
	return s.Cache.Purge()
}

// scriptRegistry can block and fail registrations.
type scriptRegistry struct {
	*MemoryRegistry
	mu           sync.Mutex
	registered   int
	unregistered int
	block        chan struct{} // the answer of RegisterProducer waits for it
	fail         int           // this many registrations fail
}

func (s *scriptRegistry) RegisterProducer(ctx context.Context, id QualifiedStreamID, p Producer) (Roster, error) {
	s.mu.Lock()
	s.registered++
	block := s.block
	failed := s.fail > 0
	if failed {
		s.fail--
	}
	s.mu.Unlock()
	if failed {
		return Roster{}, errors.New("registry is down")
	}
	r, err := s.MemoryRegistry.RegisterProducer(ctx, id, p)
	if block != nil {
		<-block
	}
	return r, err
}

func (s *scriptRegistry) UnregisterProducer(ctx context.Context, id QualifiedStreamID, p Producer) error {
	s.mu.Lock()
	s.unregistered++
	s.mu.Unlock()
	return s.MemoryRegistry.UnregisterProducer(ctx, id, p)
}

func (s *scriptRegistry) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.registered
}

// scriptConsumer records what it is given; gates make it block, onDeliver
// decides the answer.
type scriptConsumer struct {
	mu         sync.Mutex
	handshakes int
	got        []string // values of settled items
	groups     []string // tokens of each delivery, joined
	attempts   []int
	times      []time.Time
	onShake    func(n int) (Position, error)
	onDeliver  func(n int, d *Delivery) (Answer, error)
	gate       chan struct{} // Deliver waits for it
	shakeGate  chan struct{} // Handshake waits for it
}

func (c *scriptConsumer) Handshake(context.Context, Handshake) (Position, error) {
	c.mu.Lock()
	c.handshakes++
	n, f, gate := c.handshakes, c.onShake, c.shakeGate
	c.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if f == nil {
		return Position{}, nil
	}
	return f(n)
}

func (c *scriptConsumer) Deliver(_ context.Context, d *Delivery) (Answer, error) {
	c.mu.Lock()
	var tokens, values []string
	for _, it := range d.Items {
		tokens = append(tokens, fmt.Sprint(it.Token.Lo))
		values = append(values, string(it.Value()))
		c.attempts = append(c.attempts, it.Attempt)
	}
	c.groups = append(c.groups, strings.Join(tokens, ","))
	c.times = append(c.times, time.Now())
	n, f, gate := len(c.groups), c.onDeliver, c.gate
	c.mu.Unlock()
	if gate != nil {
		<-gate
	}
	var a Answer
	var err error
	if f != nil {
		a, err = f(n, d)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && a.Rewind.Kind == PositionNone {
		for i, v := range values {
			if !slices.ContainsFunc(a.Failed, func(f ItemFailure) bool { return f.Index == i }) {
				c.got = append(c.got, v)
			}
		}
	}
	return a, err
}

func (c *scriptConsumer) values() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.got, " ")
}

func (c *scriptConsumer) offered() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.groups, " ")
}

func (c *scriptConsumer) set(f func(c *scriptConsumer)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c)
}

// want compares and reports.
func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

var errBoom = errors.New("boom")
