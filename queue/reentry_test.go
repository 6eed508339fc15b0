package queue_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// TestUserCodeMayCallBack_FM102: user code that calls back into the topic that
// calls it, from each place, neither deadlocks nor breaks anything: it runs
// outside of every lock. A mutex that is waited for for ever is not seen by a
// bubble, so each call has a guard in real time.
func TestUserCodeMayCallBack_FM102(t *testing.T) {
	calls := map[string]func(t *testing.T, topic *queue.Topic[int], g *queue.Group[int]){
		"stats": func(_ *testing.T, topic *queue.Topic[int], g *queue.Group[int]) { topic.Stats(); g.Stats() },
		"a new group": func(t *testing.T, topic *queue.Topic[int], _ *queue.Group[int]) {
			if err := group(t, topic, "new", queue.GroupConfig{Start: queue.Latest}).Close(); err != nil {
				t.Error(err)
			}
		},
		"commit of another group": func(t *testing.T, topic *queue.Topic[int], _ *queue.Group[int]) {
			other := group(t, topic, "other", queue.GroupConfig{})
			pull(t, other.Consumer(0), 1)
			_ = other.Consumer(0).Commit()
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		},
		"produce": func(t *testing.T, topic *queue.Topic[int], _ *queue.Group[int]) {
			if err := topic.Produce(t.Context(), 1000, 1001); err != nil {
				t.Error(err)
			}
		},
		"close of the group": func(t *testing.T, _ *queue.Topic[int], g *queue.Group[int]) {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		},
		"close of the topic": func(t *testing.T, topic *queue.Topic[int], _ *queue.Group[int]) {
			if err := topic.Close(); err != nil {
				t.Error(err)
			}
		},
	}
	places := []string{"selector", "size", "handler", "dead letter", "codec"}
	for name, callBack := range calls {
		for _, place := range places {
			forEachStorage(t, func(t *testing.T, s storage) {
				if place == "codec" && s.name == "memory" {
					return // has none
				}
				guard := time.AfterFunc(time.Minute, func() { panic(name + " from " + place + " hangs") })
				defer guard.Stop()
				synctest.Test(t, func(t *testing.T) { callBackFrom(t, s, place, callBack) })
			})
		}
	}
}

// callBackFrom runs callBack once from a place in user code. What it does must
// take effect, and what stays open must go on.
func callBackFrom(t *testing.T, s storage, place string, callBack func(*testing.T, *queue.Topic[int], *queue.Group[int])) {
	var topic *queue.Topic[int]
	var g *queue.Group[int]
	var called atomic.Bool // the calls that callBack makes call user code, too
	from := func(here string) {
		if here == place && g != nil && !called.Swap(true) {
			callBack(t, topic, g)
		}
	}
	c := queue.Config[int]{
		Partitions: 2,
		Key:        func(v int) string { from("selector"); return fmt.Sprint(v) },
		Size:       func(int) penstock.Bytes { from("size"); return 1 },
	}
	if s.name == "file" {
		c.Codec = callingCodec{penstock.JSON[int](), func() { from("codec") }}
	}
	topic = open(t, s, c)
	var err error
	g, err = topic.Group("g", oneAttempt(queue.GroupConfig{BatchMax: 1, BatchBytes: 10, Drain: time.Second}),
		queue.DeadLetter(func(context.Context, ...penstock.Event[int]) error { from("dead letter"); return nil }))
	if err != nil {
		t.Fatal(err)
	}
	handled := 0
	run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
		from("handler")
		if b.Value(0) == 1 {
			return errHandler
		}
		handled++
		return nil
	})
	for i := range 3 {
		if err := topic.Produce(t.Context(), i); err != nil {
			wantErr(t, err, penstock.ErrClosed)
		}
	}
	time.Sleep(time.Minute)
	err = run.stop()
	if !called.Load() {
		t.Fatalf("the %s was not called", place)
	}
	if err != nil {
		wantErr(t, err, penstock.ErrClosed)
		return // it was closed, and said so
	}
	if st := g.Stats(); st.Lag != 0 || handled < 2 {
		t.Errorf("%d handled and a lag of %d", handled, st.Lag)
	}
}

type callingCodec struct {
	penstock.Codec[int]
	call func()
}

func (c callingCodec) Append(dst []byte, v int) ([]byte, error) {
	c.call()
	return c.Codec.Append(dst, v)
}
