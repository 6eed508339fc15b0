package stream

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

// Events are the envelopes they were made of, in whatever order some have
// metadata and some have no payload, and share no payload with them.
func TestEventsAreTheEnvelopesTheyWereMadeOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		given := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) penstock.Envelope {
			e := penstock.Envelope{Value: []byte(rapid.StringN(0, 5, -1).Draw(t, "value"))}
			if rapid.IntRange(0, 3).Draw(t, "bare") == 0 {
				e.ID = rapid.StringN(0, 3, -1).Draw(t, "id")
			}
			return e
		}), 0, 8).Draw(t, "events")
		e := EventsOf(given...)
		var texts []string
		size, described := 0, false
		for i := range given {
			texts = append(texts, fmt.Sprintf("%q %q", given[i].ID, given[i].Value))
			size += len(given[i].Value)
			described = described || given[i].ID != ""
			clear(given[i].Value)
		}
		if e.Len() != len(given) {
			t.Fatalf("%d events of %d", e.Len(), len(given))
		}
		for i, x := range e.All() {
			if got := fmt.Sprintf("%q %q", x.ID, x.Value); got != texts[i] || string(e.Value(i)) != string(x.Value) || e.Meta(i).ID != x.ID || e.bare(i) != (x.ID == "") {
				t.Fatalf("event %d is %s, want %s", i, got, texts[i])
			}
			if v := e.Value(i); cap(v) != len(v) {
				t.Fatalf("an append to the payload of event %d would write over the next one", i)
			}
		}
		if described != (e.metas != nil) {
			t.Fatalf("metadata %v, room for it %v", described, e.metas != nil)
		}
		if least := size + 8*len(given); !described && e.footprint() > least {
			t.Fatalf("%d events with %d bytes of payload take %d", len(given), size, e.footprint())
		}
	})
}

func TestAllOfEventsCanBeLeft(t *testing.T) {
	e := EventsOf(penstock.Envelope{Value: []byte("a")}, penstock.Envelope{Value: []byte("b")})
	for i, x := range e.All() {
		want(t, "first", fmt.Sprint(i, string(x.Value)), "0a")
		break
	}
}

// numbered is a codec of numbers that may fail, or break the rule that it
// appends.
type numbered struct{}

var errOdd = errors.New("odd")

func (numbered) ID() string { return "numbered/1" }
func (numbered) Append(dst []byte, v int) ([]byte, error) {
	switch {
	case v < 0:
		return nil, nil
	case v%2 == 1:
		return dst, errOdd
	}
	return fmt.Append(dst, strings.Repeat("x", v)), nil
}
func (numbered) Decode([]byte, *int) error { return nil }

// What was put together for one container never shows in another, also when a
// codec failed in the middle.
func TestPublishedContainersShareNoMemory(t *testing.T) {
	s := &Stream[int]{id: penstock.StreamID{Namespace: "n", Key: "k"}, codec: numbered{}}
	one, err := s.container(nil, []int{2, 0, 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.container(nil, []int{6, 1}, nil); !errors.Is(err, errOdd) {
		t.Errorf("%v, want the codec's error", err)
	}
	if _, err := s.container(nil, []int{6, -1}, nil); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("a codec that gave back less than it was given: %v, want ErrInvalid", err)
	}
	two, err := s.container(nil, nil, []penstock.Event[int]{
		{Value: 2}, {Meta: penstock.Meta{ID: "i", Stream: penstock.StreamID{Namespace: "other"}}, Value: 2}})
	if err != nil {
		t.Fatal(err)
	}
	clear(two.Events.payload)
	v := func(s string) penstock.Envelope { return penstock.Envelope{Value: []byte(s)} }
	if d := cmp.Diff(EventsOf(v("xx"), v(""), v("xxxx")), one.Events, byEvents); d != "" {
		t.Error(d)
	}
	want(t, "id", fmt.Sprintf("%q %q %v", two.Events.Meta(0).ID, two.Events.Meta(1).ID, two.Events.Meta(1).Stream.IsZero()), `"" "i" true`)
}

// Containers of the same shape share where their events begin, and nothing else;
// one of another shape in between does not change those before it.
func TestContainersOfOneShapeShareIt(t *testing.T) {
	p := &packing{}
	pack := func(values ...string) Events {
		p.payload, p.starts = p.payload[:0], p.starts[:0]
		for _, v := range values {
			p.bytes([][]byte{[]byte(v)})
		}
		return p.take()
	}
	show := func(e Events) string {
		var out []string
		for i := range e.Len() {
			out = append(out, string(e.Value(i)))
		}
		return strings.Join(out, " ")
	}
	made := []Events{pack("a", "bc", "d"), pack("e", "fg", "h"), pack("ij", "k", "l"), pack("m"), pack("n", "op", "q"), pack("r", "s")}
	for i, expect := range []string{"a bc d", "e fg h", "ij k l", "m", "n op q", "r s"} {
		want(t, fmt.Sprint("container ", i), show(made[i]), expect)
	}
	pack("t", "u")
	allocs := testing.AllocsPerRun(10, func() {
		p.take()
	})
	want(t, "objects per container", allocs, 1)
}
