package penstock_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
)

func roundTrip[T any](t *testing.T, c penstock.Codec[T], v T) T {
	t.Helper()
	b, err := c.Append([]byte("before"), v)
	if err != nil {
		t.Fatal(err)
	}
	rest, ok := bytes.CutPrefix(b, []byte("before"))
	if !ok {
		t.Fatalf("Append changed what stood in dst: %q", b)
	}
	var got T
	if err := c.Decode(rest, &got); err != nil {
		t.Fatal(err)
	}
	clear(rest) // nothing of the source may be shared with the value
	if diff := cmp.Diff(v, got); diff != "" {
		t.Fatalf("round trip (-want +got):\n%s", diff)
	}
	return got
}

type order struct {
	ID    int
	Tags  []string          `json:",omitempty"`
	Attrs map[string]string `json:",omitempty"`
}

func TestJSONRoundTrip(t *testing.T) {
	c := penstock.JSON[order]()
	roundTrip(t, c, order{ID: 1, Tags: []string{"a"}, Attrs: map[string]string{"k": "v"}})
	roundTrip(t, penstock.JSON[*order](), &order{ID: 2})
	roundTrip(t, penstock.JSON[int64](), 1<<62+1)
	if c.ID() != "json/1" {
		t.Errorf("ID %q", c.ID())
	}
}

// A slot is decoded into again and again; what the last event left there must
// not shine through an absent field, nor change when the next is decoded.
func TestJSONDecodesIntoAReusedSlot(t *testing.T) {
	c := penstock.JSON[order]()
	var slot order
	if err := c.Decode([]byte(`{"ID":1,"Tags":["a","b"],"Attrs":{"k":"v"}}`), &slot); err != nil {
		t.Fatal(err)
	}
	first := slot
	if err := c.Decode([]byte(`{"ID":2,"Attrs":{"x":"y"}}`), &slot); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(order{ID: 2, Attrs: map[string]string{"x": "y"}}, slot); diff != "" {
		t.Errorf("reused slot (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(order{ID: 1, Tags: []string{"a", "b"}, Attrs: map[string]string{"k": "v"}}, first); diff != "" {
		t.Errorf("the event before (-want +got):\n%s", diff)
	}
}

func TestJSONErrorsLeaveDstAndSlotAlone(t *testing.T) {
	b, err := penstock.JSON[any]().Append([]byte("kept"), func() {})
	if err == nil || string(b) != "kept" {
		t.Errorf("Append: %q, %v, want kept and an error", b, err)
	}
	slot := order{ID: 7}
	for _, src := range []string{"", "{", `{"ID":"x"}`} {
		if err := penstock.JSON[order]().Decode([]byte(src), &slot); err == nil || slot.ID != 7 {
			t.Errorf("Decode(%q): %v, slot %+v, want an error and the slot as it was", src, err, slot)
		}
	}
}

func TestRawRoundTrip(t *testing.T) {
	roundTrip(t, penstock.Raw(), []byte{0, 0xff, 'x'})
	if got := roundTrip(t, penstock.Raw(), []byte{}); got == nil {
		t.Error("an empty payload came back as nil")
	}
	b, err := penstock.Raw().Append(nil, nil)
	if err != nil || len(b) != 0 {
		t.Errorf("nil: %v, %v", b, err)
	}
}

func TestStringRoundTripAndUTF8(t *testing.T) {
	for _, s := range []string{"", "x", "grün 日本\x00", strings.Repeat("long", 1000)} {
		roundTrip(t, penstock.String(), s)
	}
	if b, err := penstock.String().Append([]byte("kept"), "\xff"); err == nil || string(b) != "kept" {
		t.Errorf("invalid UTF-8 was encoded: %q, %v", b, err)
	}
	v := "kept"
	if err := penstock.String().Decode([]byte{0xff}, &v); err == nil || v != "kept" {
		t.Errorf("invalid UTF-8 was decoded: %q, %v", v, err)
	}
}

type tick struct {
	Seq   int64
	Price float64
	Qty   int32
	Flag  bool
	Pair  [2]uint16
}

func fixed[T any](t *testing.T) penstock.Codec[T] {
	t.Helper()
	c, err := penstock.Fixed[T]()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestFixedRoundTripAndLength(t *testing.T) {
	c := fixed[tick](t)
	v := tick{Seq: -1, Price: 1.5, Qty: 7, Flag: true, Pair: [2]uint16{1, 0xffff}}
	roundTrip(t, c, v)
	b, err := c.Append(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	if want := 8 + 8 + 4 + 1 + 4; len(b) != want {
		t.Fatalf("%d bytes, want %d without padding", len(b), want)
	}
	for _, n := range []int{0, 1, len(b) - 1, len(b) + 1} {
		var got tick
		if err := c.Decode(append(b, 0)[:n], &got); err == nil || got != (tick{}) {
			t.Errorf("%d bytes were decoded: %v, %+v", n, err, got)
		}
	}
	roundTrip(t, fixed[float32](t), 0.25)
	roundTrip(t, fixed[struct{}](t), struct{}{})
}

func TestFixedIDTellsLayoutsApart(t *testing.T) {
	type renamed struct {
		Number int64
		Cost   float64
		N      int32
		On     bool
		Two    [2]uint16
	}
	type moved struct {
		Price float64
		Seq   int64
		Qty   int32
		Flag  bool
		Pair  [2]uint16
	}
	id := fixed[tick](t).ID()
	if got := fixed[renamed](t).ID(); got != id {
		t.Errorf("renamed fields: %s, want %s", got, id)
	}
	for name, other := range map[string]string{
		"moved fields": fixed[moved](t).ID(), "another struct of that size": fixed[[25]int8](t).ID(),
	} {
		if other == id {
			t.Errorf("%s has the same ID %s", name, id)
		}
	}
	if fixed[int64](t).ID() == fixed[float64](t).ID() {
		t.Error("int64 and float64 have the same ID")
	}
	if want := "fixed/1:8:"; !strings.HasPrefix(fixed[int64](t).ID(), want) {
		t.Errorf("ID %s, want it to begin with %s", fixed[int64](t).ID(), want)
	}
}

func TestFixedRefusesTypesWithoutALayout(t *testing.T) {
	for name, fails := range map[string]func() error{
		"int":              fixedError[int],
		"uint":             fixedError[uint],
		"string":           fixedError[string],
		"slice":            fixedError[[]int32],
		"map":              fixedError[map[int8]int8],
		"pointer":          fixedError[*int32],
		"interface":        fixedError[any],
		"func":             fixedError[func()],
		"unexported field": fixedError[struct{ a int32 }],
		"nested":           fixedError[struct{ A [2]struct{ b int8 } }],
		"slice field":      fixedError[struct{ A []int8 }],
		"pointer field":    fixedError[struct{ A *int8 }],
	} {
		if err := fails(); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func fixedError[T any]() error {
	_, err := penstock.Fixed[T]()
	return err
}

func BenchmarkCodec(b *testing.B) {
	b.Run("json", func(b *testing.B) { benchCodec(b, penstock.JSON[tick]()) })
	b.Run("fixed", func(b *testing.B) {
		c, err := penstock.Fixed[tick]()
		if err != nil {
			b.Fatal(err)
		}
		benchCodec(b, c)
	})
}

func benchCodec(b *testing.B, c penstock.Codec[tick]) {
	var buf []byte
	v := tick{Seq: 1, Price: 2}
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if buf, err = c.Append(buf[:0], v); err != nil {
			b.Fatal(err)
		}
		if err = c.Decode(buf, &v); err != nil {
			b.Fatal(err)
		}
	}
}
