package segfile

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

func repairOf(c Config, apply bool) RepairConfig {
	return RepairConfig{InspectConfig: InspectConfig{FS: c.FS, Dir: c.Dir, Topic: c.Topic}, Partition: -1, Apply: apply}
}

// damages are ways to damage the golden directory, and where its log ends
// after a repair.
var damages = map[string]struct {
	damage func(t testing.TB, m *vfs.Mem)
	keep   penstock.Offset
}{
	"frame of a sealed segment": {func(t testing.TB, m *vfs.Mem) { overwrite(t, m, firstSegment, []byte{0xff}, headerSize+200) }, 2},
	"first frame of a segment":  {func(t testing.TB, m *vfs.Mem) { overwrite(t, m, goldenSegment(1), []byte{0xff}, headerSize+70) }, 6},
	"first frame of all":        {func(t testing.TB, m *vfs.Mem) { overwrite(t, m, firstSegment, []byte{0xff}, headerSize+70) }, 0},
	"header":                    {func(t testing.TB, m *vfs.Mem) { overwrite(t, m, goldenSegment(1), []byte{0xff}, 40) }, 6},
	"header of the first":       {func(t testing.TB, m *vfs.Mem) { overwrite(t, m, firstSegment, []byte{0xff}, 40) }, 0},
	"segment missing":           {func(t testing.TB, m *vfs.Mem) { must(t, m.Remove(goldenSegment(1))) }, 6},
	"first segment missing":     {func(t testing.TB, m *vfs.Mem) { must(t, m.Remove(firstSegment)) }, 0},
	"last segment missing":      {func(t testing.TB, m *vfs.Mem) { must(t, m.Remove(goldenSegment(2))) }, 12},
	"frame of the last segment": {func(t testing.TB, m *vfs.Mem) { overwrite(t, m, goldenSegment(2), []byte{0xff}, headerSize+70) }, 12},
	"state of a damaged segment": {func(t testing.TB, m *vfs.Mem) {
		overwrite(t, m, firstSegment, []byte{0xff}, headerSize+200)
		loseState(t, m)
	}, 2},
}

func goldenSegment(i int) string {
	return "data/orders/p00000/" + segmentName(penstock.Offset(6*i))
}

func loseState(t testing.TB, m *vfs.Mem) {
	overwrite(t, m, "data/orders/p00000/"+stateName, make([]byte, 2*slotSize), 0)
}

// repaired demands that a directory is whole, ends at keep, and goes on.
func repaired(c Config, keep penstock.Offset) error {
	r, err := Check(context.Background(), checkOf(c, true))
	if err != nil {
		return err
	}
	if bad := findings(r, penstock.Alarm); len(bad) > 0 {
		return fmt.Errorf("after the repair: %q", bad)
	}
	for round := range 2 {
		l, err := Open(c)
		if err != nil {
			return err
		}
		p := l.Partition(0)
		want := goldenRecords()[:keep]
		if round > 0 {
			want = append(want[:keep:keep], "and on")
		}
		got, err := readAll(p, 0)
		if err = errors.Join(p.Fault(), err); err != nil || !slices.Equal(got, want) {
			return fmt.Errorf("round %d: %d records, %v, want %d", round, len(got), err, len(want))
		}
		cs, err := l.Cursors("billing/EU", StartLatest)
		if err != nil {
			return err
		}
		if at := cs[0].Committed(); at > keep || at < min(5, keep) {
			return fmt.Errorf("the group stands at %d", at)
		}
		if round == 0 {
			if at, err := tryAppend(p, "and on"); err != nil || at != keep {
				return fmt.Errorf("appended at %d, %v", at, err)
			}
			if rec := p.Stats(); rec.Epoch < 2 {
				return fmt.Errorf("epoch %d: offsets that are used again need a later one", rec.Epoch)
			}
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}

// kept reports whether the bytes of a file lie in the quarantine.
func kept(m *vfs.Mem, name string, content string) bool {
	dir := filepath.Join(filepath.Dir(name), quarantineDir)
	names, _ := m.List(dir) // none: nothing is kept
	for _, n := range names {
		if strings.HasSuffix(n, "-"+filepath.Base(name)) {
			if b, err := contentOf(m, filepath.Join(dir, n)); err == nil && b == content {
				return true
			}
		}
	}
	return false
}

func contentOf(m *vfs.Mem, name string) (string, error) {
	f, err := m.Open(name, false)
	if err != nil {
		return "", err
	}
	n, err := f.Size()
	b := make([]byte, n)
	if err == nil {
		_, err = f.ReadAt(b, 0)
	}
	return string(b), err
}

// damagedGolden returns a damaged golden directory and its files.
func damagedGolden(t testing.TB, damage func(testing.TB, *vfs.Mem)) (*vfs.Mem, Config, map[string]string) {
	m := copyTree(t, golden)
	damage(t, m)
	m = m.Clone() // all of it durable
	files := map[string]string{}
	for i := range 3 {
		if b, err := contentOf(m, goldenSegment(i)); err == nil {
			files[goldenSegment(i)] = b
		}
	}
	return m, goldenConfig(m, "data"), files
}

// wantNothingLost demands that each file of before is as it was, or lies in the
// quarantine.
func wantNothingLost(m *vfs.Mem, files map[string]string) error {
	for name, was := range files {
		if now, err := contentOf(m, name); (err != nil || now != was) && !kept(m, name, was) {
			return fmt.Errorf("%s was changed and is not kept", name)
		}
	}
	return nil
}

func TestCutTailEndsTheLogAtItsDamage(t *testing.T) {
	for name, d := range damages {
		t.Run(name, func(t *testing.T) {
			m, c, files := damagedGolden(t, d.damage)
			before := m.Ops()
			planned, err := CutTail(t.Context(), repairOf(c, false))
			must(t, err)
			if m.Ops() != before {
				t.Fatal("a dry run changed something")
			}
			done, err := CutTail(t.Context(), repairOf(c, true))
			must(t, err)
			if len(done) != 1 || fmt.Sprintf("%+v", planned) != fmt.Sprintf("%+v", done) {
				t.Fatalf("planned %+v, done %+v", planned, done)
			}
			if r := done[0]; r.Keep != d.keep || r.Damage == nil || r.End < r.Keep || uint64(r.End-r.Keep) < r.Readable {
				t.Fatalf("%+v, want what lies below %d to be kept", r, d.keep)
			}
			must(t, wantNothingLost(m, files))
			again, err := CutTail(t.Context(), repairOf(c, true))
			if err != nil || len(again) != 0 {
				t.Fatalf("a second repair does %+v, %v", again, err)
			}
			must(t, repaired(c, d.keep))
		})
	}
}

func TestCutTailLeavesASoundTopicAlone(t *testing.T) {
	m := copyTree(t, golden)
	c := goldenConfig(m, "data")
	before := m.Ops()
	if done, err := CutTail(t.Context(), repairOf(c, false)); err != nil || len(done) > 0 || m.Ops() != before {
		t.Fatalf("%+v, %v", done, err)
	}
	l := openLog(t, c)
	_, err := CutTail(t.Context(), repairOf(c, true))
	wantErr(t, err, penstock.ErrLocked)
	must(t, l.Close())
	if done, err := CutTail(t.Context(), repairOf(c, true)); err != nil || len(done) > 0 {
		t.Fatalf("%+v, %v", done, err)
	}
}

// TestCutTailSurvivesPowerLossAnywhere: after a power loss at any moment of a
// repair, a second repair ends as the first would have, and no byte of the
// damaged log is gone; also when the second one is cut short too.
func TestCutTailSurvivesPowerLossAnywhere(t *testing.T) {
	every := 1 // of four images one is enough with the race detector
	if raceEnabled {
		every = 4
	}
	images, twice := 0, 0
	for _, name := range []string{"frame of a sealed segment", "header", "last segment missing", "state of a damaged segment"} {
		d := damages[name]
		m, c, files := damagedGolden(t, d.damage)
		_, err := CutTail(t.Context(), repairOf(c, true))
		must(t, err)
		check := func(img vfs.Image, what string) *vfs.Mem {
			if err := wantNothingLost(img.FS, files); err != nil {
				t.Fatalf("%s: %s: %v", name, what, err)
			}
			m := img.FS.Clone()
			c.FS = m
			if _, err := CutTail(t.Context(), repairOf(c, true)); err != nil {
				t.Fatalf("%s: %s: the second repair: %v", name, what, err)
			}
			after := m.Clone()
			c.FS = after
			if err := errors.Join(wantNothingLost(m, files), repaired(c, d.keep)); err != nil {
				t.Fatalf("%s: %s: %v", name, what, err)
			}
			return m
		}
		for img := range m.Images(vfs.Crashes{Seed: 5}) {
			if images++; images%every > 0 {
				continue
			}
			second := check(img, img.Desc)
			if images%151 > 0 {
				continue
			}
			n := 0
			for again := range second.Images(vfs.Crashes{Seed: 6}) {
				if n++; n%(7*every) > 0 {
					continue
				}
				twice++
				check(again, img.Desc+"; then "+again.Desc)
			}
		}
	}
	if images < 300 || twice < 20 {
		t.Fatalf("%d images and %d of a second crash are too few to mean anything", images, twice)
	}
	t.Logf("%d images, %d after a second crash", images, twice)
}

func TestCutTailWithAnOperationThatFails(t *testing.T) {
	for _, fault := range []vfs.Fault{{Err: errors.New("input/output error")}, {Err: vfs.ErrNoSpace, Keep: 100}} {
		for n := 1; ; n++ {
			d := damages["frame of a sealed segment"]
			m, c, files := damagedGolden(t, d.damage)
			hit, what := false, vfs.Op{}
			m.SetFault(func(op vfs.Op) vfs.Fault {
				if op.N != n {
					return vfs.Fault{}
				}
				hit, what = true, op
				return fault
			})
			_, err := CutTail(t.Context(), repairOf(c, true))
			m.SetFault(nil)
			if !hit {
				if n < 60 {
					t.Fatalf("a repair has %d operations: too few to mean anything", n)
				}
				break
			}
			must(t, wantNothingLost(m, files))
			if _, rerr := CutTail(t.Context(), repairOf(c, true)); rerr != nil {
				t.Fatalf("%+v failed (%v), then: %v", what, err, rerr)
			}
			if err := errors.Join(wantNothingLost(m, files), repaired(c, d.keep)); err != nil {
				t.Fatalf("%+v failed: %v", what, err)
			}
		}
	}
}

func TestBadPositionBeginsAtTheEarliestEvent(t *testing.T) {
	m := copyTree(t, golden)
	c := goldenConfig(m, "data")
	overwrite(t, m, "data/orders/p00000/groups/billing%2F%45%55.slot", []byte{1, 2, 3}, 0)
	overwrite(t, m, "data/orders/p00000/groups/billing%2F%45%55.slot", []byte{1, 2, 3}, slotSize)
	done, err := CutTail(t.Context(), repairOf(c, true))
	if err != nil || len(done) != 1 || done[0].Damage != nil || len(done[0].Groups) != 1 || done[0].Groups[0].Err == nil {
		t.Fatalf("%+v, %v", done, err)
	}
	l := openLog(t, c)
	cs, err := l.Cursors("billing/EU", StartLatest)
	must(t, err)
	if at := cs[0].Committed(); at != 0 {
		t.Fatalf("the group stands at %d", at)
	}
	wantRecords(t, l.Partition(0), 0, goldenRecords()...)
}

func TestSalvageCopiesWhatCanBeRead(t *testing.T) {
	m := copyTree(t, golden)
	c := goldenConfig(m, "data")
	overwrite(t, m, firstSegment, []byte{0xff}, headerSize+200)    // events 2 and 3
	overwrite(t, m, goldenSegment(1), []byte{0xff}, headerSize+70) // events 6 and 7
	all := goldenRecords()
	want := slices.Concat(all[:2], all[4:6], all[8:])
	config := SalvageConfig{InspectConfig: InspectConfig{FS: m, Dir: "data", Topic: "orders"}, To: "new"}
	before := m.Ops()
	planned, err := Salvage(t.Context(), config)
	must(t, err)
	if m.Ops() != before {
		t.Fatal("a dry run changed something")
	}
	config.Apply = true
	done, err := Salvage(t.Context(), config)
	must(t, err)
	if fmt.Sprintf("%+v", planned) != fmt.Sprintf("%+v", done) || len(done) != 1 || done[0].Events != 12 || len(done[0].Lost) != 2 {
		t.Fatalf("planned %+v, done %+v", planned, done)
	}
	c.Dir = "new"
	c.SegmentBytes = 0
	l := openLog(t, c)
	wantRecords(t, l.Partition(0), 0, want...)
	cs, err := l.Cursors("billing/EU", StartLatest)
	must(t, err)
	if at := cs[0].Committed(); at != 3 { // before event 5, which is the fourth
		t.Fatalf("the group stands at %d, want 3", at)
	}
	r, err := l.Partition(0).NewReader(0)
	must(t, err)
	defer r.Close()
	if rec, err := r.Next(1); err != nil || rec.Time != fixed(1).now().UnixNano() {
		t.Fatalf("time %d, %v", rec.Time, err)
	}
	_, err = Salvage(t.Context(), config)
	wantErr(t, err, penstock.ErrExists)
}
