package stream

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/queue"
)

// slowCache does not return from Add before its gate opens.
type slowCache struct {
	Cache
	gate chan struct{}
}

func (s slowCache) Add(batch []Container) error {
	<-s.gate
	return s.Cache.Add(batch)
}

// An agent whose loop does not come back is named, nobody waits for it, and it
// is told when it answers again.
func TestWatchdogNamesASilentAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		gate := make(chan struct{})
		p := openProvider(t, WithCache(topic, func(QueueID) (Cache, error) {
			c, err := NewSimpleCache(100)
			return slowCache{c, gate}, err
		}))
		defer p.Close()
		d := p.Diagnostics(0)
		s := Of[string](p, "n", "s")
		var r recorder
		if err := Bind(p, "all", EveryNamespace(), r.handle); err != nil {
			t.Fatal(err)
		}
		stop := running(p)
		synctest.Wait()
		kinds(t, d)
		publish(t, s, "1")
		time.Sleep(9 * time.Second)
		if got := kinds(t, d); strings.Contains(strings.Join(got, ","), "silent") {
			t.Errorf("after 9 s: %q", got)
		}
		time.Sleep(7 * time.Second)
		want(t, "told", strings.Join(kinds(t, d), ","), "agent silent")
		number := p.mapper.QueueFor(s.id).Number
		begun := time.Now()
		st := p.Stats()[number]
		want(t, "waited for it", time.Since(begun) <= 2*patience, true)
		want(t, "condition", st.Condition, ConditionSilent)
		want(t, "running", st.Running, true)
		if !strings.Contains(st.Reason, "no answer from the agent (its cache has not returned) for 1") {
			t.Errorf("reason %q", st.Reason)
		}
		if html := ask("/", p).Body.String(); !strings.Contains(html, "■ silent") {
			t.Errorf("page %s", html)
		}
		want(t, "the other queue", p.Stats()[1-number].Condition, ConditionIdle)
		time.Sleep(time.Minute)
		want(t, "told once", len(kinds(t, d)), 0)
		close(gate)
		time.Sleep(time.Second)
		got := strings.Join(kinds(t, d), ",")
		if !strings.Contains(got, "agent answers") {
			t.Errorf("told %q", got)
		}
		want(t, "delivered", r.got(), "1")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// stuckFactory makes receivers whose Read does not return before the gate opens.
type stuckFactory struct {
	*Topic
	gate chan struct{}
}

type stuckAdapter struct {
	Adapter
	gate chan struct{}
}

type stuckReceiver struct {
	Receiver
	gate chan struct{}
}

func (f stuckFactory) NewAdapter(ctx context.Context, e Environment) (Adapter, error) {
	a, err := f.Topic.NewAdapter(ctx, e)
	return stuckAdapter{a, f.gate}, err
}

func (a stuckAdapter) NewReceiver(q QueueID) (Receiver, error) {
	r, err := a.Adapter.NewReceiver(q)
	return stuckReceiver{r, a.gate}, err
}

func (r stuckReceiver) Read(ctx context.Context, limit int) ([]Container, error) {
	<-r.gate
	return r.Receiver.Read(ctx, limit)
}

// A receiver that does not return is named although its agent answers.
func TestWatchdogNamesAReceiverThatDoesNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 1})
		defer topic.Close()
		gate := make(chan struct{})
		p := openProvider(t, stuckFactory{topic, gate}, func(c *Config) { c.Queues, c.Silence = 1, 4*time.Second })
		defer p.Close()
		d := p.Diagnostics(0)
		stop := running(p)
		time.Sleep(3 * time.Second)
		kinds(t, d)
		time.Sleep(4 * time.Second)
		want(t, "told", strings.Join(kinds(t, d), ","), "agent silent")
		st := p.Stats()[0]
		want(t, "condition", st.Condition, ConditionSilent)
		if !strings.Contains(st.Reason, "no answer from the receiver (Read has not returned) for") {
			t.Errorf("reason %q", st.Reason)
		}
		close(gate)
		time.Sleep(3 * time.Second)
		want(t, "told", strings.Join(kinds(t, d), ","), "agent answers")
		want(t, "condition", p.Stats()[0].Condition, ConditionIdle)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
