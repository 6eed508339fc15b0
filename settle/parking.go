package settle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
)

// Bounds of the retry log of a group, and the default of [Parking].
const (
	ParkedEventsMax = 10_000
	ParkedBytesMax  = 64 * penstock.MiB

	DefaultParkAfter = time.Second
)

// Parking lets a key that fails for long be parked: the failed event and all
// later ones of its key move, in their order, to the group's retry log, so that
// the commit passes them and other keys go on. An event without a key is parked
// alone.
type Parking struct {
	// After is the longest delay that a failed event waits in its place; one
	// with a longer delay is parked. The jitter of the backoff does not count.
	// 0 is 1 s; a negative number means that only the verdict Park parks.
	After time.Duration
	// Key returns the key of the event at an offset, "" for none. Required. It
	// must not panic, nor call the machine. It is asked only by Settle, for
	// events of the span that are to be parked, and by Next, while any key is
	// parked, for offsets of [Position, end) that are not settled.
	Key func(o penstock.Offset) string
	// Size returns the size of an event. It is asked right after Key, and only
	// for an event that is parked if its size fits the budget. Nil counts every
	// event as 0. It must not panic, nor call the machine.
	Size func(o penstock.Offset) penstock.Bytes
	// Budget bounds the retry log. The machines of all partitions of a group
	// share it, and new machines get a new one. Nil is a budget of
	// ParkedEventsMax events and ParkedBytesMax for this machine alone.
	Budget *demand.Budget
	// Log is what the retry log holds of this partition, in the order in which
	// it was appended. What it holds beyond the budget is kept, and not counted.
	Log []Entry
}

// Entry is one change for the retry log. A later entry of an offset replaces
// the earlier ones, so that an entry which is there twice does no harm.
type Entry struct {
	Seq    uint64 // counts the entries of one machine from 1; [Machine.Logged] takes it
	Offset penstock.Offset
	Key    string
	Size   penstock.Bytes
	// New is set on the first entry of a parked event: the event itself has to
	// be stored with it. Later entries only change what follows.
	New bool
	// Gone is set on the last entry: the event is settled. Nothing below is set.
	Gone     bool
	Attempt  int       // deliveries made
	Due      time.Time // when to deliver or to hand over next; zero means at once
	Dead     bool      // given up, and to be handed over
	HandOver int       // of a dead letter: failed attempts to hand over
	Cause    error     // of the last failed delivery; nil when there was none
}

// lot returns the state that p describes.
func (p Parking) lot() (*lot, error) {
	if p.Key == nil {
		return nil, &penstock.FieldError{Field: "Parking.Key", Reason: "is nil"}
	}
	if p.Size == nil {
		p.Size = func(penstock.Offset) penstock.Bytes { return 0 }
	}
	if p.After == 0 {
		p.After = DefaultParkAfter
	}
	if p.Budget == nil {
		b, err := demand.NewBudget(demand.BudgetConfig{Events: ParkedEventsMax, Bytes: ParkedBytesMax})
		if err != nil {
			return nil, err
		}
		p.Budget = b
	}
	l := &lot{
		after: p.After, key: p.Key, sizeOf: p.Size, budget: p.Budget,
		keys: make(map[keyID]*parkedKey), events: make(map[penstock.Offset]*parkedEvent),
	}
	last := make(map[penstock.Offset]Entry)
	for i, e := range p.Log {
		if e.Attempt < 0 || e.HandOver < 0 || e.Size < 0 {
			return nil, &penstock.FieldError{Field: "Parking.Log", Reason: fmt.Sprintf(
				"entry %d of offset %d: attempt %d, hand-over %d, size %d: one is negative", i, e.Offset, e.Attempt, e.HandOver, int64(e.Size))}
		}
		if e.Offset+1 == 0 {
			return nil, &penstock.FieldError{Field: "Parking.Log", Reason: fmt.Sprintf("entry %d of offset %d, which no event has", i, e.Offset)}
		}
		last[e.Offset] = e
	}
	for _, o := range sortedKeys(last) {
		if e := last[o]; !e.Gone {
			l.restore(e)
		}
	}
	return l, nil
}

// restore puts an event of the retry log back.
func (l *lot) restore(e Entry) {
	r := run{extent: extent{e.Offset, e.Offset + 1}, attempt: e.Attempt, dead: e.Dead}
	if !e.Dead {
		r.attempt++
	}
	if e.Dead && e.Cause == nil {
		e.Cause = errNoCause
	}
	r.past = &failure{due: e.Due, cause: e.Cause, handOver: e.HandOver}
	p := &parkedEvent{run: r, size: e.Size, counted: l.budget.TryAcquire(1, e.Size)}
	l.add(p, e.Key)
	l.update(p.key)
}

// restoreParked continues from the content of the retry log. Parked events at
// or above the commit are not delivered in their place.
func (m *Machine) restoreParked(p Parking) error {
	l, err := p.lot()
	if err != nil {
		return err
	}
	m.lot = l
	above := m.completed
	for _, o := range sortedKeys(l.events) {
		if o >= m.next {
			above = append(above, extent{o, o + 1})
		}
	}
	slices.SortFunc(above, func(a, b extent) int { return cmp.Compare(a.from, b.from) })
	m.completed = above[:0]
	for _, e := range above {
		if n := len(m.completed); n > 0 && e.from <= m.completed[n-1].to {
			m.completed[n-1].to = max(m.completed[n-1].to, e.to)
		} else {
			m.completed = append(m.completed, e)
		}
	}
	return nil
}
