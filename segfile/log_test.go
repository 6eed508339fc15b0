package segfile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/leak"
	"github.com/penstock/penstock/internal/vfs"
)

func TestMain(m *testing.M) {
	child()
	leak.Main(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want one that matches %v", err, want)
	}
}

// quiet drops log lines; what they say is in the reports.
var quiet = slog.New(slog.DiscardHandler)

// small is a configuration with the smallest segments.
func small(fs vfs.FS, dir string) Config {
	return Config{FS: fs, Dir: dir, Topic: "orders", Codec: "raw/1", Router: "round-robin/1", SegmentBytes: 8 * penstock.KiB, Logger: quiet}
}

// fixed gives the same bytes each time, and no barrier in between.
func fixed(seed uint64) seams {
	rnd := rand.New(rand.NewPCG(seed, 2))
	return seams{now: func() time.Time { return time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) }, random: rnd.Uint64, idle: time.Hour}
}

func openLog(t testing.TB, c Config) *Log {
	t.Helper()
	l, err := Open(c)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func appendAsync(p *Partition, records ...string) (Receipt, error) {
	f := NewFrame(len(records))
	for _, r := range records {
		f.Add([]byte(r))
	}
	return p.Append(context.Background(), f)
}

func tryAppend(p *Partition, records ...string) (penstock.Offset, error) {
	r, err := appendAsync(p, records...)
	if err != nil {
		return 0, err
	}
	return r.Wait(context.Background())
}

func mustAppend(t testing.TB, p *Partition, records ...string) penstock.Offset {
	t.Helper()
	o, err := tryAppend(p, records...)
	must(t, err)
	return o
}

// readAll returns the records from an offset to the readable end, and the
// error that ended the reading.
func readAll(p *Partition, from penstock.Offset) ([]string, error) {
	r, err := p.NewReader(from)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var out []string
	for {
		rec, err := r.Next(1 << 20)
		if err != nil || rec.N == 0 {
			return out, err
		}
		if want := from + penstock.Offset(len(out)); rec.First != want {
			return out, fmt.Errorf("records begin at %d, want %d", rec.First, want)
		}
		for i := range rec.N {
			out = append(out, string(rec.At(i)))
		}
	}
}

func wantRecords(t testing.TB, p *Partition, from penstock.Offset, want ...string) {
	t.Helper()
	got, err := readAll(p, from)
	must(t, err)
	if strings.Join(got, "|") != strings.Join(want, "|") || len(got) != len(want) {
		t.Fatalf("records from %d: %q, want %q", from, got, want)
	}
}

// each runs a test over both levels and both file systems.
func each(t *testing.T, fn func(t *testing.T, c Config)) {
	for _, level := range []penstock.Durability{penstock.Synced, penstock.Written} {
		t.Run(level.String()+"/os", func(t *testing.T) {
			c := small(vfs.OS(), t.TempDir())
			c.Durability = level
			fn(t, c)
		})
		t.Run(level.String()+"/mem", func(t *testing.T) {
			c := small(vfs.NewMem(), "data")
			c.Durability = level
			fn(t, c)
		})
	}
}

func TestRecordsSurviveReopenInOrder(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		var want []string
		for session := range 4 {
			l := openLog(t, c)
			p := l.Partition(0)
			if !l.Recovery()[0].Clean {
				t.Fatalf("session %d: %+v, want a clean open", session, l.Recovery()[0])
			}
			wantRecords(t, p, 0, want...)
			for i := range 30 {
				batch := []string{}
				for j := range i%4 + 1 {
					batch = append(batch, fmt.Sprintf("%d-%d-%d-%s", session, i, j, strings.Repeat("x", 50)))
				}
				if got := mustAppend(t, p, batch...); got != penstock.Offset(len(want)) {
					t.Fatalf("appended at %d, want %d", got, len(want))
				}
				want = append(want, batch...)
			}
			wantRecords(t, p, 0, want...)
			wantRecords(t, p, 37, want[37:]...)
			if s := p.Stats(); s.Segments < 2 || s.Fault != nil {
				t.Fatalf("stats %+v, want several segments", s)
			}
			must(t, l.Close())
		}
	})
}

func TestEmptyAndTinyPayloadsSurviveReopen_QC68(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		l := openLog(t, c)
		mustAppend(t, l.Partition(0), "")
		mustAppend(t, l.Partition(0), "a", "", "b", "")
		mustAppend(t, l.Partition(0), "", "")
		want := []string{"", "a", "", "b", "", "", ""}
		wantRecords(t, l.Partition(0), 0, want...)
		must(t, l.Close())
		l = openLog(t, c)
		wantRecords(t, l.Partition(0), 0, want...)
	})
}
