package segfile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

func inspect(t testing.TB, c Config) *Inspection {
	t.Helper()
	in, err := Inspect(InspectConfig{FS: c.FS, Dir: c.Dir, Topic: c.Topic})
	must(t, err)
	return in
}

// dumpAll returns the records that a dump shows.
func dumpAll(in *Inspection, d DumpConfig) (all []string, unsynced uint64, err error) {
	next := d.From
	_, unsynced, err = in.Dump(context.Background(), d, func(r Records) error {
		if next > r.First {
			return fmt.Errorf("records begin at %d, shown to %d", r.First, next)
		}
		for i := range r.N {
			all = append(all, string(r.At(i)))
		}
		next = r.First + penstock.Offset(r.N)
		return nil
	})
	return all, unsynced, err
}

func TestDumpShowsWhatIsKnownToBeSynced(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	l, err := open(c, fixed(1)) // no barrier: the last group proves nothing about itself
	must(t, err)
	p := l.Partition(0)
	for i := range 20 {
		mustAppend(t, p, fmt.Sprint(i), strings.Repeat("x", 700))
	}
	all, err := readAll(p, 0)
	must(t, err)
	in := inspect(t, c)
	got, unsynced, err := dumpAll(in, DumpConfig{})
	if err != nil || unsynced != 2 || !slices.Equal(got, all[:len(all)-2]) {
		t.Fatalf("%d records and %d unsynced, %v, want all but the last two", len(got), unsynced, err)
	}
	got, unsynced, err = dumpAll(in, DumpConfig{Unsynced: true})
	if err != nil || unsynced != 0 || !slices.Equal(got, all) {
		t.Fatalf("%d records and %d unsynced, %v, want all", len(got), unsynced, err)
	}
	for from := range all {
		for _, to := range []int{from + 1, from + 2, from + 9, len(all)} {
			to = min(to, len(all))
			got, _, err := dumpAll(in, DumpConfig{From: penstock.Offset(from), To: penstock.Offset(to), Unsynced: true})
			if first := all[from:to]; err != nil || from > 0 && !slices.Equal(got, first) {
				t.Fatalf("[%d, %d): %q, %v, want %q", from, to, got, err, first)
			}
		}
	}
	must(t, l.Close())
	got, unsynced, err = dumpAll(inspect(t, c), DumpConfig{})
	if err != nil || unsynced != 0 || !slices.Equal(got, all) {
		t.Fatalf("closed: %d records and %d unsynced, %v, want all", len(got), unsynced, err)
	}
}

func TestDumpPassesDamageWhenItMay(t *testing.T) {
	m := copyTree(t, golden)
	c := goldenConfig(m, "data")
	overwrite(t, m, firstSegment, []byte{0xff}, headerSize+200)
	overwrite(t, m, "data/orders/p00000/"+segmentName(6), []byte{0xff}, 10) // the header: all of it
	in := inspect(t, c)
	got, _, err := dumpAll(in, DumpConfig{Unsynced: true})
	var ce *penstock.CorruptError
	if !errors.As(err, &ce) || ce.First != 2 || ce.Last != 3 || !slices.Equal(got, goldenRecords()[:2]) {
		t.Fatalf("%q, %v, want two records and damage to 2 and 3", got, err)
	}
	var lost []string
	got, _, err = dumpAll(in, DumpConfig{Unsynced: true, Skip: func(e *penstock.CorruptError) error {
		lost = append(lost, fmt.Sprintf("%d-%d", e.First, e.Last))
		return nil
	}})
	all := goldenRecords()
	if err != nil || !slices.Equal(lost, []string{"2-3", "6-11"}) || !slices.Equal(got, slices.Concat(all[:2], all[4:6], all[12:])) {
		t.Fatalf("%d records, lost %q, %v", len(got), lost, err)
	}
	enough := errors.New("enough")
	if _, _, err := in.Dump(context.Background(), DumpConfig{}, func(Records) error { return enough }); !errors.Is(err, enough) {
		t.Fatalf("a dump that its reader ends returned %v", err)
	}
	if _, _, err := dumpAll(in, DumpConfig{Partition: 1}); !errors.Is(err, penstock.ErrNotFound) {
		t.Fatalf("no such partition: %v", err)
	}
}

func TestSegmentsSayWhoKeepsThem(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		c.SegmentEvents = 2
		l := openLog(t, c)
		p := l.Partition(0)
		for g, at := range map[string]penstock.Offset{"slow": 1, "fast": 5} {
			for p.Readable() < 7 {
				mustAppend(t, p, "x")
			}
			cs, err := l.Cursors(g, StartEarliest)
			must(t, err)
			must(t, cs[0].Store(at, nil, true))
		}
		want := []string{"sealed [0,2) slow", "sealed [2,4) slow", "sealed [4,6) fast,slow", "active [6,7) fast,slow"}
		for range 2 { // in use, and closed
			infos, err := inspect(t, c).Segments(t.Context())
			must(t, err)
			var got []string
			for _, s := range infos {
				if s.Err != nil || s.Created.IsZero() || s.Bytes > s.Size {
					t.Errorf("%+v", s)
				}
				got = append(got, fmt.Sprintf("%s [%d,%d) %s", s.State, s.First, s.End, strings.Join(s.Groups, ",")))
			}
			if !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			must(t, l.Close())
		}
	})
}

func TestUsageAddsUpEveryFile(t *testing.T) {
	m := copyTree(t, golden)
	c := goldenConfig(m, "data")
	must(t, m.Mkdir("data/orders/p00000/"+quarantineDir))
	for name, n := range map[string]int{quarantineDir + "/1.tail": 100, spareName: 2000, "stray": 7} {
		f, err := m.Create("data/orders/p00000/" + name)
		must(t, err)
		_, err = f.WriteAt(make([]byte, n), 0)
		must(t, err)
		must(t, f.Close())
	}
	u, err := inspect(t, c).Usage()
	must(t, err)
	format, err := m.Stat("data/FORMAT")
	must(t, err)
	if u.Quarantine != 100 || u.Prepared != 2000 || u.Positions != 4*slotSize || int64(u.Total()) != m.Used()-format.Size || u.Files != 9 {
		t.Fatalf("%+v, total %d, used %d", u, u.Total(), m.Used())
	}
	names, err := Topics(m, "data")
	if err != nil || !slices.Equal(names, []string{"orders"}) {
		t.Fatalf("topics %q, %v", names, err)
	}
}
