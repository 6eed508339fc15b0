package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// fullConfig is a topic of events so large that a disk is full long before a
// sweep is due.
func fullConfig(dir string, level penstock.Durability) queue.Config[string] {
	return queue.Config[string]{
		Name: "orders", Dir: dir, Codec: penstock.String(), Durability: level, Partitions: 2,
		SegmentBytes: 256 * penstock.KiB, Logger: slog.New(slog.DiscardHandler),
	}
}

// fillAndConsume produces until the disk is full, checks what must still work
// then, consumes everything, and does it again: in all rounds without a
// restart (QC-66). It returns how many events, of size bytes, it produced.
func fillAndConsume(t *testing.T, topic *queue.Topic[string], async bool, size int) int {
	t.Helper()
	consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	n := 0
	for round := range 3 {
		var there []string
		for {
			v := fmt.Sprintf("%06d", n) + strings.Repeat(".", size)
			if err := failing(t.Context(), topic, async, v); err != nil {
				wantErr(t, err, penstock.ErrDiskFull)
				break
			}
			there = append(there, v)
			n++
		}
		if len(there) < 20 {
			t.Fatalf("round %d: the disk was full after %d events: nothing was given back", round, len(there))
		}
		for len(there) > 0 {
			got := pull(t, consumer, len(there)/2+1)
			commit(t, consumer) // needs no room
			for _, v := range got {
				i := slices.Index(there, v)
				if i < 0 {
					t.Fatalf("round %d: %.10q came twice or was never acknowledged", round, v)
				}
				there = slices.Delete(there, i, i+1)
			}
		}
	}
	return n
}

func TestFullDiskComesBackWhenAllIsConsumed_QC66(t *testing.T) {
	for _, level := range levels {
		for _, async := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/async=%v", level, async), func(t *testing.T) {
				m := vfs.NewMem()
				topic := openDisk(t, queue.WithFS(fullConfig("data", level), m))
				m.SetSpace(m.Used() + 700_000) // two partitions, and not one segment more
				fillAndConsume(t, topic, async, 10_000)
			})
		}
	}
}

// What is consumed makes room although no sweep was due before the disk was
// full, and although the producer finds out and not the consumer.
func TestProduceOnFullDiskTakesWhatWasConsumedBefore(t *testing.T) {
	m := vfs.NewMem()
	topic := openDisk(t, queue.WithFS(fullConfig("data", penstock.Synced), m))
	consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	m.SetSpace(m.Used() + 700_000)
	for i := range 200 { // two megabytes
		if err := topic.Produce(t.Context(), strings.Repeat("x", 10_000)); err != nil {
			t.Fatalf("event %d, with everything before it consumed: %v", i, err)
		}
		pull(t, consumer, 1)
		commit(t, consumer)
	}
	if err := errors.Join(topic.Close()); err != nil {
		t.Fatal(err)
	}
}

// A disk that does not answer bounds what waits in memory, and ctx ends the
// wait of a producer for whom there is no room.
func TestStalledDiskBoundsWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic, stall := stallable(t)
		release := stall("")
		big := strings.Repeat("x", 1<<20)
		var receipts []*queue.Receipt
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		sent := start(t, func() error {
			for range 1000 {
				r, err := topic.ProduceAsync(ctx, big, big)
				if err != nil {
					return err
				}
				receipts = append(receipts, r)
			}
			return nil
		})
		sent.blocked()
		for i := range 2 {
			if n := queue.DiskPartition(topic, i).Stats().Pending; n > 16*penstock.MiB {
				t.Errorf("%v wait in partition %d", n, i)
			}
		}
		cancel()
		wantErr(t, sent.wait(), context.Canceled)
		if n := len(receipts); n < 14 || n > 25 { // 16 MiB wait, 4 MiB are being written
			t.Errorf("%d MiB in flight in one partition", n)
		}
		release()
		for _, r := range receipts {
			if _, err := r.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if all := slices.Concat(contents(t, topic)...); len(all) != 2+2*len(receipts) {
			t.Errorf("%d events, want %d", len(all), 2+2*len(receipts))
		}
	})
}

// TestCancelEndsTheWaitForRoomInALaterPartition: a request over two partitions
// of which the second has no room waits before anything of it is on its way, so
// that its context ends the wait. It used to hand the first part over and then
// to wait, for as long as the disk stalled, whatever became of its context.
func TestCancelEndsTheWaitForRoomInALaterPartition(t *testing.T) {
	for _, async := range []bool{false, true} {
		t.Run(fmt.Sprintf("async=%v", async), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topic, stall := stallable(t)
				release := stall("p00001")
				big := strings.Repeat("1", 1<<20)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				fill := start(t, func() error {
					for {
						if _, err := topic.ProduceAsync(ctx, big); err != nil {
							return err
						}
					}
				})
				fill.blocked() // partition 1 has no room
				both := start(t, func() error { return failing(ctx, topic, async, "0", big) })
				both.blocked()
				cancel()
				wantErr(t, fill.wait(), context.Canceled)
				wantErr(t, both.wait(), context.Canceled)
				s := queue.DiskPartition(topic, 0).Stats()
				if s.Readable != 1 || s.Pending != 0 {
					t.Errorf("partition 0 has %d events, %v wait: want the first event alone", s.Readable, s.Pending)
				}
				if err := topic.Produce(t.Context(), "0"); err != nil { // nothing holds partition 0 up
					t.Error(err)
				}
				release()
				if err := topic.Produce(t.Context(), "0", "1"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// stallable opens a topic in a file system in memory with two partitions, one
// event in each, routed by the first byte. stall makes syncs of files whose
// path has the text wait until release is called, at the end of the test at the
// latest.
func stallable(t *testing.T) (topic *queue.Topic[string], stall func(path string) (release func())) {
	m := vfs.NewMem()
	c := queue.WithFS(fullConfig("data", penstock.Synced), m)
	c.SegmentBytes = 8 * penstock.MiB
	turn := 0
	c.Router = queue.RouterFunc("byte/1", func(v string, n int) int {
		if v[0] == 'x' { // in turns
			turn++
			return turn % n
		}
		return int(v[0]-'0') % n
	})
	topic = openDisk(t, c)
	produce(t, topic, "0", "1")
	return topic, func(path string) func() {
		stalled := make(chan struct{})
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpSync && strings.Contains(op.Name, path) {
				<-stalled
			}
			return vfs.Fault{}
		})
		release := sync.OnceFunc(func() { close(stalled) })
		t.Cleanup(release)
		return release
	}
}
