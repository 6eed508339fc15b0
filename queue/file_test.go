package queue_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/segfile"
)

// levels are the durabilities of a topic on disk.
var levels = []penstock.Durability{penstock.Synced, penstock.Written}

// forEachLevel runs a case at both levels, each with a directory of its own.
func forEachLevel(t *testing.T, test func(t *testing.T, c queue.Config[string])) {
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			test(t, queue.Config[string]{
				Name: "orders", Dir: t.TempDir(), Codec: penstock.String(), Durability: level, Logger: slog.New(slog.DiscardHandler),
			})
		})
	}
}

// reopen closes the topic and opens it again.
func reopen[T any](t *testing.T, topic *queue.Topic[T], c queue.Config[T]) *queue.Topic[T] {
	t.Helper()
	if err := topic.Close(); err != nil {
		t.Fatal(err)
	}
	return openDisk(t, c)
}

// openDisk opens a topic with exactly this configuration.
func openDisk[T any](t *testing.T, c queue.Config[T]) *queue.Topic[T] {
	t.Helper()
	topic, err := queue.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = topic.Close() })
	return topic
}

func want[T comparable](t *testing.T, got []T, want ...T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// segments returns the segment files below a directory, in order.
func segments(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".seg") {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestCommitSurvivesReopen_QC51(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, "0", "1", "2", "3", "4")
		want(t, pull(t, consumer, 2), "0", "1")
		topic = reopen(t, topic, c)
		consumer = group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		want(t, pull(t, consumer, 2), "0", "1") // not committed
		commit(t, consumer)
		topic = reopen(t, topic, c)
		consumer = group(t, topic, "g", queue.GroupConfig{Start: queue.Latest}).Consumer(0)
		want(t, pull(t, consumer, 3), "2", "3", "4")
	})
}

func TestTornTailIsCutAndAppendGoesOn_QC59(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		produce(t, topic, "1")
		produce(t, topic, "2")
		// A copy of the directory of a running topic is what kill -9 leaves.
		c.Dir = crashCopy(t, c.Dir)
		file := segments(t, c.Dir)[0]
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		end := len(strings.TrimRight(string(b), "\x00"))
		end += (8 - end%8) % 8
		half := slices.Clone(b[end-72 : end-40]) // the first half of the frame of "2"
		writeAt(t, file, half, int64(end))
		topic = openDisk(t, c)
		produce(t, topic, "3")
		// A batch has one epoch, so the new writer's event comes in one of its own.
		want(t, contents(t, topic)[0], "1", "2", "3")
		topic = reopen(t, topic, c)
		consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		want(t, pull(t, consumer, 10), "1", "2")
		commit(t, consumer)
		b2, _, err := consumer.TryPull(10)
		if err != nil {
			t.Fatal(err)
		}
		want(t, b2.Values(), "3")
		if b2.Offset(0) != 2 || b2.Epoch() < 2 {
			t.Errorf("3 has offset %d and epoch %d, want 2 and a later epoch", b2.Offset(0), b2.Epoch())
		}
	})
}

// crashCopy copies a data directory as it is.
func crashCopy(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func writeAt(t *testing.T, file string, b []byte, at int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(b, at)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestDamageIsToldAndNothingIsSkipped_QC61(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		for i := range 6 {
			produce(t, topic, fmt.Sprintf("event-%d", i))
		}
		if err := topic.Close(); err != nil { // a finished sync covers all of it
			t.Fatal(err)
		}
		file := segments(t, c.Dir)[0]
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		at := strings.Index(string(b), "event-3")
		writeAt(t, file, []byte{b[at] ^ 4}, int64(at))
		topic = openDisk(t, c)
		consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		want(t, pull(t, consumer, 10), "event-0", "event-1", "event-2")
		commit(t, consumer)
		for range 2 {
			_, _, err = consumer.TryPull(10)
			var corrupt *penstock.CorruptError
			if !errors.As(err, &corrupt) {
				t.Fatalf("error %v, want a CorruptError", err)
			}
			if corrupt.Topic != "orders" || corrupt.File != filepath.Base(file) || corrupt.Position == 0 || corrupt.First != 3 || corrupt.Last != 3 {
				t.Errorf("error %+v does not say where", corrupt)
			}
		}
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		after, err := os.ReadFile(file)
		if err != nil || len(after) != len(b) {
			t.Fatalf("%d bytes, %v, want %d: nothing is cut", len(after), err, len(b))
		}
	})
}

func TestSecondOpenIsRefused_QC63(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		_, err := queue.Open(c)
		wantErr(t, err, penstock.ErrLocked)
		var locked *segfile.LockedError
		if !errors.As(err, &locked) || locked.Pid != os.Getpid() {
			t.Errorf("error %v, want one that names process %d", err, os.Getpid())
		}
		reopen(t, topic, c)
	})
}

func TestEmptyAndTinyPayloadsSurviveReopen_QC68(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		produce(t, topic, "")
		produce(t, topic, "a", "", "b")
		produce(t, topic, "")
		topic = reopen(t, topic, c)
		consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		want(t, pull(t, consumer, 10), "", "a", "", "b", "")
	})
}

func TestChangedTopicIsRefused_QC70(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.Partitions = 4
		if err := openDisk(t, c).Close(); err != nil {
			t.Fatal(err)
		}
		for name, change := range map[string]struct {
			edit func(*queue.Config[string])
			want []string
		}{
			"partitions": {func(c *queue.Config[string]) { c.Partitions = 2 }, []string{"Partitions", "4", "2"}},
			"router":     {func(c *queue.Config[string]) { c.Key = func(s string) string { return s } }, []string{"Router", "roundrobin/1", "hash/1"}},
			"codec":      {func(c *queue.Config[string]) { c.Codec = penstock.JSON[string]() }, []string{"Codec", "string/1", "json/1"}},
		} {
			t.Run(name, func(t *testing.T) {
				c := c
				change.edit(&c)
				_, err := queue.Open(c)
				wantErr(t, err, penstock.ErrInvalid)
				for _, w := range change.want {
					if err == nil || !strings.Contains(err.Error(), w) {
						t.Errorf("error %v does not name %s", err, w)
					}
				}
			})
		}
		openDisk(t, c) // unchanged, it opens
	})
}

func TestCloseSyncsAndMarks_QC74(t *testing.T) {
	c := queue.Config[string]{
		Name: "orders", Dir: t.TempDir(), Codec: penstock.String(), Durability: penstock.Written,
		SyncEvery: segfile.SyncEvery{Interval: 1 << 42}, Logger: slog.New(slog.DiscardHandler),
	}
	topic := openDisk(t, c)
	for i := range 100 {
		produce(t, topic, fmt.Sprint(i))
	}
	if err := topic.Close(); err != nil {
		t.Fatal(err)
	}
	log, err := segfile.Open(segfile.Config{Dir: c.Dir, Topic: c.Name, Router: "roundrobin/1", Codec: "string/1", Logger: c.Logger})
	if err != nil {
		t.Fatal(err)
	}
	r := log.Recovery()[0]
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if !r.Clean || r.Scanned != 0 || r.End != 100 {
		t.Errorf("recovery %+v, want a clean open without a scan that finds 100 events", r)
	}
}

func TestUncommittedEventsCountAfterReopen(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.Capacity, c.WhenFull = 4, queue.Fail
		topic := openDisk(t, c)
		consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produce(t, topic, "0", "1", "2")
		pull(t, consumer, 1)
		commit(t, consumer)
		topic = reopen(t, topic, c) // 2 are left; the group is known and not open
		if ok, err := topic.TryProduce(t.Context(), "3", "4", "5"); ok || err != nil {
			t.Fatalf("3 events beside 2 in a topic of 4: %v, %v", ok, err)
		}
		produce(t, topic, "3", "4")
		consumer = group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		want(t, pull(t, consumer, 10), "1", "2", "3", "4")
		commit(t, consumer)
		c.Capacity = 2
		produce(t, topic, "5", "6", "7", "8")
		topic = reopen(t, topic, c) // more is left than the capacity is now
		consumer = group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		for i, full := range []bool{true, true, false} {
			if ok, err := topic.TryProduce(t.Context(), "x"); ok == full || err != nil {
				t.Fatalf("after %d commits: %v, %v, want full = %v", i, ok, err, full)
			}
			pull(t, consumer, 1)
			commit(t, consumer)
			if i == 1 {
				pull(t, consumer, 1)
				commit(t, consumer)
			}
		}
	})
}

func TestMetadataSurvivesReopen(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		produce(t, topic, "bare")
		err := topic.ProduceEvents(t.Context(),
			penstock.Event[string]{Meta: penstock.Meta{ID: "7", Key: "k", Header: penstock.Header{{Name: "a", Value: "b"}}}, Value: "full"},
			penstock.Event[string]{Value: "beside it"})
		if err != nil {
			t.Fatal(err)
		}
		topic = reopen(t, topic, c)
		b, _, err := group(t, topic, "g", queue.GroupConfig{}).Consumer(0).TryPull(10)
		if err != nil {
			t.Fatal(err)
		}
		want(t, b.Values(), "bare", "full", "beside it")
		if m := b.Meta(1); m.ID != "7" || m.Key != "k" || m.Header.Get("a") != "b" || b.ID(0) != "" || b.ID(2) != "" || b.Time(0).IsZero() {
			t.Errorf("metadata %+v, ids %q %q, time %v", m, b.ID(0), b.ID(2), b.Time(0))
		}
	})
}

func TestConsumedSegmentsAreDeleted(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.SegmentEvents, c.SegmentBytes = 64, 64*penstock.KiB
		topic := openDisk(t, c)
		slow := group(t, topic, "slow", queue.GroupConfig{}).Consumer(0)
		fast := group(t, topic, "fast", queue.GroupConfig{}).Consumer(0)
		const n = 2048
		for i := range n / 64 {
			produce(t, topic, slices.Repeat([]string{fmt.Sprint(i)}, 64)...)
		}
		drain := func(c *queue.Consumer[string]) {
			for pull(t, c, 512) != nil {
				commit(t, c)
			}
		}
		drain(fast)
		if got := len(segments(t, c.Dir)); got < n/64 {
			t.Fatalf("%d segments while a group has read nothing, want %d", got, n/64)
		}
		drain(slow)
		if got := len(segments(t, c.Dir)); got > 12 {
			t.Fatalf("%d segments are left after both groups have read everything", got)
		}
		topic = reopen(t, topic, c)
		if err := topic.DeleteGroup("slow"); err != nil {
			t.Fatal(err)
		}
		wantErr(t, topic.DeleteGroup("slow"), penstock.ErrNotFound)
	})
}

func TestReceiptTellsOffsetsOnDisk(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.Partitions = 2
		topic := openDisk(t, c)
		var receipts []*queue.Receipt
		for range 3 {
			r, err := topic.ProduceAsync(t.Context(), "a", "b", "c")
			if err != nil {
				t.Fatal(err)
			}
			receipts = append(receipts, r)
		}
		seen := map[string]bool{}
		for _, r := range receipts {
			for range 2 { // a second Wait says the same
				ack, err := r.Wait(t.Context())
				if err != nil || ack.Level != c.Durability || len(ack.Parts) != 2 {
					t.Fatalf("ack %+v, %v", ack, err)
				}
			}
			ack, _ := r.Wait(t.Context())
			for _, p := range ack.Parts {
				for i := range p.Count {
					seen[fmt.Sprint(p.Partition, p.First+penstock.Offset(i))] = true
				}
			}
		}
		if len(seen) != 9 {
			t.Errorf("%d different places, want 9: %v", len(seen), seen)
		}
	})
}

var errDisk = errors.New("input/output error")

func TestFailedAppendGivesCapacityBack(t *testing.T) {
	for _, async := range []bool{false, true} {
		t.Run(fmt.Sprintf("async=%v", async), func(t *testing.T) {
			m := vfs.NewMem()
			c := queue.WithFS(queue.Config[string]{
				Name: "orders", Dir: "data", Codec: penstock.String(), Capacity: 4, WhenFull: queue.Fail, Partitions: 2,
				SegmentBytes: 8 * penstock.KiB, Logger: slog.New(slog.DiscardHandler),
			}, m)
			topic := openDisk(t, c)
			group(t, topic, "g", queue.GroupConfig{})
			produce(t, topic, "0", "1") // one in each partition
			m.SetFault(func(op vfs.Op) vfs.Fault {
				if op.Kind == vfs.OpWrite && strings.Contains(op.Name, "p00001") {
					return vfs.Fault{Err: vfs.ErrNoSpace}
				}
				return vfs.Fault{}
			})
			err := failing(t.Context(), topic, async, "2", "3")
			wantErr(t, err, penstock.ErrDiskFull)
			m.SetFault(nil)
			if ok, err := topic.TryProduce(t.Context(), "4", "5"); ok || err != nil { // 3 of 4 are taken: "3" is not there
				t.Errorf("two more: %v, %v, want full", ok, err)
			}
			produce(t, topic, "4")
			got := contents(t, topic)
			if all := slices.Concat(got...); len(all) != 4 || slices.Contains(all, "3") {
				t.Errorf("contents %v, want 0 1 2 4", got)
			}
		})
	}
}

func failing(ctx context.Context, topic *queue.Topic[string], async bool, events ...string) error {
	if !async {
		return topic.Produce(ctx, events...)
	}
	r, err := topic.ProduceAsync(ctx, events...)
	if err == nil {
		_, err = r.Wait(ctx)
	}
	return err
}

// shaky is a codec that fails on command.
type shaky struct{ penstock.Codec[string] }

func (s shaky) Append(dst []byte, v string) ([]byte, error) {
	switch v {
	case "error":
		return append(dst, "half"...), errDisk
	case "panic":
		panic("codec")
	}
	return s.Codec.Append(dst, v)
}

func TestFailedEncodeAppendsNothing(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.Codec, c.Partitions, c.Capacity, c.WhenFull = shaky{penstock.String()}, 2, 4, queue.Fail
		topic := openDisk(t, c)
		group(t, topic, "g", queue.GroupConfig{})
		for range 3 {
			wantErr(t, topic.Produce(t.Context(), "a", "b", "error", "d"), errDisk)
			var p *penstock.PanicError
			if err := topic.Produce(t.Context(), "a", "panic"); !errors.As(err, &p) || p.Value != "codec" {
				t.Errorf("error %v, want a PanicError", err)
			}
		}
		wantErr(t, topic.Produce(t.Context(), strings.Repeat("x", 65<<20)), penstock.ErrTooLarge)
		produce(t, topic, "a", "b", "c", "d")
		if all := slices.Concat(contents(t, topic)...); len(all) != 4 {
			t.Errorf("contents %v, want 4 events", all)
		}
	})
}

func TestStatsSayThatAPartitionStopped(t *testing.T) {
	m := vfs.NewMem()
	c := queue.WithFS(queue.Config[string]{
		Name: "orders", Dir: "data", Codec: penstock.String(), Partitions: 2, Logger: slog.New(slog.DiscardHandler),
	}, m)
	topic := openDisk(t, c)
	consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	produce(t, topic, "0", "1") // one in each partition
	for i, p := range topic.Stats().Partitions {
		if p.Fault != nil {
			t.Errorf("partition %d: fault %v before anything failed", i, p.Fault)
		}
	}
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpSync && strings.Contains(op.Name, "p00001") {
			return vfs.Fault{Err: errDisk}
		}
		return vfs.Fault{}
	})
	err := topic.Produce(t.Context(), "2", "3")
	wantErr(t, err, penstock.ErrUnknownOutcome)
	m.SetFault(nil)
	for range 3 { // the partition stays stopped
		wantErr(t, topic.Produce(t.Context(), "4", "5"), errDisk)
	}
	parts := topic.Stats().Partitions
	if parts[0].Fault != nil || !errors.Is(parts[1].Fault, errDisk) {
		t.Errorf("faults %v and %v, want the second alone to have stopped", parts[0].Fault, parts[1].Fault)
	}
	got := pull(t, consumer, 10)
	commit(t, consumer)
	got = append(got, pull(t, consumer, 10)...)
	slices.Sort(got)
	want(t, got, "0", "1", "2") // what was there stays readable
}

func TestOnlyWhatWasNotCommittedComesAfterAKill_QC52(t *testing.T) {
	m := vfs.NewMem()
	c := queue.WithFS(queue.Config[string]{
		Name: "orders", Dir: "data", Codec: penstock.String(), Durability: penstock.Written,
		SyncEvery: segfile.SyncEvery{Interval: time.Hour, Events: 100}, Logger: slog.New(slog.DiscardHandler),
	}, m)
	topic := openDisk(t, c)
	consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	produce(t, topic, "1")
	produce(t, topic, "2")
	want(t, pull(t, consumer, 2), "1", "2")
	commit(t, consumer)
	m.Kill()
	_ = topic.Close() // of a dead process: every operation fails
	topic = openDisk(t, c)
	produce(t, topic, "3")
	consumer = group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	want(t, pull(t, consumer, 10), "3")
	commit(t, consumer)
	if b, ok, err := consumer.TryPull(10); err != nil || ok {
		t.Errorf("pulled %v, %v behind the last event", b.Values(), err)
	}
}

// TestOpenEndsWithItsContext_FM98 stops the open of a topic at each read of a
// segment: the error says why, the directory is free, and the next open finds
// everything.
func TestOpenEndsWithItsContext_FM98(t *testing.T) {
	m := vfs.NewMem()
	c := queue.WithFS(queue.Config[string]{
		Name: "orders", Dir: "data", Codec: penstock.String(), CapacityBytes: penstock.MiB, Logger: slog.New(slog.DiscardHandler),
	}, m)
	topic := openDisk(t, c)
	produce(t, topic, numbers(0, 500)...)
	m.Kill()
	_ = topic.Close() // of a dead process
	why := errors.New("stopped by terminated")
	stopped := 0
	for stop := 1; stop <= 20; stop++ {
		ctx, cancel := context.WithCancelCause(t.Context())
		var reads atomic.Int32
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpRead && strings.HasSuffix(op.Name, ".seg") && int(reads.Add(1)) == stop {
				cancel(why)
			}
			return vfs.Fault{}
		})
		topic, err := queue.OpenContext(ctx, c)
		m.SetFault(nil)
		cancel(nil)
		switch {
		case err == nil:
			if int(reads.Load()) >= stop {
				t.Errorf("an open was stopped at read %d and succeeded", stop)
			}
			if err := topic.Close(); err != nil {
				t.Fatal(err)
			}
		case !errors.Is(err, why) || !errors.Is(err, context.Canceled):
			t.Errorf("stopped at read %d: %v", stop, err)
		default:
			stopped++
		}
	}
	if stopped < 2 {
		t.Errorf("%d opens were stopped: too few to mean anything", stopped)
	}
	topic = openDisk(t, c)
	want(t, contents(t, topic)[0], numbers(0, 500)...)
}

// TestStoppedPartitionDoesNotKeepTheTurn: of single events in turn only those of
// the stopped partition are refused. If what is refused gave its turn back, the
// next event would meet the same partition, and so for ever.
func TestStoppedPartitionDoesNotKeepTheTurn(t *testing.T) {
	m := vfs.NewMem()
	c := queue.WithFS(queue.Config[string]{
		Name: "orders", Dir: "data", Codec: penstock.String(), Partitions: 4, Logger: slog.New(slog.DiscardHandler),
	}, m)
	topic := openDisk(t, c)
	produce(t, topic, numbers(0, 4)...)
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpSync && strings.Contains(op.Name, "p00001") {
			return vfs.Fault{Err: errDisk}
		}
		return vfs.Fault{}
	})
	wantErr(t, topic.Produce(t.Context(), numbers(4, 8)...), penstock.ErrUnknownOutcome)
	m.SetFault(nil)
	for i, v := range numbers(0, 12) {
		if err := topic.Produce(t.Context(), v); i%4 == 1 {
			wantErr(t, err, errDisk)
		} else if err != nil {
			t.Errorf("event %d, of a partition that is sound: %v", i, err)
		}
	}
}
