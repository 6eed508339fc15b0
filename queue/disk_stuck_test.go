package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// TestHandlerThatWaitsForDiskIsTold: only its own return could let the oldest
// segment go.
func TestHandlerThatWaitsForDiskIsTold(t *testing.T) {
	forEachDiskCapacity(t, 1, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1})
		produce(t, topic, wide(0))
		var told atomic.Int64
		run := startRun(t, g, func(ctx context.Context, b penstock.Batch[string]) error {
			if told.Load() > 0 {
				return nil
			}
			for i := range 1000 {
				if err := topic.Produce(ctx, wide(i)); err != nil {
					wantErr(t, err, queue.ErrWaitsForItself, penstock.ErrFull)
					told.Add(1)
					return nil
				}
			}
			return nil
		})
		time.Sleep(time.Minute)
		run.mustStop(t)
		if told.Load() != 1 {
			t.Fatalf("told %d times, want once", told.Load())
		}
		withinDisk(t, topic)
		produce(t, topic, wide(0)) // there is room again
	})
}

// TestHandlerThatWaitsForDiskOfOthersWaits: while another group holds the oldest
// segment, too, it may make the room.
func TestHandlerThatWaitsForDiskOfOthersWaits(t *testing.T) {
	forEachDiskCapacity(t, 1, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		slow := group(t, topic, "slow", queue.GroupConfig{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1})
		for i := range 14 {
			produce(t, topic, wide(i))
		}
		begin := time.Now()
		var told atomic.Int64
		run := startRun(t, g, func(ctx context.Context, b penstock.Batch[string]) error {
			if b.Value(0) != wide(14) || told.Load() > 0 {
				return nil
			}
			for i := range 1000 {
				if err := topic.Produce(ctx, wide(100+i)); err != nil {
					wantErr(t, err, queue.ErrWaitsForItself)
					told.Store(int64(time.Since(begin)))
					return nil
				}
			}
			return nil
		})
		time.Sleep(time.Second) // what is done is committed
		produce(t, topic, wide(14))
		time.Sleep(30 * time.Second)
		other := startRun(t, slow, func(context.Context, penstock.Batch[string]) error { return nil })
		time.Sleep(time.Minute)
		run.mustStop(t)
		other.mustStop(t)
		if at := time.Duration(told.Load()); at < 30*time.Second {
			t.Errorf("told after %v, when the other group could still make room", at)
		}
	})
}

// TestDropOldestDropsNoMoreThanItCanDelete: while files cannot be removed it would
// help nobody to move groups past one segment after the other, to try a hundred times
// a second, or to say so each time.
func TestDropOldestDropsNoMoreThanItCanDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		var said strings.Builder
		var tries atomic.Int64
		c := queue.WithFS(queue.Config[string]{
			Name: "orders", Dir: "data", Codec: penstock.String(), SegmentBytes: 8 * penstock.KiB, CapacityDisk: 48 * penstock.KiB,
			WhenFull: queue.DropOldest, HardRetention: true, Logger: textLogger(&said),
		}, m)
		topic := openDisk(t, c)
		group(t, topic, "g", queue.GroupConfig{})
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpRemove && strings.HasSuffix(op.Name, ".seg") {
				tries.Add(1)
				return vfs.Fault{Err: errors.New("device or resource busy")}
			}
			return vfs.Fault{}
		})
		fill := start(t, func() error {
			for i := range 100 {
				if err := topic.Produce(t.Context(), wide(i)); err != nil {
					return fmt.Errorf("event %d: %w", i, err)
				}
			}
			return nil
		})
		time.Sleep(time.Minute)
		fill.blocked()
		if s := topic.Stats(); s.Skipped == 0 || s.Skipped > 9 {
			t.Errorf("%d events were passed, want those of one segment", s.Skipped)
		}
		if n := tries.Load(); n < 30 || n > 200 {
			t.Errorf("%d removals were tried in a minute", n)
		}
		m.SetFault(nil)
		time.Sleep(time.Minute)
		endsWith(t, fill, nil)
		withinDisk(t, topic)
		if stay, over := strings.Count(said.String(), "consumed segments stay on disk"), strings.Count(said.String(), "consumed segments are deleted again"); stay != 1 || over != 1 {
			t.Errorf("the log tells %d times that files stay, and %d times that it is over", stay, over)
		}
	})
}

// TestDropOldestLeavesADamagedPartitionAlone: one that keeps its only segment for a
// repair makes no room, so its events are not passed for any, and the others go on.
func TestDropOldestLeavesADamagedPartitionAlone(t *testing.T) {
	forEachDiskCapacity(t, 2, func(t *testing.T, c queue.Config[string]) {
		c.WhenFull, c.HardRetention, c.Key = queue.DropOldest, true, func(v string) string { return v[:4] }
		topic := openDisk(t, c)
		group(t, topic, "g", queue.GroupConfig{})
		var in [2]string // events of the two partitions
		for i := 0; in[0] == "" || in[1] == ""; i++ {
			ack, err := topic.ProduceAsync(t.Context(), wide(i)[:4])
			if err != nil {
				t.Fatal(err)
			}
			got, err := ack.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			in[got.Parts[0].Partition] = wide(i)
		}
		produce(t, topic, in[0])
		produce(t, topic, in[0])
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		segments, err := filepath.Glob(filepath.Join(c.Dir, c.Name, "p00000", "*.seg"))
		if err != nil || len(segments) != 1 {
			t.Fatalf("segments %q, %v", segments, err)
		}
		b, err := os.ReadFile(segments[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(segments[0], int64(bytes.LastIndex(b, []byte(in[0])))); err != nil {
			t.Fatal(err)
		}
		topic = openDisk(t, c)
		g := group(t, topic, "g", queue.GroupConfig{})
		wantErr(t, topic.Stats().Partitions[0].Fault, penstock.ErrCorrupt)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for range 60 {
			if err := topic.Produce(ctx, in[1]); err != nil {
				t.Fatal(err)
			}
		}
		withinDisk(t, topic)
		if s := topic.Stats(); s.Partitions[0].Retained == 0 || s.Skipped == 0 {
			t.Errorf("%d events are retained in the damaged partition, %d were passed", s.Partitions[0].Retained, s.Skipped)
		}
		for {
			b, ok, err := g.Consumer(0).TryPull(1)
			if ok && b.Value(0) == in[0] {
				return
			}
			if _, told := errors.AsType[*queue.SkippedError](err); !ok && !told {
				t.Fatalf("no event of the damaged partition came: %v", err)
			}
			if ok {
				commit(t, g.Consumer(0))
			}
		}
	})
}

// TestRepetitionThatOnePartitionForgotIsRefused: another one remembers the
// request, so it was acknowledged, or torn, and what the first one had of it
// would be appended twice.
func TestRepetitionThatOnePartitionForgotIsRefused(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.Partitions, c.Key, c.SegmentBytes = 2, func(v string) string { return v[len(v)-1:] }, 64*penstock.KiB
		topic := openDisk(t, c)
		group(t, topic, "keeps everything", queue.GroupConfig{})
		one, two := "", "" // keys of the two partitions
		for k := 'a'; one == "" || two == ""; k++ {
			ack, err := topic.ProduceAsync(t.Context(), "x"+string(k))
			if err != nil {
				t.Fatal(err)
			}
			got, err := ack.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got.Parts[0].Partition == 0 {
				one = string(k)
			} else {
				two = string(k)
			}
		}
		p := producer(t, topic, 1)
		if _, err := p.Produce(t.Context(), 1, "first"+one, "first"+two); err != nil {
			t.Fatal(err)
		}
		for id := range uint32(queue.ProducersMax) { // all in one partition
			if _, err := producer(t, topic, id+2).Produce(t.Context(), 1, "other"+one); err != nil {
				t.Fatal(err)
			}
		}
		before := topic.Stats().Produced
		_, err := p.Produce(t.Context(), 1, "first"+one, "first"+two)
		wantErr(t, err, penstock.ErrUnknownOutcome)
		if _, err := p.Produce(t.Context(), 1, "first"+two); err != nil { // what is known is answered
			t.Errorf("the part that is known: %v", err)
		}
		if now := topic.Stats().Produced; now != before {
			t.Errorf("%d events were appended", now-before)
		}
		if _, err := p.Produce(t.Context(), 2, "second"+one, "second"+two); err != nil {
			t.Errorf("the next request: %v", err)
		}
	})
}
