package stream

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

// The queues of a range are those that its definition gives, from its begin on,
// and ranges with common ends have each queue once.
func TestQueuesOfARangeOfTheRing_OR14(t *testing.T) {
	numbers := func(queues []QueueID) (out []int) {
		for _, q := range queues {
			out = append(out, q.Number)
		}
		return out
	}
	m := ring(t, 8)
	for _, c := range []struct {
		from, to uint32
		want     []int
	}{
		{0, 1, []int{0}},
		{1, 0x20000001, nil},
		{1, 0x20000002, []int{1}},
		{0x20000001, 0x60000003, []int{1, 2}},
		{0xe0000007, 0, []int{7}},
		{0xe0000008, 0, nil},
		{0xe0000008, 1, []int{0}},
		{0x40000002, 0x20000001, []int{2, 3, 4, 5, 6, 7, 0}},
		{0, 0, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{0xe0000008, 0xe0000008, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{0x40000002, 0x40000002, []int{2, 3, 4, 5, 6, 7, 0, 1}},
	} {
		if got := numbers(m.QueuesInRange(c.from, c.to)); !slices.Equal(got, c.want) {
			t.Errorf("[%#x, %#x): %v, want %v", c.from, c.to, got, c.want)
		}
	}
	for _, n := range []int{1, 2, 3, 7, 100} {
		m := ring(t, n)
		for range 300 {
			var ends []uint32
			for range 1 + rand.IntN(4) {
				e := rand.Uint32()
				if rand.IntN(2) == 0 {
					e = m.Queues()[rand.IntN(n)].Ring
				}
				ends = append(ends, e)
			}
			slices.Sort(ends)
			ends = slices.Compact(ends)
			seen := map[QueueID]int{}
			for i, from := range ends {
				to := ends[(i+1)%len(ends)]
				for _, q := range m.QueuesInRange(from, to) {
					if seen[q]++; q.Ring-from >= to-from && from != to { // distances on the ring
						t.Fatalf("%d queues: %v is not in [%#x, %#x)", n, q, from, to)
					}
				}
			}
			for _, q := range m.Queues() {
				want(t, "ranges of "+q.String(), seen[q], 1)
			}
		}
	}
	m.QueuesInRange(0, 0)[0].Name = "another"
	want(t, "name", m.Queues()[0].Name, "q")
}
