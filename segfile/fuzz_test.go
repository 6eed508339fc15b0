package segfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

func FuzzNameEscape(f *testing.F) {
	for _, s := range []string{"", "orders", "Orders", "orders/worker 1", "../x", ".", "..", "a.", " a ", "con", "CON", "con.txt", "com1", "lpt9.x", "%41", "%", "%2", "ä", "a\x00b", "\xff", "com\u00b9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		e := EscapeName(name)
		back, err := UnescapeName(e)
		if err != nil || back != name {
			t.Fatalf("%q became %q became %q, %v", name, e, back, err)
		}
		for _, c := range []byte(e) {
			if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789._-%ABCDEF", rune(c)) {
				t.Fatalf("%q became %q, which holds %q", name, e, c)
			}
		}
		if name != "" && (e == "." || e == ".." || strings.HasPrefix(e, ".") || strings.HasSuffix(e, ".") || isDevice(strings.ToLower(e)) || filepath.Base(e) != e) {
			t.Fatalf("%q became %q, which is no plain name everywhere", name, e)
		}
		// Any string is either the escaped form of one name or refused.
		if back, err := UnescapeName(name); err == nil && EscapeName(back) != name {
			t.Fatalf("%q was taken for the escaped form of %q", name, back)
		}
	})
}

func TestNamesThatDifferOnlyInCaseStayApart_BQ16(t *testing.T) {
	seen := map[string]string{}
	for _, n := range []string{"orders", "Orders", "ORDERS", "orders.", ".orders", "orders ", "%6frders", "con", "CON", "Con"} {
		e := strings.ToLower(EscapeName(n)) // as a file system that folds case sees it
		if other, taken := seen[e]; taken {
			t.Errorf("%q and %q share %q", n, other, e)
		}
		seen[e] = n
	}
	if got := EscapeName("orders/worker 1"); got != "orders%2Fworker%201" {
		t.Errorf("got %q", got)
	}
}

func FuzzFrameDecode(f *testing.F) {
	for _, records := range [][]string{{"a"}, {"", "b", ""}, {strings.Repeat("x", 100), "y"}} {
		frame := NewFrame(len(records))
		for _, r := range records {
			frame.Add([]byte(r))
		}
		f.Add(frame.appendTo(nil, stamp{seed: seedOf(1), base: 7, epoch: 2}), false)
	}
	f.Add(encodeSeal(&summary{count: 3, end: 3, index: []indexEntry{{1, 4096, 5}}}, stamp{seed: seedOf(1)}), true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if n, err := parseLength(b, int64(len(b))); err == nil && n > len(b) {
			t.Fatalf("length %d of %d bytes", n, len(b))
		}
		if fix && len(b) >= frameHeaderSize { // get past the checksum
			b = bytes.Clone(b)
			h := header{kind: b[12], flags: b[13], count: uint32(b[24])}
			h.put(b, seedOf(1))
		}
		h, err := parseFrame(b, seedOf(1))
		if err != nil {
			return
		}
		if h.kind == typeSeal {
			if s, err := decodeSeal(b); err == nil && len(s.index)*indexEntrySize > len(b) {
				t.Fatalf("%d entries from %d bytes", len(s.index), len(b))
			}
		}
		rec := Records{N: int(h.count), frame: b, count: int(h.count)}
		total := 0
		for i := range rec.N {
			total += len(rec.At(i))
		}
		if total > len(b) {
			t.Fatalf("records of %d bytes in a frame of %d", total, len(b))
		}
	})
}

func FuzzSlotDecode(f *testing.F) {
	o := owner{topic: uuid{1, 2, 3}, partition: 4}
	st := state{start: 1, end: 9, segment: 5, position: 4096, epoch: 3, clean: true}
	cur := stored{group: 7, committed: 8, completed: []uint64{1, 2}}
	f.Add(encodeSlot(stateMark, 5, o, st.encode()))
	f.Add(encodeSlot(cursorMark, 6, o, cur.encode()))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, p, err := decodeSlot(b, stateMark, o); err == nil {
			if s, err := decodeState(p); err == nil && (s.start > s.end || s.position < 0) {
				t.Fatalf("state %+v", s)
			}
		}
		if s, err := decodeState(b); err == nil {
			if again, err := decodeState(s.encode()); err != nil || again != s {
				t.Fatalf("%+v became %+v, %v", s, again, err)
			}
		}
		if s, err := decodeStored(b); err == nil {
			if len(s.completed) > CompletedMax/64 {
				t.Fatalf("%d words", len(s.completed))
			}
			if again, err := decodeStored(s.encode()); err != nil || fmt.Sprint(again) != fmt.Sprint(s) {
				t.Fatalf("%+v became %+v, %v", s, again, err)
			}
		}
		_, _ = decodeTopic(b) // must end
	})
}

// FuzzSegmentOpen puts arbitrary bytes where a segment's frames stand: open
// and reading must end, and never serve what was not appended.
func FuzzSegmentOpen(f *testing.F) {
	m, c, end := crashed(f)
	good := snapshot(f, m, firstSegment)
	f.Add(uint16(0), []byte{})
	f.Add(uint16(0), good[headerSize:end])
	f.Add(uint16(100), []byte("PFRM"))
	f.Add(uint16(64), good[headerSize:headerSize+100])
	f.Add(uint16(end-headerSize), good[headerSize:end])
	f.Fuzz(func(t *testing.T, at uint16, b []byte) {
		pos := headerSize + int64(at)
		if pos+int64(len(b)) > int64(len(good)) {
			return
		}
		m := vfs.NewMem()
		c.FS = m
		rebuild(t, m, c, good, 0, len(good))
		overwrite(t, m, firstSegment, b, pos)
		l, err := Open(c)
		must(t, err)
		defer l.Close()
		wantPrefix(t, l.Partition(0), "spoiled")
		_, err = tryAppend(l.Partition(0), "next")
		if err != nil && !errors.Is(err, penstock.ErrCorrupt) {
			t.Fatal(err)
		}
	})
}

func TestConfigurationNamesTheBadField(t *testing.T) {
	for field, edit := range map[string]func(*Config){
		"Partitions":         func(c *Config) { c.Partitions = -1 },
		"SegmentBytes":       func(c *Config) { c.SegmentBytes = 100 },
		"SegmentEvents":      func(c *Config) { c.SegmentEvents = -1 },
		"SyncEvery.Interval": func(c *Config) { c.SyncEvery.Interval = -1 },
		"SyncEvery.Events":   func(c *Config) { c.SyncEvery.Events = -1 },
		"SyncEvery.Bytes":    func(c *Config) { c.SyncEvery.Bytes = -1 },
		"MaxFrame":           func(c *Config) { c.MaxFrame = c.SegmentBytes },
		"MaxPending":         func(c *Config) { c.MaxPending = -1 },
		"Topic":              func(c *Config) { c.Topic = " " },
		"Dir":                func(c *Config) { c.Dir = "" },
		"Codec":              func(c *Config) { c.Codec = strings.Repeat("x", 129) },
		"Durability":         func(c *Config) { c.Durability = penstock.Memory },
	} {
		m := vfs.NewMem()
		c := small(m, "data")
		edit(&c)
		_, err := Open(c)
		var fe *penstock.FieldError
		if !errors.As(err, &fe) || fe.Field != field || m.Ops() > 0 {
			t.Errorf("%s: error %v after %d operations, want a FieldError and none", field, err, m.Ops())
		}
	}
}

func TestFrameLimitsAreHeldBeforeAnythingMoves_FM24(t *testing.T) {
	m := vfs.NewMem()
	l := openLog(t, small(m, "data"))
	p := l.Partition(0)
	room := int(p.cfg.MaxFrame) - frameHeaderSize - 4
	mustAppend(t, p, strings.Repeat("x", room))
	mustAppend(t, p, strings.Repeat("y", room))
	at := writtenPos(p) // not the number of operations: a spare may be under way
	_, err := tryAppend(p, strings.Repeat("z", room+1))
	wantErr(t, err, penstock.ErrTooLarge)
	f := NewFrame(0)
	wantErr(t, p.Check(f), penstock.ErrInvalid)
	f.Release()
	if now := writtenPos(p); now != at || p.Readable() != 2 {
		t.Fatalf("position %d after %d, %d readable: a frame that was refused moved something", now, at, p.Readable())
	}
	for _, hint := range []int{0, 1, 2, 5} { // any number of records is legal
		f := NewFrame(hint)
		f.Add([]byte("a"))
		f.End(append(f.Buffer(), "b"...))
		_ = append(f.Buffer(), "half"...)
		f.Abort()
		r, err := p.Append(t.Context(), f)
		must(t, err)
		_, err = r.Wait(t.Context())
		must(t, err)
	}
	wantRecords(t, p, 2, "a", "b", "a", "b", "a", "b", "a", "b")
}

func TestLaterFormatsAreReadOrRefused_FM23(t *testing.T) {
	edit := func(t *testing.T, m *vfs.Mem, path, from, to string) {
		b := snapshot(t, m, path)
		body := b[:len(b)-crcFieldLen]
		if !bytes.Contains(body, []byte(from)) {
			t.Fatalf("%s does not hold %s", path, from)
		}
		tp, err := decodeTopic(b)
		must(t, err)
		tp.Format = to
		nb, err := tp.encode()
		must(t, err)
		overwrite(t, m, path, nb, 0)
	}
	for _, c := range []struct{ what, version string }{{"topic minor", "1.9"}, {"topic major", "2.0"}} {
		m := copyTree(t, golden)
		edit(t, m, "data/orders/topic.json", `"format":"1.0"`, c.version)
		l, err := Open(goldenConfig(m, "data"))
		if strings.HasSuffix(c.what, "major") {
			wantErr(t, err, penstock.ErrUnsupported)
			continue
		}
		must(t, err)
		wantRecords(t, l.Partition(0), 0, goldenRecords()...)
		must(t, l.Close())
	}
	for name, change := range map[string]func(b []byte){
		"minor": func(b []byte) { b[10] = 9 },
		"major": func(b []byte) { b[8] = 2 },
		"flags": func(b []byte) { b[12] = 1 },
	} {
		m := copyTree(t, golden)
		b := snapshot(t, m, strings.Replace(firstSegment, "00.seg", "06.seg", 1))[:headerUsed]
		change(b)
		resum(b)
		overwrite(t, m, strings.Replace(firstSegment, "00.seg", "06.seg", 1), b, 0)
		l, err := Open(goldenConfig(m, "data"))
		if name != "minor" {
			wantErr(t, err, penstock.ErrUnsupported)
			continue
		}
		must(t, err)
		wantRecords(t, l.Partition(0), 0, goldenRecords()...)
		must(t, l.Close())
	}
	m := copyTree(t, golden)
	overwrite(t, m, "data/FORMAT", []byte("penstock data\nformat 2.0\n"), 0)
	_, err := Open(goldenConfig(m, "data"))
	wantErr(t, err, penstock.ErrUnsupported)
}

func TestTopicFileIsGuarded(t *testing.T) {
	m := copyTree(t, golden)
	const path = "data/orders/topic.json"
	good := snapshot(t, m, path)
	for i := range good {
		overwrite(t, m, path, []byte{good[i] ^ 1}, int64(i))
		if _, err := Open(goldenConfig(m, "data")); !errors.Is(err, penstock.ErrCorrupt) {
			t.Fatalf("byte %d changed: %v, want ErrCorrupt", i, err)
		}
		overwrite(t, m, path, good[i:i+1], int64(i))
	}
	must(t, m.Remove(path))
	_, err := Open(goldenConfig(m, "data"))
	wantErr(t, err, penstock.ErrCorrupt) // a topic is never made over data
	for field, edit := range map[string]func(*Config){
		"Partitions": func(c *Config) { c.Partitions = 2 },
		"Router":     func(c *Config) { c.Router = "hash/1" },
		"Codec":      func(c *Config) { c.Codec = "json/1" },
		"Tenant":     func(c *Config) { c.Tenant = "acme" },
	} {
		m := copyTree(t, golden)
		c := goldenConfig(m, "data")
		edit(&c)
		_, err := Open(c)
		var fe *penstock.FieldError
		if !errors.As(err, &fe) || fe.Field != field {
			t.Errorf("%s changed: %v, want a FieldError", field, err)
		}
	}
	m = copyTree(t, golden)
	must(t, m.Mkdir("data/orders/p00001"))
	_, err = Open(goldenConfig(m, "data"))
	wantErr(t, err, penstock.ErrCorrupt)
}

func TestDataDirectoryIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	l := openLog(t, small(nil, dir))
	mustAppend(t, l.Partition(0), "x")
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err == nil && st.Mode().Perm()&0o077 != 0 && os.PathSeparator == '/' {
			t.Errorf("%s has mode %v", path, st.Mode())
		}
		return err
	}))
}
