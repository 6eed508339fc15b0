package segfile

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// TestGoldenDirectoriesOfEveryVersionAreTakenOver: what a version wrote is read
// whole, appended to, committed in and opened again by this one, at both levels,
// and a check finds nothing.
func TestGoldenDirectoriesOfEveryVersionAreTakenOver(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join("testdata", "format*"))
	must(t, err)
	if len(dirs) < formatMajor {
		t.Fatalf("%d golden directories and %d versions of the format", len(dirs), formatMajor)
	}
	for _, dir := range dirs {
		for _, level := range []penstock.Durability{penstock.Written, penstock.Synced} {
			t.Run(filepath.Base(dir)+"/"+level.String(), func(t *testing.T) {
				copied := t.TempDir()
				must(t, os.CopyFS(copied, os.DirFS(dir)))
				c := goldenConfig(nil, copied)
				c.Durability = level
				want := goldenRecords()
				for range 3 {
					l := openLog(t, c)
					p := l.Partition(0)
					wantRecords(t, p, 0, want...)
					cs, err := l.Cursors("billing/EU", StartLatest)
					must(t, err)
					at := cs[0].Committed()
					if first := penstock.Offset(len(want)) == 16; first && (at != 5 || !slices.Equal(cs[0].Completed(), []uint64{0b1010})) || !first && at != p.Readable() {
						t.Errorf("the group is at %d with %b completed, after %d records", at, cs[0].Completed(), len(want))
					}
					for _, more := range []string{"appended", "by this version"} {
						mustAppend(t, p, more)
						want = append(want, more)
					}
					must(t, cs[0].Store(p.Readable(), nil, true))
					must(t, l.Close())
					r, err := Check(t.Context(), CheckConfig{InspectConfig: InspectConfig{Dir: copied, Topic: c.Topic}, Deep: true})
					if err != nil || r.Events != uint64(len(want)) || r.Worst() >= penstock.Warning {
						t.Errorf("a deep check of %d events, want %d: %v, %v", r.Events, len(want), r.Findings, err)
					}
				}
			})
		}
	}
}

// everyFile returns what stands in the files of a data directory, except for the
// note in LOCK.
func everyFile(t *testing.T, m *vfs.Mem, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	names, err := m.List(dir)
	must(t, err)
	for _, name := range names {
		path := filepath.Join(dir, name)
		info, err := m.Stat(path)
		must(t, err)
		switch {
		case info.Dir:
			files[path] = "a directory"
			for k, v := range everyFile(t, m, path) {
				files[k] = v
			}
		case name != lockName:
			files[path], err = contentOf(m, path)
			must(t, err)
		}
	}
	return files
}

// editFrame changes a frame of a segment and makes its checksum anew; n counts
// from the last one, 0.
func editFrame(t *testing.T, m *vfs.Mem, path string, n int, change func(b []byte)) {
	t.Helper()
	b := snapshot(t, m, path)
	hdr, err := decodeSegmentHeader(b)
	must(t, err)
	seed := seedOf(hdr.nonce)
	var at [][2]int
	for pos := headerSize; pos < len(b); {
		size, err := parseLength(b[pos:], int64(len(b)-pos))
		if err != nil {
			break
		}
		at = append(at, [2]int{pos, pos + size})
		pos += size
	}
	where := at[len(at)-1-n]
	frame := b[where[0]:where[1]]
	change(frame)
	binary.LittleEndian.PutUint32(frame[8:], checksum(seed, frame))
	overwrite(t, m, path, frame, int64(where[0]))
}

// TestWhatALaterVersionWroteIsRefusedAndNothingIsTouched: a version of the format
// or a flag that this one does not know is no damage and no torn tail. The open
// says so, and no file is changed, by no open and by no repair.
func TestWhatALaterVersionWroteIsRefusedAndNothingIsTouched_FM23(t *testing.T) {
	header := func(change func([]byte)) func(*testing.T, *vfs.Mem) {
		return func(t *testing.T, m *vfs.Mem) {
			b := snapshot(t, m, firstSegment)[:headerUsed]
			change(b)
			resum(b)
			overwrite(t, m, firstSegment, b, 0)
		}
	}
	frame := func(n int, change func([]byte)) func(*testing.T, *vfs.Mem) {
		return func(t *testing.T, m *vfs.Mem) { editFrame(t, m, firstSegment, n, change) }
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *vfs.Mem)
		says   string
	}{
		"FORMAT": {func(t *testing.T, m *vfs.Mem) {
			overwrite(t, m, "data/FORMAT", []byte("penstock data\nformat 2.0\n"), 0)
		}, `FORMAT has format "2.0"`},
		"topic.json": {func(t *testing.T, m *vfs.Mem) {
			const path = "data/orders/topic.json"
			tp, err := decodeTopic(snapshot(t, m, path))
			must(t, err)
			tp.Format = "2.0"
			b, err := tp.encode()
			must(t, err)
			overwrite(t, m, path, b, 0)
		}, `topic.json has format "2.0"`},
		"version of a segment":       {header(func(b []byte) { b[8] = 2 }), "segment format 2.0"},
		"required flag of a segment": {header(func(b []byte) { b[12] = 4 }), "flags 0x4"},
		"flag of the last frame":     {frame(0, func(b []byte) { b[13] |= 0x80 }), "flags 0x80"},
		"type of the last frame":     {frame(0, func(b []byte) { b[12] = 9 }), "frame type 9"},
		"header of the last frame":   {frame(0, func(b []byte) { b[14] = 72 }), "header of 72 bytes"},
		"flag of a frame before":     {frame(3, func(b []byte) { b[13] |= 0x80 }), "flags 0x80"},
		"last frame, behind a bad one": {func(t *testing.T, m *vfs.Mem) {
			editFrame(t, m, firstSegment, 1, func(b []byte) { b[0]++ })
			editFrame(t, m, firstSegment, 0, func(b []byte) { b[13] |= 0x80 })
		}, "flags 0x80"},
	} {
		t.Run(name, func(t *testing.T) {
			m, config, _ := crashed(t)
			c.change(t, m)
			before := everyFile(t, m, "data")
			l, err := Open(config)
			if err == nil {
				_ = l.Close()
			}
			wantErr(t, err, penstock.ErrUnsupported)
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("the open says %q, and not %q", err, c.says)
			}
			look := InspectConfig{FS: m, Dir: "data", Topic: config.Topic}
			repairs, err := CutTail(t.Context(), RepairConfig{InspectConfig: look, Partition: -1, Apply: true})
			if err == nil {
				t.Errorf("a repair was made: %+v", repairs)
			}
			after := everyFile(t, m, "data")
			for path, was := range before {
				if after[path] != was {
					t.Errorf("%s was changed", path)
				}
			}
			if len(after) != len(before) {
				t.Errorf("%d files, %d before", len(after), len(before))
			}
		})
	}
}
