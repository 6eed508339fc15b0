package stream

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock"
)

func sample() Container {
	return Container{
		Stream: penstock.StreamID{Namespace: "orders", Key: "7"},
		Header: penstock.Header{{Name: "trace", Value: "abc"}},
		Events: EventsOf([]penstock.Envelope{
			{Value: []byte("one")},
			{Meta: penstock.Meta{ID: "id-2", Key: "k", Time: time.Unix(1, 2).UTC(), Header: penstock.Header{{Name: "a", Value: "b"}}}, Value: []byte{}},
			{Meta: penstock.Meta{Schema: "s/1"}, Value: []byte("three")},
		}...),
	}
}

// byEvents compares events by what they hold.
var byEvents = cmp.Transformer("events", func(e Events) (all []penstock.Envelope) {
	for _, x := range e.All() {
		all = append(all, x)
	}
	return all
})

func TestContainerCodecRoundTrip(t *testing.T) {
	c := sample()
	b, err := ContainerCodec().Append([]byte("prefix"), c)
	if err != nil {
		t.Fatal(err)
	}
	got := Container{Raw: "left over"}
	if err := ContainerCodec().Decode(b[len("prefix"):], &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c, got, byEvents); d != "" {
		t.Error(d)
	}
	clear(b) // the values must not share memory with the input
	want(t, "value", string(got.Events.Value(2)), "three")
}

// The stored form is a contract: a change of these bytes is a new version.
func TestContainerCodecBytes(t *testing.T) {
	c := Container{Stream: penstock.StreamID{Namespace: "n", Key: "k"}, Events: EventsOf(penstock.Envelope{Value: []byte("v")}, penstock.Envelope{Meta: penstock.Meta{ID: "i"}})}
	b, err := ContainerCodec().Append(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "id", ContainerCodec().ID(), "container/1")
	want(t, "bytes", hex.EncodeToString(b), "014000"+"016e"+"016b"+"02"+"04"+"01000076"+"05"+"0101000169")
}

func TestContainerCodecRefuses(t *testing.T) {
	codec := ContainerCodec()
	if _, err := codec.Append(nil, Container{}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("no events: %v", err)
	}
	if b, err := codec.Append([]byte("x"), Container{Events: EventsOf(make([]penstock.Envelope, MaxContainerEvents+1)...)}); !errors.Is(err, penstock.ErrTooLarge) || string(b) != "x" {
		t.Errorf("too many events: %q, %v", b, err)
	}
	bad := sample()
	bad.Events.metas[1].Attempt = -1
	if b, err := codec.Append([]byte("x"), bad); !errors.Is(err, penstock.ErrInvalid) || string(b) != "x" {
		t.Errorf("bad metadata: %q, %v", b, err)
	}
	whole, err := codec.Append(nil, sample())
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		var c Container
		if err := codec.Decode(whole[:n], &c); !errors.Is(err, penstock.ErrCorrupt) {
			t.Fatalf("cut to %d bytes: %v, want ErrCorrupt", n, err)
		}
	}
	var c Container
	if err := codec.Decode(append(whole, 0), &c); !errors.Is(err, penstock.ErrCorrupt) {
		t.Errorf("a byte too many: %v", err)
	}
}

func FuzzContainerCodec(f *testing.F) {
	b, err := ContainerCodec().Append(nil, sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{1, 0, 0, 1, 3, 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var c Container
		if ContainerCodec().Decode(b, &c) != nil {
			return
		}
		again, err := ContainerCodec().Append(nil, c)
		if err != nil {
			t.Fatalf("decoded, but not encoded: %v", err)
		}
		var d Container
		if err := ContainerCodec().Decode(again, &d); err != nil {
			t.Fatal(err)
		}
		twice, err := ContainerCodec().Append(nil, d)
		if err != nil || !bytes.Equal(again, twice) {
			t.Fatalf("not stable: %x, %x, %v", again, twice, err)
		}
	})
}
