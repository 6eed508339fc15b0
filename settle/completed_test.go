package settle_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

func TestCompletedRefusesWhatNoMachineWrote(t *testing.T) {
	for name, c := range map[string]settle.Config{
		"too long":                {Completed: bytes.Repeat([]byte{1}, settle.CompletedMax+1)},
		"zero at the end":         {Completed: []byte{2, 0}},
		"beyond the last offset":  {Committed: 1<<64 - 4, Completed: []byte{2}},
		"policy: attempts of 1.5": {Policy: settle.Policy{Backoff: settle.Backoff{Factor: 0.5}}},
	} {
		if _, err := settle.New(c); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

// Whatever is stored is either refused or means the same after a restart.
func FuzzCompleted(f *testing.F) {
	f.Add(uint64(0), []byte{})
	f.Add(uint64(5), []byte{0b1011})
	f.Add(uint64(1<<63), bytes.Repeat([]byte{0xff}, settle.CompletedMax))
	f.Add(uint64(1<<64-1), []byte{1})
	f.Fuzz(func(t *testing.T, committed uint64, stored []byte) {
		base := penstock.Offset(committed)
		m, err := settle.New(settle.Config{Committed: base, Completed: stored})
		if err != nil {
			if !errors.Is(err, penstock.ErrInvalid) {
				t.Fatalf("%v, want ErrInvalid", err)
			}
			return
		}
		again := m.AppendCompleted(nil)
		bit := func(b []byte, from, o penstock.Offset) bool {
			i := int(o - from)
			return o >= from && i/8 < len(b) && b[i/8]&(1<<(i%8)) != 0
		}
		for i := range len(stored) * 8 {
			o := base + penstock.Offset(i)
			if settled := o < m.Committed() || bit(again, m.Committed(), o); settled != bit(stored, base, o) {
				t.Fatalf("offset %d is settled %v after a restart at %d, was %v", o, settled, m.Committed(), !settled)
			}
		}
		if bit(again, m.Committed(), m.Committed()) {
			t.Fatal("the offset at the commit is settled")
		}
		m2, err := settle.New(settle.Config{Committed: m.Committed(), Completed: again})
		if err != nil || m2.Committed() != m.Committed() || !bytes.Equal(m2.AppendCompleted(nil), again) {
			t.Fatalf("the second restart differs: %v", err)
		}
	})
}
