package main

import "fmt"

// How events come to a consumer.
type arrival int

const (
	inSequence arrival = iota // 0, 1, 2 and so on
	ascending                 // some of them, in order: those of a partition
	inAnyOrder                // of a peer that keeps none
)

// An order checks the numbered events of one consumer in one iteration. It is
// for one goroutine.
type order struct {
	how   arrival
	every bool // look at every event of a batch
	next  int  // the number behind the last one
	count int
	sum   int
	seen  []bool // in the untimed pass
	err   error
}

func newOrder(how arrival, every bool, events int) *order {
	k := &order{how: how, every: every}
	if every {
		k.seen = make([]bool, events)
	}
	return k
}

// see looks at one event.
func (k *order) see(v int) {
	if v != k.next || k.every {
		k.look(v)
	}
	k.next = v + 1
	k.count++
	k.sum += v
}

// run looks at a batch of events that follow one another.
func (k *order) run(vs []int) {
	first, last := vs[0], vs[len(vs)-1]
	if first != k.next || last != first+len(vs)-1 || k.every {
		k.lookAll(vs)
		return
	}
	k.next = last + 1
	k.count += len(vs)
	k.sum += (first + last) * len(vs) / 2
}

func (k *order) lookAll(vs []int) {
	for _, v := range vs {
		k.look(v)
		k.next = v + 1
		k.count++
		k.sum += v
	}
}

func (k *order) look(v int) {
	switch {
	case k.err != nil:
	case k.how == inSequence && v != k.next, k.how == ascending && v < k.next:
		k.err = fmt.Errorf("got event %d, want %d", v, k.next)
	case k.every && (v < 0 || v >= len(k.seen)):
		k.err = fmt.Errorf("event %d was never produced", v)
	case k.every && k.seen[v]:
		k.err = fmt.Errorf("event %d came twice", v)
	case k.every:
		k.seen[v] = true
	}
}

// together says what was wrong with consumers that share the events 0 to n-1.
func together(n int, all ...*order) error {
	count, sum := 0, 0
	for _, k := range all {
		if k.err != nil {
			return k.err
		}
		count, sum = count+k.count, sum+k.sum
	}
	if want := n * (n - 1) / 2; count != n || sum != want {
		return fmt.Errorf("%d events of %d came, and their numbers add up to %d, not %d", count, n, sum, want)
	}
	return nil
}
