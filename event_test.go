package penstock_test

import (
	"errors"
	"testing"

	"github.com/penstock/penstock"
)

func TestHeaderGetIsExactAndTakesTheFirst(t *testing.T) {
	h := penstock.Header{{"a", "1"}, {"A", "2"}, {"a", "3"}}
	if h.Get("a") != "1" || h.Get("A") != "2" || h.Get("b") != "" || penstock.Header(nil).Get("a") != "" {
		t.Errorf("Get: %q %q %q", h.Get("a"), h.Get("A"), h.Get("b"))
	}
}

func TestProducerTagLimits(t *testing.T) {
	tag, err := penstock.NewProducerTag(penstock.MaxProducer, penstock.MaxSequence)
	if err != nil || tag.Producer() != penstock.MaxProducer || tag.Sequence() != penstock.MaxSequence {
		t.Errorf("largest: %x, %v", tag, err)
	}
	tag, err = penstock.NewProducerTag(7, 9)
	if err != nil || tag.Producer() != 7 || tag.Sequence() != 9 || tag != 7<<40|9 {
		t.Errorf("7 and 9: %x, %v", tag, err)
	}
	for _, c := range []struct {
		producer uint32
		sequence uint64
		field    string
	}{{penstock.MaxProducer + 1, 0, "producer"}, {0, penstock.MaxSequence + 1, "sequence"}} {
		tag, err := penstock.NewProducerTag(c.producer, c.sequence)
		f, ok := errors.AsType[*penstock.FieldError](err)
		if tag != 0 || !errors.Is(err, penstock.ErrInvalid) || !ok || f.Field != c.field {
			t.Errorf("%d and %d: %x, %v, want ErrInvalid of %s", c.producer, c.sequence, tag, err, c.field)
		}
	}
}

func TestStreamIDValidate(t *testing.T) {
	for _, s := range []penstock.StreamID{{"n", "k"}, {"n", ""}, {" n ", " "}} {
		if err := s.Validate(); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []penstock.StreamID{{}, {"", "k"}, {" \t", "k"}, {"n\x00", "k"}, {"n", "k\x00"}} {
		if err := s.Validate(); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%q: %v, want ErrInvalid", s, err)
		}
	}
	if (penstock.StreamID{Namespace: "n", Key: "k"}).String() != "n/k" || !(penstock.StreamID{}).IsZero() || (penstock.StreamID{Key: "k"}).IsZero() {
		t.Error("String or IsZero")
	}
}

func TestDurabilityNamesAndOrder(t *testing.T) {
	for d, name := range map[penstock.Durability]string{
		penstock.DurabilityDefault: "default", penstock.Memory: "memory", penstock.Written: "written", penstock.Synced: "synced",
	} {
		if d.String() != name {
			t.Errorf("%d is %q, want %q", d, d, name)
		}
		if got, err := penstock.ParseDurability(name); err != nil || got != d {
			t.Errorf("%q is %v, %v", name, got, err)
		}
	}
	if !(penstock.Memory < penstock.Written && penstock.Written < penstock.Synced) {
		t.Error("a higher level does not compare as higher")
	}
	if got := penstock.Durability(9).String(); got != "durability(9)" {
		t.Errorf("unknown level is %q", got)
	}
	for _, name := range []string{"", "Synced", "fsync"} {
		if _, err := penstock.ParseDurability(name); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%q: %v, want ErrInvalid", name, err)
		}
	}
}

func TestOffsetAndBytesText(t *testing.T) {
	if got := penstock.Offset(1<<64 - 1).String(); got != "18446744073709551615" {
		t.Errorf("offset %s", got)
	}
	for b, want := range map[penstock.Bytes]string{
		0: "0B", 1: "1B", 1500: "1500B", penstock.KiB: "1KiB", 64 * penstock.MiB: "64MiB", 3 * penstock.GiB: "3GiB",
		1025: "1025B", 1536 * penstock.KiB: "1536KiB", -penstock.MiB: "-1MiB",
	} {
		if got := b.String(); got != want {
			t.Errorf("%d is %q, want %q", int64(b), got, want)
		}
	}
}
