package settle_test

import (
	"cmp"
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// cell is one event in the model: a plain slice, one element per offset.
type cell struct {
	state    int // fresh, inHand, waits, done
	attempt  int // deliveries made
	dead     bool
	group    int // of a dead letter: which verdict made it
	handOver int
	due      time.Time
	holder   settle.Span // while in hand
}

const (
	fresh = iota
	inHand
	waits
	done
)

type model struct {
	t       *rapid.T
	m       *settle.Machine
	policy  settle.Policy
	beside  bool
	base    penstock.Offset
	cells   []cell
	end     int // cells that can be read
	now     time.Time
	groups  int
	fault   bool
	highest penstock.Offset // commit so far
	spans   []settle.Span   // all that were ever delivered by m
}

func (s *model) at(o penstock.Offset) *cell { return &s.cells[o-s.base] }

func (s *model) first(state int) int {
	for i := range s.cells {
		if s.cells[i].state == state {
			return i
		}
	}
	return len(s.cells)
}

func (s *model) committed() int {
	for i := range s.cells {
		if s.cells[i].state != done {
			return i
		}
	}
	return len(s.cells)
}

// firstAgain returns the cell that is delivered again before anything new.
func (s *model) firstAgain() int {
	for i, c := range s.cells {
		if c.state == waits && (!s.beside || !s.now.Before(c.due)) {
			return i
		}
	}
	return len(s.cells)
}

// next asks for a delivery and checks it cell by cell.
func (s *model) next() {
	size := rapid.IntRange(1, 700).Draw(s.t, "max")
	at := s.m.Position()
	span, ok := s.m.Next(s.now, s.base+penstock.Offset(s.end), size)
	if ok && span.From != at && !s.beside {
		s.t.Fatalf("span %+v does not begin at the position %d", span, at)
	}
	if s.fault {
		if ok {
			s.t.Fatalf("delivered %+v after a fault", span)
		}
		return
	}
	if w := s.firstAgain(); w < len(s.cells) {
		due := !s.now.Before(s.cells[w].due)
		if ok != due {
			s.t.Fatalf("delivered %v although the retry of cell %d is due %v", ok, w, due)
		}
		if ok {
			s.checkAgain(span, w, size)
			s.take(span)
		}
		return
	}
	from := s.first(fresh)
	to := from
	limit := min(s.end, s.committed()+settle.WindowMax)
	for to < limit && to-from < size && s.cells[to].state == fresh {
		to++
	}
	if ok != (to > from) {
		s.t.Fatalf("delivered %v, want %v for new cells %d to %d", ok, to > from, from, to)
	}
	if ok {
		if span.From != s.base+penstock.Offset(from) || span.Len() != to-from || span.DeadLetter {
			s.t.Fatalf("new span %+v, want cells %d to %d", span, from, to)
		}
		s.take(span)
	}
}

func (s *model) checkAgain(span settle.Span, first, size int) {
	if span.From != s.base+penstock.Offset(first) || span.Len() < 1 || span.Len() > size {
		s.t.Fatalf("span %+v, want one of at most %d from cell %d", span, size, first)
	}
	head := s.cells[first]
	for o := span.From; o < span.To; o++ {
		c := s.at(o)
		if c.state != waits || c.dead != head.dead || c.attempt != head.attempt || s.now.Before(c.due) || c.dead && c.group != head.group {
			s.t.Fatalf("span %+v joins cell %+v with %+v", span, head, *c)
		}
	}
}

func (s *model) take(span settle.Span) {
	for o := span.From; o < span.To; o++ {
		c := s.at(o)
		c.state, c.holder = inHand, span
		if !c.dead {
			c.attempt++
		}
		if c.attempt != span.Attempt || c.dead != span.DeadLetter {
			s.t.Fatalf("span %+v for cell %+v", span, *c)
		}
	}
	s.spans = append(s.spans, span)
}

func (s *model) settle() {
	if len(s.spans) == 0 {
		s.t.Skip("nothing was delivered")
	}
	// Old spans stay in the list: late and doubled settlements are frequent.
	span := s.spans[len(s.spans)-1-rapid.IntRange(0, min(len(s.spans)-1, 3)).Draw(s.t, "span")]
	part := span
	if rapid.IntRange(0, 3).Draw(s.t, "part") == 0 {
		from := span.From + penstock.Offset(rapid.IntRange(0, span.Len()-1).Draw(s.t, "from"))
		part = span.Part(from, from+penstock.Offset(rapid.IntRange(1, int(span.To-from)).Draw(s.t, "len")))
	}
	s.judgeAll([]settle.Span{part}, []settle.Span{span}, s.outcomes(part), func(parts []settle.Span, outcomes []settle.Outcome) error {
		return s.m.Settle(s.now, parts[0], outcomes...)
	})
}

// settleParts settles parts of the last spans in one call.
func (s *model) settleParts() {
	var parts, whole []settle.Span
	var outcomes []settle.Outcome
	recent := slices.Clone(s.spans[max(0, len(s.spans)-5):])
	slices.SortFunc(recent, func(a, b settle.Span) int { return cmp.Compare(a.From, b.From) })
	for _, span := range recent {
		from, to := span.From, span.To
		for from < to && len(parts) < 20 {
			from += penstock.Offset(rapid.IntRange(0, 30).Draw(s.t, "skip"))
			end := min(to, from+penstock.Offset(rapid.IntRange(1, 60).Draw(s.t, "length")))
			if n := len(parts); n > 0 && from < parts[n-1].To || from >= end {
				from = max(from, end)
				continue
			}
			part := span.Part(from, end)
			parts, whole = append(parts, part), append(whole, span)
			outcomes = append(outcomes, s.outcomes(part)...)
			from = end
		}
	}
	if len(parts) == 0 {
		s.t.Skip("nothing was delivered")
	}
	s.judgeAll(parts, whole, outcomes, func(parts []settle.Span, outcomes []settle.Outcome) error {
		return s.m.SettleParts(s.now, parts, outcomes...)
	})
}

// release gives a part of a span back.
func (s *model) release() {
	if len(s.spans) == 0 {
		s.t.Skip("nothing was delivered")
	}
	span := s.spans[len(s.spans)-1-rapid.IntRange(0, min(len(s.spans)-1, 3)).Draw(s.t, "span")]
	from := span.From + penstock.Offset(rapid.IntRange(0, span.Len()-1).Draw(s.t, "from"))
	part := span.Part(from, from+penstock.Offset(rapid.IntRange(1, int(span.To-from)).Draw(s.t, "len")))
	late := true
	for o := part.From; o < part.To; o++ {
		if c := s.at(o); c.state == inHand && c.holder == span {
			late = false
			c.state, c.due = waits, time.Time{}
			if !c.dead {
				c.attempt--
			}
		}
	}
	if err := s.m.Release(part); late != errors.Is(err, settle.ErrLate) || !late && err != nil {
		s.t.Fatalf("releasing %+v: %v, late %v", part, err, late)
	}
}

// judgeAll settles parts, each of the span at its place in whole, and does the
// same to the cells.
func (s *model) judgeAll(parts, whole []settle.Span, outcomes []settle.Outcome, settleIt func([]settle.Span, []settle.Outcome) error) {
	late := true
	for i, part := range parts {
		for o := part.From; o < part.To; o++ {
			if c := s.at(o); c.state == inHand && c.holder == whole[i] {
				late = false
			}
		}
	}
	err := settleIt(parts, outcomes)
	if late != errors.Is(err, settle.ErrLate) || !late && err != nil {
		s.t.Fatalf("settling %+v: %v, late %v", parts, err, late)
	}
	verdicts := make(map[penstock.Offset]settle.Outcome)
	groups := make(map[penstock.Offset]int)
	for _, o := range outcomes {
		s.groups++
		for at := o.From; at < o.To; at++ {
			verdicts[at], groups[at] = o, s.groups
		}
	}
	for i, part := range parts {
		for o := part.From; o < part.To; o++ {
			if c := s.at(o); c.state == inHand && c.holder == whole[i] {
				s.judge(c, verdicts[o], groups[o])
			}
		}
	}
}

func (s *model) outcomes(part settle.Span) (out []settle.Outcome) {
	if rapid.Bool().Draw(s.t, "all done") {
		return nil
	}
	for at := part.From; at < part.To; {
		from := at + penstock.Offset(rapid.IntRange(0, 40).Draw(s.t, "gap"))
		to := from + penstock.Offset(rapid.IntRange(1, 40).Draw(s.t, "run"))
		if to > part.To {
			break
		}
		v := rapid.SampledFrom([]settle.Verdict{settle.Retry, settle.Retry, settle.Retry, settle.DeadLetter, settle.Done}).Draw(s.t, "verdict")
		if v == settle.Retry && rapid.IntRange(0, 200).Draw(s.t, "fault") == 200 {
			v = settle.Fault
		}
		after := time.Duration(rapid.IntRange(0, 2).Draw(s.t, "after")) * time.Second
		out = append(out, settle.Outcome{From: from, To: to, Verdict: v, After: after, Cause: errFirst})
		at = to
	}
	return out
}

func (s *model) judge(c *cell, o settle.Outcome, group int) {
	delay := func(failed int) time.Time {
		if o.After > 0 {
			return s.now.Add(o.After)
		}
		return s.now.Add(s.policy.Backoff.Delay(failed, 0))
	}
	c.due = time.Time{}
	switch {
	case o.Verdict == settle.Done:
		c.state = done
	case o.Verdict == settle.Fault:
		c.state, s.fault = waits, true
	case c.dead:
		c.handOver++
		c.state, c.due = waits, delay(c.handOver)
	case o.Verdict == settle.DeadLetter || c.attempt == s.policy.Attempts:
		c.state, c.dead, c.group = waits, true, group
	default:
		c.state, c.due = waits, delay(c.attempt)
	}
}

// restart makes a new machine from what is stored; all that was in hand or
// waited is delivered anew.
func (s *model) restart() {
	m, err := settle.New(settle.Config{Policy: s.policy, Beside: s.beside, Committed: s.m.Committed(), Completed: s.m.AppendCompleted(nil),
		Rand: func() float64 { return 0 }})
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range s.cells {
		if s.cells[i].state != done {
			s.cells[i] = cell{}
		}
	}
	s.m, s.fault, s.spans = m, false, nil
}

func (s *model) check() {
	committed := s.base + penstock.Offset(s.committed())
	if got := s.m.Committed(); got != committed || got < s.highest {
		s.t.Fatalf("committed %d, want %d, never below %d", got, committed, s.highest)
	}
	s.highest = committed
	count := map[int]int{}
	delivered := committed
	for i, c := range s.cells {
		count[c.state]++
		if c.state == inHand || c.state == waits {
			delivered = s.base + penstock.Offset(i) + 1
		}
	}
	if got := s.m.Unsettled(); got != count[inHand]+count[waits] {
		s.t.Fatalf("unsettled %d, want %d", got, count[inHand]+count[waits])
	}
	if got := s.m.InHand(); got != count[inHand] {
		s.t.Fatalf("in hand %d, want %d", got, count[inHand])
	}
	if got := s.m.Delivered(); got < delivered || got > committed+settle.WindowMax && got > delivered {
		s.t.Fatalf("delivered %d with the commit at %d, want at least %d", got, committed, delivered)
	}
	if due, ok := s.m.Due(); ok != (count[waits] > 0 && !s.fault) || ok && !due.Equal(s.due()) {
		s.t.Fatalf("due %v, %v with %d waiting", due, ok, count[waits])
	}
	s.checkReason(count)
	stored := s.m.AppendCompleted(nil)
	if len(stored) > settle.CompletedMax {
		s.t.Fatalf("completed takes %d bytes", len(stored))
	}
	for i := int(committed - s.base); i < len(s.cells); i++ {
		bit := i - int(committed-s.base)
		set := bit/8 < len(stored) && stored[bit/8]&(1<<(bit%8)) != 0
		if set != (s.cells[i].state == done) {
			s.t.Fatalf("cell %d is stored as done %v, want %v", i, set, !set)
		}
	}
}

func (s *model) due() time.Time {
	due := s.cells[s.first(waits)].due
	for _, c := range s.cells {
		if s.beside && c.state == waits && c.due.Before(due) {
			due = c.due
		}
	}
	return due
}

func (s *model) checkReason(count map[int]int) {
	b := s.m.Blocked()
	want := settle.NotBlocked
	switch {
	case s.fault:
		want = settle.Faulted
	case count[waits] > 0 && s.cells[s.first(waits)].dead:
		want = settle.DeadLettering
	case count[waits] > 0:
		want = settle.Retrying
	case int(s.m.Delivered()-s.m.Committed()) >= settle.WindowMax:
		want = settle.WindowFull
	}
	if b.Reason != want || (b.String() == "") != (want == settle.NotBlocked) {
		s.t.Fatalf("blocked %+v %q, want reason %d", b, b, want)
	}
	if want == settle.Retrying || want == settle.DeadLettering {
		i := s.first(waits)
		if b.Offset != s.base+penstock.Offset(i) || b.Attempt != s.cells[i].attempt {
			s.t.Fatalf("blocked %+v, want cell %d with %d attempts", b, i, s.cells[i].attempt)
		}
	}
}

// The machine does, operation by operation, what a plain slice does.
func TestMachineModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := &model{
			t: rt, now: start,
			base:   penstock.Offset(rapid.SampledFrom([]uint64{0, 5, 1<<31 - 7, 1<<32 - 100, 1<<63 - 3}).Draw(rt, "base")),
			cells:  make([]cell, 5000),
			policy: settle.Policy{Attempts: rapid.IntRange(1, 4).Draw(rt, "attempts"), Backoff: plain.Backoff},
		}
		s.highest, s.beside = s.base, rapid.Bool().Draw(rt, "beside")
		m, err := settle.New(settle.Config{Policy: s.policy, Beside: s.beside, Committed: s.base, Rand: func() float64 { return 0 }})
		if err != nil {
			rt.Fatal(err)
		}
		s.m = m
		rt.Repeat(map[string]func(*rapid.T){
			"append":  func(t *rapid.T) { s.end = min(len(s.cells), s.end+rapid.IntRange(1, 1500).Draw(t, "more")) },
			"next":    func(*rapid.T) { s.next() },
			"next2":   func(*rapid.T) { s.next() },
			"settle":  func(*rapid.T) { s.settle() },
			"settle2": func(*rapid.T) { s.settle() },
			"parts":   func(*rapid.T) { s.settleParts() },
			"release": func(*rapid.T) { s.release() },
			"wait": func(t *rapid.T) {
				s.now = s.now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			},
			"restart": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					s.restart()
				}
			},
			"": func(*rapid.T) { s.check() },
		})
	})
}
