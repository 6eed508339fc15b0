package stream

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// Handlers that block hold nobody: more of them than a run keeps workers are
// called at the same time, and the workers that are too many end.
func TestTasksThatBlockHoldNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams = 3 * idleMax
		g := newRig(t)
		g.start()
		gate := make(chan struct{})
		var cs []*scriptConsumer
		for i := range streams {
			c := g.subscribe(fmt.Sprint("s", i), "sub")
			c.gate = gate
			cs = append(cs, c)
			g.feed(box(fmt.Sprint("s", i), uint64(i+1)))
		}
		last := g.subscribe("quick", "sub")
		g.feed(box("quick", streams+1))
		for range streams { // whatever the cache takes at once
			g.pump()
		}
		want(t, "settled beside handlers that block", last.values(), fmt.Sprint(streams+1))
		for i, c := range cs {
			want(t, "offered", c.offered(), fmt.Sprint(i+1))
		}
		close(gate)
		synctest.Wait()
		for i, c := range cs {
			want(t, "settled", c.values(), fmt.Sprint(i+1))
		}
		r := g.agent.last()
		r.crew.mu.Lock()
		idle := len(r.crew.idle)
		r.crew.mu.Unlock()
		want(t, "workers kept", idle <= idleMax, true)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		select {
		case <-r.crew.all.drained:
		default:
			t.Error("workers are left after the run")
		}
	})
}

// blocking is a task that waits.
type blocking struct {
	begun *atomic.Int64
	gate  chan struct{}
}

func (b blocking) do(context.Context, *worker) error { b.begun.Add(1); <-b.gate; return nil }
func (blocking) done(*run, error)                    {}
func (blocking) where() string                       { return "test" }

// A worker that takes one of several tasks calls another one before it begins,
// and that one the next: nobody else does.
func TestWorkerCallsTheNextOneBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := turnRun()
		r.ctx = t.Context()
		b := blocking{new(atomic.Int64), make(chan struct{})}
		for range idleMax + 1 {
			r.start(b)
		}
		r.callWorker()
		synctest.Wait()
		want(t, "begun", b.begun.Load(), idleMax+1)
		close(b.gate)
		synctest.Wait()
		want(t, "idle", len(r.crew.idle), idleMax)
		r.dismiss()
		<-r.crew.all.close()
	})
}

// fixed is a task of a test: done is told in a turn.
type fixed struct{ told func() }

func (fixed) do(context.Context, *worker) error { return nil }
func (f fixed) done(*run, error)                { f.told() }
func (fixed) where() string                     { return "test" }

func turnRun() *run {
	return &run{agent: newAgent(agentConfig{}), turn: newTurn(), crew: crew{all: newLatch()}, deaf: make(chan struct{})}
}

// A result that comes while somebody holds the turn waits for him, in order, and
// who brings it does not.
func TestResultsThatComeDuringATurnAreAppliedByItsHolder(t *testing.T) {
	r := turnRun() // the turn is held by who makes the run
	var got []int
	for i := range 3 {
		r.bring(result{task: fixed{func() { got = append(got, i) }}})
	}
	want(t, "applied beside the holder", fmt.Sprint(got), "[]")
	r.giveTurn()
	want(t, "applied by the holder", fmt.Sprint(got), "[0 1 2]")
	r.bring(result{task: fixed{func() { got = append(got, 3) }}})
	want(t, "applied by who brings it", fmt.Sprint(got), "[0 1 2 3]")
	want(t, "the turn is free", r.turn.tryTake(), true)
}

// A holder does not apply results for ever: it calls the loop for the rest.
func TestHolderOfATurnIsNotKept(t *testing.T) {
	r := turnRun()
	n := 0
	for range resultsMax + 1 {
		r.bring(result{task: fixed{func() { n++ }}})
	}
	r.giveTurn()
	want(t, "applied", n, resultsMax)
	select {
	case <-r.turn.call:
	default:
		t.Fatal("nobody is called for the result that waits")
	}
	want(t, "the turn is free", r.turn.tryTake(), true)
	r.giveTurn()
	want(t, "applied", n, resultsMax+1)
}

// Results of many goroutines at a time are each applied once, never two at a
// time; none waits when all have returned and the loop has done what it was
// called for.
func TestTurnsNeverOverlapAndLoseNothing(t *testing.T) {
	const workers, each = 8, 500
	r := turnRun()
	n := 0 // of the turn's holder: the race detector looks
	r.giveTurn()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range each {
				r.bring(result{task: fixed{func() { n++ }}})
			}
		})
	}
	all.Wait()
	for {
		select {
		case <-r.turn.call:
			r.turn.take()
			r.giveTurn()
			continue
		default:
		}
		break
	}
	want(t, "the turn is free", r.turn.tryTake(), true)
	want(t, "applied", n, workers*each)
}

// A cache that fails in a turn on a worker fails the agent, as on its loop, and
// nobody touches the state any more.
func TestFailureOfATurnOnAWorkerFailsTheAgent(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("cache") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				g.start()
				c := g.subscribe("s", "sub")
				c.onDeliver = func(int, *Delivery) (Answer, error) {
					g.agent.last().start(broken{fail}) // as if the turn that follows did it
					return Answer{}, nil
				}
				g.feed(box("s", 1))
				g.pump()
				var p *penstock.PanicError
				if err := g.stop(); !errors.As(err, &p) {
					t.Errorf("the agent ended with %v, want a panic", err)
				}
				want(t, "condition", g.stats().Condition, ConditionFailed)
			})
		})
	}
}

type broken struct{ fail func() }

func (broken) do(context.Context, *worker) error { return nil }
func (f broken) done(*run, error)                { f.fail() }
func (broken) where() string                     { return "test" }

// What a handler that panicked was given is not used for the next batch: a
// goroutine that it has left may still look.
func TestPanickedHandlerKeepsItsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		s := Of[string](p, "orders", "7")
		var kept atomic.Pointer[penstock.Batch[string]]
		var seen atomic.Value
		r := recorder{fail: func(call int, b penstock.Batch[string]) error {
			if call == 1 {
				kept.Store(&b)
				panic("handler")
			}
			first := kept.Load()
			seen.Store(first.Value(0) + " " + first.Token(0).String())
			first.Fail(0, errBoom) // of the batch that panicked: nothing to the one that runs
			return nil
		}}
		subscribe(t, s, "x", r.handle)
		stop := running(p)
		publish(t, s, "one")
		time.Sleep(time.Minute)
		want(t, "settled", r.got(), "one")
		if got, _ := seen.Load().(string); got != "one "+kept.Load().Token(0).String() {
			t.Errorf("the batch shows %q now", got)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Values of the raw codec belong to the handler: it may keep and change them,
// and append to them, and nobody else sees it.
func TestRawValuesBelongToTheirHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		s := OfCodec(p, "orders", "7", penstock.Raw())
		var mu sync.Mutex
		var kept [][]byte
		spoil := func(_ context.Context, b penstock.Batch[[]byte]) error {
			mu.Lock()
			defer mu.Unlock()
			for _, v := range b.Values() {
				kept = append(kept, v)
				if len(v) > 0 {
					v[0]++
				}
				_ = append(v, "behind"...)
			}
			return nil
		}
		for _, name := range []string{"a", "b"} {
			if _, err := s.Subscribe(t.Context(), name, spoil); err != nil {
				t.Fatal(err)
			}
		}
		stop := running(p)
		large := make([]byte, rawTogether+1)
		if err := s.Publish(t.Context(), []byte("1"), nil, []byte("3"), large); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := stop(); err != nil {
			t.Error(err)
		}
		want(t, "values", len(kept), 8)
		for i, v := range kept {
			want(t, "value", fmt.Sprint(v[:min(len(v), 1)]), []string{"[50]", "[]", "[52]", "[1]"}[i%4])
			want(t, "nil", v == nil, false)
		}
	})
}
