package stream

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock"
)

func ring(t testing.TB, n int) *RingMapper {
	t.Helper()
	m, err := NewRingMapper("q", n)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestRingOfEight_ORC105(t *testing.T) {
	a, b := ring(t, 8), ring(t, 8)
	for i, q := range a.Queues() {
		want(t, "number", q.Number, i)
		if expected := uint32(i) * 0x20000001; i > 0 && q.Ring != expected {
			t.Errorf("queue %d at %#x, want %#x", i, q.Ring, expected)
		}
	}
	want(t, "name", a.Queues()[3].String(), "q-3")
	used := map[QueueID]int{}
	for i := range 10_000 {
		s := penstock.StreamID{Namespace: "n", Key: fmt.Sprint(rand.Uint64(), i)}
		q := a.QueueFor(s)
		want(t, "two instances", q, b.QueueFor(s))
		used[q]++
	}
	for _, q := range a.Queues() {
		if used[q] < 1000 {
			t.Errorf("queue %s has %d of 10,000 streams", q, used[q])
		}
	}
}

// The arithmetic equals the definition: the first queue at or after the hash,
// the first one when there is none.
func TestRingMapperFollowsItsDefinition_OR13(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 8, 100, 4096, MaxQueues} {
		m := ring(t, n)
		for i := range 300 {
			s := penstock.StreamID{Namespace: "n", Key: fmt.Sprint(i)}
			h := uint32(s.Hash() >> 32)
			expected := m.Queues()[0]
			for _, q := range m.Queues() {
				if q.Ring >= h {
					expected = q
					break
				}
			}
			if got := m.QueueFor(s); got != expected {
				t.Fatalf("%d queues, hash %#x: %v, want %v", n, h, got, expected)
			}
		}
	}
	if _, err := NewRingMapper(" ", 1); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("blank name: %v", err)
	}
	for _, n := range []int{-1, 0, MaxQueues + 1} {
		if _, err := NewRingMapper("q", n); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%d queues: %v", n, err)
		}
	}
}
