package queue_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// What opening a topic and adding a group does, and what it leaves when it is
// refused: BQ-1 to BQ-16, BQ-65, BQ-70.

// TestRefusedTopicLeavesNothingOnDisk is BQ-3 and BQ-11: everything is checked
// before anything is made.
func TestRefusedTopicLeavesNothingOnDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	good := queue.Config[int]{Name: "t", Dir: dir, Codec: penstock.JSON[int]()}
	for name, change := range map[string]func(*queue.Config[int]){
		"name":          func(c *queue.Config[int]) { c.Name = "\t" },
		"partitions":    func(c *queue.Config[int]) { c.Partitions = -1 },
		"capacity":      func(c *queue.Config[int]) { c.Capacity = -1 },
		"when full":     func(c *queue.Config[int]) { c.WhenFull = 2 },
		"segment size":  func(c *queue.Config[int]) { c.SegmentSize = 10 },
		"codec":         func(c *queue.Config[int]) { c.Codec = nil },
		"durability":    func(c *queue.Config[int]) { c.Durability = 99 },
		"segment bytes": func(c *queue.Config[int]) { c.SegmentBytes = 1 },
		"events":        func(c *queue.Config[int]) { c.SegmentEvents = -1 },
		"sync interval": func(c *queue.Config[int]) { c.Durability, c.SyncEvery.Interval = penstock.Written, -1 },
		"selector":      func(c *queue.Config[int]) { c.Router = queue.NumericRouter[int, int](nil) },
	} {
		c := good
		change(&c)
		topic, err := queue.Open(c)
		if topic != nil {
			t.Errorf("%s: a topic was returned", name)
		}
		wantErr(t, err, penstock.ErrInvalid)
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("%s: %s was made: %v", name, dir, err)
		}
	}
	topic, err := queue.Open(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := topic.Close(); err != nil {
		t.Error(err)
	}
}

// TestZeroConfigurationIsTheDefault is BQ-3, BQ-5, BQ-6 and BQ-12.
func TestZeroConfigurationIsTheDefault(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		if n := topic.Partitions(); n != 1 {
			t.Errorf("%d partitions, want 1", n)
		}
		produce(t, topic, seq(0, 1000)...) // no capacity
		if st := topic.Stats(); st.Capacity != 0 {
			t.Errorf("capacity %d, want none", st.Capacity)
		}
		g := group(t, topic, "g", queue.GroupConfig{})
		if from, to := g.Consumer(0).Partitions(); from != 0 || to != 1 {
			t.Errorf("consumer 0 reads [%d, %d), want [0, 1)", from, to)
		}
		b, err := g.Consumer(0).Pull(t.Context())
		if err != nil || b.Len() != 100 {
			t.Errorf("%d events at most, %v, want 100", b.Len(), err)
		}
		wantCommitted(t, g, 0) // committing is up to the caller
		bounded := open(t, s, queue.Config[int]{Name: "bounded", Capacity: 1})
		produce(t, bounded, 1)
		full := start(t, func() error { return bounded.Produce(t.Context(), 2) })
		full.blocked() // and neither fails nor drops
		if err := bounded.Close(); err != nil {
			t.Error(err)
		}
		wantErr(t, full.wait(), penstock.ErrClosed)
	})
}

// TestMemoryAndFileTopicsLiveTogether is BQ-1 and BQ-15: also under one name
// and type they share nothing.
func TestMemoryAndFileTopicsLiveTogether(t *testing.T) {
	var topics []*queue.Topic[int]
	for i, s := range storages {
		topic := open(t, s, queue.Config[int]{Name: "orders", Partitions: 2})
		produce(t, topic, 10*i, 10*i+1)
		topics = append(topics, topic)
	}
	for i, topic := range topics {
		want := [][]int{{10 * i}, {10*i + 1}}
		if diff := cmp.Diff(want, contents(t, topic)); diff != "" {
			t.Errorf("%s: %s", storages[i].name, diff)
		}
	}
}

// TestNamesStayInsideTheirDirectory is BQ-16, and BQ-2 for names that are odd
// and not blank.
func TestNamesStayInsideTheirDirectory(t *testing.T) {
	names := []string{"../x", "a/b", `a\b`, ".", "..", "nul", "%2e", "ä ö", "a", "A", strings.Repeat("n", 60)}
	forEachStorage(t, func(t *testing.T, s storage) {
		root := t.TempDir()
		dir := filepath.Join(root, "data")
		for i, name := range names {
			topic := open(t, s, queue.Config[int]{Name: name, Dir: onDiskDir(s, dir)})
			produce(t, topic, i)
			for _, group := range names {
				g, err := topic.Group(group, queue.GroupConfig{})
				if err != nil {
					t.Fatalf("topic %q, group %q: %v", name, group, err)
				}
				if diff := cmp.Diff([]int{i}, pull(t, g.Consumer(0), 10)); diff != "" {
					t.Errorf("topic %q, group %q: %s", name, group, diff)
				}
			}
			if topic.Name() != name {
				t.Errorf("topic %q is called %q", name, topic.Name())
			}
		}
		entries, err := os.ReadDir(root)
		if err != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != "data" {
			t.Errorf("beside the data directory: %v, %v", entries, err)
		}
	})
}

func onDiskDir(s storage, dir string) string {
	if s.name == "memory" {
		return ""
	}
	return dir
}

// TestFailedGroupLeavesNothing is BQ-70 where creation can fail half-way: the
// position in the second partition cannot be written.
func TestFailedGroupLeavesNothing(t *testing.T) {
	m := vfs.NewMem()
	c := queue.WithFS(queue.Config[string]{
		Name: "orders", Dir: "data", Codec: penstock.String(), Partitions: 2, Capacity: 2, WhenFull: queue.Fail, Logger: quiet(),
	}, m)
	topic := openDisk(t, c)
	produce(t, topic, "0", "1")
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if strings.Contains(op.Name, "p00001") && strings.Contains(op.Name, "groups") {
			return vfs.Fault{Err: errDisk}
		}
		return vfs.Fault{}
	})
	for range 3 {
		_, err := topic.Group("g", queue.GroupConfig{Consumers: 2})
		wantErr(t, err, errDisk)
	}
	if n := len(topic.Stats().Groups); n != 0 {
		t.Errorf("%d groups are left", n)
	}
	wantErr(t, topic.DeleteGroup("g"), penstock.ErrNotFound)
	m.SetFault(nil)
	g := group(t, topic, "g", queue.GroupConfig{Consumers: 2})
	for i := range 2 {
		want(t, pull(t, g.Consumer(i), 10), fmt.Sprint(i))
		commit(t, g.Consumer(i))
	}
	produce(t, topic, "2", "3") // no hold of the failed ones is left
}

// TestRefusalOfAGroupNamesTopicAndGroup: an error that cannot be told apart
// from that of another group is none (BQ-13, BQ-65, BQ-67).
func TestRefusalOfAGroupNamesTopicAndGroup(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Name: "orders", Partitions: 2})
		group(t, topic, "billing", queue.GroupConfig{})
		for _, c := range []queue.GroupConfig{{Consumers: 3}, {BatchMax: -1}, {}} {
			_, err := topic.Group("billing", c)
			if err == nil || !strings.Contains(err.Error(), `"orders"`) || !strings.Contains(err.Error(), `"billing"`) {
				t.Errorf("%+v: error %v names not both", c, err)
			}
		}
	})
}

// countingCodec counts its calls.
type countingCodec struct {
	penstock.Codec[int]
	calls *int
}

func (c countingCodec) Append(dst []byte, v int) ([]byte, error) {
	*c.calls++
	return c.Codec.Append(dst, v)
}

// TestCodecIsAskedOncePerEvent: nothing is serialised for a request that was
// cancelled or refused before it began (BQ-18, BQ-35, BQ-40).
func TestCodecIsAskedOncePerEvent(t *testing.T) {
	calls := 0
	topic := open(t, storages[1], queue.Config[int]{Capacity: 2, WhenFull: queue.Fail, Codec: countingCodec{penstock.JSON[int](), &calls}})
	wantErr(t, topic.Produce(ended(t), 1, 2), errEnded)
	wantErr(t, topic.Produce(t.Context(), 1, 2, 3), penstock.ErrFull)
	produce(t, topic, 1, 2)
	wantErr(t, topic.Produce(t.Context(), 3), penstock.ErrFull)
	if calls != 2 {
		t.Errorf("the codec was asked %d times, want twice", calls)
	}
}

// TestWarningsNameTheTopic: who reads the log of a process with many topics
// must see which one is meant (BQ-49).
func TestWarningsNameTheTopic(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		var log bytes.Buffer
		topic := open(t, s, queue.Config[int]{Name: "orders", Capacity: 1, Logger: textLogger(&log)})
		produce(t, topic, 1)
		waiting := start(t, func() error { return topic.Produce(t.Context(), 2) })
		waiting.blocked()
		if st := topic.Stats(); st.WaitingProducers != 1 || len(st.Groups) != 0 || st.State != queue.NoGroup {
			t.Errorf("stats %+v do not show a producer that waits for a group", st)
		}
		if text := log.String(); !strings.Contains(text, "topic=orders") || !strings.Contains(text, "WARN") {
			t.Errorf("log %q", text)
		}
		g := group(t, topic, "g", queue.GroupConfig{})
		pull(t, g.Consumer(0), 1)
		commit(t, g.Consumer(0))
		if err := waiting.wait(); err != nil { // a group that comes late makes room
			t.Error(err)
		}
	})
}
