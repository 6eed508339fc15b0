package segfile

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// turned are ways in which segments of the golden log have changed names.
var turned = map[string][3]int{ // file i gets the name of file [i]
	"the last two":  {0, 2, 1},
	"the first two": {1, 0, 2},
	"ends":          {2, 1, 0},
	"all, forwards": {1, 2, 0},
	"all, back":     {2, 0, 1},
}

func turn(t testing.TB, m *vfs.Mem, names [3]int) {
	t.Helper()
	for i := range names {
		must(t, m.Rename(goldenSegment(i), fmt.Sprintf("%s%d", goldenPart, i)))
	}
	for i, to := range names {
		must(t, m.Rename(fmt.Sprintf("%s%d", goldenPart, i), goldenSegment(to)))
	}
}

// TestSegmentsThatChangedNamesGetTheirOwnBack: with no event lost, also when the
// power fails in the middle, and again.
func TestSegmentsThatChangedNamesGetTheirOwnBack(t *testing.T) {
	for name, names := range turned {
		for _, state := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, state %t", name, state), func(t *testing.T) {
				m := copyTree(t, golden)
				turn(t, m, names)
				if !state {
					loseState(t, m)
				}
				m = m.Clone()
				c := goldenConfig(m, "data")
				l := openLog(t, c)
				wantErr(t, l.Partition(0).Fault(), penstock.ErrCorrupt)
				must(t, l.Close())
				for _, deep := range []bool{false, true} {
					if k := mustCheck(t, c, deep); k.Events != 16 || k.Worst() != penstock.Alarm {
						t.Errorf("deep %t: %d events, %+v, want 16 and an alarm", deep, k.Events, k.Findings)
					}
				}
				m = m.Clone()
				c.FS = m
				whole := func(m *vfs.Mem, what string) {
					t.Helper()
					c.FS = m
					done, err := CutTail(t.Context(), repairOf(c, true))
					must(t, err)
					for _, r := range done {
						if r.Damage != nil || len(r.Strays) > 0 {
							t.Fatalf("%s: %+v", what, r)
						}
					}
					if bad := findings(mustCheck(t, c, true), penstock.Alarm); len(bad) > 0 {
						t.Fatalf("%s: %q", what, bad)
					}
					l := openLog(t, c)
					must(t, l.Partition(0).Fault())
					wantRecords(t, l.Partition(0), 0, goldenRecords()...)
					must(t, l.Close())
				}
				whole(m, "at once")
				images := 0
				for img := range m.Images(vfs.Crashes{Seed: 21}) {
					if images++; images%5 == 0 {
						whole(img.FS, img.Desc)
					}
				}
				if images < 20 {
					t.Fatalf("%d images are too few to mean anything", images)
				}
			})
		}
	}
}

// TestSegmentUnderTheNameOfATrimmedOneIsNotRemoved: what an open removes by name
// is looked at before.
func TestSegmentUnderTheNameOfATrimmedOneIsNotRemoved(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.SegmentEvents = 2
	l := openLog(t, c)
	p := l.Partition(0)
	for i := range 6 {
		mustAppend(t, p, fmt.Sprint(i))
	}
	busy := errors.New("text file busy")
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpRemove && strings.HasSuffix(op.Name, segmentExt) {
			return vfs.Fault{Err: busy}
		}
		return vfs.Fault{}
	})
	wantErr(t, p.Trim(4), busy)
	m.Kill()
	_ = l.Close() // of a dead process
	m.SetFault(nil)
	trimmed, kept := goldenPart+segmentName(0), goldenPart+segmentName(4)
	was := snapshot(t, m, kept)
	must(t, errors.Join(m.Rename(trimmed, goldenPart+"x"), m.Rename(kept, trimmed), m.Rename(goldenPart+"x", kept)))
	l = openLog(t, c)
	wantErr(t, l.Partition(0).Fault(), penstock.ErrCorrupt)
	must(t, l.Close())
	if now := snapshot(t, m, trimmed); string(now) != string(was) {
		t.Error("the segment has changed")
	}
}
