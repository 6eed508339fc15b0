package segfile

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// A segment without events is sealed to make room, or because the next frame does
// not fit it. Then the next segment begins at the same offset, and takes its name.

// TestSegmentThatTookTheNameOfAnEmptyOneStays: the process, or the machine, ends
// at any moment while an empty segment is deleted; the next one took its name, and
// the trim after that deleted it.
func TestSegmentThatTookTheNameOfAnEmptyOneStays(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.SegmentEvents = 2
	l := openLog(t, c)
	p := l.Partition(0)
	for i := range 6 {
		mustAppend(t, p, fmt.Sprint(i))
	}
	must(t, p.do(p.roll, false)) // and the process ends before the first frame
	m.Kill()
	_ = l.Close()

	m = m.Clone()
	c.FS = m
	l = openLog(t, c)
	p = l.Partition(0)
	must(t, p.Fault())
	from := m.Ops()
	l.MakeRoom()       // another partition has no room
	must(t, p.Trim(6)) // all is consumed
	m.Kill()
	_ = l.Close()

	images := 0
	for img := range m.Images(vfs.Crashes{From: from, Seed: 24}) {
		images++
		c.FS = img.FS
		for round := range 2 {
			l := openLog(t, c)
			p := l.Partition(0)
			if o, err := tryAppend(p, "acknowledged"); err != nil || o != penstock.Offset(6+round) {
				t.Fatalf("%s: appended at %d, %v", img.Desc, o, err)
			}
			must(t, p.Trim(penstock.Offset(6+round)))
			must(t, l.Close())
		}
		l := openLog(t, c)
		p := l.Partition(0)
		must(t, p.Fault())
		if all, err := readAll(p, max(6, p.Earliest())); err != nil || strings.Join(all, " ") != "acknowledged acknowledged" {
			t.Fatalf("%s: %q, %v", img.Desc, all, err)
		}
		must(t, l.Close())
		if bad := findings(mustCheck(t, c, true), penstock.Alarm); len(bad) > 0 {
			t.Fatalf("%s: the check says %q", img.Desc, bad)
		}
	}
	if images < 20 {
		t.Errorf("%d images", images)
	}
}

// TestSegmentThatTookTheNameOfAnEmptyOneFollowsTheOneBefore: the first frame of a
// segment of an earlier session needs a larger one. It named the one whose name it
// took as the one before it, and the next open took that for damage.
func TestSegmentThatTookTheNameOfAnEmptyOneFollowsTheOneBefore(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	l := openLog(t, c)
	p := l.Partition(0)
	mustAppend(t, p, "0")
	must(t, p.do(p.roll, false)) // and the process ends before the first frame
	m.Kill()
	_ = l.Close()

	m = m.Clone()
	c.FS = m
	c.SegmentBytes *= 4
	c.MaxFrame = 0
	large := strings.Repeat("x", int(c.SegmentBytes)/3)
	l = openLog(t, c)
	p = l.Partition(0)
	r, err := p.NewReader(1)
	must(t, err)
	mustAppend(t, p, large)
	if got, err := r.Next(1); err != nil || got.First != 1 || got.N != 1 {
		t.Errorf("a reader that waited got %+v, %v", got, err)
	}
	must(t, r.Close())
	wantRecords(t, p, 0, "0", large)
	if st := p.Stats(); st.Segments != 2 {
		t.Errorf("%d segments", st.Segments)
	}
	must(t, l.Close())
	l = openLog(t, c)
	wantRecords(t, l.Partition(0), 0, "0", large)
	mustAppend(t, l.Partition(0), "2")
}

// TestSegmentThatCouldNotBeDeletedRefusesNothing: of three that were consumed one
// could not be deleted. After the next open the log said that one was missing.
func TestSegmentThatCouldNotBeDeletedRefusesNothing(t *testing.T) {
	for _, stays := range []penstock.Offset{0, 2, 4} {
		for _, killed := range []bool{false, true} {
			m := vfs.NewMem()
			c := small(m, "data")
			c.SegmentEvents = 2
			l := openLog(t, c)
			for i := range 6 {
				mustAppend(t, l.Partition(0), fmt.Sprint(i))
			}
			m.SetFault(func(op vfs.Op) vfs.Fault {
				if op.Kind == vfs.OpRemove && strings.HasSuffix(op.Name, segmentName(stays)) {
					return vfs.Fault{Err: syscall.EBUSY}
				}
				return vfs.Fault{}
			})
			wantErr(t, l.Partition(0).Trim(6), syscall.EBUSY)
			if killed {
				m.Kill()
			}
			_ = l.Close() // says again what it could not delete
			m = m.Clone()
			c.FS = m
			l = openLog(t, c)
			if o, err := tryAppend(l.Partition(0), "6"); err != nil || o != 6 {
				t.Errorf("segment %d stays, killed %t: appended at %d, %v", stays, killed, o, err)
			}
		}
	}
}
