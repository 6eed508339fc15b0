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

func checkOf(c Config, deep bool) CheckConfig {
	return CheckConfig{InspectConfig: InspectConfig{FS: c.FS, Dir: c.Dir, Topic: c.Topic}, Deep: deep}
}

func mustCheck(t testing.TB, c Config, deep bool) CheckReport {
	t.Helper()
	r, err := Check(context.Background(), checkOf(c, deep))
	must(t, err)
	return r
}

// findings writes the findings of a severity as text.
func findings(r CheckReport, s penstock.Severity) (all []string) {
	for _, f := range r.Findings {
		if f.Severity == s {
			all = append(all, fmt.Sprintf("%s@%d [%d,%d] %s", f.File, f.Position, f.First, f.Last, f.Text))
		}
	}
	return all
}

// TestCheckAgreesWithOpenAfterEveryPowerLoss: whatever a power loss leaves is
// no damage for a check, which counts the events that an open then finds, and
// changes nothing.
func TestCheckAgreesWithOpenAfterEveryPowerLoss(t *testing.T) {
	for _, level := range []penstock.Durability{penstock.Synced, penstock.Written} {
		t.Run(level.String(), func(t *testing.T) {
			m := vfs.NewMem()
			c := small(m, "data")
			c.Durability = level
			h := &history{}
			workload(t, m, c, h, 9)
			images, whole := 0, 0
			for img := range m.Images(vfs.Crashes{Seed: 3}) {
				if images++; raceEnabled && images%7 > 0 {
					continue
				}
				c.FS = img.FS
				if _, err := Inspect(InspectConfig{FS: img.FS, Dir: c.Dir, Topic: c.Topic}); err != nil {
					if errors.Is(err, penstock.ErrCorrupt) {
						t.Fatalf("%s: %v", img.Desc, err)
					}
					continue // never finished
				}
				whole++
				before := img.FS.Ops()
				fast, deep := mustCheck(t, c, false), mustCheck(t, c, true)
				for _, r := range []CheckReport{fast, deep} {
					if bad := findings(r, penstock.Alarm); len(bad) > 0 {
						t.Fatalf("%s: deep %t: a power loss is no damage: %q", img.Desc, r.Deep, bad)
					}
				}
				if img.FS.Ops() != before {
					t.Fatalf("%s: a check changed something", img.Desc)
				}
				l, err := Open(c)
				must(t, err)
				p := l.Partition(0)
				if n := uint64(p.Readable() - p.Earliest()); fast.Events != n || deep.Events != n {
					t.Fatalf("%s: the checks count %d and %d events, an open finds %d", img.Desc, fast.Events, deep.Events, n)
				}
				must(t, l.Close())
			}
			if whole < 200 {
				t.Fatalf("%d images are too few to mean anything", whole)
			}
		})
	}
}

// goldenFiles are the files of the golden directory, below the data directory.
func goldenFiles(t *testing.T, m *vfs.Mem) (all []string) {
	t.Helper()
	for _, dir := range []string{"data", "data/orders", "data/orders/p00000", "data/orders/p00000/groups"} {
		names, err := m.List(dir)
		must(t, err)
		for _, name := range names {
			if info, err := m.Stat(filepath.Join(dir, name)); err == nil && !info.Dir {
				all = append(all, filepath.Join(dir, name))
			}
		}
	}
	return all
}

// TestEveryByteOfAGoldenLogIsGuarded flips a bit of each byte of each file of
// the golden directory: what does not read as before was found by the deep
// check, and what the check calls damage does not read as before, or cannot be
// trusted to.
func TestEveryByteOfAGoldenLogIsGuarded(t *testing.T) {
	m := copyTree(t, golden)
	c := goldenConfig(m, "data")
	if bad := findings(mustCheck(t, c, true), penstock.Alarm); len(bad) > 0 {
		t.Fatalf("the golden directory: %q", bad)
	}
	step := int64(1)
	if raceEnabled {
		step = 13
	}
	flips, found := 0, 0
	for _, file := range goldenFiles(t, m) {
		good := snapshot(t, m, file)
		for pos := int64(0); pos < int64(len(good)); pos += step {
			if good[pos] == 0 && pos%64 != 0 && allZero(good[pos&^63:min(pos|63+1, int64(len(good)))]) {
				continue // of long runs of zeros one byte in 64
			}
			flips++
			overwrite(t, m, file, []byte{good[pos] ^ 1<<(pos%8)}, pos)
			what := fmt.Sprintf("%s, byte %d", file, pos)
			r, err := Check(context.Background(), checkOf(c, true))
			alarm := err != nil || r.Worst() == penstock.Alarm
			if whole := readsAsGolden(t, c, what); !whole && !alarm && r.Worst() < penstock.Warning {
				t.Fatalf("%s: does not read as before, and the check says %+v, %v", what, r.Findings, err)
			}
			if alarm {
				found++
			}
			overwrite(t, m, file, good[pos:pos+1], pos)
		}
	}
	if flips < 2000/int(step) || found < flips/4 {
		t.Fatalf("%d flips, %d found: too few to mean anything", flips, found)
	}
	t.Logf("%d flips, %d were damage", flips, found)
}

// readsAsGolden opens a copy of the directory and reports whether everything is
// as it was. Anything else than that, or an error, fails the test.
func readsAsGolden(t *testing.T, c Config, what string) bool {
	t.Helper()
	m := c.FS.(*vfs.Mem).Clone()
	c.FS = m
	l, err := Open(c)
	if err != nil {
		return false
	}
	defer l.Close()
	p := l.Partition(0)
	if n := wantPrefix(t, p, what); n < len(goldenRecords()) || p.Fault() != nil {
		return false
	}
	cs, err := l.Cursors("billing/EU", StartLatest)
	if err != nil {
		return false
	}
	return cs[0].Committed() == 5 && slices.Equal(cs[0].Completed(), []uint64{0b1010})
}

// TestCheckBesideAWriter: a topic that is appended to, rolled, committed and
// trimmed meanwhile looks sound at every moment.
func TestCheckBesideAWriter(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		l := openLog(t, c)
		p := l.Partition(0)
		cs, err := l.Cursors("g", StartEarliest)
		must(t, err)
		stop, ended := make(chan struct{}), make(chan error, 1)
		// Writes until stop is closed; waited for below.
		go func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					ended <- nil
					return
				default:
				}
				if _, err := tryAppend(p, fmt.Sprint(i), strings.Repeat("x", i%900)); err != nil {
					ended <- err
					return
				}
				if i%5 == 4 {
					if err := errors.Join(cs[0].Store(p.Readable()-2, nil, true), p.Trim(p.Readable()-2)); err != nil {
						ended <- err
						return
					}
				}
			}
		}()
		var events uint64
		for i := range 60 {
			r := mustCheck(t, c, i%2 == 0)
			if bad := findings(r, penstock.Alarm); len(bad) > 0 {
				t.Fatalf("check %d: %q", i, bad)
			}
			if bad := findings(r, penstock.Warning); len(bad) > 0 {
				t.Fatalf("check %d: %q", i, bad)
			}
			events = r.Events
		}
		close(stop)
		must(t, <-ended)
		t.Log("events at the last check:", events)
		must(t, l.Close())
	})
}

func TestCheckNamesWhatIsDamaged(t *testing.T) {
	segment := func(i int) string {
		return fmt.Sprintf("data/orders/p00000/%s", segmentName(penstock.Offset(6*i)))
	}
	for name, test := range map[string]struct {
		damage func(t *testing.T, m *vfs.Mem)
		fast   string // "" = the fast check cannot see it
		deep   string
	}{
		"frame of a sealed segment": {func(t *testing.T, m *vfs.Mem) {
			overwrite(t, m, segment(0), []byte{0xff}, headerSize+frameHeaderSize+9)
		},
			"", "p00000/00000000000000000000.seg@4096 [0,1] frame checksum does not match"},
		"header": {func(t *testing.T, m *vfs.Mem) { overwrite(t, m, segment(1), []byte{0xff}, 40) },
			"p00000/00000000000000000006.seg@0 [6,11] segment header is damaged: checksum does not match", "p00000/00000000000000000006.seg@0 [6,11] segment header is damaged: checksum does not match"},
		"segment missing": {func(t *testing.T, m *vfs.Mem) { must(t, m.Remove(segment(1))) },
			"p00000/00000000000000000012.seg@0 [6,11] " + errChain.Error(), "p00000/00000000000000000012.seg@0 [6,11] " + errChain.Error()},
		"last segment missing": {func(t *testing.T, m *vfs.Mem) { must(t, m.Remove(segment(2))) },
			"p00000/00000000000000000012.seg@0 [12,15] segment is missing", "p00000/00000000000000000012.seg@0 [12,15] segment is missing"},
		"topic file": {func(t *testing.T, m *vfs.Mem) { overwrite(t, m, "data/orders/topic.json", []byte{0xff}, 30) },
			"topic.json@0 [0,0] topic \"orders\": corrupt", "topic.json@0 [0,0] topic \"orders\": corrupt"},
		"position": {func(t *testing.T, m *vfs.Mem) {
			overwrite(t, m, "data/orders/p00000/groups/billing%2F%45%55.slot", make([]byte, 2*slotSize), 0)
		},
			"p00000/groups/billing%2F%45%55.slot@0 [0,0] the position of group \"billing/EU\" cannot be read", "p00000/groups/billing%2F%45%55.slot@0 [0,0] the position of group \"billing/EU\" cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			m := copyTree(t, golden)
			c := goldenConfig(m, "data")
			test.damage(t, m)
			for deep, want := range map[bool]string{false: test.fast, true: test.deep} {
				bad := findings(mustCheck(t, c, deep), penstock.Alarm)
				if want == "" && len(bad) > 0 || want != "" && (len(bad) == 0 || !strings.HasPrefix(bad[0], want)) {
					t.Errorf("deep %t: %q, want %q", deep, bad, want)
				}
			}
		})
	}
}

func TestCheckStopsWithItsContext(t *testing.T) {
	m := copyTree(t, golden)
	c := goldenConfig(m, "data")
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("stop")
	k := checkOf(c, true)
	n := 0
	k.Progress = func(p Progress) {
		if n++; n == 2 {
			cancel(why)
		}
		if p.Total == 0 || p.Done > p.Total || p.Topic != "orders" || p.Partitions != 1 {
			t.Errorf("progress %+v", p)
		}
	}
	if _, err := Check(ctx, k); !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
		t.Fatalf("a check that is stopped returned %v", err)
	}
	if n != 2 {
		t.Fatalf("progress was told %d times after the stop", n-2)
	}
}
