package queue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/settle"
)

// A key that stays down for long writes an entry per attempt; the log is
// rewritten again and again and holds what it must, also over a restart.
func TestRetryLogStaysSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config[int]{
			Name: "topic", Dir: "data", Codec: penstock.JSON[int](), SegmentBytes: 64 * penstock.KiB, fs: vfs.NewMem(),
			Logger: slog.New(slog.DiscardHandler), Key: func(int) string { return "a" },
		}
		policy := settle.Policy{Backoff: settle.Backoff{Min: 2 * time.Second, Max: 2 * time.Second, Jitter: -1}}
		var topic *Topic[int]
		var g *Group[int]
		reopen := func() {
			t.Helper()
			var err error
			if topic, err = Open(c); err != nil {
				t.Fatal(err)
			}
			if g, err = topic.Group("g", GroupConfig{BatchMax: 1, Retry: policy}); err != nil {
				t.Fatal(err)
			}
		}
		reopen()
		var events []int
		for i := range 600 { // more than a frame of a rewrite takes
			events = append(events, i)
		}
		if err := topic.Produce(t.Context(), events...); err != nil {
			t.Fatal(err)
		}
		down, attempts := true, 0
		var got []int
		life := func(d time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			err := g.Run(ctx, func(_ context.Context, b penstock.Batch[int]) error {
				if down {
					attempts++
					if b.Attempt(0) != attempts {
						t.Errorf("attempt %d, want %d", b.Attempt(0), attempts)
					}
					return errors.New("down")
				}
				got = append(got, b.Values()...)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		life(8000 * time.Second) // 4,000 attempts
		log := g.parking.lanes[0].log.(*fileRetry[int])
		if held := log.next - log.begin; log.begin == 0 || held > 2*(600+retryShrink) {
			t.Errorf("the log holds %d entries from %d on for 600 parked events", held, log.begin)
		}
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		reopen()
		life(100 * time.Second)
		down = false
		life(time.Minute)
		if !slices.Equal(got, events) {
			t.Errorf("%d events came, want %d in order", len(got), len(events))
		}
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// An append that was made again is not to be made any more. The consumer would
// wake up for it, again and again, whenever it waits for the disk later on.
func TestRetryLogThatWasFullIsNotDueForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		var full atomic.Bool
		full.Store(true)
		m.SetFault(func(op vfs.Op) (f vfs.Fault) {
			if full.Load() && op.Kind == vfs.OpWrite && strings.Contains(op.Name, "/retry/") {
				f.Err = vfs.ErrNoSpace
			}
			return f
		})
		topic, g := openWords(t, m, penstock.Synced)
		run := failAll(t, g)
		if err := topic.Produce(t.Context(), "a1"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		log := g.parking.lanes[0].log
		if log.retryAt().IsZero() {
			t.Fatal("no append has failed")
		}
		full.Store(false)
		time.Sleep(2 * retryPause)
		synctest.Wait()
		if n := g.Stats().Partitions[0].Committed; n != 1 || !log.retryAt().IsZero() {
			t.Errorf("committed %d, want 1; an append is to be made again at %v", n, log.retryAt())
		}
		run()
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A rewrite at level written deletes the old entries, which may be durable, only
// when the new ones are.
func TestRewriteOfTheRetryLogOutlivesAPowerLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		topic, g := openWords(t, m, penstock.Written)
		run := failAll(t, g)
		const events = 12
		for range events { // more than a segment takes
			if err := topic.Produce(t.Context(), "a"+strings.Repeat("x", 30_000)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		time.Sleep(time.Second)
		run()
		if err := topic.Close(); err != nil { // all is synced
			t.Fatal(err)
		}
		topic, g = openWords(t, m, penstock.Written)
		log := g.parking.lanes[0].log
		all, err := log.load()
		if err != nil || len(all) != events {
			t.Fatalf("%d entries, want %d: %v", len(all), events, err)
		}
		entries := make([]settle.Entry, len(all))
		for i := range all {
			entries[i] = all[i].Entry
			entries[i].Seq, entries[i].New = 0, true
		}
		removed := 0
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpRemove && strings.Contains(op.Name, "/retry/") && strings.HasSuffix(op.Name, ".seg") {
				removed = m.Ops()
			}
			return vfs.Fault{}
		})
		if err := log.rewrite(entries); err != nil {
			t.Fatal(err)
		}
		m.SetFault(nil)
		ended := m.Ops()
		if removed == 0 {
			t.Fatal("the rewrite has deleted nothing")
		}
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		images := 0
		for img := range m.Images(vfs.Crashes{From: removed + 1, Seed: 1}) {
			if images++; img.After > ended || images > 300 {
				break
			}
			topic, g := openWords(t, img.FS, penstock.Written)
			all, err := g.parking.lanes[0].log.load()
			if err != nil || len(all) != events {
				t.Fatalf("%s: %d entries, want %d: %v", img.Desc, len(all), events, err)
			}
			if err := topic.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// openWords opens a topic on disk, and a group of it that parks what fails for
// an hour.
func openWords(t *testing.T, m *vfs.Mem, level penstock.Durability) (*Topic[string], *Group[string]) {
	t.Helper()
	topic, err := Open(Config[string]{Name: "topic", Dir: "data", Codec: penstock.String(), SegmentBytes: 64 * penstock.KiB, fs: m,
		Durability: level, Logger: slog.New(slog.DiscardHandler), Key: func(v string) string { return v[:1] }})
	if err != nil {
		t.Fatal(err)
	}
	g, err := topic.Group("g", GroupConfig{BatchMax: 1, Drain: time.Second,
		Retry: settle.Policy{Backoff: settle.Backoff{Min: time.Hour, Max: time.Hour, Jitter: -1}}})
	if err != nil {
		t.Fatal(err)
	}
	return topic, g
}

// failAll runs a group whose handler fails, until what it returns is called.
func failAll(t *testing.T, g *Group[string]) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { // ends with ctx; stop waits for it
		done <- g.Run(ctx, func(context.Context, penstock.Batch[string]) error { return errors.New("down") })
	}()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// What an entry says comes back, whatever it says.
func TestEntriesOfTheRetryLogComeBack(t *testing.T) {
	origin := retryOrigin{topic: "orders", partition: 3, group: "billing"}
	due := time.Unix(5, 7).UTC()
	raw := &rawRecord{bytes: []byte("payload"), enveloped: true, time: -3, epoch: 9}
	entries := map[string]struct {
		entry settle.Entry
		raw   *rawRecord
	}{
		"parked":   {settle.Entry{Offset: 7, Key: "k", Size: 7, New: true, Attempt: 2, Due: due, Cause: errors.New("down")}, raw},
		"follower": {settle.Entry{Offset: 1<<64 - 2, New: true}, &rawRecord{bytes: []byte{}}},
		"changed":  {settle.Entry{Offset: 7, Key: "k", Size: 7, Attempt: 3, Due: due, Cause: errors.New("still down")}, nil},
		"dead":     {settle.Entry{Offset: 7, Key: "k", Dead: true, HandOver: 4, Attempt: 5, Cause: errors.New("x")}, nil},
		"gone":     {settle.Entry{Offset: 7, Key: "k", Size: 7, Gone: true}, nil},
	}
	for name, c := range entries {
		in := parkedEntry{c.entry, time.Unix(1, 2).UTC()}
		b, err := origin.appendEntry(nil, in, c.raw)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out, gotRaw, err := origin.decodeEntry(b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if a, b := causeText(in.Cause), causeText(out.Cause); a != b {
			t.Errorf("%s: cause %q, want %q", name, b, a)
		}
		in.Cause, out.Cause = nil, nil
		if out != in {
			t.Errorf("%s: %+v, want %+v", name, out, in)
		}
		if (gotRaw == nil) != (c.raw == nil) || gotRaw != nil && (string(gotRaw.bytes) != string(c.raw.bytes) ||
			gotRaw.enveloped != c.raw.enveloped || gotRaw.time != c.raw.time || gotRaw.epoch != c.raw.epoch) {
			t.Errorf("%s: record %+v, want %+v", name, gotRaw, c.raw)
		}
		if _, _, err := (retryOrigin{topic: "orders", partition: 3, group: "other"}).decodeEntry(b); !errors.Is(err, penstock.ErrCorrupt) {
			t.Errorf("%s: taken by another group: %v", name, err)
		}
	}
}

// Long keys are told apart by all of their bytes.
func TestLongKeysAreParkedByTheirHash(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	a, b := parkedKey(long+"a"), parkedKey(long+"b")
	if a == b || len(a) != parkedKeyMax || parkedKey("short") != "short" || a != parkedKey(long+"a") {
		t.Errorf("%d and %d bytes; equal %v", len(a), len(b), a == b)
	}
}
