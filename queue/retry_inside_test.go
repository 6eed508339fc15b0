package queue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
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
