package measure

import "fmt"

// An Event is what rows move: a number, in 8 bytes or at the front of 64.
type Event interface{ Word | Line }

// Word is an event of one machine word, Line one of a cache line of eight.
type (
	Word [1]int
	Line [8]int
)

// Numbered returns the events with the numbers 0 to n-1.
func Numbered[T Event](n int) []T {
	v := make([]T, n)
	for i := range v {
		v[i][0] = i
	}
	return v
}

// A Tally checks the numbered events of one iteration: event i has number i,
// and each lane (a partition, or the only one) gets its events in ascending
// order, in steps of the number of lanes, as round robin deals them. It is for
// one goroutine.
//
// Invariant: max(at[l], next[l]) is the number that lane l gets next, -1 before
// its first. at, which Fits moves, stays at -1 in the untimed pass, where no
// number is -1.
type Tally struct {
	every bool
	lanes int
	at    []int
	next  []int
	count int
	seen  []bool
	err   error
}

// NewTally returns a tally of so many lanes and events.
func NewTally(c *Clock, lanes, events int) *Tally {
	t := &Tally{every: c.Every, lanes: lanes, at: make([]int, lanes), next: make([]int, lanes)}
	for l := range t.next {
		t.at[l], t.next[l] = -1, -1
	}
	if t.every {
		t.seen = make([]bool, events)
	}
	return t
}

// Count returns how many events came.
func (t *Tally) Count() int { return t.count }

// Lanes returns how many lanes there are.
func (t *Tally) Lanes() int { return t.lanes }

// Fits takes a batch of n events by its first and last number if it is what the
// lane gets next, and reports whether it is. It is small enough to be inlined
// where a batch of one event would feel a call; what does not fit goes to Take.
func (t *Tally) Fits(lane, n, first, last int) bool {
	at := &t.at[lane]
	if first != *at || last-first != (n-1)*t.lanes {
		return false
	}
	*at = last + t.lanes
	t.count += n
	return true
}

// Take looks at the first and the last event of a batch, and at all of them in
// the untimed pass.
func Take[T Event](t *Tally, lane int, vs []T) {
	if !t.Fits(lane, len(vs), vs[0][0], vs[len(vs)-1][0]) {
		t.Batch(lane, len(vs), func(i int) int { return vs[i][0] })
	}
}

// Batch is Take for events of any form; at returns the number of event i.
func (t *Tally) Batch(lane, n int, at func(i int) int) {
	first, last := at(0), at(n-1)
	t.ends(lane, n, first, last)
	if t.every {
		for i := range n {
			t.one(lane, first+i*t.lanes, at(i))
		}
	}
	t.next[lane] = last + t.lanes
	if !t.every {
		t.at[lane] = t.next[lane]
	}
	t.count += n
}

func (t *Tally) ends(lane, n, first, last int) {
	if want := max(t.next[lane], t.at[lane]); first != want && (want >= 0 || first < 0 || first >= t.lanes) || last != first+(n-1)*t.lanes {
		t.fault("lane %d got %d events from %d to %d, want them from %d on", lane, n, first, last, want)
	}
}

func (t *Tally) one(lane, want, got int) {
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

func (t *Tally) fault(format string, args ...any) {
	if t.err == nil {
		t.err = fmt.Errorf(format, args...)
	}
}

// Done says what was wrong with the iteration, after its last event.
func (t *Tally) Done(events int) error {
	if t.err != nil {
		return t.err
	}
	if t.count != events {
		return fmt.Errorf("%d events came out of %d", t.count, events)
	}
	for l := range t.next {
		if n := max(t.at[l], t.next[l]); n >= 0 && n < events {
			return fmt.Errorf("lane %d ended before event %d", l, n)
		}
	}
	return nil
}
