package segfile

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// TestFileThatWasCutBehindACrashIsDamage: a crash leaves the file of the active
// segment as long as it was made, so one that is shorter was cut by somebody, and
// what stood behind the cut may have been acknowledged.
func TestFileThatWasCutBehindACrashIsDamage(t *testing.T) {
	m, c, end := crashed(t)
	all := goldenRecords()
	var at []int64 // where frames begin
	must(t, eachFrame(m, func(pos int64) { at = append(at, pos) }))
	if len(at) != len(all) || at[len(at)-1] >= end {
		t.Fatalf("%d frames, want %d", len(at), len(all))
	}
	for keep, pos := range at {
		for _, by := range []int64{0, 9} { // at a frame, and in the middle of one
			m := m.Clone()
			c.FS = m
			cutTo(t, m, firstSegment, pos+by)
			for _, deep := range []bool{false, true} {
				if bad := findings(mustCheck(t, c, deep), penstock.Alarm); len(bad) != 1 || !strings.Contains(bad[0], "was cut") {
					t.Fatalf("cut before %d, deep %t: %q", keep, deep, bad)
				}
			}
			for range 2 { // nothing is modified
				l := openLog(t, c)
				var ce *penstock.CorruptError
				if p := l.Partition(0); !errors.As(p.Fault(), &ce) || ce.First != penstock.Offset(keep) || wantPrefix(t, p, "cut") != keep {
					t.Fatalf("cut before %d: %v", keep, p.Fault())
				}
				must(t, l.Close())
			}
			if keep%5 > 0 {
				continue
			}
			if r := oneRepair(t, c, true); r.Keep != penstock.Offset(keep) {
				t.Errorf("cut before %d: %+v", keep, r)
			}
			l := openLog(t, c)
			if o := mustAppend(t, l.Partition(0), "and on"); o != penstock.Offset(keep) {
				t.Errorf("cut before %d: appended at %d", keep, o)
			}
		}
	}
}

// eachFrame calls a function with the place of each frame of the first segment.
func eachFrame(m *vfs.Mem, fn func(pos int64)) error {
	f, err := m.Open(firstSegment, false)
	if err != nil {
		return err
	}
	defer f.Close()
	hdr, err := readHeader(f)
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	seg := newSegment(m, "", hdr)
	_, err = follow(&fileView{file: f, size: size}, mark{seg: seg, pos: headerSize}, func(pos int64, _ []byte, _ header) error {
		fn(pos)
		return nil
	})
	return err
}

// TestFileThatWeCutOurselvesIsNoDamage: on a full disk a write is taken back, and
// after a crash a torn tail is cut; a power loss in between may leave the file
// short.
func TestFileThatWeCutOurselvesIsNoDamage(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	l := openLog(t, c)
	p := l.Partition(0)
	mustAppend(t, p, "a", "b")
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if strings.HasSuffix(op.Name, ".seg") && (op.Kind == vfs.OpWrite || op.Kind == vfs.OpAllocate) || op.Name == "data/orders/p00000/"+spareName && op.Kind == vfs.OpWrite {
			return vfs.Fault{Err: vfs.ErrNoSpace, Keep: 40}
		}
		return vfs.Fault{}
	})
	for range 2 {
		_, err := tryAppend(p, "no room")
		wantErr(t, err, penstock.ErrDiskFull)
	}
	sound := func(m *vfs.Mem) int {
		images := 0
		for img := range m.Images(vfs.Crashes{Seed: 11}) {
			images++
			c := c
			c.FS = img.FS
			l := openLog(t, c)
			if p := l.Partition(0); p.Fault() != nil {
				t.Fatalf("%s: %v", img.Desc, p.Fault())
			}
			must(t, l.Close())
			if bad := findings(mustCheck(t, c, true), penstock.Alarm); len(bad) > 0 {
				t.Fatalf("%s: %q", img.Desc, bad)
			}
		}
		return images
	}
	if bad := findings(mustCheck(t, c, true), penstock.Alarm); len(bad) > 0 {
		t.Errorf("beside the full log a check says %q", bad)
	}
	m.SetFault(nil)
	if n := sound(m); n < 20 {
		t.Fatalf("%d images are too few to mean anything", n)
	}
	killed, c, _ := crashed(t)
	pos := int64(0)
	must(t, eachFrame(killed, func(at int64) { pos = at }))
	overwrite(t, killed, firstSegment, []byte{1, 2, 3}, pos+200) // behind the last frame
	torn := killed.Clone()
	c.FS = torn
	l = openLog(t, c)
	if r := l.Recovery()[0]; r.CutBytes == 0 || r.Damage != nil {
		t.Fatalf("%+v, want a torn tail", r)
	}
	if n := sound(torn); n < 10 {
		t.Fatalf("%d images are too few to mean anything", n)
	}
}
