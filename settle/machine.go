package settle

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// WindowMax is how many offsets above the commit are delivered at most. While
// the lowest of them stays unsettled, nothing beyond is delivered, so neither
// memory nor the stored bitmap can grow.
const WindowMax = 4096

// Config of a [Machine].
type Config struct {
	Policy Policy
	// Committed is the lowest offset that is not settled: where to begin.
	Committed penstock.Offset
	// Completed is what [Machine.AppendCompleted] returned when Committed was
	// stored: settled offsets above it, which are not delivered again.
	Completed []byte
	// Parking lets keys be parked; nil, the default, means that every failed
	// event waits in its place.
	Parking *Parking
	// Beside delivers new events also while others wait for a retry. The order
	// is then the carrier's to keep, as far as it wants one: it may hold back
	// what is in hand, and give it back with [Machine.Release].
	Beside bool
	// Rand returns the random numbers in [0, 1) for jitter; nil takes
	// math/rand/v2.
	Rand func() float64
}

// Machine is the settlement of one partition for one group, or of one stream
// for one subscription. It is not safe for concurrent use; making one starts
// nothing, and it needs no closing.
//
// Invariants: runs are sorted, disjoint and not empty, and lie in [committed,
// next); the offsets of [committed, next) in no run are settled, or parked and
// in the retry log. committed is the first offset of the first run, or next
// when there is none. next is at most committed + WindowMax, except that it
// skips what was restored. completed holds settled or parked runs above next,
// restored from storage.
type Machine struct {
	policy Policy
	beside bool
	random func() float64

	next      penstock.Offset // the lowest that was never delivered
	runs      []run           // unsettled
	waiting   int             // how many runs are neither in hand nor parked
	completed []extent        // above next, sorted, disjoint, not touching
	serial    uint64          // of the last span
	fault     error
	lot       *lot  // parked keys; nil without parking
	scratch   []run // spare memory for Settle
}

// extent is a range of offsets [from, to).
type extent struct{ from, to penstock.Offset }

// run is a range of unsettled offsets that share their fate.
type run struct {
	extent
	attempt int      // which delivery it is in, or waits for; of a dead letter, how many were made
	serial  uint64   // of the span, while in hand
	dead    bool     // is to be handed over, or is being so
	inHand  bool     // delivered and not settled
	parked  bool     // parked, and not yet in the retry log; all else is in the lot
	past    *failure // the last one; nil before the first
}

// failure is what is known of a run that has failed. It is kept apart because
// most never do, and never changed, because parts of a run share it.
type failure struct {
	due      time.Time // when to deliver again
	cause    error     // of the last failed attempt
	handOver int       // failed attempts to hand over
	refusal  error     // of the last of those
	noRoom   bool      // was to be parked, and the retry log was full
}

// New returns a machine that continues from a stored commit. The error matches
// [penstock.ErrInvalid] when the policy or Parking is wrong, or Completed was
// not made by [Machine.AppendCompleted].
func New(c Config) (*Machine, error) {
	if err := c.Policy.Validate(); err != nil {
		return nil, err
	}
	completed, err := parseCompleted(c.Committed, c.Completed)
	if err != nil {
		return nil, err
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	m := &Machine{policy: c.Policy, beside: c.Beside, random: c.Rand, next: c.Committed, completed: completed}
	if c.Parking != nil {
		if err := m.restoreParked(*c.Parking); err != nil {
			return nil, err
		}
	}
	m.skipCompleted()
	return m, nil
}

// Next returns what to deliver now, at most max events of [committed, end): the
// lowest span that is due for a retry or as a dead letter, else new events. end
// is one past the newest event that can be read. It returns false when there is
// nothing to deliver yet: no new events, a retry that is not due (new events
// wait behind it, so that the partition keeps its order, unless [Config.Beside]
// is set; see [Machine.Due]), a full window or a fault ([Machine.Blocked] says which). The span stays in hand
// until it is settled; several may be in hand at once.
//
// Events that come behind a parked one of their key are not delivered but
// parked, so a span ends before them. When Next returns false although
// [Machine.Position] has moved, it parked all it was shown; there may be more.
func (m *Machine) Next(now time.Time, end penstock.Offset, max int) (Span, bool) {
	if max <= 0 || m.fault != nil {
		return Span{}, false
	}
	if m.lot != nil && len(m.lot.keys) > 0 {
		return m.nextBeside(now, end, max)
	}
	switch i, blocked := m.nextWaiting(now); {
	case blocked:
		return Span{}, false
	case i >= 0:
		return m.again(i, now, max), true
	}
	limit := m.limit(end)
	if m.next >= limit {
		return Span{}, false
	}
	from, to := m.next, cut(m.next, limit, max)
	m.next = to
	m.skipCompleted()
	return m.hand(run{extent: extent{from, to}, attempt: 1}, len(m.runs)), true
}

// cut returns where the first max offsets of [from, to) end.
func cut(from, to penstock.Offset, max int) penstock.Offset {
	if to-from > penstock.Offset(max) {
		return from + penstock.Offset(max)
	}
	return to
}

// limit returns where the next new span has to end at the latest.
func (m *Machine) limit(end penstock.Offset) penstock.Offset {
	limit := end
	if first := m.Committed(); limit > first && limit-first > WindowMax {
		limit = first + WindowMax
	}
	if len(m.completed) > 0 {
		limit = min(limit, m.completed[0].from)
	}
	return limit
}

// skipCompleted moves next over settled and parked offsets that were restored.
func (m *Machine) skipCompleted() {
	for len(m.completed) > 0 && m.completed[0].from <= m.next {
		m.next = m.completed[0].to
		m.completed = m.completed[1:]
	}
}

func (m *Machine) firstWaiting() int {
	return slices.IndexFunc(m.runs, run.waits)
}

// nextWaiting returns the run that is delivered again before anything new, -1
// when there is none. New events are blocked while the first of those that wait
// is not due, unless they are delivered beside it.
func (m *Machine) nextWaiting(now time.Time) (i int, blocked bool) {
	switch {
	case m.waiting == 0:
		return -1, false
	case m.beside:
		return slices.IndexFunc(m.runs, func(r run) bool { return r.waits() && !now.Before(r.past.due) }), false
	}
	i = m.firstWaiting()
	return i, now.Before(m.runs[i].past.due)
}

// again puts the run at i in hand once more: a part of it when it is longer
// than max, together with those that follow it seamlessly when they are due
// for the same attempt.
func (m *Machine) again(i int, now time.Time, max int) Span {
	r := m.runs[i]
	if n := penstock.Offset(max); r.to-r.from > n {
		rest := r
		r.to = r.from + n
		rest.from = r.to
		m.runs = slices.Insert(m.runs, i+1, rest)
		m.waiting++
	}
	last := i + 1
	for ; !r.dead && last < len(m.runs); last++ {
		f := m.runs[last]
		if !f.waits() || f.dead || f.from != r.to || f.attempt != r.attempt || now.Before(f.past.due) ||
			f.to-r.from > penstock.Offset(max) {
			break
		}
		r.to = f.to
	}
	m.runs = slices.Delete(m.runs, i, last)
	m.waiting -= last - i
	return m.hand(r, i)
}

// hand puts r in hand and inserts it at i.
func (m *Machine) hand(r run, i int) Span {
	m.serial++
	r.inHand, r.serial = true, m.serial
	if i == len(m.runs) {
		m.runs = append(m.runs, r)
	} else {
		m.runs = slices.Insert(m.runs, i, r)
	}
	return Span{From: r.from, To: r.to, Attempt: r.attempt, DeadLetter: r.dead, Cause: deadCause(r), serial: r.serial}
}

func deadCause(r run) error {
	if r.dead {
		return r.past.cause
	}
	return nil
}

// fail appends what becomes of r, which was in hand, after a verdict other than
// Done: it waits in its place, or is parked as far as there is room.
func (m *Machine) fail(out []run, r run, o Outcome, delay func(failed int, o Outcome) time.Time) []run {
	parks := m.lot != nil && m.parks(r, o)
	r = m.judge(r, o, delay)
	if parks && !r.dead {
		out, r = m.park(out, r)
		if r.from == r.to {
			return out
		}
		r.past.noRoom = true
	}
	return append(out, r)
}

// judge returns r, which was in hand, as it waits after a verdict other than
// Done.
func (m *Machine) judge(r run, o Outcome, delay func(failed int, o Outcome) time.Time) run {
	o.Cause = o.cause()
	r.inHand, r.serial = false, 0
	var f failure
	if r.past != nil {
		f = *r.past
	}
	f.due, f.noRoom = time.Time{}, false
	switch {
	case o.Verdict == Fault:
		m.fault = o.Cause
	case r.dead:
		f.handOver++
		f.refusal = o.Cause
		f.due = delay(f.handOver, o)
	case o.Verdict == DeadLetter, m.policy.Attempts > 0 && r.attempt >= m.policy.Attempts:
		r.dead, f.cause = true, o.Cause
	default:
		f.due, f.cause = delay(r.attempt, o), o.Cause
		r.attempt++
	}
	r.past = &f
	return r
}

// delays returns when a run is due after a number of failures. One random
// number serves a whole settlement, so that events which failed together come
// again together.
func (m *Machine) delays(now time.Time) func(failed int, o Outcome) time.Time {
	random := -1.0
	return func(failed int, o Outcome) time.Time {
		if o.After > 0 {
			return now.Add(o.After)
		}
		if random < 0 {
			random = m.random()
		}
		return now.Add(m.policy.Backoff.Delay(failed, random))
	}
}

// waits reports whether r waits in its place to be delivered again.
func (r run) waits() bool { return !r.inHand && !r.parked }

// part returns the part [from, to) of r.
func (r run) part(from, to penstock.Offset) run {
	r.from, r.to = from, to
	return r
}
