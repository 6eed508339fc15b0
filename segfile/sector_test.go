package segfile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// badPage makes the disk refuse to read one page of each segment. Like a system
// it gives nothing of a read that touches it.
func badPage(m *vfs.Mem, page int64) {
	from, to := page*pageBytes, (page+1)*pageBytes
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpRead && strings.HasSuffix(op.Name, segmentExt) && op.Off < to && op.Off+op.Len > from {
			return vfs.Fault{Err: syscall.EIO}
		}
		return vfs.Fault{}
	})
}

// TestBadSectorTakesOnlyItsOwnEvents: a dump, a salvage and a deep check find
// everything before and behind it, in a sealed segment and in the last one, and a
// repair that cuts is refused.
func TestBadSectorTakesOnlyItsOwnEvents(t *testing.T) {
	for _, closed := range []bool{true, false} {
		memLevels(t, func(t *testing.T, m *vfs.Mem, c Config) {
			c.SegmentBytes, c.WritePath = 64*penstock.KiB, WritePwrite
			l := openLog(t, c)
			p := l.Partition(0)
			for i := range 100 {
				mustAppend(t, p, fmt.Sprintf("%03d%s", i, strings.Repeat("w", 897)))
			}
			must(t, p.Sync())
			second := p.written.seg.hdr.base
			if second < 40 || second > 70 {
				t.Fatalf("the second segment begins at %d", second)
			}
			if closed {
				must(t, l.Close())
			} else {
				m.Kill()
				_ = l.Close() // changes nothing any more, and waits for what runs in the background
			}
			// A frame takes 968 bytes: those of 16 to 21 touch the page.
			badPage(m, 5)
			var want, wantLost []string
			for i := range 100 {
				if in := i % int(second); in < 16 || in > 21 {
					want = append(want, fmt.Sprintf("%03d", i))
				}
			}
			for _, base := range []penstock.Offset{0, second} {
				wantLost = append(wantLost, fmt.Sprintf("%d-%d", base+16, base+21))
			}
			var lost, got []string
			in := inspect(t, c)
			_, _, err := in.Dump(context.Background(), DumpConfig{Unsynced: true, Skip: func(e *penstock.CorruptError) error {
				if !errors.Is(e, syscall.EIO) {
					t.Errorf("the cause of %v is no failed read", e)
				}
				lost = append(lost, fmt.Sprintf("%d-%d", e.First, e.Last))
				return nil
			}}, func(r Records) error {
				for i := range r.N {
					got = append(got, string(r.At(i)[:3]))
				}
				return nil
			})
			if err != nil || !slices.Equal(lost, wantLost) || !slices.Equal(got, want) {
				t.Fatalf("%d records of %d, lost %q, want %q; %v", len(got), len(want), lost, wantLost, err)
			}
			salvaged, err := Salvage(context.Background(), SalvageConfig{InspectConfig: InspectConfig{FS: m, Dir: c.Dir, Topic: c.Topic}})
			if err != nil || len(salvaged) != 1 || salvaged[0].Events != uint64(len(want)) || len(salvaged[0].Lost) != 2 {
				t.Fatalf("salvage: %+v, %v", salvaged, err)
			}
			report, err := Check(context.Background(), CheckConfig{InspectConfig: InspectConfig{FS: m, Dir: c.Dir, Topic: c.Topic}, Deep: true})
			var alarms []string
			for _, f := range report.Findings {
				if f.Severity == penstock.Alarm && f.Events {
					alarms = append(alarms, fmt.Sprintf("%d-%d", f.First, f.Last))
				}
			}
			if err != nil || !slices.Equal(alarms, wantLost) {
				t.Errorf("the check found %+v, %v; want alarms about %q", report.Findings, err, wantLost)
			}
			before := m.Sum()
			if _, err := CutTail(context.Background(), RepairConfig{InspectConfig: InspectConfig{FS: m, Dir: c.Dir, Topic: c.Topic}, Partition: -1}); !errors.Is(err, syscall.EIO) {
				t.Errorf("a repair that cuts returned %v, want that it refuses to", err)
			}
			if m.Sum() != before {
				t.Error("a look has changed something")
			}
		})
	}
}
