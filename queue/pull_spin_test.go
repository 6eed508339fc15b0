package queue_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// TestSpinningConsumerParksInTheEnd: in a bubble time stands still while
// anything spins, so an event after an hour comes only to one that has parked.
func TestSpinningConsumerParksInTheEnd(t *testing.T) {
	realLimit(t, time.Minute, "a consumer spins without end")
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 3})
		g := group(t, topic, "g", queue.GroupConfig{Spin: 10_000})
		c := g.Consumer(0)
		begin := time.Now()
		time.AfterFunc(time.Hour, func() {
			if err := topic.Produce(context.Background(), 7); err != nil {
				t.Error(err)
			}
		})
		b, err := c.Pull(t.Context())
		if err != nil || b.Value(0) != 7 || time.Since(begin) != time.Hour {
			t.Fatalf("%v, %v after %v", b, err, time.Since(begin))
		}
		commit(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Pull(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		waiting := start(t, func() error { _, err := c.Pull(t.Context()); return err })
		waiting.blocked()
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, waiting.wait(), penstock.ErrClosed)
		for _, bad := range []int{-1, 1_000_001} {
			_, err := topic.Group("bad", queue.GroupConfig{Spin: bad})
			if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != "Spin" {
				t.Errorf("error %v, want one that names Spin", err)
			}
		}
	})
}

// TestBatchRouterKeepsABatchTogether: and a single event is a batch of one;
// what is refused moves no turn.
func TestBatchRouterKeepsABatchTogether(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 3, Capacity: 12, WhenFull: queue.Fail, Router: queue.BatchRouter[int]()})
		produce(t, topic, 1, 2, 3)
		produce(t, topic, 4)
		produce(t, topic, 5, 6)
		wantErr(t, topic.Produce(t.Context(), seq(0, 7)...), penstock.ErrFull)
		wantErr(t, topic.Produce(ended(t), 7), errEnded)
		if err := topic.ProduceEvents(t.Context(), penstock.Event[int]{Value: 7, Meta: penstock.Meta{Key: "k", ID: "seven"}}, penstock.Event[int]{Value: 8}); err != nil {
			t.Fatal(err)
		}
		r, err := topic.ProduceAsync(t.Context(), 9, 10)
		if err != nil {
			t.Fatal(err)
		}
		ack, err := r.Wait(t.Context())
		if want := []queue.Part{{Partition: 1, First: 1, Count: 2}}; err != nil || cmp.Diff(want, ack.Parts) != "" {
			t.Errorf("%+v, %v, want %+v", ack, err, want)
		}
		if diff := cmp.Diff([][]int{{1, 2, 3, 7, 8}, {4, 9, 10}, {5, 6}}, contents(t, topic)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestBatchRouterIsRecorded is BQ-37 for it.
func TestBatchRouterIsRecorded(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.Partitions, c.Router = 2, queue.BatchRouter[string]()
		topic := openDisk(t, c)
		produce(t, topic, "a", "b")
		c.Router = queue.BatchRouter[string]()
		topic = reopen(t, topic, c)
		produce(t, topic, "c")
		if diff := cmp.Diff([][]string{{"a", "b", "c"}, nil}, contents(t, topic), nilIsEmpty); diff != "" { // turns begin anew
			t.Error(diff)
		}
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		c.Router = nil
		_, err := queue.Open(c)
		wantErr(t, err, penstock.ErrInvalid)
	})
}

func TestPausedReaderFindsNothingAndWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		g := group(t, topic, "g", queue.GroupConfig{})
		r, err := g.Reader(0)
		if err != nil {
			t.Fatal(err)
		}
		produce(t, topic, seq(0, 4)...)
		for name, hold := range map[string][2]func(){
			"group":     {g.Pause, g.Resume},
			"partition": {func() { _ = g.PausePartition(0) }, func() { _ = g.ResumePartition(0) }},
		} {
			hold[0]()
			if _, ok, err := r.Read(9); ok || err != nil {
				t.Errorf("%s: a paused reader reads: %t, %v", name, ok, err)
			}
			waiting := start(t, func() error { return r.Wait(t.Context()) })
			waiting.blocked()
			produce(t, topic, 4, 5)
			waiting.blocked()
			hold[1]()
			if err := waiting.wait(); err != nil {
				t.Error(err)
			}
			if _, ok, err := r.Read(1); !ok || err != nil {
				t.Errorf("%s: after the pause: %t, %v", name, ok, err)
			}
		}
		_ = g.PausePartition(1) // another one
		if _, ok, err := r.Read(1); !ok || err != nil {
			t.Errorf("another partition is paused: %t, %v", ok, err)
		}
		limited := group(t, topic, "limited", queue.GroupConfig{Rate: 1})
		_, err = limited.Reader(0)
		if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != "Rate" {
			t.Errorf("error %v, want one that names Rate", err)
		}
		if _, ok, err := limited.Consumer(0).TryPull(1); !ok || err != nil { // it is not claimed
			t.Errorf("pull: %t, %v", ok, err)
		}
	})
}
