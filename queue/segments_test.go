package queue

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// TestUncommittedPullKeepsItsSegment_QC36 counts the segments that are alive:
// in the chain in memory, files on disk.
func TestUncommittedPullKeepsItsSegment_QC36(t *testing.T) {
	for _, name := range []string{"memory", "file"} {
		t.Run(name, func(t *testing.T) {
			c := Config[int]{SegmentSize: 3}
			if name == "file" {
				c = Config[int]{SegmentEvents: 3, Dir: t.TempDir(), Codec: penstock.JSON[int]()}
			}
			topic := openInside(t, c)
			alive := func() int {
				if name == "file" {
					return sealedAndActive(t, c.Dir)
				}
				return topic.parts[0].log.Usage().Slots / 3 // a new log begins with one of no slots
			}
			g, err := topic.Group("g", GroupConfig{})
			if err != nil {
				t.Fatal(err)
			}
			one := func(v int) {
				if err := topic.Produce(t.Context(), v); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 6 {
				one(i)
			}
			c0 := g.Consumer(0)
			take := func(n, first int) {
				t.Helper()
				b, ok, err := c0.TryPull(n)
				if !ok || err != nil || b.Len() != n || b.Value(0) != first {
					t.Fatalf("%v, %t, %v", b.Values(), ok, err)
				}
			}
			take(3, 0)
			one(6)
			if n := alive(); n != 3 {
				t.Errorf("%d segments are alive while the first is in hands, want 3", n)
			}
			take(7, 0)
			take(3, 0)
			if err := c0.Commit(); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the room of the first segment is used again, or its file is gone
				one(7)
				one(8)
			}
			take(8, 3)
			if n := alive(); n > 4 {
				t.Errorf("%d segments for 8 events", n)
			}
		})
	}
}

// sealedAndActive counts segment files that hold events or may take some; a
// spare is not one yet.
func sealedAndActive(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, ".seg") {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPartitionsAppendInParallel is BQ-56: an append that is held up in one
// partition does not hold up those of another that are routed by key, while
// those of the same partition come one after the other.
func TestPartitionsAppendInParallel(t *testing.T) {
	topic := openInside(t, Config[int]{Partitions: 2, Router: NumericRouter(func(v int) int { return v })})
	first := topic.parts[0]
	first.appendMu.Lock() // somebody appends to partition 0
	same, other := make(chan error, 1), make(chan error, 1)
	go func() { same <- topic.Produce(t.Context(), 1) }()                          // ends when the lock is free; received below
	go func() { other <- topic.Produce(t.Context(), []int{2, 4}...) }()            // ends by itself; received below
	guard := time.AfterFunc(time.Minute, func() { panic("an append is held up") }) // instead of hanging
	defer guard.Stop()
	if err := <-other; err != nil {
		t.Error(err)
	}
	if n := topic.parts[1].end(); n != 2 {
		t.Errorf("%d events in partition 1, want 2", n)
	}
	if n := first.end(); n != 0 {
		t.Errorf("%d events in partition 0 beside an append", n)
	}
	first.appendMu.Unlock()
	if err := <-same; err != nil || first.end() != 1 {
		t.Errorf("%d events in partition 0, %v", first.end(), err)
	}
}

// TestLargeBatchEndsWithItsSegment: a batch that crosses segments is copied
// together when it is small, and ends with its segment when it is large; order
// and count hold either way (BQ-72).
func TestLargeBatchEndsWithItsSegment(t *testing.T) {
	const events = 5000
	for _, max := range []int{1, 100, joinedBytes / 8, joinedBytes/8 + 1, 1000, events} {
		topic := openInside(t, Config[int]{})
		g, err := topic.Group("g", GroupConfig{AutoCommit: true})
		if err != nil {
			t.Fatal(err)
		}
		for i := range events {
			if err := topic.Produce(t.Context(), i); err != nil {
				t.Fatal(err)
			}
		}
		c, next, short := g.Consumer(0), 0, 0
		for next < events {
			b, ok, err := c.TryPull(max)
			if !ok || err != nil || b.Len() > max {
				t.Fatalf("max %d: %d events, %t, %v at %d", max, b.Len(), ok, err, next)
			}
			for i, v := range b.Values() {
				if v != next+i {
					t.Fatalf("max %d: got event %d, want %d", max, v, next+i)
				}
			}
			if next += b.Len(); b.Len() < max && next < events {
				short++
			}
		}
		copied := cap(c.cursors[0].source.(*memory[int]).values)
		if large := max > joinedBytes/8; large != (short > 0) || large && copied >= max {
			t.Errorf("max %d: %d batches were short, room for %d copies", max, short, copied)
		}
	}
}
