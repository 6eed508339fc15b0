package queue_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/segfile"
)

// TestWritePathOfATopicIsChosenAndShown: by name, for topics on disk; it may
// change between opens, and the events are the same.
func TestWritePathOfATopicIsChosenAndShown(t *testing.T) {
	shown := func(topic *queue.Topic[string]) string { return topic.Stats().Partitions[0].WritePath }
	inMemory := openDisk(t, queue.Config[string]{Name: "memory"})
	if got := shown(inMemory); got != "" {
		t.Errorf("in memory the write path is %q", got)
	}
	c := queue.Config[string]{Name: "orders", Dir: t.TempDir(), Codec: penstock.String()}
	topic := openDisk(t, c)
	if got := shown(topic); got != "pwrite" {
		t.Errorf("at level synced the write path is %q", got)
	}
	group(t, topic, "g", queue.GroupConfig{})
	var all []string
	put := func() {
		for range 100 { // enough small ones in a row
			all = append(all, fmt.Sprint("event ", len(all)))
		}
		produce(t, topic, all[len(all)-100:]...)
	}
	put()
	c.Durability = penstock.Written
	for _, path := range []segfile.WritePath{segfile.WritePwrite, segfile.WriteMapping, segfile.WriteAuto} {
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		c.WritePath = path
		next, err := queue.Open(c)
		if path == segfile.WriteMapping && errors.Is(err, penstock.ErrUnsupported) {
			t.Logf("no mappings here: %v", err)
			c.WritePath = segfile.WritePwrite
			next, err = queue.Open(c)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = next.Close() })
		topic = next
		put()
		if got := shown(topic); c.WritePath != segfile.WriteAuto && got != c.WritePath.String() {
			t.Errorf("%v was chosen, and %q is shown", c.WritePath, got)
		}
	}
	consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	var got []string
	for len(got) < len(all) {
		got = append(got, pull(t, consumer, len(all))...)
		commit(t, consumer)
	}
	want(t, got, all...)
}
