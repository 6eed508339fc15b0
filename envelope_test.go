package penstock_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
)

var update = flag.Bool("update", false, "write the golden files anew")

var goldenTime = time.Date(2026, 11, 29, 8, 30, 15, 123456789, time.UTC)

// goldenEnvelopes fix the binary layout: one file per field, one with nothing
// and one with everything. A change of a file is a change of the format.
var goldenEnvelopes = []struct {
	name    string
	meta    penstock.Meta
	payload string
}{
	{"bare", penstock.Meta{}, "payload"},
	{"empty-payload", penstock.Meta{ID: "1"}, ""},
	{"id", penstock.Meta{ID: "order-17"}, "payload"},
	{"time", penstock.Meta{Time: goldenTime}, "payload"},
	{"time-before-1970", penstock.Meta{Time: time.Unix(-1, 999_999_999).UTC()}, "payload"},
	{"key", penstock.Meta{Key: "customer-4"}, "payload"},
	{"header", penstock.Meta{Header: penstock.Header{{"traceparent", "00-01"}, {"empty", ""}, {"traceparent", "00-02"}}}, "payload"},
	{"content-type", penstock.Meta{ContentType: "application/json"}, "{}"},
	{"schema", penstock.Meta{Schema: "order/3"}, "payload"},
	{"stream", penstock.Meta{Stream: penstock.StreamID{Namespace: "orders", Key: "42"}}, "payload"},
	{"producer", penstock.Meta{Producer: 7<<40 | 300}, "payload"},
	{"attempt", penstock.Meta{Attempt: 1000}, "payload"},
	{"origin", penstock.Meta{Origin: &penstock.Origin{
		Topic: "orders", Partition: 3, Offset: 1 << 40, Group: "billing", Cause: "timeout", Time: goldenTime,
	}}, "payload"},
	{"origin-empty", penstock.Meta{Origin: &penstock.Origin{}}, "payload"},
	{"text-of-128-bytes", penstock.Meta{ID: strings.Repeat("x", 128)}, ""},
	{"all", penstock.Meta{
		ID: "order-17", Time: goldenTime, Key: "customer-4", Header: penstock.Header{{"a", "1"}, {"b", "2"}},
		ContentType: "application/json", Schema: "order/3", Stream: penstock.StreamID{Namespace: "orders", Key: "42"},
		Producer: penstock.MaxProducer<<40 | penstock.MaxSequence, Attempt: 5,
		Origin: &penstock.Origin{Topic: "orders", Partition: 3, Offset: 17, Group: "billing", Cause: "timeout", Time: goldenTime},
	}, `{"id":17}`},
}

// hexFile is the text form of a golden file: 16 bytes per line.
func hexFile(b []byte) []byte {
	var out bytes.Buffer
	for line := range slices.Chunk(b, 16) {
		out.WriteString(hex.EncodeToString(line) + "\n")
	}
	return out.Bytes()
}

func readHexFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatalf("%v; run go test -run Golden -update . to write the golden files", err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

func writeEnvelopes(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, g := range goldenEnvelopes {
		b, err := penstock.AppendEnvelope(nil, &g.meta, []byte(g.payload))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, g.name+".hex"), hexFile(b), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const envelopeDir = "testdata/envelope"

func TestEnvelopeMatchesGoldenFiles(t *testing.T) {
	if *update {
		writeEnvelopes(t, envelopeDir)
	}
	for _, g := range goldenEnvelopes {
		t.Run(g.name, func(t *testing.T) {
			want := readHexFile(t, filepath.Join(envelopeDir, g.name+".hex"))
			got, err := penstock.AppendEnvelope([]byte("before"), &g.meta, []byte(g.payload))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(append([]byte("before"), want...), got); diff != "" {
				t.Errorf("encoded (-golden +got):\n%s", diff)
			}
			meta, payload, err := penstock.DecodeEnvelope(want)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(g.meta, meta); diff != "" {
				t.Errorf("decoded (-want +got):\n%s", diff)
			}
			if string(payload) != g.payload {
				t.Errorf("payload %q, want %q", payload, g.payload)
			}
		})
	}
}

func TestEnvelopeGoldenFilesAreComplete(t *testing.T) {
	dir := t.TempDir()
	writeEnvelopes(t, dir)
	list := func(dir string) (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	fresh, kept := list(dir), list(envelopeDir)
	if diff := cmp.Diff(fresh, kept); diff != "" {
		t.Fatalf("files (-cases +%s):\n%s", envelopeDir, diff)
	}
	for _, name := range fresh {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(envelopeDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bytes.ReplaceAll(got, []byte("\r"), nil), want) {
			t.Errorf("%s is not what -update writes", name)
		}
	}
}

// The flags and their order stand in docs/format.md; this fails when a field
// is added to Meta and neither test data nor the envelope knows it.
func TestEveryFieldOfMetaHasItsOwnFlag(t *testing.T) {
	seen := map[string]string{}
	for _, g := range goldenEnvelopes {
		b := readHexFile(t, filepath.Join(envelopeDir, g.name+".hex"))
		flags := hex.EncodeToString(b[1:3])
		if bare := flags == "0000"; bare != g.meta.IsBare() {
			t.Errorf("%s: flags %s, IsBare %v", g.name, flags, g.meta.IsBare())
		}
		base, _, _ := strings.Cut(strings.TrimSuffix(g.name, "-of-128-bytes"), "-before")
		if strings.HasPrefix(base, "text") || strings.HasPrefix(base, "empty") {
			base = "id"
		}
		base = strings.TrimSuffix(base, "-empty")
		if other, ok := seen[flags]; ok && other != base {
			t.Errorf("%s and %s have the same flags %s", base, other, flags)
		}
		seen[flags] = base
	}
	if len(seen) != 12 {
		t.Errorf("%d sets of flags, want 12: nothing, ten fields, all", len(seen))
	}
}

func TestEnvelopeCutShortIsCorrupt(t *testing.T) {
	for _, g := range goldenEnvelopes {
		b := readHexFile(t, filepath.Join(envelopeDir, g.name+".hex"))
		head := len(b) - len(g.payload)
		for n := range head {
			if _, _, err := penstock.DecodeEnvelope(b[:n:n]); !errors.Is(err, penstock.ErrCorrupt) {
				t.Errorf("%s cut to %d of %d bytes: %v, want ErrCorrupt", g.name, n, head, err)
			}
		}
	}
}

func TestEnvelopeOfTheFutureIsUnsupported(t *testing.T) {
	for _, b := range [][]byte{{0, 0, 0}, {2, 0, 0}, {1, 0, 4}, {1, 0, 0x80}} {
		if _, _, err := penstock.DecodeEnvelope(b); !errors.Is(err, penstock.ErrUnsupported) {
			t.Errorf("% x: %v, want ErrUnsupported", b, err)
		}
	}
}

func TestEnvelopeLimits(t *testing.T) {
	full := strings.Repeat("x", penstock.MaxFieldBytes)
	many := func(n int) penstock.Header { return make(penstock.Header, n) }
	for _, c := range []struct {
		name string
		meta penstock.Meta
		want error
	}{
		{"longest text", penstock.Meta{ID: full}, nil},
		{"longest header", penstock.Meta{Header: many(penstock.MaxHeaderFields)}, nil},
		{"largest attempt", penstock.Meta{Attempt: 1<<31 - 1}, nil},
		{"largest offset", penstock.Meta{Origin: &penstock.Origin{Offset: 1<<64 - 1}}, nil},
		{"first time", penstock.Meta{Time: time.Unix(0, -1<<63).UTC()}, nil},
		{"last time", penstock.Meta{Time: time.Unix(0, 1<<63-1).UTC()}, nil},
		{"1970", penstock.Meta{Time: time.Unix(0, 0).UTC()}, nil},
		{"id", penstock.Meta{ID: full + "x"}, penstock.ErrTooLarge},
		{"key", penstock.Meta{Key: full + "x"}, penstock.ErrTooLarge},
		{"header name", penstock.Meta{Header: penstock.Header{{full + "x", ""}}}, penstock.ErrTooLarge},
		{"header value", penstock.Meta{Header: penstock.Header{{"", full + "x"}}}, penstock.ErrTooLarge},
		{"header fields", penstock.Meta{Header: many(penstock.MaxHeaderFields + 1)}, penstock.ErrTooLarge},
		{"content type", penstock.Meta{ContentType: full + "x"}, penstock.ErrTooLarge},
		{"schema", penstock.Meta{Schema: full + "x"}, penstock.ErrTooLarge},
		{"namespace", penstock.Meta{Stream: penstock.StreamID{Namespace: full + "x"}}, penstock.ErrTooLarge},
		{"stream key", penstock.Meta{Stream: penstock.StreamID{Key: full + "x"}}, penstock.ErrTooLarge},
		{"origin topic", penstock.Meta{Origin: &penstock.Origin{Topic: full + "x"}}, penstock.ErrTooLarge},
		{"origin group", penstock.Meta{Origin: &penstock.Origin{Group: full + "x"}}, penstock.ErrTooLarge},
		{"origin cause", penstock.Meta{Origin: &penstock.Origin{Cause: full + "x"}}, penstock.ErrTooLarge},
		{"negative attempt", penstock.Meta{Attempt: -1}, penstock.ErrInvalid},
		{"negative partition", penstock.Meta{Origin: &penstock.Origin{Partition: -1}}, penstock.ErrInvalid},
		{"time too early", penstock.Meta{Time: time.Date(1500, 1, 1, 0, 0, 0, 0, time.UTC)}, penstock.ErrInvalid},
		{"time too late", penstock.Meta{Time: time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC)}, penstock.ErrInvalid},
		{"origin time too late", penstock.Meta{Origin: &penstock.Origin{Time: time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC)}}, penstock.ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := penstock.AppendEnvelope([]byte("kept"), &c.meta, []byte("p"))
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if c.want != nil {
				if string(b) != "kept" {
					t.Fatalf("dst is %q after an error, want it unchanged", b)
				}
				return
			}
			meta, payload, err := penstock.DecodeEnvelope(b[len("kept"):])
			if err != nil || !cmp.Equal(meta, c.meta) || string(payload) != "p" {
				t.Fatalf("did not come back: %v, payload %q", err, payload)
			}
		})
	}
}

// What a reader refuses a writer must not write.
func TestNumbersAboveTheLimitOfReadersAreNotWritten(t *testing.T) {
	if strconv.IntSize == 32 {
		return // an int cannot exceed the limit there
	}
	for _, meta := range []penstock.Meta{{Attempt: math.MaxInt}, {Origin: &penstock.Origin{Partition: math.MaxInt}}} {
		if _, err := penstock.AppendEnvelope(nil, &meta, nil); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", meta, err)
		}
	}
}

func TestEnvelopeStoresTimesInUTC(t *testing.T) {
	local := goldenTime.In(time.FixedZone("far", 9*3600))
	b, err := penstock.AppendEnvelope(nil, &penstock.Meta{Time: local}, nil)
	if err != nil {
		t.Fatal(err)
	}
	meta, _, err := penstock.DecodeEnvelope(b)
	if err != nil || meta.Time != goldenTime {
		t.Fatalf("%v, %v, want %v", meta.Time, err, goldenTime)
	}
}

func TestDecodedTextIsACopyAndPayloadIsAView(t *testing.T) {
	b, err := penstock.AppendEnvelope(nil, &penstock.Meta{ID: "aaaa"}, []byte("bbbb"))
	if err != nil {
		t.Fatal(err)
	}
	meta, payload, err := penstock.DecodeEnvelope(b)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] = 'x'
	}
	if meta.ID != "aaaa" || string(payload) != "xxxx" {
		t.Fatalf("ID %q and payload %q after the input changed, want aaaa and xxxx", meta.ID, payload)
	}
}

// Each claims far more than it holds; nothing may be allocated for the claim.
func TestDecodeAllocatesNoMoreThanTheInputHolds(t *testing.T) {
	for name, b := range map[string][]byte{
		"id":     {1, 0x01, 0, 0xff, 0xff, 0x03, 'x'},
		"header": {1, 0x08, 0, 0x80, 0x08, 1, 'a', 1, 'b'},
		"origin": {1, 0, 0x02, 0xff, 0xff, 0x03},
		"varint": {1, 0x01, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 'x'},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const rounds = 100
		for range rounds {
			if _, _, err := penstock.DecodeEnvelope(b); !errors.Is(err, penstock.ErrCorrupt) {
				t.Fatalf("%s: %v, want ErrCorrupt", name, err)
			}
		}
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / rounds; each > 2048 {
			t.Errorf("%s: %d bytes allocated for an input of %d", name, each, len(b))
		}
	}
}

func FuzzDecodeEnvelope(f *testing.F) {
	for _, g := range goldenEnvelopes {
		b, err := penstock.AppendEnvelope(nil, &g.meta, []byte(g.payload))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{1, 0x08, 0, 0x80, 0x08})
	f.Fuzz(func(t *testing.T, b []byte) {
		meta, payload, err := penstock.DecodeEnvelope(b)
		if err != nil {
			if !errors.Is(err, penstock.ErrCorrupt) && !errors.Is(err, penstock.ErrUnsupported) {
				t.Fatalf("error %v matches neither ErrCorrupt nor ErrUnsupported", err)
			}
			if !cmp.Equal(meta, penstock.Meta{}) || payload != nil {
				t.Fatal("an error came with a value")
			}
			return
		}
		if held := textBytes(meta) + len(payload); held > len(b) || len(meta.Header) > len(b)/2 {
			t.Fatalf("%d bytes and %d header fields decoded from %d bytes", held, len(meta.Header), len(b))
		}
		again, err := penstock.AppendEnvelope(nil, &meta, payload)
		if err != nil {
			t.Fatalf("a decoded envelope does not encode: %v", err)
		}
		if len(again) > len(b) {
			t.Fatalf("encoded to %d bytes from %d", len(again), len(b))
		}
		meta2, payload2, err := penstock.DecodeEnvelope(again)
		if err != nil || !cmp.Equal(meta, meta2) || !bytes.Equal(payload, payload2) {
			t.Fatalf("round trip: %v\n%s", err, cmp.Diff(meta, meta2))
		}
	})
}

func textBytes(m penstock.Meta) int {
	n := len(m.ID) + len(m.Key) + len(m.ContentType) + len(m.Schema) + len(m.Stream.Namespace) + len(m.Stream.Key)
	for _, f := range m.Header {
		n += len(f.Name) + len(f.Value)
	}
	if m.Origin != nil {
		n += len(m.Origin.Topic) + len(m.Origin.Group) + len(m.Origin.Cause)
	}
	return n
}
