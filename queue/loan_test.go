package queue_test

import (
	"runtime"
	"testing"
	"weak"

	"github.com/penstock/penstock/queue"
)

// TestDroppedTopicDiesInOneCollection: what a group had not consumed goes with
// the topic, closed or not. It was kept by the cleanups of the group's cursors
// until they had run, which may be several collections later: a program that
// dropped a topic for another one then had both in memory.
func TestDroppedTopicDiesInOneCollection(t *testing.T) {
	for _, closed := range []bool{true, false} {
		const topics = 20
		var refs []weak.Pointer[[64]byte]
		for range topics {
			refs = append(refs, unreadEvent(t, closed))
		}
		runtime.GC()
		kept := 0
		for _, r := range refs {
			if r.Value() != nil {
				kept++
			}
		}
		// One of them may still lie in a register or on a stack.
		if kept > topics/4 {
			t.Errorf("closed %v: after a collection the events of %d of %d dropped topics are kept", closed, kept, topics)
		}
	}
}

// unreadEvent returns a pointer to an event that a group has not consumed, of a
// topic that nobody has any more.
func unreadEvent(t *testing.T, closed bool) weak.Pointer[[64]byte] {
	topic, err := queue.Open(queue.Config[*[64]byte]{Name: "dropped"})
	if err != nil {
		t.Fatal(err)
	}
	g, err := topic.Group("g", queue.GroupConfig{})
	if err != nil {
		t.Fatal(err)
	}
	v := new([64]byte)
	ref := weak.Make(v)
	produce(t, topic, v, v)
	if _, ok, err := g.Consumer(0).TryPull(1); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if closed {
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return ref
}
