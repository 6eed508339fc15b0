package segfile

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// copyTree copies the files of a directory into a file system in memory.
func copyTree(t testing.TB, from string) *vfs.Mem {
	t.Helper()
	m := vfs.NewMem()
	must(t, m.Mkdir("data"))
	must(t, filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		rel, rerr := filepath.Rel(from, path)
		if err != nil || rerr != nil || rel == "." {
			return errors.Join(err, rerr)
		}
		rel = filepath.Join("data", rel)
		if d.IsDir() {
			return m.Mkdir(rel)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := m.Create(rel)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(b, 0)
		return err
	}))
	return m
}

var update = flag.Bool("update", false, "write the golden directory anew")

const golden = "testdata/format1"

// goldenRecords is what the golden directory holds.
func goldenRecords() (all []string) {
	for i := range 14 {
		all = append(all, fmt.Sprintf("record-%02d-%s", i, strings.Repeat(string(rune('a'+i)), 20*i)))
	}
	return append(all, "", "after an empty record")
}

// writeGolden makes the golden directory: three segments, one trimmed away
// again, single records, batches, an empty record, a tag, an envelope flag, a
// group with completed events, and an unclean end.
func writeGolden(c Config, until int) error {
	l, err := open(c, fixed(1))
	if err != nil {
		return err
	}
	defer l.Close()
	all, p := goldenRecords(), l.Partition(0)
	cs, err := l.Cursors("billing/EU", StartEarliest)
	if err != nil {
		return err
	}
	for i := 0; i < len(all) && i < until; i += 2 {
		if _, err := tryAppend(p, all[i:i+2]...); err != nil {
			return err
		}
	}
	return cs[0].Store(5, []uint64{0b1010}, true)
}

func goldenConfig(fs vfs.FS, dir string) Config {
	c := small(fs, dir)
	c.SegmentEvents = 6
	return c
}

func TestGoldenDirectoryOfFormat1IsReadable(t *testing.T) {
	if *update {
		must(t, os.RemoveAll(golden))
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, writeGolden(goldenConfig(vfs.OS(), golden), 100))
		must(t, os.Remove(filepath.Join(golden, "orders", lockName))) // it names a host
	}
	m := copyTree(t, golden)
	l := openLog(t, goldenConfig(m, "data"))
	p := l.Partition(0)
	wantRecords(t, p, 0, goldenRecords()...)
	cs, err := l.Cursors("billing/EU", StartLatest)
	must(t, err)
	if cs[0].Committed() != 5 || !slices.Equal(cs[0].Completed(), []uint64{0b1010}) {
		t.Fatalf("group at %d with %b completed, want 5 with 1010", cs[0].Committed(), cs[0].Completed())
	}
	mustAppend(t, p, "more")
	if p.Readable() != 17 {
		t.Fatalf("ends at %d, want 17", p.Readable())
	}
}

// crashed returns the golden records in one segment without a clean mark, and
// the position behind the last frame.
func crashed(t testing.TB) (*vfs.Mem, Config, int64) {
	t.Helper()
	m := vfs.NewMem()
	c := small(m, "data")
	l, err := open(c, fixed(2))
	must(t, err)
	for _, r := range goldenRecords() {
		mustAppend(t, l.Partition(0), r)
	}
	end := writtenPos(l.Partition(0))
	m.Kill()
	_ = l.Close() // of a dead process
	return m, c, end
}

const firstSegment = "data/orders/p00000/00000000000000000000.seg"

// snapshot returns a file's bytes.
func snapshot(t testing.TB, m *vfs.Mem, name string) []byte {
	t.Helper()
	f, err := m.Open(name, false)
	must(t, err)
	defer f.Close()
	n, err := f.Size()
	must(t, err)
	b := make([]byte, n)
	_, err = f.ReadAt(b, 0)
	must(t, err)
	return b
}

func overwrite(t testing.TB, m *vfs.Mem, name string, b []byte, at int64) {
	t.Helper()
	f, err := m.Open(name, true)
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt(b, at)
	must(t, err)
}

// wantPrefix reads everything and demands a prefix of the golden records: no
// short, no invented, no reordered one.
func wantPrefix(t testing.TB, p *Partition, what string) int {
	t.Helper()
	got, err := readAll(p, p.Earliest())
	if err != nil && !errors.Is(err, penstock.ErrCorrupt) {
		t.Fatalf("%s: %v", what, err)
	}
	all := goldenRecords()
	if len(got) > len(all) || !slices.Equal(got, all[:len(got)]) {
		t.Fatalf("%s: read %d records that differ from what was appended", what, len(got))
	}
	return len(got)
}

func TestTailTornAtEveryByteIsCut_QC59(t *testing.T) {
	m, c, end := crashed(t)
	bytes := snapshot(t, m, firstSegment)
	var ends []int64 // of each frame
	for pos := int64(headerSize); pos < end; {
		n, err := parseLength(bytes[pos:], int64(len(bytes))-pos)
		must(t, err)
		pos += int64(n)
		ends = append(ends, pos)
	}
	last := ends[len(ends)-2] // only the last group may be torn: frames prove what was synced before
	for cut := last; cut <= end; cut++ {
		for _, fill := range []byte{0, 0xff} {
			m := vfs.NewMem()
			c.FS = m
			rebuild(t, m, c, bytes[:cut], fill, len(bytes))
			l := openLog(t, c)
			p := l.Partition(0)
			want := len(ends)
			if cut < end && !allZero(bytes[cut:end]) || fill != 0 && cut < end {
				want--
			}
			what := fmt.Sprintf("cut at %d, filled with %#x", cut, fill)
			must(t, p.Fault())
			if got := wantPrefix(t, p, what); got != want {
				t.Fatalf("%s: %d records, want %d", what, got, want)
			}
			if r := l.Recovery()[0]; (r.CutBytes > 0) != (r.Quarantine != "") || fill != 0 && cut < end && r.CutBytes == 0 {
				t.Fatalf("%s: report %+v", what, r)
			} else if r.CutBytes > 0 { // BQ-112: the copy has all that was cut
				was := append(slices.Clone(bytes[:cut]), slices.Repeat([]byte{fill}, len(bytes)-int(cut))...)
				was = was[ends[want-1]:]
				if got := snapshot(t, m, "data/orders/"+r.Quarantine); !slices.Equal(got, was[:lastNonZero(was)+1]) {
					t.Fatalf("%s: the copy in quarantine has %d other bytes than the %d that were cut", what, len(got), lastNonZero(was)+1)
				}
			}
			if o := mustAppend(t, p, "next"); o != penstock.Offset(want) {
				t.Fatalf("%s: next append at %d, want %d", what, o, want)
			}
			must(t, l.Close())
			l = openLog(t, c)
			wantRecords(t, l.Partition(0), 0, append(goldenRecords()[:want:want], "next")...)
			must(t, l.Close())
		}
	}
}

func allZero(b []byte) bool { return lastNonZero(b) < 0 }

// rebuild makes the topic of crashed again with another first segment.
func rebuild(t testing.TB, m *vfs.Mem, c Config, head []byte, fill byte, size int) {
	t.Helper()
	l, err := open(c, fixed(2))
	must(t, err)
	mustAppend(t, l.Partition(0), goldenRecords()[0]) // makes the segment and the state that goes with it
	m.Kill()
	_ = l.Close()
	b := append([]byte(nil), head...)
	for len(b) < size {
		b = append(b, fill)
	}
	overwrite(t, m, firstSegment, b, 0)
}

func TestEveryFlippedBitIsNoticedOrHarmless_QC61(t *testing.T) {
	m, c, end := crashed(t)
	bytes := snapshot(t, m, firstSegment)
	all := len(goldenRecords())
	frameEnd, last := int64(headerSize), int64(0)
	for frameEnd < end {
		n, err := parseLength(bytes[frameEnd:], end-frameEnd)
		must(t, err)
		last, frameEnd = frameEnd, frameEnd+int64(n)
	}
	step := int64(1)
	if raceEnabled {
		step = 17
	}
	for pos := int64(0); pos < end; pos += step {
		if pos >= headerUsed && pos < headerSize {
			continue // unused
		}
		b := slices.Clone(bytes)
		b[pos] ^= 1 << (pos % 8)
		m := vfs.NewMem()
		c.FS = m
		rebuild(t, m, c, b, 0, len(b))
		l := openLog(t, c)
		p := l.Partition(0)
		what := fmt.Sprintf("bit %d of byte %d flipped", pos%8, pos)
		got := wantPrefix(t, p, what)
		switch {
		case pos < headerSize: // nothing can be trusted
			wantErr(t, p.Fault(), penstock.ErrCorrupt)
		case pos >= last: // like a torn tail: the last group proves nothing about itself
			if got != all-1 || p.Fault() != nil || l.Recovery()[0].CutBytes == 0 {
				t.Fatalf("%s: %d records, fault %v, report %+v", what, got, p.Fault(), l.Recovery()[0])
			}
		default:
			var ce *penstock.CorruptError
			if !errors.As(p.Fault(), &ce) || ce.First != penstock.Offset(got) || ce.File == "" || ce.Last < ce.First {
				t.Fatalf("%s: %d records, fault %v", what, got, p.Fault())
			}
			if _, err := tryAppend(p, "x"); !errors.Is(err, penstock.ErrCorrupt) {
				t.Fatalf("%s: append: %v, want ErrCorrupt", what, err)
			}
			must(t, l.Close())
			if !slices.Equal(snapshot(t, m, firstSegment), b) {
				t.Fatalf("%s: the damaged file was modified", what)
			}
		}
		_ = l.Close()
	}
}

func TestFlippedBitAfterCleanCloseIsFoundByTheReader(t *testing.T) {
	m := copyTree(t, golden)
	names, err := m.List("data/orders/p00000")
	must(t, err)
	for _, name := range names {
		if _, ok := parseSegmentName(name); !ok {
			continue
		}
		path := "data/orders/p00000/" + name
		good := snapshot(t, m, path)
		used := int64(lastNonZero(good) + 1)
		for pos := int64(headerSize); pos < used; pos += 3 {
			b := []byte{good[pos] ^ 0x10}
			overwrite(t, m, path, b, pos)
			l, err := Open(goldenConfig(m, "data"))
			must(t, err)
			p := l.Partition(0)
			what := fmt.Sprintf("%s, byte %d", name, pos)
			got := wantPrefix(t, p, what)
			if got < len(goldenRecords()) {
				if _, err := readAll(p, 0); !errors.Is(err, penstock.ErrCorrupt) {
					t.Fatalf("%s: %d records and no error", what, got)
				}
				skipDamage(t, p, what)
			}
			must(t, l.Close())
			overwrite(t, m, path, good[pos:pos+1], pos)
		}
	}
}

// skipDamage reads on behind the damage, which takes an explicit Seek.
func skipDamage(t *testing.T, p *Partition, what string) {
	t.Helper()
	r, err := p.NewReader(0)
	must(t, err)
	defer r.Close()
	all, seen := goldenRecords(), 0
	for {
		rec, err := r.Next(1)
		var ce *penstock.CorruptError
		if errors.As(err, &ce) {
			if _, err = r.Next(1); !errors.Is(err, penstock.ErrCorrupt) {
				t.Fatalf("%s: the second read at damage gave %v", what, err)
			}
			must(t, r.Seek(ce.Last+1))
			continue
		}
		must(t, err)
		if rec.N == 0 {
			break
		}
		if string(rec.At(0)) != all[rec.First] {
			t.Fatalf("%s: record %d is another one", what, rec.First)
		}
		seen++
	}
	if seen < len(all)-2 {
		t.Fatalf("%s: read %d of %d records around one bad frame of two", what, seen, len(all))
	}
}

func TestHoleInTheTailNeverComesBack(t *testing.T) {
	m, c, end := crashed(t)
	// A later frame reached the disk, an earlier one did not, and no frame
	// proves that it should have: the last two frames were one group.
	bytes := snapshot(t, m, firstSegment)
	rebuilt := vfs.NewMem()
	c.FS = rebuilt
	rebuild(t, rebuilt, c, bytes[:end], 0, len(bytes))
	l, err := open(c, fixed(3))
	must(t, err)
	p := l.Partition(0)
	seg, epoch := p.written.seg, p.w.epoch
	st := stamp{seed: seg.seed, base: p.written.end, epoch: epoch, durable: p.written.pos}
	lost, ghost := NewFrame(1), NewFrame(1)
	lost.Add([]byte("lost"))
	ghost.Add([]byte("ghost"))
	b := lost.appendTo(nil, st)
	hole := len(b)
	st.base++
	b = ghost.appendTo(b, st)
	clear(b[:hole])
	rebuilt.Kill()
	_ = l.Close()
	overwrite(t, rebuilt, firstSegment, b, end)
	for range 3 { // each session writes a frame as long as the lost one over the hole
		l = openLog(t, c)
		n := l.Partition(0).Readable()
		mustAppend(t, l.Partition(0), "lost")
		if got := l.Partition(0).Readable(); got != n+1 {
			t.Fatalf("ends at %d after one append at %d", got, n)
		}
		rebuilt.Kill()
		_ = l.Close()
	}
	l = openLog(t, c)
	got, err := readAll(l.Partition(0), 0)
	if err != nil || slices.Contains(got, "ghost") || len(got) != len(goldenRecords())+3 {
		t.Fatalf("%d records, %v; a frame behind the hole came back: %v", len(got), err, slices.Contains(got, "ghost"))
	}
}

func TestMissingForeignAndSwappedSegmentsAreDamage(t *testing.T) {
	dir := "data/orders/p00000/"
	for name, spoil := range map[string]func(t *testing.T, m *vfs.Mem, segs []string){
		"middle missing": func(t *testing.T, m *vfs.Mem, s []string) { must(t, m.Remove(dir+s[1])) },
		"first missing":  func(t *testing.T, m *vfs.Mem, s []string) { must(t, m.Remove(dir+s[0])) },
		"last missing":   func(t *testing.T, m *vfs.Mem, s []string) { must(t, m.Remove(dir+s[len(s)-1])) },
		"all missing": func(t *testing.T, m *vfs.Mem, s []string) {
			for _, n := range s {
				must(t, m.Remove(dir+n))
			}
		},
		"swapped": func(t *testing.T, m *vfs.Mem, s []string) {
			a, b := snapshot(t, m, dir+s[0]), snapshot(t, m, dir+s[1])
			overwrite(t, m, dir+s[0], b, 0)
			overwrite(t, m, dir+s[1], a, 0)
		},
		"of another topic": func(t *testing.T, m *vfs.Mem, s []string) {
			b := snapshot(t, m, dir+s[1])
			h, err := decodeSegmentHeader(b)
			must(t, err)
			h.topic[3]++
			overwrite(t, m, dir+s[1], h.encode(), 0)
		},
		"of an earlier life": func(t *testing.T, m *vfs.Mem, s []string) { // rocksdb 12918
			b := snapshot(t, m, dir+s[1])
			h, err := decodeSegmentHeader(b)
			must(t, err)
			h.nonce++
			overwrite(t, m, dir+s[1], h.encode(), 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := copyTree(t, golden)
			names, err := m.List(dir)
			must(t, err)
			segs := slices.DeleteFunc(names, func(n string) bool { _, ok := parseSegmentName(n); return !ok })
			if len(segs) < 3 {
				t.Fatalf("%d segments, the test needs 3", len(segs))
			}
			spoil(t, m, segs)
			l := openLog(t, goldenConfig(m, "data"))
			p := l.Partition(0)
			got := wantPrefix(t, p, name)
			if got == len(goldenRecords()) {
				t.Fatal("everything was read")
			}
			if _, err := readAll(p, p.Earliest()); !errors.Is(err, penstock.ErrCorrupt) {
				t.Fatalf("%d of %d records and error %v, want ErrCorrupt", got, len(goldenRecords()), err)
			}
		})
	}
}

func TestFrameOfAnotherSegmentIsRefused(t *testing.T) {
	// Two topics with the same records: the same offsets, sizes and positions.
	m, c, end := crashed(t)
	bytes := snapshot(t, m, firstSegment)
	other := vfs.NewMem()
	oc := small(other, "data")
	l, err := open(oc, fixed(99))
	must(t, err)
	for _, r := range goldenRecords() {
		mustAppend(t, l.Partition(0), r)
	}
	other.Kill()
	_ = l.Close()
	foreign := snapshot(t, other, firstSegment)
	pos, ends := int64(headerSize), []int64{headerSize}
	for pos < end {
		n, err := parseLength(bytes[pos:], end-pos)
		must(t, err)
		pos += int64(n)
		ends = append(ends, pos)
	}
	for i := range len(ends) - 1 {
		b := slices.Clone(bytes)
		copy(b[ends[i]:ends[i+1]], foreign[ends[i]:ends[i+1]])
		m := vfs.NewMem()
		c.FS = m
		rebuild(t, m, c, b, 0, len(b))
		l := openLog(t, c)
		if got := wantPrefix(t, l.Partition(0), fmt.Sprintf("frame %d", i)); got != i {
			t.Fatalf("frame %d is foreign, and %d records were served", i, got)
		}
		must(t, l.Close())
	}
}

func TestLostStateIsFoundAgain(t *testing.T) {
	for _, how := range []string{"removed", "garbage"} {
		t.Run(how, func(t *testing.T) {
			m := copyTree(t, golden)
			if how == "removed" {
				must(t, m.Remove("data/orders/p00000/state.slot"))
			} else {
				overwrite(t, m, "data/orders/p00000/state.slot", []byte(strings.Repeat("x", 2*slotSize)), 0)
			}
			l := openLog(t, goldenConfig(m, "data"))
			wantRecords(t, l.Partition(0), 0, goldenRecords()...)
			if len(l.Recovery()[0].Notes) == 0 {
				t.Fatal("the loss of state.slot was not reported")
			}
			cs, err := l.Cursors("billing/EU", StartLatest) // nats-server 8036: a cursor outlives any other file
			must(t, err)
			if cs[0].Committed() != 5 {
				t.Fatalf("group at %d, want 5", cs[0].Committed())
			}
			mustAppend(t, l.Partition(0), "more")
		})
	}
}

// TestPositionSurvivesTheLossOfAnyOtherFile is nats-server 8036: whatever else of
// the topic is gone or garbage, a position is where it was stored durably, or is
// refused; it is never a lower one.
func TestPositionSurvivesTheLossOfAnyOtherFile(t *testing.T) {
	whole := copyTree(t, golden)
	const slot = "data/orders/p00000/groups/billing%2F%45%55.slot"
	files := goldenFiles(t, whole)
	if len(files) < 6 || !slices.Contains(files, slot) {
		t.Fatalf("%q are not the files that this is about", files)
	}
	for _, file := range files {
		for _, how := range []string{"removed", "garbage", "empty"} {
			if file == slot || strings.HasSuffix(file, lockName) {
				continue
			}
			m := whole.Clone()
			must(t, m.Remove(file))
			switch how {
			case "garbage":
				put(t, m, file, []byte(strings.Repeat("?", 2*slotSize)))
			case "empty":
				put(t, m, file, nil)
			}
			c := goldenConfig(m, "data")
			l, err := Open(c)
			if err != nil { // FORMAT and topic.json
				if wantErr(t, err, penstock.ErrCorrupt); !strings.HasSuffix(file, topicName) && !strings.HasSuffix(file, formatName) {
					t.Errorf("%s %s: %v", file, how, err)
				}
				continue
			}
			cs, err := l.Cursors("billing/EU", StartEarliest)
			if err != nil || cs[0].Committed() != 5 {
				t.Errorf("%s %s: position %v, %v, want 5", file, how, cs, err)
			}
			must(t, l.Close())
			if b := snapshot(t, m, slot); len(b) == 0 {
				t.Errorf("%s %s: the position is gone", file, how)
			}
		}
	}
}

// resum gives a changed segment header its checksum.
func resum(b []byte) {
	sum := crc32.Checksum(b[:headerUsed-4], castagnoli)
	binary.LittleEndian.PutUint32(b[headerUsed-4:], sum)
}

// TestLostSegmentOfAnUncleanEndNamesNoOffsetBeyondTheLog: the state did not
// know the end yet, and the offset before it was the largest there is.
func TestLostSegmentOfAnUncleanEndNamesNoOffsetBeyondTheLog(t *testing.T) {
	m := vfs.NewMem()
	mustAppend(t, openLog(t, small(m, "data")).Partition(0), "a")
	m.Kill()
	must(t, m.Remove("data/orders/p00000/"+segmentName(0)))
	damage := new(penstock.CorruptError)
	if err := openLog(t, small(m, "data")).Partition(0).Fault(); !errors.As(err, &damage) || damage.First != 0 || damage.Last != 0 {
		t.Errorf("%v, want damage from offset 0 to 0", err)
	}
}
