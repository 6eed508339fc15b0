package queue

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
)

// What a file of orders says comes back, and no byte of it can change without
// being noticed.
func TestOrdersComeBack(t *testing.T) {
	f := &orderFile{topic: "orders", partition: 3, group: "billing"}
	list := []order{
		{key: "k", discard: true, events: []ordered{{offset: 7, attempt: 2}, {offset: 9}, {offset: 1<<64 - 2, attempt: 1}}},
		{key: "\xff\x00", events: []ordered{{offset: 0, attempt: 5}}},
		{key: "", events: []ordered{{offset: 1}, {offset: 2}}},
	}
	b := f.encode(list)
	got, err := f.decode(b)
	if diff := cmp.Diff(list, got, cmp.AllowUnexported(order{}, ordered{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for i := range b {
		for _, bad := range [][]byte{b[:i], append(append([]byte{}, b[:i]...), append([]byte{b[i] ^ 4}, b[i+1:]...)...)} {
			if _, err := f.decode(bad); !errors.Is(err, penstock.ErrCorrupt) && !errors.Is(err, penstock.ErrUnsupported) {
				t.Fatalf("byte %d: %v", i, err)
			}
		}
	}
	if _, err := (&orderFile{topic: "orders", partition: 3, group: "other"}).decode(b); !errors.Is(err, penstock.ErrCorrupt) {
		t.Errorf("taken by another group: %v", err)
	}
}
