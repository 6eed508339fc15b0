package stream

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

func TestInspectSaysWhereSubscriptionsStand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		a, b := Of[string](p, "n", "a"), Of[string](p, "n", "b")
		gate := make(chan struct{})
		var r recorder
		subscribe(t, a, "fast", r.handle)
		subscribe(t, a, "slow", func(context.Context, penstock.Batch[string]) error { <-gate; return nil })
		subscribe(t, b, "fast", r.handle)
		if got := p.Inspect(false, 0); len(got) != 0 {
			t.Errorf("before Run: %+v", got)
		}
		stop := running(p)
		publish(t, a, "1", "2")
		publish(t, b, "3")
		time.Sleep(time.Second)
		words := func(onlyBusy bool, limit int) (out []string) {
			for _, s := range p.Inspect(onlyBusy, limit) {
				for _, sub := range s.Subscriptions {
					out = append(out, fmt.Sprintf("%s/%s %v %d %d %q", s.Stream.Key, sub.Name, sub.CaughtUp, sub.InFlight, sub.Attempts, sub.Waiting))
				}
			}
			return out
		}
		slow := `a/slow false 1 1 "subscription \"slow\" of stream n/a: handler is busy with 1 event for 1s"`
		want(t, "all", strings.Join(words(false, -1), "; "), `a/fast true 0 0 ""; `+slow+`; b/fast true 0 0 ""`)
		want(t, "busy", strings.Join(words(true, 0), "; "), `a/fast true 0 0 ""; `+slow)
		close(gate)
		time.Sleep(time.Second)
		want(t, "nothing outstanding", len(p.Inspect(true, 0)), 0)
		if err := stop(); err != nil {
			t.Error(err)
		}
		want(t, "after Run", len(p.Inspect(false, 0)), 0)
	})
}

func TestInspectIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		var r recorder
		for i := range 500 {
			s := Of[string](p, "n", fmt.Sprint(i))
			subscribe(t, s, "sub", r.handle)
			publish(t, s, "v")
		}
		defer running(p)()
		time.Sleep(time.Second)
		want(t, "by default", len(p.Inspect(false, 0)), 200)
		want(t, "three of each queue", len(p.Inspect(false, 3)), 6)
		want(t, "all", len(p.Inspect(false, -1)), 500)
	})
}
