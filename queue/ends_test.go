package queue_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/queue"
)

// TestPullLooksAnewForWhatWasAnnounced: an event that is announced after a pull
// has looked at all ends is seen by the next one, whichever partition it is in.
func TestPullLooksAnewForWhatWasAnnounced(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 3})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		for i := range 50 {
			produce(t, topic, i)
			if diff := cmp.Diff([]int{i}, pull(t, c, 1)); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

// TestPullGivesWhatCameSinceTheLook: the look of an earlier pull makes no batch
// smaller than it can be.
func TestPullGivesWhatCameSinceTheLook(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		for i := range 8 { // one by one: the turn publishes them
			produce(t, topic, i)
		}
		if diff := cmp.Diff([]int{0, 2, 4, 6}, pull(t, c, 10)); diff != "" {
			t.Error(diff)
		}
		produce(t, topic, 8)
		produce(t, topic, 9)
		if diff := cmp.Diff([]int{1, 3, 5, 7, 9}, pull(t, c, 10)); diff != "" {
			t.Error(diff)
		}
	})
}
