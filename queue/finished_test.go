package queue_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"weak"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// onHeap keeps memory of its own alive.
type onHeap = *[64]int

// delivered are those values that were given out, held weakly.
type delivered struct {
	mu   sync.Mutex
	refs []weak.Pointer[[64]int]
}

func (v *delivered) see(b penstock.Batch[onHeap]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range b.Values() {
		v.refs = append(v.refs, weak.Make(p))
	}
}

func (v *delivered) count() (seen, alive int) {
	runtime.GC()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range v.refs {
		if r.Value() != nil {
			alive++
		}
	}
	return len(v.refs), alive
}

// TestDeliveredValuesDieWithoutAppend: what a group was given, and has finished
// with, stays reachable for nobody, whichever way it is used, and though nothing
// is appended or deleted any more. On disk a group kept the last window that was
// decoded for it (BQ-64, adrianbrad/queue#43).
func TestDeliveredValuesDieWithoutAppend(t *testing.T) {
	const events = 300
	for way, use := range map[string]func(t *testing.T, topic *queue.Topic[onHeap], v *delivered) (stop func()){
		"pulled, committed by call": func(t *testing.T, topic *queue.Topic[onHeap], v *delivered) func() {
			pullAll(t, group(t, topic, "g", queue.GroupConfig{}), v)
			return nil
		},
		"pulled, committed at the pull": func(t *testing.T, topic *queue.Topic[onHeap], v *delivered) func() {
			pullAll(t, group(t, topic, "g", queue.GroupConfig{AutoCommit: true}), v)
			return nil
		},
		"run": func(t *testing.T, topic *queue.Topic[onHeap], v *delivered) func() {
			return runAll(t, group(t, topic, "g", queue.GroupConfig{}), v)
		},
		"run, committed before": func(t *testing.T, topic *queue.Topic[onHeap], v *delivered) func() {
			return runAll(t, group(t, topic, "g", queue.GroupConfig{AutoCommit: true}), v)
		},
		"run by workers": func(t *testing.T, topic *queue.Topic[onHeap], v *delivered) func() {
			return runAll(t, group(t, topic, "g", queue.GroupConfig{Workers: 3}), v)
		},
		"read ahead": func(t *testing.T, topic *queue.Topic[onHeap], v *delivered) func() {
			g := group(t, topic, "g", queue.GroupConfig{})
			for p := range topic.Partitions() {
				readToTheEnd(t, g, p, v)
			}
			return nil
		},
	} {
		t.Run(way, func(t *testing.T) {
			forEachStorage(t, func(t *testing.T, s storage) {
				topic := open(t, s, queue.Config[onHeap]{Partitions: 2})
				func() {
					var batch []onHeap
					for range events {
						batch = append(batch, new([64]int))
					}
					produce(t, topic, batch...)
				}()
				v := &delivered{}
				stop := use(t, topic, v)
				eventually(t, "values that were delivered are alive", func() bool {
					seen, alive := v.count()
					return seen == events && alive == 0
				})
				if stop != nil {
					stop()
				}
				runtime.KeepAlive(topic)
			})
		})
	}
}

func pullAll(t *testing.T, g *queue.Group[onHeap], v *delivered) {
	c := g.Consumer(0)
	for {
		b, ok, err := c.TryPull(70)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return
		}
		v.see(b.Batch)
		_ = b.Commit()
	}
}

func runAll(t *testing.T, g *queue.Group[onHeap], v *delivered) (stop func()) {
	run := startRun(t, g, func(_ context.Context, b penstock.Batch[onHeap]) error {
		v.see(b)
		return nil
	})
	return func() { run.mustStop(t) }
}

func readToTheEnd(t *testing.T, g *queue.Group[onHeap], partition int, v *delivered) {
	r, err := g.Reader(partition)
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, ok, err := r.Read(70)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return
		}
		v.see(b)
		if err := r.Commit(r.Next()); err != nil {
			t.Fatal(err)
		}
	}
}

// decodeCounter counts what is decoded.
type decodeCounter struct {
	penstock.Codec[string]
	calls *int
}

func (c decodeCounter) Decode(src []byte, v *string) error {
	*c.calls++
	return c.Codec.Decode(src, v)
}

// TestLargeEventsAreNotDecodedAhead: a pull on disk decodes a few hundred small
// events at once, and no more large ones than it was asked for. It used to hold
// 256 of them, however large, for each group and partition.
func TestLargeEventsAreNotDecodedAhead(t *testing.T) {
	for _, c := range []struct{ size, events, max, least, most int }{
		{100, 400, 1, 200, 256},
		{100 << 10, 40, 1, 1, 3},
		{100 << 10, 40, 10, 10, 10},
		{300 << 10, 10, 1, 1, 1},
	} {
		calls := 0
		topic := openDisk(t, queue.Config[string]{
			Name: "topic", Dir: t.TempDir(), Codec: decodeCounter{penstock.String(), &calls}, SegmentBytes: 8 * penstock.MiB, Logger: quiet(),
		})
		g := group(t, topic, "g", queue.GroupConfig{})
		for range c.events {
			if err := topic.Produce(t.Context(), strings.Repeat("x", c.size)); err != nil {
				t.Fatal(err)
			}
		}
		if got := pull(t, g.Consumer(0), c.max); len(got) != c.max {
			t.Errorf("%d bytes: %d events, want %d", c.size, len(got), c.max)
		}
		if calls < c.least || calls > c.most {
			t.Errorf("%d bytes: %d events were decoded for a pull of %d, want %d to %d", c.size, calls, c.max, c.least, c.most)
		}
	}
}
