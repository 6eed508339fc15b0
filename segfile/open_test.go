package segfile

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
		if n := len(l.parts[0].segs); n < 6 || read.Load() != int64(n*headerUsed+frameHeaderSize) {
			t.Errorf("%d groups: an open after a clean end read %d bytes of %d segments, want their headers of %d bytes and that of a frame", groups, read.Load(), n, headerUsed)
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

// TestOpenThatIsStoppedChangesNothing_FM98 stops an open at each block that it
// reads: the topic is free and as it was, the next open goes on with the
// partition that was under way, and finds everything.
func TestOpenThatIsStoppedChangesNothing_FM98(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.Partitions, c.SegmentBytes, c.Durability = 2, 8*penstock.MiB, penstock.Written
	l := openLog(t, c)
	for id := range 2 {
		for i := range 300 {
			mustAppend(t, l.Partition(id), fmt.Sprint(i), strings.Repeat("x", 9000))
		}
	}
	m.Kill()
	_ = l.Close() // of a dead process
	why := errors.New("stopped by terminated")
	stops := [2]int{}
	for id, stop := 0, 1; id < 2; stop++ {
		again := m.Clone()
		c.FS = again
		before := [2][]byte{snapshot(t, again, firstSegment), snapshot(t, again, "data/orders/p00001/00000000000000000000.seg")}
		ctx, cancel := context.WithCancelCause(t.Context())
		asked, at := 0, -1
		var last Progress
		c.Progress = func(p Progress) {
			if p.Topic != "orders" || p.Partitions != 2 || p.Done > p.Total || p.Partition == last.Partition && p.Done < last.Done {
				t.Errorf("%+v after %+v", p, last)
			}
			last = p
			if p.Partition != id {
				return
			}
			if asked++; asked == stop {
				at = id
				cancel(why)
			}
		}
		l, err := OpenContext(ctx, c)
		cancel(nil)
		if at < 0 || err == nil { // it was not stopped, or at its last block
			must(t, err)
			must(t, l.Close())
			id, stop = id+1, 0
			continue
		}
		stops[at]++
		if !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
			t.Fatalf("stopped in partition %d: %v", at, err)
		}
		for id, was := range before {
			if now := snapshot(t, again, "data/orders/"+partitionName(id)+"/00000000000000000000.seg"); !slices.Equal(now, was) {
				t.Fatalf("stopped in partition %d: the segment of partition %d was changed", at, id)
			}
		}
		c.Progress = nil
		l = openLog(t, c)
		for id := range 2 {
			r := l.Recovery()[id]
			if r.Damage != nil || r.CutBytes > 0 || r.End != 600 || (r.Scanned == 0) != (id < at) {
				t.Fatalf("stopped in partition %d, then opened: %+v", at, r)
			}
		}
		must(t, l.Close())
	}
	if stops[0] < 2 || stops[1] < 2 {
		t.Fatalf("%v stops per partition are too few to mean anything", stops)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := OpenContext(ctx, c)
	wantErr(t, err, context.Canceled)
}
