package segfile_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

// A decoder written from docs/format.md alone. It uses nothing of the package,
// and fails on every byte that the document does not explain.

var (
	le         = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

func crc(b ...[]byte) (sum uint32) {
	for _, p := range b {
		sum = crc32.Update(sum, castagnoli, p)
	}
	return sum
}

type docRecord struct {
	offset    uint64
	payload   string
	enveloped bool
	tag       uint64
	epoch     uint32
}

type docTopic struct {
	UUID       string `json:"uuid"`
	Magic      string `json:"magic"`
	Format     string `json:"format"`
	Topic      string `json:"topic"`
	Partitions int    `json:"partitions"`
	Codec      string `json:"codec"`
	CRC32C     string `json:"crc32c"`
	uuid       []byte
}

func docReadTopic(dir string) (docTopic, error) {
	var t docTopic
	b, err := os.ReadFile(filepath.Join(dir, "topic.json"))
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return t, err
	}
	before, _, _ := strings.Cut(string(b), `,"crc32c"`)
	if got := fmt.Sprintf("%08x", crc([]byte(before))); got != t.CRC32C || t.Magic != "penstock-topic" || t.Format != "1.0" {
		return t, fmt.Errorf("topic.json: %+v, checksum %s", t, got)
	}
	_, err = fmt.Sscanf(strings.ReplaceAll(t.UUID, "-", ""), "%x", &t.uuid)
	return t, err
}

// docSegment is what one segment holds and how it is linked.
type docSegment struct {
	base, end, nonce, prevNonce, prevEnd uint64
	records                              []docRecord
	sealed                               bool
	barriers                             int
	position                             uint64 // behind the last frame
	rolling                              uint32
}

func docReadSegment(path string, t docTopic, partition uint32) (docSegment, error) {
	var s docSegment
	b, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	wrong := func(format string, args ...any) (docSegment, error) {
		return s, fmt.Errorf("%s: %s", filepath.Base(path), fmt.Sprintf(format, args...))
	}
	if string(b[:8]) != "PSTKSEG\n" || le.Uint16(b[8:]) != 1 || le.Uint16(b[10:]) != 0 || le.Uint32(b[12:]) != 0 ||
		!slices.Equal(b[16:32], t.uuid) || le.Uint32(b[32:]) != partition || le.Uint32(b[124:]) != crc(b[:124]) ||
		le.Uint64(b[88:]) != penstock.HashKey(t.Codec) || zeros(b[96:124]) != 28 || zeros(b[128:4096]) != 4096-128 {
		return wrong("header")
	}
	s = docSegment{base: le.Uint64(b[40:]), nonce: le.Uint64(b[56:]), prevNonce: le.Uint64(b[64:]), prevEnd: le.Uint64(b[72:]), end: le.Uint64(b[40:])}
	if filepath.Base(path) != fmt.Sprintf("%020d.seg", s.base) {
		return wrong("base %d", s.base)
	}
	pos := 4096
	for pos < len(b) && !s.sealed {
		if le.Uint32(b[pos:]) == 0 {
			break
		}
		n := int(le.Uint32(b[pos+4:]))
		f := b[pos : pos+n]
		if le.Uint32(f) != 0x4d524650 || n%8 != 0 || le.Uint32(f[8:]) != crc(b[56:64], f[12:]) ||
			le.Uint16(f[14:]) != 64 || le.Uint64(f[16:]) != s.end || le.Uint64(f[48:]) > uint64(pos) {
			return wrong("frame at %d", pos)
		}
		count := int(le.Uint32(f[24:]))
		switch f[12] {
		case 1:
			s.rolling = crc32.Update(s.rolling, castagnoli, f[8:12])
			body, last := f[64+4*count:], uint32(0)
			for i := range count {
				end := le.Uint32(f[64+4*i:])
				s.records = append(s.records, docRecord{
					offset: s.end, payload: string(body[last:end]), enveloped: f[13]&1 != 0,
					tag: le.Uint64(f[56:]), epoch: le.Uint32(f[28:]),
				})
				last = end
				s.end++
			}
			if pad := body[last:]; len(pad) > 7 || zeros(pad) != len(pad) {
				return wrong("padding at %d: %x", pos, pad)
			}
		case 3:
			s.barriers++
			if n != 64 || count != 0 || le.Uint64(f[48:]) != uint64(pos) {
				return wrong("barrier at %d", pos)
			}
		case 2:
			if err := s.seal(f, b); err != nil {
				return wrong("seal at %d: %v", pos, err)
			}
		default:
			return wrong("type %d at %d", f[12], pos)
		}
		pos += n
	}
	s.position = uint64(pos)
	if zeros(b[pos:]) != len(b)-pos || s.sealed && pos != len(b) || !s.sealed && uint64(len(b)) != le.Uint64(b[80:]) {
		return wrong("%d bytes, the frames end at %d", len(b), pos)
	}
	return s, nil
}

func (s *docSegment) seal(f, file []byte) error {
	s.sealed = true
	n := int(le.Uint32(f[84:]))
	used := 64 + 24 + 24*n
	if le.Uint64(f[64:]) != uint64(len(s.records)) || le.Uint64(f[72:]) != s.end || le.Uint32(f[80:]) != s.rolling ||
		le.Uint32(f[len(f)-8:]) != uint32(len(f)) || le.Uint32(f[len(f)-4:]) != 0x4d524650 || zeros(f[used:len(f)-8]) != len(f)-8-used {
		return fmt.Errorf("%x", f[64:])
	}
	for i := range n { // each entry names the frame that begins with its offset
		e := f[88+24*i:]
		at := le.Uint64(e[8:])
		if le.Uint32(file[at:]) != 0x4d524650 || le.Uint64(file[at+16:]) != le.Uint64(e) {
			return fmt.Errorf("index entry %d", i)
		}
	}
	return nil
}

func zeros(b []byte) int {
	n := 0
	for n < len(b) && b[n] == 0 {
		n++
	}
	return n
}

// docReadSlot returns the payload that counts.
func docReadSlot(path, mark string, t docTopic, partition uint32) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(b) != 2*4096 {
		return nil, fmt.Errorf("%s has %d bytes", path, len(b))
	}
	var payload []byte
	seq := uint64(0)
	for _, s := range [][]byte{b[:4096], b[4096:]} {
		if zeros(s) == len(s) {
			continue
		}
		n := le.Uint32(s[36:])
		if string(s[:8]) != mark || le.Uint32(s[4092:]) != crc(s[:4092]) || !slices.Equal(s[16:32], t.uuid) || le.Uint32(s[32:]) != partition ||
			zeros(s[40+n:4092]) != int(4092-40-n) {
			return nil, fmt.Errorf("%s: slot %x", path, s[:40])
		}
		if q := le.Uint64(s[8:]); payload == nil || q > seq {
			seq, payload = q, s[40:40+n]
		}
	}
	return payload, nil
}

// docReadPartition reads a partition whole and checks the links in it.
func docReadPartition(dir string, t docTopic, partition uint32) (records []docRecord, last docSegment, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.seg"))
	if err != nil {
		return nil, last, err
	}
	sort.Strings(files)
	for i, path := range files {
		s, err := docReadSegment(path, t, partition)
		if err != nil {
			return nil, last, err
		}
		if i > 0 && (s.prevNonce != last.nonce || s.prevEnd != last.end || s.base != last.end || !last.sealed) {
			return nil, last, fmt.Errorf("%s does not follow the one before", filepath.Base(path))
		}
		records, last = append(records, s.records...), s
	}
	return records, last, nil
}

func TestDocumentExplainsEveryByteOfTheGoldenDirectory(t *testing.T) {
	dir := filepath.Join("testdata", "format1", "orders")
	topic, err := docReadTopic(dir)
	if err != nil {
		t.Fatal(err)
	}
	records, _, err := docReadPartition(filepath.Join(dir, "p00000"), topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 16 || records[0].offset != 0 {
		t.Errorf("%d records from %d, want 16 from 0", len(records), records[0].offset)
	}
	slot, err := docReadSlot(filepath.Join(dir, "p00000", "groups", "billing%2F%45%55.slot"), "PSTKCUR\n", topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	if le.Uint64(slot) != penstock.HashKey("billing/EU") || le.Uint64(slot[8:]) != 5 || le.Uint32(slot[20:]) != 3 ||
		le.Uint32(slot[32:]) != 1 || le.Uint64(slot[40:]) != 0b1010 {
		t.Errorf("group's slot: %x", slot)
	}
}

func TestDocumentExplainsEveryByteOfATopic(t *testing.T) {
	c := segfile.Config{
		Dir: t.TempDir(), Topic: "Orders", Codec: "raw/1", Router: "round-robin/1", Partitions: 2,
		SegmentBytes: 256 * penstock.KiB, Logger: slog.New(slog.DiscardHandler),
	}
	log, err := segfile.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	var want []docRecord
	p := log.Partition(1)
	for n := 0; len(want) < 2000; n++ {
		f := segfile.NewFrame(n % 3) // foretold or not
		f.SetEnveloped(n%2 == 0)
		f.SetTag(penstock.ProducerTag(n))
		for i := range 1 + n%7 {
			payload := strings.Repeat(string(rune('a'+n%26)), (n*31+i*17)%600)
			f.Add([]byte(payload))
			want = append(want, docRecord{offset: uint64(len(want)), payload: payload, enveloped: n%2 == 0, tag: uint64(n), epoch: 1})
		}
		r, err := p.Append(context.Background(), f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	cursors, err := log.Cursors("g", segfile.StartEarliest)
	if err != nil {
		t.Fatal(err)
	}
	if err := cursors[1].Store(7, []uint64{6}, true); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.Dir, "%4Frders")
	topic, err := docReadTopic(dir)
	if err != nil {
		t.Fatal(err)
	}
	records, last, err := docReadPartition(filepath.Join(dir, "p00001"), topic, 1)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(records, want) {
		t.Errorf("%d records, want %d, or they differ", len(records), len(want))
	}
	state, err := docReadSlot(filepath.Join(dir, "p00001", "state.slot"), "PSTKSTA\n", topic, 1)
	if err != nil {
		t.Fatal(err)
	}
	if le.Uint64(state) != 0 || le.Uint64(state[8:]) != last.end || le.Uint64(state[16:]) != last.base || le.Uint64(state[24:]) != last.position ||
		le.Uint32(state[32:]) != 1 || le.Uint32(state[36:]) != last.rolling || le.Uint64(state[40:]) != 1 {
		t.Errorf("state.slot %x of %+v", state, docSegment{base: last.base, end: last.end, position: last.position, rolling: last.rolling})
	}
	slot, err := docReadSlot(filepath.Join(dir, "p00001", "groups", "g.slot"), "PSTKCUR\n", topic, 1)
	if err != nil || le.Uint64(slot[8:]) != 7 || le.Uint64(slot[40:]) != 6 {
		t.Errorf("group's slot %x, %v", slot, err)
	}
}
