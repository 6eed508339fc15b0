package settle

import (
	"fmt"
	"slices"
	"time"
)

// Settle ends a delivery at time now: the events named by outcomes have their
// verdicts, all others of s are done. Outcomes are sorted by offset, do not
// overlap and lie inside s. The slice is not kept. It returns [ErrLate], and
// changes nothing, when no event of s is in hand by this span any more; events
// that are not in hand any more are left as they are. A whole span settled
// in the order of delivery allocates nothing, and takes constant time when it
// is the only one in hand. Spans of NextParked are settled in the same way.
func (m *Machine) Settle(now time.Time, s Span, outcomes ...Outcome) error {
	if len(outcomes) == 0 && len(m.runs) > 0 {
		if r := &m.runs[0]; r.inHand && r.serial == s.serial && r.from == s.From && r.to == s.To {
			if len(m.runs) > 1 {
				m.runs = slices.Delete(m.runs, 0, 1)
				return nil
			}
			r.past = nil // drop the errors
			m.runs = m.runs[:0]
			return nil
		}
	}
	parts := [1]Span{s}
	mustFit(parts[:], outcomes)
	if s.Parked {
		return m.settleParked(now, s, outcomes)
	}
	return m.settleParts(now, parts[:], outcomes)
}

// SettleParts is Settle for several spans, or parts of spans, at once. They are
// sorted by offset, do not overlap, and are not of NextParked; each outcome
// lies inside one of them. It returns [ErrLate] when no event of any of them is
// in hand. The time it takes grows with what is unsettled, not with the square
// of the parts.
func (m *Machine) SettleParts(now time.Time, parts []Span, outcomes ...Outcome) error {
	if len(parts) == 1 {
		return m.Settle(now, parts[0], outcomes...)
	}
	mustFit(parts, outcomes)
	return m.settleParts(now, parts, outcomes)
}

func (m *Machine) settleParts(now time.Time, parts []Span, outcomes []Outcome) error {
	delay := m.delays(now)
	return m.eachInHand(parts, func(out []run, r run) []run {
		for len(outcomes) > 0 && outcomes[0].To <= r.from {
			outcomes = outcomes[1:]
		}
		for _, o := range outcomes {
			if o.From >= r.to {
				break
			}
			if from, to := max(r.from, o.From), min(r.to, o.To); from < to && o.Verdict != Done {
				out = m.fail(out, r.part(from, to), o, delay)
			}
		}
		return out
	})
}

// Release gives events back that are in hand and were not handled after all:
// they wait, are due at once, and their delivery does not count as an attempt.
// It takes parts as SettleParts does, and returns [ErrLate] as that does.
func (m *Machine) Release(parts ...Span) error {
	mustFit(parts, nil)
	return m.eachInHand(parts, func(out []run, r run) []run { return append(out, r.released()) })
}

// eachInHand takes what is in hand by parts out of the runs, piece by piece in
// order, and puts back what become appends for a piece.
func (m *Machine) eachInHand(parts []Span, become func(out []run, piece run) []run) error {
	out, found := m.scratch[:0], false
	for _, r := range m.runs {
		for len(parts) > 0 && parts[0].To <= r.from {
			parts = parts[1:]
		}
		if !r.inHand {
			out = append(out, r)
			continue
		}
		for _, s := range parts {
			if s.From >= r.to {
				break
			}
			from, to := max(r.from, s.From), min(r.to, s.To)
			if s.serial != r.serial || from >= to {
				continue
			}
			found = true
			if r.from < from {
				out = append(out, r.part(r.from, from))
			}
			out = become(out, r.part(from, to))
			r.from = to
		}
		if r.from < r.to {
			out = append(out, r)
		}
	}
	if !found {
		clear(out)
		return ErrLate
	}
	clear(m.runs) // drop the errors
	m.scratch, m.runs = m.runs[:0], out
	m.waiting = 0
	for _, r := range m.runs {
		if r.waits() {
			m.waiting++
		}
	}
	return nil
}

// released returns r as it waits after it was in hand and not handled.
func (r run) released() run {
	r.inHand, r.serial = false, 0
	past := *unfailed
	if r.past != nil {
		past = *r.past
	}
	past.due = time.Time{}
	r.past = &past
	return r
}

func mustFit(parts []Span, outcomes []Outcome) {
	for i, s := range parts {
		if i > 0 && s.From < parts[i-1].To || i > 0 && (s.Parked || parts[0].Parked) {
			panic(fmt.Sprintf("settle: span [%d, %d) does not come behind [%d, %d)", s.From, s.To, parts[i-1].From, parts[i-1].To))
		}
	}
	if len(outcomes) == 0 {
		return
	}
	at := parts[0].From
	for _, o := range outcomes {
		for len(parts) > 1 && o.From >= parts[0].To {
			parts = parts[1:]
			at = max(at, parts[0].From)
		}
		if s := parts[0]; o.From < at || o.To <= o.From || o.To > s.To {
			panic(fmt.Sprintf("settle: outcome [%d, %d) does not fit span [%d, %d) in order", o.From, o.To, s.From, s.To))
		}
		at = o.To
	}
}
