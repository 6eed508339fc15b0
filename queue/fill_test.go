package queue_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// numbered returns the events [from, to) of a partition.
func numbered(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprintf("event %d", i))
	}
	return all
}

// TestPullAfterAReadErrorGivesNoEmptyValues: a fill that failed left the window
// of before in place, whose values it had cleared: the next pull that was small
// enough gave those, and its commit lost the events.
func TestPullAfterAReadErrorGivesNoEmptyValues(t *testing.T) {
	for _, auto := range []bool{false, true} {
		t.Run(fmt.Sprintf("auto=%v", auto), func(t *testing.T) {
			m := vfs.NewMem()
			topic, g := openKeyed(t, keyedOnDisk("data", m), queue.GroupConfig{AutoCommit: auto})
			defer closeTopic(t, topic)
			for _, v := range numbered(0, 300) {
				produce(t, topic, v)
			}
			c := g.Consumer(0)
			take := func(from, to int) {
				t.Helper()
				if diff := cmp.Diff(numbered(from, to), pull(t, c, to-from)); diff != "" {
					t.Fatalf("pulled (-want +got):\n%s", diff)
				}
				if !auto {
					commit(t, c)
				}
			}
			take(0, 100)
			take(100, 190) // some of the window are left, fewer than the next pull asks for
			m.SetFault(func(op vfs.Op) vfs.Fault {
				if op.Kind == vfs.OpRead {
					return vfs.Fault{Err: errDisk}
				}
				return vfs.Fault{}
			})
			_, _, err := c.TryPull(100)
			wantErr(t, err, errDisk)
			m.SetFault(nil)
			take(190, 195)
			take(195, 200)
			take(200, 300)
		})
	}
}

// TestLargeEventsBehindASmallOneAreNotDecodedAhead: how many fit was taken from the
// events before, of one frame as much as there was.
func TestLargeEventsBehindASmallOneAreNotDecodedAhead(t *testing.T) {
	for _, max := range []int{1, 10} {
		calls := 0
		topic := openDisk(t, queue.Config[string]{
			Name: "topic", Dir: t.TempDir(), Codec: decodeCounter{penstock.String(), &calls}, SegmentBytes: 16 * penstock.MiB, Logger: quiet(),
		})
		g := group(t, topic, "g", queue.GroupConfig{})
		request := []string{"x"}
		for range 9 {
			request = append(request, "y")
		}
		for range 190 {
			request = append(request, strings.Repeat("x", 20<<10))
		}
		produce(t, topic, request...) // one frame
		c := g.Consumer(0)
		if got := pull(t, c, max); len(got) != max {
			t.Errorf("%d events, want %d", len(got), max)
		}
		if calls > 30 {
			t.Errorf("%d events were decoded for a pull of %d small ones", calls, max)
		}
		commit(t, c)
		for at := max; at < len(request); {
			got := pull(t, c, max)
			if diff := cmp.Diff(request[at:min(at+max, len(request))], got); diff != "" {
				t.Fatalf("event %d and on are others", at)
			}
			commit(t, c)
			at += len(got)
		}
		if calls > len(request)*5/4 {
			t.Errorf("%d events were decoded, %d are there", calls, len(request))
		}
	}
}

// TestPullsOfLargeEventsReadTheLogOnce: a window that ended inside a pull made the
// next fill seek back, and that reads the active segment from its start.
func TestPullsOfLargeEventsReadTheLogOnce(t *testing.T) {
	const events, size = 200, 20 << 10
	m := vfs.NewMem()
	topic := openDisk(t, queue.WithFS(queue.Config[string]{
		Name: "topic", Dir: "data", Codec: penstock.String(), SegmentBytes: 16 * penstock.MiB, Logger: quiet(),
	}, m))
	g := group(t, topic, "g", queue.GroupConfig{})
	for range events {
		produce(t, topic, strings.Repeat("x", size))
	}
	var read atomic.Int64
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpRead {
			read.Add(op.Len)
		}
		return vfs.Fault{}
	})
	c, got := g.Consumer(0), 0
	for got < events {
		n := len(pull(t, c, 10))
		if n == 0 {
			t.Fatalf("nothing behind %d events", got)
		}
		commit(t, c)
		got += n
	}
	if n := read.Load(); n > 2*events*size {
		t.Errorf("%d bytes were read of a log of %d", n, events*size)
	}
}
