package queue_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// full opens a dead-letter topic that is full of n dead letters of a topic.
func full(t *testing.T, s storage, n int, when queue.WhenFull) (orders, dead *queue.Topic[string], from *queue.Group[string]) {
	t.Helper()
	c := queue.Config[string]{Name: "dead", Capacity: n, WhenFull: when}
	orders = open(t, s, queue.Config[string]{Name: "orders"})
	dead = open(t, s, c)
	from = group(t, dead, "redrive", queue.GroupConfig{})
	for i := range n {
		e := penstock.Event[string]{Meta: penstock.Meta{Origin: &penstock.Origin{Topic: "orders", Group: "billing", Cause: "x"}}, Value: string(rune('a' + i))}
		if err := dead.ProduceEvents(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	return orders, dead, from
}

// A dead-letter topic that is full, and waits or refuses, can be redriven though
// its first events are to stay: they keep the room that they have.
func TestRedriveOfAFullTopicKeepsWhatTheFilterRefuses(t *testing.T) {
	for _, when := range []queue.WhenFull{queue.Wait, queue.Fail} {
		bubble(t, func(t *testing.T, s storage) {
			orders, dead, from := full(t, s, 6, when)
			begun := time.Now()
			report, err := queue.Redrive(t.Context(), from, queue.RedriveConfig[string]{
				To: []*queue.Topic[string]{orders}, Filter: func(e penstock.Event[string]) bool { return e.Value >= "d" },
			})
			if want := (queue.RedriveReport{Redriven: 3, Skipped: 3}); err != nil || report != want {
				t.Fatalf("Redrive = %+v, %v, want %+v", report, err, want)
			}
			if waited := time.Since(begun); waited > 0 {
				t.Errorf("it waited for %v", waited)
			}
			if st := dead.Stats(); st.Retained != 3 {
				t.Errorf("%d retained, want 3", st.Retained)
			}
			// The capacity is what it was: three more fit, a fourth does not.
			produce(t, dead, "x", "y", "z")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := dead.Produce(ctx, "too much"); !errors.Is(err, penstock.ErrFull) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Produce into the full topic: %v", err)
			}
			again := group(t, dead, "later", queue.GroupConfig{})
			if diff := cmp.Diff([]string{"a", "b", "c", "x", "y", "z"}, valuesOf(drainAll(t, again))); diff != "" {
				t.Errorf("in the dead-letter topic (-want +got):\n%s", diff)
			}
			report, err = queue.Redrive(t.Context(), from, queue.RedriveConfig[string]{To: []*queue.Topic[string]{orders}})
			if want := (queue.RedriveReport{Redriven: 3, Failed: 3}); err != nil || report != want {
				t.Errorf("the second Redrive = %+v, %v, want %+v", report, err, want)
			}
			all := slices.Sorted(slices.Values(slices.Concat(contents(t, orders)...)))
			if diff := cmp.Diff([]string{"a", "b", "c", "d", "e", "f"}, all); diff != "" {
				t.Errorf("sent back (-want +got):\n%s", diff)
			}
		})
	}
}

// Where another group holds the topic full, nothing is put on top.
func TestRedriveDoesNotTakeRoomThatAnotherGroupHolds(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		orders, dead, from := full(t, s, 3, queue.Wait)
		group(t, dead, "slow", queue.GroupConfig{})
		report, err := queue.Redrive(t.Context(), from, queue.RedriveConfig[string]{
			To: []*queue.Topic[string]{orders}, Filter: func(e penstock.Event[string]) bool { return e.Value == "a" },
		})
		wantErr(t, err, context.DeadlineExceeded)
		if want := (queue.RedriveReport{Redriven: 1}); report != want {
			t.Errorf("report %+v, want %+v", report, want)
		}
		wantCommitted(t, from, 1)
		if st := dead.Stats(); st.Produced != 3 {
			t.Errorf("%d were produced into the full topic, want the three that were there", st.Produced)
		}
	})
}
