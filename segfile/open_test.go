package segfile

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

func TestSegmentSizeMayChangeBetweenOpens_BQ95(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		var all []string
		for _, size := range []penstock.Bytes{8 * penstock.KiB, 64 * penstock.KiB, 16 * penstock.KiB, 8 * penstock.KiB} {
			c.SegmentBytes = size
			l := openLog(t, c)
			p := l.Partition(0)
			wantRecords(t, p, 0, all...)
			for range 12 { // more than one segment of 8 KiB
				r := fmt.Sprintf("%03d-%s", len(all), strings.Repeat("x", 700))
				if at := mustAppend(t, p, r); at != penstock.Offset(len(all)) {
					t.Fatalf("appended at %d, want %d", at, len(all))
				}
				all = append(all, r)
			}
			must(t, l.Close())
		}
		l := openLog(t, c)
		wantRecords(t, l.Partition(0), 0, all...)
		must(t, l.Close())
	})
}

// TestOpenReadsTheTailOnly_BQ118: what an open reads depends neither on the
// size of the log nor on the number of its groups.
func TestOpenReadsTheTailOnly_BQ118(t *testing.T) {
	for _, groups := range []int{0, 3} {
		m := vfs.NewMem()
		c := small(m, "data")
		c.SegmentBytes = 64 * penstock.KiB
		l := openLog(t, c)
		p := l.Partition(0)
		for g := range groups {
			_, err := l.Cursors(fmt.Sprint("g", g), StartEarliest)
			must(t, err)
		}
		for range 400 {
			mustAppend(t, p, strings.Repeat("x", 1000))
		}
		must(t, l.Close())
		var read atomic.Int64 // bytes of segments
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpRead && strings.HasSuffix(op.Name, segmentExt) {
				read.Add(op.Len)
			}
			return vfs.Fault{}
		})
		l = openLog(t, c)
		if n := len(l.parts[0].segs); n < 6 || read.Load() != int64(n*headerUsed) {
			t.Errorf("%d groups: an open after a clean end read %d bytes of %d segments, want their headers of %d bytes", groups, read.Load(), n, headerUsed)
		}
		mustAppend(t, l.Partition(0), "one more") // takes the clean mark away
		m.Kill()
		_ = l.Close() // of a dead process
		read.Store(0)
		l = openLog(t, c)
		if n, report := len(l.parts[0].segs), l.Recovery()[0]; report.Clean || read.Load() > int64(n*headerUsed)+2*int64(c.SegmentBytes) || read.Load() <= int64(n*headerUsed) {
			t.Errorf("%d groups: an open after a kill read %d bytes of %d segments, want the tail of the last one; report %+v", groups, read.Load(), n, report)
		}
		m.SetFault(nil)
		must(t, l.Close())
	}
}
