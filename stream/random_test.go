package stream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// logQueue is a queue that is read by position; it outlives the agent's runs.
type logQueue struct {
	marks *spyMarks

	mu    sync.Mutex
	all   []Container
	added chan struct{}
}

func (l *logQueue) append(c Container) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, c)
	select {
	case l.added <- struct{}{}:
	default:
	}
}

type logReceiver struct {
	*logQueue
	next  int
	flaky func() bool
}

func (l *logReceiver) Init(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.next < len(l.all) && l.marks.has && l.all[l.next].Token.Compare(l.marks.stored) <= 0 {
		l.next++
	}
	return nil
}

func (l *logReceiver) Read(_ context.Context, limit int) ([]Container, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flaky() {
		return nil, errBoom
	}
	out := slices.Clone(l.all[l.next:min(l.next+limit, len(l.all))])
	l.next += len(out)
	return out, nil
}

func (l *logReceiver) Delivered(context.Context, []Container) error { return nil }
func (l *logReceiver) Shutdown(context.Context) error               { return nil }
func (l *logReceiver) Checkpointer() Checkpointer                   { return l.marks }

type waitingReceiver struct{ *logReceiver }

func (w waitingReceiver) Wait(ctx context.Context) error {
	for {
		w.mu.Lock()
		ready := w.next < len(w.all)
		w.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-w.added:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// chaosConsumer settles, fails, blocks or rewinds as the test's source says.
type chaosConsumer struct {
	*chaos
	stream   string
	required uint64 // tokens above it must be settled
	mu       sync.Mutex
	offered  []penstock.Token
	settled  []penstock.Token
	has      Position
	blocked  chan struct{} // nil: open
}

func (c *chaosConsumer) Handshake(context.Context, Handshake) (Position, error) {
	if c.chance(0.1) {
		return Position{}, errBoom
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.settled); n > 0 && c.chance(0.2) {
		back := c.settled[c.pick(n)]
		if back.Compare(c.has.Token) <= 0 { // above it some may not be settled yet
			return Position{Kind: PositionAt, Token: back}, nil // below the checkpoint it is refused
		}
	}
	return c.has, nil
}

func (c *chaosConsumer) Deliver(ctx context.Context, d *Delivery) (Answer, error) {
	c.mu.Lock()
	for _, it := range d.Items {
		c.offered = append(c.offered, it.Token)
	}
	blocked := c.blocked
	c.mu.Unlock()
	if blocked != nil {
		select {
		case <-blocked:
		case <-ctx.Done():
			return Answer{}, ctx.Err()
		}
	}
	if c.chance(0.15) {
		return Answer{}, errBoom
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.settled); n > 0 && c.chance(0.05) {
		back := c.settled[c.pick(n)]
		if back.Compare(d.Items[0].Token) <= 0 { // forward would be a wish to pass over events
			return Answer{Rewind: Position{Kind: PositionAt, Token: back}}, nil
		}
	}
	var a Answer
	for i, it := range d.Items {
		if c.chance(0.1) {
			a.Failed = append(a.Failed, ItemFailure{Index: i, Err: errBoom})
		} else {
			c.settled = append(c.settled, it.Token)
		}
	}
	if len(a.Failed) == 0 {
		c.has = Position{Kind: PositionResume, Token: through(d.Items[len(d.Items)-1].Token)}
	}
	return a, nil
}

// neverFaults is a registry that cannot store faults, and takes its time.
type neverFaults struct{ Registry }

func (neverFaults) Fault(context.Context, SubscriptionRecord) (bool, error) {
	time.Sleep(3 * time.Millisecond)
	return false, errBoom
}

// chaos is an agent over a log, consumers that come, go, block, fail and
// rewind, and what must hold.
type chaos struct {
	t    *testing.T
	rig  *rig
	log  *logQueue
	seed uint64
	seq  uint64
	subs map[string]*chaosConsumer

	randMu sync.Mutex
	rand   *rand.Rand
	calm   bool
}

func (c *chaos) chance(p float64) bool {
	c.randMu.Lock()
	defer c.randMu.Unlock()
	return !c.calm && c.rand.Float64() < p
}

func (c *chaos) pick(n int) int {
	c.randMu.Lock()
	defer c.randMu.Unlock()
	return c.rand.IntN(n)
}

func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 7)), subs: map[string]*chaosConsumer{}}
	c.log = &logQueue{marks: &spyMarks{}, added: make(chan struct{}, 1)}
	c.rig = newRig(t, func(g *rig, a *agentConfig) {
		a.groupSize = 1 + c.pick(3)
		a.maxDelivery = time.Duration(c.pick(4)) * time.Millisecond
		a.poll, a.pollOffset = 10*time.Millisecond, 0
		a.inactivity = 100 * time.Millisecond
		a.registry = neverFaults{g.registry}
		a.resolve = func(_ context.Context, rec SubscriptionRecord) (Consumer, error) {
			g.mu.Lock()
			defer g.mu.Unlock()
			if s := c.subs[rec.Stream.Key+"/"+rec.Name]; s != nil {
				return s, nil
			}
			return nil, ErrConsumerGone
		}
		capacity := 5 + c.pick(60)
		a.newCache = func() (Cache, error) { return NewSimpleCache(capacity) }
		waits := c.pick(2) == 0
		a.newReceiver = func() (Receiver, error) {
			rec := &logReceiver{logQueue: c.log, flaky: func() bool { return c.chance(0.1) }}
			if waits {
				return waitingReceiver{rec}, nil
			}
			return rec, nil
		}
	})
	c.rig.verdict = func(Failure) Verdict {
		if c.chance(0.3) {
			return Fault // which the registry cannot store
		}
		return Retry
	}
	c.rig.subFailed = func(Failure) Verdict { return Retry }
	return c
}

func (c *chaos) toggle(key string) {
	c.rig.mu.Lock()
	s := c.subs[key]
	c.rig.mu.Unlock()
	stream, name := key[:1], key[2:]
	if s != nil {
		if c.chance(0.5) {
			c.rig.announce(stream, name)
			return
		}
		c.rig.unsubscribe(stream, name)
		s.open()
		c.rig.mu.Lock()
		delete(c.subs, key)
		c.rig.mu.Unlock()
		return
	}
	s = &chaosConsumer{chaos: c, stream: stream, required: c.seq}
	c.rig.mu.Lock()
	c.subs[key] = s
	c.rig.mu.Unlock()
	c.rig.announce(stream, name)
}

func (c *chaosConsumer) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocked != nil {
		close(c.blocked)
		c.blocked = nil
	}
}

func (c *chaosConsumer) block() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocked == nil {
		c.blocked = make(chan struct{})
	}
}

// check holds the checkpoint against what each subscription has settled, and
// the order of first settlements.
func (c *chaos) check(final bool) {
	c.t.Helper()
	c.log.marks.mu.Lock()
	mark := c.log.marks.stored.Lo
	c.log.marks.mu.Unlock()
	if final && mark != c.seq {
		c.t.Errorf("seed %d: final checkpoint %d of %d", c.seed, mark, c.seq)
	}
	for key, s := range c.subs {
		s.mu.Lock()
		settled := slices.Clone(s.settled)
		c.checkOrder(key, s.required, s.offered)
		s.mu.Unlock()
		for _, box := range c.log.all {
			lo := box.Token.Lo
			if box.Stream.Key != s.stream || lo <= s.required || !final && lo > mark {
				continue
			}
			for i := range box.Events.Len() {
				if tok := (penstock.Token{Lo: lo, Index: uint32(i)}); !slices.Contains(settled, tok) {
					c.t.Errorf("seed %d: %s has not settled %s; checkpoint %d, final %v", c.seed, key, tok, mark, final)
				}
			}
		}
	}
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// checkOrder: without repetitions, events come in the order of tokens. What was
// published before the subscription was made may come late, because a run that
// begins at the checkpoint no longer knows where the subscription began.
func (c *chaos) checkOrder(key string, required uint64, offered []penstock.Token) {
	seen := map[penstock.Token]bool{}
	var last penstock.Token
	for _, t := range offered {
		if t.Lo <= required {
			continue
		}
		if !seen[t] && t.Compare(last) < 0 {
			c.t.Errorf("seed %d: %s was offered %s for the first time after %s", c.seed, key, t, last)
		}
		seen[t] = true
		if t.Compare(last) > 0 {
			last = t
		}
	}
}

func (c *chaos) run(steps int) {
	keys := []string{"a/x", "a/y", "b/x", "c/x", "c/y"}
	c.rig.start()
	for range steps {
		key := keys[c.pick(len(keys))]
		s := c.subs[key]
		switch c.pick(10) {
		case 0, 1, 2:
			for range 1 + c.pick(8) {
				c.seq++
				c.log.append(boxOf(string('a'+rune(c.pick(4))), c.seq, "v", "w")) // nobody subscribes to d
			}
		case 3:
			c.toggle(key)
		case 4:
			if s != nil {
				s.block()
			}
		case 5:
			if s != nil {
				s.open()
			}
		case 6:
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.pick(20))*time.Millisecond)
			c.rig.agent.stop(ctx)
			cancel()
			c.check(false)
			c.rig.start()
		default:
			time.Sleep(time.Duration(c.pick(30)) * time.Millisecond)
		}
		synctest.Wait()
		c.check(false)
	}
	c.randMu.Lock()
	c.calm = true
	c.randMu.Unlock()
	for _, s := range c.subs {
		s.open()
	}
	time.Sleep(time.Second)
	synctest.Wait()
	st := c.rig.stats()
	if err := c.rig.stop(); err != nil {
		c.t.Errorf("seed %d: %v", c.seed, err)
	}
	want(c.t, fmt.Sprintf("seed %d: cached at rest", c.seed), st.Cached, 0)
	want(c.t, fmt.Sprintf("seed %d: busy at rest", c.seed), st.Busy, 0)
	c.check(true)
}

// Consumers come, go, block, fail and rewind, reads fail, runs are drained and
// cut: nothing is lost and no checkpoint passes what is not settled.
func TestNothingIsLostInChaos_OR153(t *testing.T) {
	seeds := 60
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { newChaos(t, uint64(seed)).run(120) })
		if t.Failed() {
			return
		}
	}
}
