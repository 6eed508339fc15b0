package bench

import "fmt"

// A tally checks the numbered events of one iteration: event i has number i,
// and each lane (a partition, or the only one) gets its events in ascending
// order, in steps of the number of lanes, as round robin deals them.
//
// Invariant: next[l] is the number that lane l gets next, -1 before its first.
type tally struct {
	every bool
	next  []int
	count int
	seen  []bool
	err   error
}

func newTally(c *clock, lanes, events int) *tally {
	t := &tally{every: c.every, next: make([]int, lanes)}
	for l := range t.next {
		t.next[l] = -1
	}
	if t.every {
		t.seen = make([]bool, events)
	}
	return t
}

// batch looks at the first and the last of n events of a lane, and at all of
// them in the untimed pass; at returns the number of event i.
func (t *tally) batch(lane, n int, at func(i int) int) {
	t.ends(lane, n, at(0), at(n-1))
	if t.every {
		for i := range n {
			t.one(lane, at(0)+i*len(t.next), at(i))
		}
	}
}

// ints is batch for values that are their own numbers.
func (t *tally) ints(lane int, vs []int) {
	t.ends(lane, len(vs), vs[0], vs[len(vs)-1])
	if t.every {
		for i, v := range vs {
			t.one(lane, vs[0]+i*len(t.next), v)
		}
	}
}

func (t *tally) ends(lane, n, first, last int) {
	lanes := len(t.next)
	if want := t.next[lane]; first != want && (want >= 0 || first < 0 || first >= lanes) || last != first+(n-1)*lanes {
		t.fault("lane %d got %d events from %d to %d, want them from %d on", lane, n, first, last, want)
	}
	t.next[lane] = last + lanes
	t.count += n
}

func (t *tally) one(lane, want, got int) {
	switch {
	case got != want:
		t.fault("lane %d got event %d, want %d", lane, got, want)
	case got < 0 || got >= len(t.seen):
		t.fault("event %d was never produced", got)
	case t.seen[got]:
		t.fault("event %d came twice", got)
	default:
		t.seen[got] = true
	}
}

func (t *tally) fault(format string, args ...any) {
	if t.err == nil {
		t.err = fmt.Errorf(format, args...)
	}
}

// done says what was wrong with the iteration, after its last event.
func (t *tally) done(events int) error {
	if t.err != nil {
		return t.err
	}
	if t.count != events {
		return fmt.Errorf("%d events came out of %d", t.count, events)
	}
	for l, n := range t.next {
		if n >= 0 && n < events {
			return fmt.Errorf("lane %d ended before event %d", l, n)
		}
	}
	return nil
}

// checkSum checks the sum of the events 1 to n.
func checkSum(sum, n int) error {
	if want := n * (n + 1) / 2; sum != want {
		return fmt.Errorf("the events add up to %d, want %d", sum, want)
	}
	return nil
}
