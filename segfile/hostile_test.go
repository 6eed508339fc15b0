package segfile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// What a hostile user did to the files of a topic, and what was said of it.

const goldenPart = "data/orders/p00000/"

func put(t testing.TB, m *vfs.Mem, name string, content []byte) {
	t.Helper()
	f, err := m.Create(name)
	must(t, err)
	_, err = f.WriteAt(content, 0)
	must(t, errors.Join(err, f.Close()))
}

func cutTo(t testing.TB, m *vfs.Mem, name string, size int64) {
	t.Helper()
	f, err := m.Open(name, true)
	must(t, err)
	must(t, errors.Join(f.Truncate(size), f.Close()))
}

func oneRepair(t testing.TB, c Config, apply bool) Repair {
	t.Helper()
	done, err := CutTail(t.Context(), repairOf(c, apply))
	if err != nil || len(done) != 1 {
		t.Fatalf("%d repairs, %v, want one", len(done), err)
	}
	return done[0]
}

func TestDamageInTheLastSegmentTakesNoMoreThanIsBad(t *testing.T) {
	for name, test := range map[string]struct {
		make  func(t *testing.T) (*vfs.Mem, Config)
		file  string
		first penstock.Offset // event in the bad frame
		n     penstock.Offset // events in it
	}{
		"closed": {func(t *testing.T) (*vfs.Mem, Config) {
			m := copyTree(t, golden)
			return m, goldenConfig(m, "data")
		}, goldenSegment(2), 12, 2},
		"killed": {func(t *testing.T) (*vfs.Mem, Config) { m, c, _ := crashed(t); return m, c }, firstSegment, 0, 1},
		"killed, without its state": {func(t *testing.T) (*vfs.Mem, Config) {
			m, c, _ := crashed(t)
			loseState(t, m)
			return m, c
		}, firstSegment, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m, c := test.make(t)
			overwrite(t, m, test.file, []byte{0xff}, headerSize+70)
			all := goldenRecords()
			rest := uint64(len(all)) - uint64(test.first+test.n)
			r := oneRepair(t, c, false)
			if r.Keep != test.first || r.End != penstock.Offset(len(all)) || r.Readable != rest {
				t.Errorf("keeps %d of %d, %d readable, want %d, %d and %d", r.Keep, r.End, r.Readable, test.first, len(all), rest)
			}
			k := mustCheck(t, c, true)
			want := fmt.Sprintf("@4096 [%d,%d]", test.first, test.first+test.n-1)
			if bad := findings(k, penstock.Alarm); k.Events != uint64(len(all)) || len(bad) != 1 || !strings.Contains(bad[0], want) {
				t.Errorf("the check counts %d events and says %q, want %d and %s", k.Events, bad, len(all), want)
			}
			infos, err := inspect(t, c).Segments(t.Context())
			must(t, err)
			if last := infos[len(infos)-1]; name == "killed" && last.End != penstock.Offset(len(all)) || last.First != 0 && last.End != 16 {
				t.Errorf("the last segment is said to end at %d", last.End)
			}
			s, err := Salvage(t.Context(), SalvageConfig{InspectConfig: InspectConfig{FS: m, Dir: "data", Topic: "orders"}, To: "new", Apply: true})
			must(t, err)
			if n := uint64(len(all)) - uint64(test.n); s[0].Events != n || len(s[0].Lost) != 1 {
				t.Errorf("salvaged %d events, %d gaps, want %d and one", s[0].Events, len(s[0].Lost), n)
			}
			c.Dir, c.SegmentBytes, c.SegmentEvents = "new", 0, 0
			wantRecords(t, openLog(t, c).Partition(0), 0, slices.Concat(all[:test.first], all[test.first+test.n:])...)
		})
	}
}

func TestWhatIsGoneIsCountedAsItWas(t *testing.T) {
	for name, test := range map[string]struct {
		damage func(t *testing.T, m *vfs.Mem)
		first  penstock.Offset // the events [first, 16) are gone
	}{
		"cut to nothing":       {func(t *testing.T, m *vfs.Mem) { cutTo(t, m, goldenSegment(2), 0) }, 12},
		"cut to half a header": {func(t *testing.T, m *vfs.Mem) { cutTo(t, m, goldenSegment(2), 50) }, 12},
		"cut to its header":    {func(t *testing.T, m *vfs.Mem) { cutTo(t, m, goldenSegment(2), headerSize) }, 12},
		"last gone":            {func(t *testing.T, m *vfs.Mem) { must(t, m.Remove(goldenSegment(2))) }, 12},
		"last two gone": {func(t *testing.T, m *vfs.Mem) {
			must(t, errors.Join(m.Remove(goldenSegment(1)), m.Remove(goldenSegment(2))))
		}, 6},
		"all gone": {func(t *testing.T, m *vfs.Mem) {
			for i := range 3 {
				must(t, m.Remove(goldenSegment(i)))
			}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := copyTree(t, golden)
			c := goldenConfig(m, "data")
			test.damage(t, m)
			for _, deep := range []bool{false, true} {
				k := mustCheck(t, c, deep)
				first, last := penstock.Offset(99), penstock.Offset(0)
				for _, f := range k.Findings {
					if f.Severity == penstock.Alarm && f.Events && !strings.Contains(f.File, groupsDir) {
						first, last = min(first, f.First), max(last, f.Last)
					}
				}
				if k.Events != 16 || first != test.first || last != 15 {
					t.Errorf("deep %t: %d events, [%d, %d] are gone, want 16, [%d, 15]: %+v", deep, k.Events, first, last, test.first, k.Findings)
				}
			}
			if r := oneRepair(t, c, false); r.Keep != test.first || r.End != 16 || r.Readable != 0 {
				t.Errorf("%+v", r)
			}
			l := openLog(t, c)
			var ce *penstock.CorruptError
			if err := l.Partition(0).Fault(); !errors.As(err, &ce) || ce.First != test.first || ce.Last != 15 {
				t.Errorf("fault %v, want damage from %d to 15", err, test.first)
			}
			must(t, l.Close())
		})
	}
}

// strays are files with the name of a segment that have no place in the golden
// log.
var strays = map[string]func(t *testing.T, m *vfs.Mem){
	"a renamed segment": func(t *testing.T, m *vfs.Mem) { must(t, m.Rename(goldenSegment(1), goldenPart+segmentName(8))) },
	"renamed to a low base": func(t *testing.T, m *vfs.Mem) {
		must(t, m.Rename(goldenSegment(1), goldenPart+segmentName(3)))
	},
	"renamed to a large base": func(t *testing.T, m *vfs.Mem) {
		must(t, m.Rename(goldenSegment(2), goldenPart+segmentName(1<<40)))
	},
	"a copy": func(t *testing.T, m *vfs.Mem) { put(t, m, goldenPart+segmentName(8), snapshot(t, m, goldenSegment(1))) },
	"a copy with a large": func(t *testing.T, m *vfs.Mem) {
		put(t, m, goldenPart+segmentName(1<<40), snapshot(t, m, goldenSegment(0)))
	},
	"an empty file":      func(t *testing.T, m *vfs.Mem) { put(t, m, goldenPart+segmentName(7), nil) },
	"an empty large one": func(t *testing.T, m *vfs.Mem) { put(t, m, goldenPart+segmentName(1<<40), nil) },
	"garbage with a large": func(t *testing.T, m *vfs.Mem) {
		put(t, m, goldenPart+segmentName(1<<40), []byte(strings.Repeat("x", 9000)))
	},
	"the largest there is": func(t *testing.T, m *vfs.Mem) { put(t, m, goldenPart+segmentName(1<<64-1), nil) },
	"a whole one of an earlier life": func(t *testing.T, m *vfs.Mem) {
		b := snapshot(t, m, goldenSegment(1))
		h, err := decodeSegmentHeader(b)
		must(t, err)
		h.nonce, h.base, h.prevEnd = h.nonce+1, 500, 500
		put(t, m, goldenPart+segmentName(500), append(h.encode(), b[headerSize:]...))
	},
	"two at once": func(t *testing.T, m *vfs.Mem) {
		put(t, m, goldenPart+segmentName(2), []byte("x"))
		put(t, m, goldenPart+segmentName(1<<50), []byte("y"))
	},
}

func TestFileWithoutAPlaceInTheLogTakesNoEvent(t *testing.T) {
	for name, plant := range strays {
		for _, state := range []bool{true, false} {
			if !state && name == "a whole one of an earlier life" {
				continue // then it may be the log and the others foreign: nothing is set aside
			}
			t.Run(fmt.Sprintf("%s, state %t", name, state), func(t *testing.T) {
				m := copyTree(t, golden)
				c := goldenConfig(m, "data")
				plant(t, m)
				if !state {
					loseState(t, m)
				}
				m = m.Clone()
				c.FS = m
				names, err := m.List(goldenPart)
				must(t, err)
				files := map[string]string{}
				for _, n := range names {
					if _, ok := parseSegmentName(n); ok {
						files[goldenPart+n], err = contentOf(m, goldenPart+n)
						must(t, err)
					}
				}
				for _, deep := range []bool{false, true} {
					if k := mustCheck(t, c, deep); k.Events != 16 || k.Worst() != penstock.Alarm {
						t.Errorf("deep %t: %d events, %+v, want 16 and an alarm", deep, k.Events, k.Findings)
					}
				}
				l := openLog(t, c)
				var ce *penstock.CorruptError
				if err := l.Partition(0).Fault(); !errors.As(err, &ce) || state && ce.Last > 16 {
					t.Errorf("fault %v, want damage and no event that never was", err)
				}
				must(t, l.Close())
				r := oneRepair(t, c, true)
				if r.Damage != nil || r.Keep != 16 || r.End != 16 || len(r.Strays)+len(r.Renamed) == 0 {
					t.Errorf("%+v, want a repair that takes no event", r)
				}
				if again, err := CutTail(t.Context(), repairOf(c, true)); err != nil || len(again) != 0 {
					t.Errorf("a second plan: %+v, %v", again, err)
				}
				for file, was := range files { // moved, or under its own name
					if now, err := contentOf(m, file); (err != nil || now != was) && len(r.Renamed) == 0 && !kept(m, file, was) {
						t.Errorf("%s was changed and is not kept", file)
					}
				}
				l = openLog(t, c)
				wantRecords(t, l.Partition(0), 0, goldenRecords()...)
				cs, err := l.Cursors("billing/EU", StartLatest)
				must(t, err)
				if at := mustAppend(t, l.Partition(0), "and on"); at != 16 || cs[0].Committed() != 5 {
					t.Errorf("appended at %d, the group stands at %d", at, cs[0].Committed())
				}
			})
		}
	}
}

// TestStrayThatComesBackIsKeptAgain: the copy in quarantine is of another file.
func TestStrayThatComesBackIsKeptAgain(t *testing.T) {
	m := copyTree(t, golden)
	c := goldenConfig(m, "data")
	for i := range 3 {
		put(t, m, goldenPart+segmentName(100), []byte{byte('a' + min(i, 1))})
		oneRepair(t, c, true)
	}
	names, err := m.List(goldenPart + quarantineDir)
	if err != nil || len(names) != 2 {
		t.Errorf("quarantine holds %q, %v, want both files once", names, err)
	}
}

func TestRepairMendsSeveralThingsAtOnce(t *testing.T) {
	m := copyTree(t, golden)
	c := goldenConfig(m, "data")
	put(t, m, goldenPart+segmentName(7), nil)
	put(t, m, goldenPart+segmentName(1<<40), nil)
	overwrite(t, m, goldenSegment(2), []byte{0xff}, headerSize+70)
	r := oneRepair(t, c, true)
	if r.Keep != 12 || r.End != 16 || r.Readable != 2 || len(r.Strays) != 2 {
		t.Errorf("%+v", r)
	}
	must(t, repaired(c, 12))
}

func TestMissingDirectoriesSayWhatToDo(t *testing.T) {
	made := func(t *testing.T) (*vfs.Mem, Config) {
		m := vfs.NewMem()
		c := small(m, "data")
		c.Partitions = 2
		l := openLog(t, c)
		mustAppend(t, l.Partition(0), "a")
		mustAppend(t, l.Partition(1), "b")
		must(t, l.Close())
		return m, c
	}
	t.Run("groups", func(t *testing.T) {
		m, c := made(t)
		must(t, m.Remove("data/orders/p00001/groups"))
		_, err := Open(c)
		wantErr(t, err, penstock.ErrCorrupt)
		wantErr(t, err, errNoGroups)
		if bad := findings(mustCheck(t, c, false), penstock.Alarm); len(bad) != 1 || !strings.Contains(bad[0], "p00001/groups@0") {
			t.Errorf("the check says %q, an open %v", bad, err)
		}
		if r := oneRepair(t, c, true); r.Partition != 1 || r.Damage != nil || !slices.Equal(r.Made, []string{groupsDir}) {
			t.Errorf("%+v", r)
		}
		l := openLog(t, c)
		_, err = l.Cursors("g", StartEarliest)
		must(t, err)
		wantRecords(t, l.Partition(1), 0, "b")
	})
	t.Run("partition", func(t *testing.T) {
		m, c := made(t)
		names, err := m.List("data/orders/p00001")
		must(t, err)
		for _, n := range names {
			must(t, m.Remove("data/orders/p00001/"+n))
		}
		must(t, m.Remove("data/orders/p00001"))
		_, err = Open(c)
		wantErr(t, err, penstock.ErrCorrupt)
		wantErr(t, err, errNoPartition)
		_, err = CutTail(t.Context(), repairOf(c, false))
		wantErr(t, err, errNoPartition)
		if bad := findings(mustCheck(t, c, false), penstock.Alarm); len(bad) != 1 || !strings.Contains(bad[0], errNoPartition.Error()) {
			t.Errorf("the check says %q", bad)
		}
		s, err := Salvage(t.Context(), SalvageConfig{InspectConfig: InspectConfig{FS: m, Dir: "data", Topic: "orders"}, To: "new", Apply: true})
		if err != nil || len(s) != 2 || s[0].Events != 1 || len(s[1].Lost) != 1 {
			t.Fatalf("%+v, %v, want the other partition", s, err)
		}
		c.Dir, c.SegmentBytes = "new", 0
		wantRecords(t, openLog(t, c).Partition(0), 0, "a")
	})
	t.Run("FORMAT", func(t *testing.T) {
		m, c := made(t)
		overwrite(t, m, "data/FORMAT", []byte("x"), 0)
		_, err := Open(c)
		wantErr(t, err, errNoFormat)
		must(t, m.Remove("data/FORMAT")) // as it says
		wantRecords(t, openLog(t, c).Partition(0), 0, "a")
	})
}

func TestReadBehindDamageNamesTheFile(t *testing.T) {
	m := copyTree(t, golden)
	must(t, m.Remove(goldenSegment(1)))
	p := openLog(t, goldenConfig(m, "data")).Partition(0)
	for _, at := range []penstock.Offset{7, 12, 16, 1000} {
		_, err := p.NewReader(at)
		var ce *penstock.CorruptError
		if !errors.As(err, &ce) || ce.File == "" || errors.Is(err, penstock.ErrOffsetOutOfRange) {
			t.Errorf("a reader at %d: %v, want the damage", at, err)
		}
	}
}

func TestMissingRightIsNoDamage(t *testing.T) {
	for name, cause := range map[string]error{"right": fs.ErrPermission, "files": syscall.EMFILE, "files of the system": syscall.ENFILE} {
		for _, file := range []string{goldenSegment(0), goldenSegment(1), goldenSegment(2), goldenPart + "groups/billing%2F%45%55.slot", goldenPart + stateName, "data/FORMAT"} {
			t.Run(name+" "+filepath.Base(file), func(t *testing.T) {
				m := copyTree(t, golden)
				c := goldenConfig(m, "data")
				m.SetFault(func(op vfs.Op) vfs.Fault {
					if op.Kind == vfs.OpOpen && op.Name == filepath.Clean(file) {
						return vfs.Fault{Err: cause}
					}
					return vfs.Fault{}
				})
				for _, deep := range []bool{false, true} {
					k := mustCheck(t, c, deep)
					if bad := findings(k, penstock.Alarm); len(bad) > 0 || k.Worst() != penstock.Warning {
						t.Errorf("deep %t: %q, worst %v, want a warning", deep, bad, k.Worst())
					}
				}
				if _, err := Open(c); !errors.Is(err, cause) || errors.Is(err, penstock.ErrCorrupt) {
					t.Errorf("open: %v, want what was refused and no damage", err)
				}
				m.SetFault(nil)
				wantRecords(t, openLog(t, c).Partition(0), 0, goldenRecords()...)
			})
		}
	}
}

func TestRefusedAppendSaysWhereAndWhatIsKnown(t *testing.T) {
	for name, test := range map[string]struct {
		kind    vfs.Kind
		cause   error
		unknown bool // the outcome
		goesOn  bool // when the cause is gone
	}{
		"open refused":      {vfs.OpCreate, syscall.EMFILE, false, true},
		"no right":          {vfs.OpCreate, fs.ErrPermission, false, true},
		"file limit":        {vfs.OpWrite, vfs.ErrFileLimit, false, true},
		"limit, allocation": {vfs.OpAllocate, vfs.ErrFileLimit, false, true},
		"input/output":      {vfs.OpWrite, errors.New("input/output error"), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			c := small(m, "data")
			c.SegmentEvents = 3
			l := openLog(t, c)
			p := l.Partition(0)
			first := "a" // the append that fails begins a segment, or goes into one
			if test.kind == vfs.OpWrite {
				mustAppend(t, p, first)
			}
			m.SetFault(func(op vfs.Op) vfs.Fault {
				if op.Kind == test.kind && (strings.HasSuffix(op.Name, segmentExt) || strings.HasSuffix(op.Name, spareName)) {
					return vfs.Fault{Err: test.cause}
				}
				return vfs.Fault{}
			})
			_, err := tryAppend(p, "b")
			m.SetFault(nil)
			wantErr(t, err, test.cause)
			if errors.Is(err, penstock.ErrDiskFull) || errors.Is(err, penstock.ErrUnknownOutcome) != test.unknown {
				t.Errorf("%v: unknown outcome %t, want %t, and no full disk", err, !test.unknown, test.unknown)
			}
			if s := err.Error(); !strings.Contains(s, `topic "orders"`) || !strings.Contains(s, segmentExt) && !strings.Contains(s, spareName) {
				t.Errorf("%v: it names no topic or no file", err)
			}
			if _, err := tryAppend(p, "c"); (err == nil) != test.goesOn {
				t.Errorf("the next append: %v", err)
			}
		})
	}
}

func TestDumpGoesOnBehindWhatIsReclaimed(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		c.SegmentEvents = 2
		l := openLog(t, c)
		p := l.Partition(0)
		for i := range 9 {
			mustAppend(t, p, fmt.Sprint(i))
		}
		must(t, p.Sync())
		var shown, gone []string
		d := DumpConfig{Unsynced: true, Reclaimed: func(first, end penstock.Offset) { gone = append(gone, fmt.Sprintf("[%d,%d)", first, end)) }}
		_, _, err := inspect(t, c).Dump(t.Context(), d, func(r Records) error {
			for i := range r.N {
				shown = append(shown, string(r.At(i)))
			}
			switch r.First {
			case 1:
				return p.Trim(6)
			case 6:
				mustAppend(t, p, "9") // seals the last one
				mustAppend(t, p, "10")
				return p.Trim(10)
			}
			return nil
		})
		if err != nil || !slices.Equal(gone, []string{"[2,6)", "[8,10)"}) || !slices.Equal(shown, []string{"0", "1", "6", "7", "10"}) {
			t.Errorf("shown %q, reclaimed %q, %v", shown, gone, err)
		}
	})
}

func TestHolderThatNobodyNamesIsNotProcess0(t *testing.T) {
	for _, e := range []*LockedError{{Dir: "d"}, {Dir: "d", Host: "h"}} {
		if s := e.Error(); strings.Contains(s, "process 0") || strings.Contains(s, "0001") || !strings.Contains(s, lockName) {
			t.Errorf("%q", s)
		}
	}
}

// withBarrier returns a log of five events with a barrier before the third, and
// where that stands.
func withBarrier(t *testing.T, clean bool) (*vfs.Mem, Config, int64) {
	m := vfs.NewMem()
	c := small(m, "data")
	l, err := open(c, fixed(1))
	must(t, err)
	p := l.Partition(0)
	mustAppend(t, p, "a")
	mustAppend(t, p, "b")
	at := writtenPos(p)
	must(t, p.do(p.writeBarrier, false))
	for _, s := range []string{"c", "d", "e"} {
		mustAppend(t, p, s)
	}
	if clean {
		must(t, l.Close())
	} else {
		m.Kill()
		_ = l.Close() // of a dead process
	}
	return m, c, at
}

func TestBadFrameWithoutEventsTakesNone(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		m, c, at := withBarrier(t, true)
		overwrite(t, m, firstSegment, []byte{0xff}, at+20)
		k := mustCheck(t, c, true)
		if k.Events != 5 || k.Worst() != penstock.Warning {
			t.Errorf("%d events, %+v, want 5 and a warning", k.Events, k.Findings)
		}
		if r, err := CutTail(t.Context(), repairOf(c, false)); err != nil || len(r) > 0 {
			t.Errorf("a repair: %+v, %v", r, err)
		}
		wantRecords(t, openLog(t, c).Partition(0), 0, "a", "b", "c", "d", "e")
	})
	t.Run("killed", func(t *testing.T) { // the proof of what was synced is gone: ADR 0006
		m, c, at := withBarrier(t, false)
		overwrite(t, m, firstSegment, []byte{0xff}, at+20)
		l := openLog(t, c)
		wantErr(t, l.Partition(0).Fault(), penstock.ErrCorrupt)
		must(t, l.Close())
		if k := mustCheck(t, c, true); k.Events != 5 || k.Worst() != penstock.Alarm {
			t.Errorf("%d events, %+v, want 5 and an alarm", k.Events, k.Findings)
		}
		if r := oneRepair(t, c, true); r.Keep != 2 || r.End != 5 || r.Readable != 3 {
			t.Errorf("%+v", r)
		}
		if r, err := CutTail(t.Context(), repairOf(c, true)); err != nil || len(r) > 0 {
			t.Errorf("a second repair: %+v, %v", r, err)
		}
		wantRecords(t, openLog(t, c).Partition(0), 0, "a", "b")
	})
	t.Run("before the damage", func(t *testing.T) {
		m, c, at := withBarrier(t, true)
		overwrite(t, m, firstSegment, []byte{0xff}, at+20)
		overwrite(t, m, firstSegment, []byte{0xff}, at+frameHeaderSize+72+20) // "d"
		if r := oneRepair(t, c, true); r.Keep != 3 || r.End != 5 || r.Readable != 1 {
			t.Errorf("%+v", r)
		}
		wantRecords(t, openLog(t, c).Partition(0), 0, "a", "b", "c")
	})
}
