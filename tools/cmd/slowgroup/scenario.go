package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

const (
	eventBytes = 64
	partitions = 4
	tick       = time.Millisecond // between two calls of the producer
	slowName   = "slow"
)

// event is what goes through the topic.
type event struct {
	Due int64 // when it was to be produced, in nanoseconds since the run began
	_   [eventBytes - 8]byte
}

// outcome is what one run showed, in microseconds and MiB.
type outcome struct {
	p50, p99, heapMax float64
	slow              slowState
}

// slowState is what is known of the slow group when the fast ones are through.
type slowState struct {
	Handled uint64 `json:"handled"`
	Lag     uint64 `json:"lag"`
	State   string `json:"state"`
	Why     string `json:"why"`
}

// one runs the plan once, with or without the slow group.
func one(ctx context.Context, p plan, slow bool) (o outcome, err error) {
	settledHeap() // what another run left is not this one's
	limit := 3*time.Duration(float64(p.Events)/float64(p.Rate)*float64(time.Second)) + 30*time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not through after %v", limit))
	defer cancel()
	topic, err := queue.Open(queue.Config[event]{Name: "events", Partitions: partitions, Capacity: p.Events})
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, topic.Close()) }()
	s := &session{plan: p, begin: time.Now(), ended: make(chan error, p.Groups), through: make(chan struct{})}
	s.left.Store(int64(p.Groups-1) * int64(p.Events))
	running, err := s.start(ctx, topic, slow)
	if err != nil {
		return o, err
	}
	heap := newHeapMeter()
	err = s.produce(ctx, topic, heap)
	for err == nil && s.left.Load() > 0 {
		select {
		case <-s.through:
		case <-time.After(10 * tick):
			heap.look()
		case <-ctx.Done():
			err = penstock.ContextError(ctx)
		}
	}
	if slow {
		o.slow = s.slowState(topic)
	}
	cancel()
	for range running {
		err = errors.Join(err, <-s.ended)
	}
	if err != nil {
		return o, err
	}
	var all histogram
	for i := range s.seen {
		all.merge(s.seen[i])
	}
	if want := uint64(p.Groups-1) * uint64(p.Events); all.n != want {
		return o, fmt.Errorf("the fast groups handled %d events, want %d", all.n, want)
	}
	o.p50, o.p99, o.heapMax = all.percentile(0.5), all.percentile(0.99), heap.max
	return o, nil
}

// session is one run under way.
type session struct {
	plan    plan
	begin   time.Time
	left    atomic.Int64 // events that the fast groups have not handled
	handled atomic.Uint64
	through chan struct{} // closed when left is 0
	ended   chan error
	seen    []*histogram // of the fast groups; each is its handler's until the run ended
}

// start runs the groups. How many run is how many words come on ended.
func (s *session) start(ctx context.Context, topic *queue.Topic[event], slow bool) (running int, err error) {
	handlers := map[string]penstock.Handler[event]{}
	for i := range s.plan.Groups - 1 {
		h := &histogram{}
		s.seen = append(s.seen, h)
		handlers[fmt.Sprint("fast", i)] = func(_ context.Context, b penstock.Batch[event]) error {
			now := time.Since(s.begin)
			for i := range b.Values() {
				h.add(now - time.Duration(b.Values()[i].Due))
			}
			if s.left.Add(-int64(b.Len())) == 0 {
				close(s.through)
			}
			return nil
		}
	}
	if slow {
		handlers[slowName] = func(ctx context.Context, b penstock.Batch[event]) error {
			timer := time.NewTimer(time.Duration(b.Len()*s.plan.Slower) * time.Second / time.Duration(s.plan.Rate))
			defer timer.Stop()
			select {
			case <-timer.C:
				s.handled.Add(uint64(b.Len()))
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	for name, h := range handlers {
		g, err := topic.Group(name, queue.GroupConfig{Drain: 5 * time.Second})
		if err != nil {
			return running, err
		}
		// Runs a group; ended by ctx, and one waits for it on ended.
		go func() { s.ended <- drained(g.Run(ctx, h)) }()
		running++
	}
	return running, nil
}

// drained makes nothing of the events that a group leaves at the end of a run.
func drained(err error) error {
	if errors.As(err, new(*penstock.DrainError)) {
		return nil
	}
	return err
}

// produce produces each event when it is due, and looks at the heap now and
// then. What is late is produced at once.
func (s *session) produce(ctx context.Context, topic *queue.Topic[event], heap *heapMeter) error {
	perEvent := time.Second / time.Duration(s.plan.Rate)
	batch := make([]event, 0, s.plan.Rate/50+1) // 20 ms, when late
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for sent, n := 0, 0; sent < s.plan.Events; n++ {
		due := min(s.plan.Events, int(time.Since(s.begin)/perEvent), sent+cap(batch))
		batch = batch[:0]
		for i := sent; i < due; i++ {
			batch = append(batch, event{Due: int64(time.Duration(i) * perEvent)})
		}
		if err := topic.Produce(ctx, batch...); err != nil {
			return err
		}
		sent = max(sent, due)
		if n%10 == 0 {
			heap.look()
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return penstock.ContextError(ctx)
		}
	}
	return nil
}

func (s *session) slowState(topic *queue.Topic[event]) slowState {
	for _, g := range topic.Stats().Groups {
		if g.Name == slowName {
			return slowState{Handled: s.handled.Load(), Lag: g.Lag, State: g.State.String(), Why: g.Why}
		}
	}
	return slowState{}
}

// heapMeter keeps the largest heap that it saw, in MiB.
type heapMeter struct {
	sample [1]metrics.Sample
	max    float64
}

func newHeapMeter() *heapMeter {
	m := &heapMeter{}
	m.sample[0].Name = "/memory/classes/heap/objects:bytes"
	return m
}

func (m *heapMeter) look() float64 {
	metrics.Read(m.sample[:])
	now := mib(m.sample[0].Value.Uint64())
	m.max = max(m.max, now)
	return now
}

// settledHeap returns the heap after a collection.
func settledHeap() float64 {
	runtime.GC()
	runtime.GC() // what pools let go of
	return newHeapMeter().look()
}

func mib(bytes uint64) float64 { return float64(bytes) / (1 << 20) }
