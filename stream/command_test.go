package stream

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

func (p *Provider) stateWords() string {
	s, n := p.State()
	return fmt.Sprintf("%s %d", s, n)
}

func TestStartAndStopAgents_ORC118(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 8})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) { c.Queues = 8 })
		defer p.Close()
		if err := p.StopAgents(t.Context()); !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("before Run: %v, want ErrClosed", err)
		}
		s := Of[string](p, "n", "k")
		var r recorder
		subscribe(t, s, "sub", r.handle)
		stop := running(p)
		synctest.Wait()
		want(t, "at first", p.stateWords(), "started 8")
		for _, c := range []struct {
			do   func(context.Context) error
			want string
		}{
			{p.StartAgents, "started 8"}, {p.StopAgents, "stopped 0"}, {p.StopAgents, "stopped 0"}, {p.StartAgents, "started 8"},
		} {
			if err := c.do(t.Context()); err != nil {
				t.Error(err)
			}
			want(t, "state", p.stateWords(), c.want)
			if c.want == "stopped 0" {
				publish(t, s, "x") // is kept by the queue
				synctest.Wait()
			}
		}
		time.Sleep(time.Second)
		want(t, "got", r.got(), "x x")
		if err := stop(); err != nil {
			t.Error(err)
		}
		want(t, "in the end", p.stateWords(), "idle 0")
	})
}

func TestStartupMayLeaveAgentsStopped_OR3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) { c.Startup = AgentsStopped })
		defer p.Close()
		stop := running(p)
		time.Sleep(time.Second)
		want(t, "at first", p.stateWords(), "stopped 0")
		if err := p.StartAgents(t.Context()); err != nil {
			t.Error(err)
		}
		want(t, "then", p.stateWords(), "started 2")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Of commands that wait only the last one is executed.
func TestOvertakenCommandsAreSkipped_OR35(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		s := Of[string](p, "n", "k")
		gate := make(chan struct{})
		subscribe(t, s, "sub", func(context.Context, penstock.Batch[string]) error { <-gate; return nil })
		publish(t, s, "x")
		stop := running(p)
		synctest.Wait()
		results := make(chan string, 3)
		for _, c := range []struct {
			name string
			do   func(context.Context) error
		}{{"stop", p.StopAgents}, {"start", p.StartAgents}, {"stop again", p.StopAgents}} {
			go func() { // ends with its command; received below
				results <- fmt.Sprintf("%s superseded=%v", c.name, errors.Is(c.do(context.Background()), ErrSuperseded))
			}()
			synctest.Wait() // the first is under way, the others wait in line
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.StopAgents(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that does not wait: %v", err)
		}
		close(gate)
		got := map[string]bool{}
		for range 3 {
			got[<-results] = true
		}
		want(t, "results", fmt.Sprint(got), "map[start superseded=true:true stop again superseded=true:true stop superseded=false:true]")
		want(t, "state", p.stateWords(), "stopped 0")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Ownership that changes starts and stops agents; an old or repeated sequence
// changes nothing, and neither does a notice while stopped. A queue that comes
// back goes on where it was left.
func TestOwnershipChanges_OR37(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 4})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) { c.Queues = 4 })
		defer p.Close()
		s := Of[string](p, "n", "k")
		var r recorder
		subscribe(t, s, "sub", r.handle)
		m, all, mine := p.manager, p.mapper.Queues(), s.Queue()
		var others []QueueID
		for _, q := range all {
			if q != mine {
				others = append(others, q)
			}
		}
		var own atomic.Pointer[Ownership]
		own.Store(&Ownership{Seq: 5, Queues: all})
		m.owned = func() Ownership { return *own.Load() }
		change := func(seq uint64, queues []QueueID) {
			own.Store(&Ownership{Seq: seq, Queues: queues})
			m.ownershipChanged()
			m.ownershipChanged() // the second replaces the first
			time.Sleep(time.Second)
		}
		stop := running(p)
		publish(t, s, "a")
		time.Sleep(time.Second)
		change(6, others)
		want(t, "without mine", p.stateWords(), "started 3")
		publish(t, s, "b")
		time.Sleep(time.Second)
		want(t, "not delivered", r.got(), "a")
		change(6, all)
		change(4, all)
		want(t, "stale notices", p.stateWords(), "started 3")
		change(7, append(others[:1:1], mine))
		want(t, "mine is back", p.stateWords(), "started 2")
		want(t, "delivered", r.got(), "a b")
		if err := p.StopAgents(t.Context()); err != nil {
			t.Error(err)
		}
		change(8, all)
		want(t, "stopped", p.stateWords(), "stopped 0")
		if err := p.StartAgents(t.Context()); err != nil {
			t.Error(err)
		}
		want(t, "started again with what is owned now", p.stateWords(), "started 4")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestPlanOfAChange_OR34(t *testing.T) {
	q := func(numbers ...int) (out []QueueID) {
		for _, n := range numbers {
			out = append(out, QueueID{Number: n})
		}
		return out
	}
	for _, c := range []struct {
		running []int
		want    []QueueID
		plan    string
	}{
		{nil, q(0, 1), "[0 1] []"},
		{[]int{0, 1}, q(1, 2), "[2] [0]"},
		{[]int{0, 1}, nil, "[] [0 1]"},
		{[]int{0}, q(0, 0, 3, 3), "[3] []"},
	} {
		start, stop := planChange(c.running, c.want)
		want(t, fmt.Sprint(c.running, c.want), fmt.Sprint(start, stop), c.plan)
	}
}
