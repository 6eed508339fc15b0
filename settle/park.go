package settle

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// nextBeside is Next while keys are parked: followers of theirs are parked
// instead of being delivered.
func (m *Machine) nextBeside(now time.Time, end penstock.Offset, max int) (Span, bool) {
	l := m.lot
	l.full = false
	for {
		i, blocked := m.nextWaiting(now)
		if blocked {
			return Span{}, false
		}
		if i >= 0 {
			r := m.runs[i]
			switch {
			case r.dead:
				return m.again(i, now, max), true
			case r.from >= end:
				return Span{}, false
			}
			if to := m.parkFollowers(r.part(r.from, min(r.to, end))); to > r.from {
				m.moveToLot(i, to)
				continue
			}
			if l.full {
				return Span{}, false
			}
			to := l.clear(r.from+1, cut(r.from, min(end, m.seam(i)), max))
			return m.again(i, now, int(to-r.from)), true
		}
		limit := m.limit(end)
		if m.next >= limit {
			return Span{}, false
		}
		if to := m.parkFollowers(run{extent: extent{m.next, limit}, attempt: 1}); to > m.next {
			m.runs = appendParked(m.runs, extent{m.next, to})
			m.next = to
			m.skipCompleted()
			continue
		}
		if l.full {
			return Span{}, false
		}
		from, to := m.next, l.clear(m.next+1, cut(m.next, limit, max))
		m.next = to
		m.skipCompleted()
		return m.hand(run{extent: extent{from, to}, attempt: 1}, len(m.runs)), true
	}
}

// seam returns the end of what waits without a gap from the run at i on. What
// lies behind may have been completed before the machine was made, and then
// nobody has it in view.
func (m *Machine) seam(i int) penstock.Offset {
	to := m.runs[i].to
	for _, r := range m.runs[i+1:] {
		if r.from != to || !r.waits() {
			break
		}
		to = r.to
	}
	return to
}

// parkFollowers parks the events that r begins with as long as they follow a
// parked one and there is room. It returns the end of what it parked.
func (m *Machine) parkFollowers(r run) penstock.Offset {
	l := m.lot
	for o := r.from; o < r.to; o++ {
		key := l.key(o)
		leader, follows := l.leader(o, key)
		if !follows {
			return o
		}
		if !l.park(o, key, r) {
			l.full, l.fullAt, l.fullBehind = true, o, leader
			return o
		}
	}
	return r.to
}

// moveToLot marks the beginning, up to to, of the run at i as parked.
func (m *Machine) moveToLot(i int, to penstock.Offset) {
	r := m.runs[i]
	parked := run{extent: extent{r.from, to}, parked: true}
	if to < r.to {
		m.runs[i].from = to
		m.runs = slices.Insert(m.runs, i, parked)
		return
	}
	m.runs[i] = parked
	m.waiting--
}

// appendParked appends a range of parked events to sorted runs.
func appendParked(runs []run, e extent) []run {
	if n := len(runs); n > 0 && runs[n-1].parked && runs[n-1].to == e.from {
		runs[n-1].to = e.to
		return runs
	}
	return append(runs, run{extent: e, parked: true})
}

// parks reports whether a failure of r, which is in hand, is to park it, unless
// it is given up.
func (m *Machine) parks(r run, o Outcome) bool {
	switch {
	case o.Verdict == Park:
		return true
	case o.Verdict != Retry || m.lot.after < 0:
		return false
	case o.After > 0:
		return o.After > m.lot.after
	}
	return m.policy.Backoff.Delay(r.attempt, 0) > m.lot.after
}

// park parks the events of r from its first on, as far as there is room, and
// returns what is left of r.
func (m *Machine) park(out []run, r run) ([]run, run) {
	from := r.from
	for ; r.from < r.to; r.from++ {
		if !m.lot.park(r.from, m.lot.key(r.from), r) {
			break
		}
	}
	if from < r.from {
		out = appendParked(out, extent{from, r.from})
	}
	return out, r
}

// NextParked returns a parked event to deliver now, or, with DeadLetter set, to
// hand over: of those that are due and first of their key, the one that is due
// first. Keys do not wait for each other; of one key at most one event is in
// hand. A parked event waits for those before it that are in hand or wait in
// their place, and for those that are delivered again after a restart, because
// its key may be among them. The carrier reads the event from the retry log. It
// returns false when there is none; see [Machine.ParkedDue].
//
// Before the carrier delivers the event, it stores Committed and
// AppendCompleted, unless the commit that is stored lies above the event. They
// may hold earlier events of its key that the stored ones do not: after an end
// of the process those would come again, and the event would not.
//
// Done lets the next event of the key come. After its last attempt an event is
// handed over, and the next one comes when it was taken.
func (m *Machine) NextParked(now time.Time) (Span, bool) {
	e := m.firstParked()
	if e == nil || now.Before(e.past.due) {
		return Span{}, false
	}
	l := m.lot
	m.serial++
	e.inHand, e.serial, e.key.inHand = true, m.serial, e
	l.inHand++
	l.update(e.key)
	return Span{From: e.from, To: e.to, Attempt: e.attempt, DeadLetter: e.dead, Parked: true, Cause: deadCause(e.run), serial: e.serial}, true
}

// ParkedDue returns when NextParked has an event, which may lie in the past. It
// returns false when it has none before something else happens.
func (m *Machine) ParkedDue() (time.Time, bool) {
	if e := m.firstParked(); e != nil {
		return e.past.due, true
	}
	return time.Time{}, false
}

// firstParked returns the parked event that is delivered next, due or not.
func (m *Machine) firstParked() *parkedEvent {
	if m.lot == nil || m.fault != nil || len(m.lot.ready) == 0 {
		return nil
	}
	barrier := m.next
	for _, r := range m.runs {
		if !r.parked && !r.dead {
			barrier = r.from
			break
		}
	}
	return m.lot.first(barrier)
}

// settleParked is Settle for a span of NextParked.
func (m *Machine) settleParked(now time.Time, s Span, outcomes []Outcome) error {
	if m.lot == nil {
		return ErrLate
	}
	l := m.lot
	e := l.events[s.From]
	if e == nil || !e.inHand || e.serial != s.serial {
		return ErrLate
	}
	l.inHand--
	e.key.inHand = nil
	switch {
	case len(outcomes) == 0 || outcomes[0].Verdict == Done:
		e.inHand = false
		l.settle(e)
	case outcomes[0].Verdict == Fault:
		m.fault = outcomes[0].cause()
		e.inHand, e.serial = false, 0 // and is not ready: nothing is delivered any more
	default:
		e.run = m.judge(e.run, outcomes[0], m.delays(now))
		if e.discard != nil && !e.dead {
			e.giveUp(e.discard)
		}
		e.discard = nil
		l.emit(e, false)
	}
	return nil
}

// Unlogged returns the entries that [Machine.Logged] has not confirmed, in the
// order in which they must be appended to the retry log. There are at most as
// many as parked events, and none without parking. The slice is valid until the
// next call of a method that changes the machine.
func (m *Machine) Unlogged() []Entry {
	if m.lot == nil {
		return nil
	}
	return m.lot.unlogged
}

// Logged tells that the retry log holds all entries up to seq, durably as far
// as it is durable. Only then does the commit pass the events that they park,
// and are parked events delivered again. A number that was told before changes
// nothing. It panics when there is no such entry yet.
func (m *Machine) Logged(seq uint64) {
	l := m.lot
	switch {
	case l == nil && seq == 0 || l != nil && seq <= l.logged:
		return
	case l == nil || seq > l.emitted:
		panic(fmt.Sprintf("settle: entry %d of the retry log does not exist", seq))
	}
	n := int(seq - l.logged)
	l.logged, l.full = seq, false
	var stored []penstock.Offset
	for _, entry := range l.unlogged[:n] {
		e := l.events[entry.Offset]
		if entry.New {
			stored = append(stored, entry.Offset)
		}
		if entry.Gone {
			l.forget(e)
		}
		l.update(e.key)
	}
	clear(l.unlogged[:n]) // drop the keys and errors
	l.unlogged = l.unlogged[n:]
	if len(l.unlogged) == 0 {
		l.unlogged = nil
	}
	slices.Sort(stored)
	m.leave(stored)
}

// leave takes parked events, sorted by offset, out of the runs: the retry log
// has them. A run was parked in the order of its offsets, so it becomes shorter
// from its beginning.
func (m *Machine) leave(stored []penstock.Offset) {
	if len(stored) == 0 {
		return
	}
	out := m.scratch[:0]
	for _, r := range m.runs {
		for r.parked && r.from < r.to && len(stored) > 0 && stored[0] == r.from {
			r.from++
			stored = stored[1:]
		}
		if r.from < r.to {
			out = append(out, r)
		}
	}
	clear(m.runs)
	m.scratch, m.runs = m.runs[:0], out
}

// Parked says how much is parked.
type Parked struct {
	Keys   int // an event without a key counts as one
	Events int // not settled
	InHand int // of Events
	// Bytes is the size of what the retry log has to keep: of Events, and of
	// events that are settled and for which Logged is awaited.
	Bytes penstock.Bytes
}

// Parked returns how much of this partition is parked. It allocates nothing.
func (m *Machine) Parked() Parked {
	if m.lot == nil {
		return Parked{}
	}
	l := m.lot
	return Parked{Keys: len(l.keys), Events: len(l.events) - l.gone, InHand: l.inHand, Bytes: l.size}
}

// AppendParked appends an entry for each parked event, sorted by offset, as if
// it were parked now: New is set and Seq is 0. They restore what is parked as
// the whole log does, so they may take the place of everything that was
// appended before; and they say what waits for what, and why.
func (m *Machine) AppendParked(dst []Entry) []Entry {
	if m.lot == nil {
		return dst
	}
	for _, o := range sortedKeys(m.lot.events) {
		if e := m.lot.events[o]; !e.gone {
			entry := e.entry(true)
			entry.Seq = 0
			dst = append(dst, entry)
		}
	}
	return dst
}
