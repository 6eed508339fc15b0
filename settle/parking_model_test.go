package settle_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
	"github.com/penstock/penstock/settle"
)

// item is one event in the model of parking.
type item struct {
	key      string
	size     penstock.Bytes
	state    int // fresh, inHand, waits, done, or, while here, parked
	attempt  int // deliveries made
	dead     bool
	handOver int
	due      time.Time
	failed   bool
	holder   settle.Span

	parked  bool // here: in the lot, also when done and the log does not know
	entry   uint64
	inLog   bool // the log has confirmed that it is parked
	settled int  // when, in settlements; 0 when it is not
	discard bool // in hand, and given up when that fails
}

const lotted = 10 // not in hand

// shop is a plain model of a machine with parking and of what is stored.
type shop struct {
	t      *rapid.T
	m      *settle.Machine
	policy settle.Policy
	after  time.Duration
	bounds demand.BudgetConfig
	base   penstock.Offset
	items  []item
	end    int
	now    time.Time
	spans  []settle.Span
	clock  int
	fault  bool
	strict bool // handlers stop a key at its first failure
	faulty bool // some failures are faults
	fullAt int  // where the last Next found no room; -1
	beside bool // settle.Config.Beside: the order is the carrier's, who keeps none here
	budget *demand.Budget
	others demand.BudgetConfig // what other machines have of it

	log   []settle.Entry // appended to the retry log by this machine and its forebears
	own   int            // the entry of this machine with number n is log[own+n-1]
	acked uint64

	committed penstock.Offset // stored
	completed []byte
}

func (s *shop) at(o penstock.Offset) *item { return &s.items[o-s.base] }

func (s *shop) offset(i int) penstock.Offset { return s.base + penstock.Offset(i) }

func (s *shop) config(committed penstock.Offset, completed []byte, log []settle.Entry) settle.Config {
	budget, err := demand.NewBudget(s.bounds)
	if err != nil {
		s.t.Fatal(err)
	}
	if !budget.TryAcquire(s.others.Events, s.others.Bytes) {
		s.t.Fatalf("no room for what others have: %+v", s.others)
	}
	var asked penstock.Offset
	return settle.Config{Policy: s.policy, Beside: s.beside, Committed: committed, Completed: completed, Rand: func() float64 { return 0 },
		Parking: &settle.Parking{After: s.after, Budget: budget, Log: log,
			Key: func(o penstock.Offset) string {
				if o < s.base || o >= s.offset(s.end) {
					s.t.Fatalf("the machine asked for offset %d, which cannot be read", o)
				}
				asked = o
				return s.at(o).key
			},
			Size: func(o penstock.Offset) penstock.Bytes {
				if o != asked {
					s.t.Fatalf("the machine asked for the size of offset %d after the key of %d", o, asked)
				}
				return s.at(o).size
			}}}
}

// begin goes on with a new machine.
func (s *shop) begin() {
	c := s.config(s.committed, s.completed, s.log)
	s.m, s.budget = s.renew(c), c.Parking.Budget
	s.fault, s.spans, s.own, s.acked, s.fullAt = false, nil, len(s.log), 0, -1
}

func (s *shop) renew(c settle.Config) *settle.Machine {
	m, err := settle.New(c)
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

// passed reports whether the commit may pass the item.
func (it *item) passed() bool { return it.state == done || it.parked && it.inLog }

func (s *shop) firstNotPassed() int {
	for i := range s.items {
		if !s.items[i].passed() {
			return i
		}
	}
	return len(s.items)
}

// first returns the lowest item that is in a state in its place.
func (s *shop) first(state int) int {
	return s.firstWhere(func(it *item) bool { return it.state == state })
}

func (s *shop) firstWhere(is func(*item) bool) int {
	for i := range s.items {
		if it := &s.items[i]; !it.parked && is(it) {
			return i
		}
	}
	return len(s.items)
}

func (s *shop) used() (events int, bytes penstock.Bytes) {
	for i := range s.items {
		if s.items[i].parked {
			events++
			bytes += s.items[i].size
		}
	}
	return events, bytes
}

func (s *shop) leaders() map[string]int {
	out := map[string]int{}
	for i := range s.items {
		it := &s.items[i]
		if _, ok := out[it.key]; it.parked && it.key != "" && !ok {
			out[it.key] = i
		}
	}
	return out
}

func (s *shop) follows(leaders map[string]int, i int) bool {
	l, ok := leaders[s.items[i].key]
	return ok && l < i
}

// park parks item i, if there is room.
func (s *shop) park(i int) bool {
	it := &s.items[i]
	events, bytes := s.used()
	if s.others.Events+events+1 > s.bounds.Events || s.others.Bytes+bytes+it.size > s.bounds.Bytes {
		return false
	}
	it.parked, it.inLog, it.state = true, false, lotted
	return true
}

// next asks for a delivery and checks it item by item.
func (s *shop) next(size int) bool {
	at := s.m.Position()
	span, ok := s.m.Next(s.now, s.offset(s.end), size)
	from, to := s.predict(size)
	if ok != (to > from) {
		s.t.Fatalf("delivered %v %+v, want items %d to %d", ok, span, from, to)
	}
	s.collect()
	if !ok {
		return s.m.Position() != at
	}
	if span.From != s.offset(from) || span.Parked || span.To > s.offset(to) {
		s.t.Fatalf("span %+v, want one within items %d to %d", span, from, to)
	}
	head := s.items[from]
	if head.state == fresh && span.To != s.offset(to) {
		s.t.Fatalf("new span %+v, want items %d to %d", span, from, to)
	}
	for o := span.From; o < span.To; o++ {
		if it := s.at(o); it.parked || it.state != head.state || it.dead != head.dead || it.attempt != head.attempt || s.now.Before(it.due) {
			s.t.Fatalf("span %+v joins %+v with %+v", span, head, *it)
		}
	}
	s.take(span)
	return true
}

// predict parks what has to be parked and returns which items may be delivered.
func (s *shop) predict(size int) (from, to int) {
	s.fullAt = -1
	for !s.fault {
		leaders := s.leaders()
		from := s.first(waits)
		if s.beside {
			from = s.firstWhere(func(it *item) bool { return it.state == waits && !s.now.Before(it.due) })
		}
		limit := s.end
		if from < len(s.items) {
			if s.now.Before(s.items[from].due) {
				return 0, 0
			}
		} else {
			from = s.first(fresh)
			limit = min(s.end, s.firstNotPassed()+settle.WindowMax)
		}
		if from >= limit {
			return 0, 0
		}
		if it := &s.items[from]; !it.dead && s.follows(leaders, from) {
			if !s.park(from) {
				s.fullAt = from
				return 0, 0
			}
			continue
		}
		to := from
		for to < limit && to-from < size && !s.items[to].parked && s.items[to].state == s.items[from].state &&
			(s.items[from].dead || !s.follows(leaders, to)) {
			to++
		}
		return from, to
	}
	return 0, 0
}

// take puts a span in hand. Nothing earlier of a key may be left behind.
func (s *shop) take(span settle.Span) {
	leaders := map[string]bool{}
	for i := range int(span.From - s.base) {
		it := &s.items[i]
		if !s.beside && it.key != "" && !it.dead && it.state != done && (it.parked || it.state != inHand) {
			leaders[it.key] = true
		}
	}
	for o := span.From; o < span.To; o++ {
		it := s.at(o)
		if !it.dead && leaders[it.key] {
			s.t.Fatalf("span %+v overtakes an earlier event of key %q", span, it.key)
		}
		it.state, it.holder = inHand, span
		if !it.dead {
			it.attempt++
		}
		if it.attempt != span.Attempt || it.dead != span.DeadLetter || it.parked != span.Parked {
			s.t.Fatalf("span %+v for %+v", span, *it)
		}
	}
	s.spans = append(s.spans, span)
}

// nextParkedItem returns the parked item that is to be delivered first.
func (s *shop) nextParkedItem() int {
	best := -1
	if s.fault {
		return best
	}
	barred := len(s.items)
	for i := range s.items {
		if it := &s.items[i]; !it.parked && !it.dead && it.state != done {
			barred = i
			break
		}
	}
	seen := map[string]bool{}
	for i := range s.items[:barred] {
		it := &s.items[i]
		if !it.parked || it.state == done || it.key != "" && seen[it.key] {
			continue
		}
		seen[it.key] = true
		busy := slices.ContainsFunc(s.items, func(o item) bool { return it.key != "" && o.key == it.key && o.parked && o.state == inHand })
		if it.state == lotted && !busy && s.known(it) && (best < 0 || it.due.Before(s.items[best].due)) {
			best = i
		}
	}
	return best
}

// known reports whether the log has confirmed the last entry of it.
func (s *shop) known(it *item) bool { return it.entry <= s.acked }

func (s *shop) nextParked() bool {
	want := s.nextParkedItem()
	due, has := s.m.ParkedDue()
	if has != (want >= 0) || has && !due.Equal(s.items[want].due) {
		s.t.Fatalf("parked due %v, %v, want item %d", due, has, want)
	}
	span, ok := s.m.NextParked(s.now)
	if ok != (has && !s.now.Before(due)) {
		s.t.Fatalf("parked %+v %v, due %v, %v", span, ok, due, has)
	}
	if ok {
		if span.From != s.offset(want) || span.Len() != 1 || !span.Parked {
			s.t.Fatalf("parked span %+v, want item %d", span, want)
		}
		if s.committed <= span.From { // see NextParked
			s.store()
		}
		s.take(span)
	}
	return ok
}

// collect appends new entries to the retry log, and notes them.
func (s *shop) collect() {
	last := uint64(len(s.log) - s.own)
	for i, e := range s.m.Unlogged() {
		if want := s.acked + uint64(i) + 1; e.Seq != want {
			s.t.Fatalf("entry %+v, want number %d", e, want)
		}
		if e.Seq <= last {
			continue
		}
		it := s.at(e.Offset)
		if !it.parked || e.Key != it.key || e.Size != it.size || e.Gone != (it.state == done) || e.New == it.inLog {
			s.t.Fatalf("entry %+v for %+v", e, *it)
		}
		s.checkEntry(e, it)
		it.entry = e.Seq
		s.log = append(s.log, e)
	}
}

func (s *shop) checkEntry(e settle.Entry, it *item) {
	if it.state != done && (e.Attempt != it.attempt || e.Dead != it.dead || e.HandOver != it.handOver || !e.Due.Equal(it.due) || (e.Cause != nil) != it.failed) {
		s.t.Fatalf("entry %+v for %+v", e, *it)
	}
}

// ack tells the machine how much the log holds.
func (s *shop) ack(seq uint64) {
	s.m.Logged(seq)
	if seq <= s.acked {
		return
	}
	for _, e := range s.log[s.own+int(s.acked) : s.own+int(seq)] {
		it := s.at(e.Offset)
		it.inLog = true
		if e.Gone {
			it.parked = false
		}
	}
	s.acked, s.fullAt = seq, -1
}

func (s *shop) settle(all bool) {
	if len(s.spans) == 0 {
		return
	}
	back := 0
	if !all {
		back = rapid.IntRange(0, min(len(s.spans)-1, 3)).Draw(s.t, "span")
	}
	span := s.spans[len(s.spans)-1-back]
	part := span
	if !all && rapid.IntRange(0, 3).Draw(s.t, "part") == 0 {
		from := span.From + penstock.Offset(rapid.IntRange(0, span.Len()-1).Draw(s.t, "from"))
		part = span.Part(from, from+penstock.Offset(rapid.IntRange(1, int(span.To-from)).Draw(s.t, "len")))
	}
	var outcomes []settle.Outcome
	if !all {
		outcomes = s.outcomes(part)
	}
	s.give(span, part, outcomes)
}

func (s *shop) give(span, part settle.Span, outcomes []settle.Outcome) {
	s.clock++
	late := true
	for o := part.From; o < part.To; o++ {
		if it := s.at(o); it.state == inHand && it.holder == span {
			late = false
		}
	}
	err := s.m.Settle(s.now, part, outcomes...)
	if late != errors.Is(err, settle.ErrLate) || !late && err != nil {
		s.t.Fatalf("settling %+v: %v, late %v", part, err, late)
	}
	verdicts := make(map[penstock.Offset]settle.Outcome)
	ends := make(map[penstock.Offset]penstock.Offset)
	for _, o := range outcomes {
		for at := o.From; at < o.To; at++ {
			verdicts[at], ends[at] = o, o.To
		}
	}
	refused := part.From // up to here nothing more is parked
	for o := part.From; o < part.To; o++ {
		if it := s.at(o); it.state == inHand && it.holder == span {
			if parks := s.judge(it, verdicts[o]); parks && o >= refused && !s.park(int(o-s.base)) {
				refused = ends[o] // the outcome goes no further
			}
		}
	}
	s.collect()
}

// judge applies a verdict and reports whether the item is to be parked.
func (s *shop) judge(it *item, o settle.Outcome) bool {
	wait := func(failed int) time.Duration {
		if o.After > 0 {
			return o.After
		}
		return s.policy.Backoff.Delay(failed, 0)
	}
	back := waits
	if it.parked {
		back = lotted
	}
	switch {
	case o.Verdict == settle.Done:
		it.state, it.settled = done, s.clock
		return false
	case o.Verdict == settle.Fault:
		it.state, s.fault = back, true
		if !it.parked {
			it.due = time.Time{}
		} else {
			it.attempt-- // not counted, as after a restart
			if it.dead {
				it.attempt++
			}
		}
		return false
	case it.dead:
		it.handOver++
		it.state, it.due = back, s.now.Add(wait(it.handOver))
		return false
	case o.Verdict == settle.DeadLetter || it.attempt >= s.policy.Attempts:
		it.state, it.dead, it.due, it.failed = back, true, time.Time{}, true
		return false
	case it.discard:
		it.state, it.dead, it.due, it.failed, it.discard = back, true, time.Time{}, true, false
		return false
	}
	it.state, it.due, it.failed = back, s.now.Add(wait(it.attempt)), true
	return !it.parked && (o.Verdict == settle.Park || s.after >= 0 && wait(it.attempt) > s.after)
}

func (s *shop) outcomes(part settle.Span) (out []settle.Outcome) {
	kind := rapid.IntRange(0, 3).Draw(s.t, "kind")
	if kind == 0 {
		return nil
	}
	bad := map[string]bool{}
	for o := part.From; o < part.To; o++ {
		key := s.at(o).key
		fails := rapid.IntRange(0, 3).Draw(s.t, "fails") == 0 || kind == 1
		if s.strict && bad[key] && key != "" {
			fails = true
		}
		if !fails {
			continue
		}
		bad[key] = true
		v := rapid.SampledFrom([]settle.Verdict{settle.Retry, settle.Retry, settle.Park, settle.Park, settle.DeadLetter}).Draw(s.t, "verdict")
		if s.faulty && rapid.IntRange(0, 40).Draw(s.t, "fault") == 13 {
			v = settle.Fault
		}
		after := time.Duration(rapid.IntRange(0, 3).Draw(s.t, "after")) * time.Second
		if n := len(out); n > 0 && rapid.IntRange(0, 3).Draw(s.t, "same") > 0 {
			v, after = out[n-1].Verdict, out[n-1].After
		}
		next := settle.Outcome{From: o, To: o + 1, Verdict: v, After: after, Cause: errFirst}
		if n := len(out); n > 0 && out[n-1].To == o && out[n-1].Verdict == v && out[n-1].After == after {
			out[n-1].To++ // one verdict on several keys
		} else {
			out = append(out, next)
		}
	}
	return out
}

// store is what a carrier writes to its cursor.
func (s *shop) store() {
	s.committed, s.completed = s.m.Committed(), s.m.AppendCompleted(nil)
}

// restart goes on from what is stored: the cursor, and the log up to some
// entry that it may hold without having confirmed it.
func (s *shop) restart() {
	held := s.own + int(s.acked) + rapid.IntRange(0, len(s.log)-s.own-int(s.acked)).Draw(s.t, "held")
	s.log = s.log[:held]
	old := slices.Clone(s.items)
	for i := range s.items {
		bit := i - int(s.committed-s.base)
		settled := bit < 0 || bit/8 < len(s.completed) && s.completed[bit/8]&(1<<(bit%8)) != 0
		s.items[i] = item{key: s.items[i].key, size: s.items[i].size}
		if settled {
			s.items[i].state, s.items[i].settled = done, old[i].settled
		}
	}
	last := map[penstock.Offset]settle.Entry{}
	for _, e := range s.log {
		last[e.Offset] = e
	}
	for o, e := range last {
		it := s.at(o)
		if e.Gone {
			continue
		}
		*it = item{key: it.key, size: it.size, state: lotted, parked: true, inLog: true, attempt: e.Attempt, due: e.Due,
			dead: e.Dead, handOver: e.HandOver, failed: e.Cause != nil}
	}
	if s.strict {
		s.checkNotStale(old)
	}
	s.begin()
}

// othersTake lets other machines take of the budget.
func (s *shop) othersTake(events int, bytes penstock.Bytes) {
	mine, size := s.used()
	fits := s.others.Events+mine+events <= s.bounds.Events && s.others.Bytes+size+bytes <= s.bounds.Bytes
	if s.budget.TryAcquire(events, bytes) != fits {
		s.t.Fatalf("%d events and %d bytes of %+v, beside %d and %d: fits %v", events, bytes, s.others, mine, size, fits)
	}
	if fits {
		s.others.Events += events
		s.others.Bytes += bytes
	}
}

// othersGive lets them give it back, and tells the machine.
func (s *shop) othersGive() {
	s.budget.Release(s.others.Events, s.others.Bytes)
	s.others = demand.BudgetConfig{}
	s.m.MadeRoom()
	s.fullAt = -1
}

// discard gives a key up. That writes no entry, so the log is written anew.
func (s *shop) discard(key string) {
	n := 0
	for i := range s.items {
		it := &s.items[i]
		if !it.parked || it.dead || it.state == done || it.key != key {
			continue
		}
		n++
		if it.state == inHand {
			it.discard = true
		} else {
			it.dead, it.due, it.failed = true, time.Time{}, true
		}
	}
	if got := s.m.DiscardParked(key, func(error) error { return errFirst }); got != n {
		s.t.Fatalf("%d events are discarded, want %d", got, n)
	}
	s.rewrite()
}

// release gives the events of a span back that are still in hand.
func (s *shop) release(span settle.Span) {
	late := true
	for o := span.From; o < span.To; o++ {
		it := s.at(o)
		if it.state != inHand || it.holder != span {
			continue
		}
		late = false
		it.state, it.due = waits, time.Time{}
		if !it.dead {
			it.attempt--
		}
	}
	if err := s.m.Release(span); late != errors.Is(err, settle.ErrLate) || !late && err != nil {
		s.t.Fatalf("releasing %+v: %v, late %v", span, err, late)
	}
}

// rewrite replaces the log by what is parked.
func (s *shop) rewrite() {
	s.ack(s.acked + uint64(len(s.m.Unlogged())))
	s.log = s.m.AppendParked(nil)
	s.own = len(s.log) - int(s.acked)
}

// checkNotStale fails when an event comes again although one that its key had
// after it does not: the key would be left with an old state.
func (s *shop) checkNotStale(old []item) {
	latest := map[string]int{}
	for i := len(s.items) - 1; i >= 0; i-- {
		it := &s.items[i]
		if it.key == "" || it.dead || old[i].dead {
			continue
		}
		if j, ok := latest[it.key]; ok && it.state != done && old[i].state == done && old[j].settled > old[i].settled {
			s.t.Fatalf("item %d of key %q comes again after item %d, which was handled after it and does not", i, it.key, j)
		}
		if _, ok := latest[it.key]; !ok && it.state == done {
			latest[it.key] = i
		}
	}
}

func (s *shop) check() {
	committed := s.firstNotPassed()
	if got := s.m.Committed(); got != s.offset(committed) {
		s.t.Fatalf("committed %d, want %d", got, s.offset(committed))
	}
	events, bytes := s.used()
	if s.others.Events+events > s.bounds.Events || s.others.Bytes+bytes > s.bounds.Bytes {
		s.t.Fatalf("%d events and %d bytes are parked, over the bound %+v", events, bytes, s.bounds)
	}
	var want settle.Parked
	want.Bytes = bytes
	keys := map[string]bool{}
	plain, hands := 0, 0
	for i := range s.items {
		it := &s.items[i]
		switch {
		case it.parked:
			id := it.key
			if id == "" {
				id = fmt.Sprint(i)
			}
			keys[id] = true
			if it.state != done {
				want.Events++
			}
			if it.state == inHand {
				want.InHand++
			}
			if !it.inLog {
				plain++
			}
		case it.state == inHand:
			plain++
			hands++
		case it.state == waits:
			plain++
		}
	}
	want.Keys = len(keys)
	if got := s.m.Parked(); got != want {
		s.t.Fatalf("parked %+v, want %+v", got, want)
	}
	if s.m.Unsettled() != plain || s.m.InHand() != hands {
		s.t.Fatalf("unsettled %d, in hand %d, want %d and %d", s.m.Unsettled(), s.m.InHand(), plain, hands)
	}
	stored := s.m.AppendCompleted(nil)
	for i := committed; i < len(s.items); i++ {
		bit := i - committed
		set := bit/8 < len(stored) && stored[bit/8]&(1<<(bit%8)) != 0
		if set != (s.items[i].passed() && bit < settle.WindowMax) {
			s.t.Fatalf("item %d is stored as passed %v, want %v", i, set, !set)
		}
	}
	s.checkRestored(stored)
	s.checkBlocked()
}

func (s *shop) checkBlocked() {
	b := s.m.Blocked()
	w := s.first(waits)
	full := s.fullAt >= 0 && s.offset(s.fullAt) == s.m.Position()
	first := w
	if full {
		first = len(s.items)
	}
	for i := w; s.beside && i < len(s.items) && (s.fullAt < 0 || i < s.fullAt); i++ {
		if it := &s.items[i]; !it.parked && it.state == waits && it.due.Before(s.items[first].due) {
			first = i
		}
	}
	if due, ok := s.m.Due(); ok != (first < len(s.items) && !s.fault) || ok && !due.Equal(s.items[first].due) {
		s.t.Fatalf("due %v, %v with item %d waiting", due, ok, first)
	}
	if s.m.NeedsRoom() != (s.fullAt >= 0) {
		s.t.Fatalf("needs room: %v, with item %d without", s.m.NeedsRoom(), s.fullAt)
	}
	want := settle.NotBlocked
	switch {
	case s.fault:
		want = settle.Faulted
	case full:
		want = settle.RetryLogFull
		if l, ok := s.leaders()[s.items[s.fullAt].key]; !ok || b.Behind != s.offset(l) || b.Offset != s.offset(s.fullAt) {
			s.t.Fatalf("blocked %+v, want item %d behind item %d", b, s.fullAt, l)
		}
	case w < len(s.items) && s.items[w].dead:
		want = settle.DeadLettering
	case w < len(s.items):
		want = settle.Retrying
	case s.m.Delivered()-s.m.Committed() >= settle.WindowMax:
		want = settle.WindowFull
		if s.items[s.firstNotPassed()].parked {
			want = settle.NotLogged
		}
	}
	if b.Reason != want || (b.String() == "") != (want == settle.NotBlocked) {
		s.t.Fatalf("blocked %+v %q, want reason %d", b, b, want)
	}
}

// checkRestored compares with machines made from what is stored.
func (s *shop) checkRestored(completed []byte) {
	live := s.m.AppendParked(nil)
	same := func(what string, log []settle.Entry) *settle.Machine {
		m := s.renew(s.config(s.m.Committed(), completed, log))
		if diff := cmp.Diff(live, m.AppendParked(nil), cmpopts.EquateErrors()); diff != "" {
			s.t.Fatalf("restored from %s (-machine +restored):\n%s", what, diff)
		}
		return m
	}
	same("what is parked", live)
	same("the whole log", s.log)
	confirmed := s.renew(s.config(s.m.Committed(), completed, s.log[:s.own+int(s.acked)]))
	if confirmed.Committed() != s.m.Committed() || !slices.Equal(confirmed.AppendCompleted(nil), completed) {
		s.t.Fatalf("restored from the confirmed log: committed %d, completed %x, want %d, %x",
			confirmed.Committed(), confirmed.AppendCompleted(nil), s.m.Committed(), completed)
	}
	next := 0
	for i := range s.items {
		it := &s.items[i]
		if !it.parked || it.state == done {
			continue
		}
		if next >= len(live) || live[next].Offset != s.offset(i) {
			s.t.Fatalf("item %d is parked and not among %+v", i, live)
		}
		e := live[next]
		next++
		if it.state == inHand && !it.dead {
			e.Attempt++ // counted when it is settled
		}
		s.checkEntry(e, it)
	}
	if next != len(live) {
		s.t.Fatalf("%d events are parked, want %d", len(live), next)
	}
}

// finish ends well: everything that was appended is handled.
func (s *shop) finish() {
	s.settleIfInHand()
	s.othersGive()
	for range 20 * len(s.items) {
		s.now = s.now.Add(time.Minute)
		for s.nextParked() {
			s.settle(true)
		}
		for s.next(50) {
			s.settleIfInHand()
		}
		s.ack(s.acked + uint64(len(s.m.Unlogged())))
		s.check()
		if s.first(fresh) >= s.end && s.m.Parked() == (settle.Parked{}) && s.m.Unsettled() == 0 {
			break
		}
	}
	if want := s.offset(s.end); s.m.Committed() != want || len(s.m.AppendCompleted(nil)) > 0 || len(s.m.Unlogged()) > 0 {
		s.t.Fatalf("committed %d, want %d; blocked: %v; parked %+v", s.m.Committed(), want, s.m.Blocked(), s.m.Parked())
	}
	for i := range s.items[:s.end] {
		if s.items[i].state != done {
			s.t.Fatalf("item %d was lost: %+v", i, s.items[i])
		}
	}
}

func (s *shop) settleIfInHand() {
	for _, span := range s.spans {
		for o := span.From; o < span.To; o++ {
			if it := s.at(o); it.state == inHand && it.holder == span {
				s.give(span, span, nil)
				break
			}
		}
	}
	s.spans = s.spans[:0]
}

// With parking the machine does, operation by operation, what a plain slice and
// a list of stored entries do; and whatever happened, all ends well.
func TestParkingModel_FM55_FM73(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.SampledFrom([]int{60, 60, 60, 60, 60, 60, 60, 4300}).Draw(rt, "items")
		s := &shop{
			t: rt, now: start, items: make([]item, n),
			base:   penstock.Offset(rapid.SampledFrom([]uint64{0, 5, 1<<32 - 20, 1<<63 - 3, 1<<64 - 1 - 4300}).Draw(rt, "base")),
			policy: settle.Policy{Attempts: rapid.IntRange(1, 5).Draw(rt, "attempts"), Backoff: plain.Backoff},
			after:  rapid.SampledFrom([]time.Duration{-1, 1, time.Second, 2 * time.Second}).Draw(rt, "after"),
			bounds: demand.BudgetConfig{Events: rapid.SampledFrom([]int{1, 5, 20, 5000}).Draw(rt, "events"), Bytes: 400},
			strict: rapid.Bool().Draw(rt, "strict"),
			faulty: rapid.Bool().Draw(rt, "faulty"),
			beside: rapid.Bool().Draw(rt, "beside"),
		}
		s.strict = s.strict && !s.beside
		if s.bounds.Events == 5000 {
			s.bounds.Bytes = 1 << 20
		}
		keys := []string{"", "a", "a", "b", "c", "d"}[rapid.IntRange(0, 2).Draw(rt, "first key"):]
		seed := rapid.IntRange(0, 1<<20).Draw(rt, "keys")
		for i := range s.items {
			seed = (seed*1103515245 + 12345) & (1<<31 - 1)
			s.items[i].key, s.items[i].size = keys[seed>>8%len(keys)%len(keys)], penstock.Bytes(seed>>16%30)
		}
		s.committed = s.base
		s.begin()
		sizes := rapid.IntRange(1, 10)
		if n > 1000 {
			sizes = rapid.IntRange(1, 600)
		}
		next := func(t *rapid.T) { s.next(sizes.Draw(t, "max")) }
		settleOne := func(*rapid.T) { s.settle(false) }
		ack := func(t *rapid.T) {
			top := s.acked + uint64(len(s.m.Unlogged()))
			s.ack(uint64(rapid.IntRange(int(s.acked)-min(2, int(s.acked)), int(top)).Draw(t, "seq")))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"append":  func(t *rapid.T) { s.end = min(n, s.end+rapid.IntRange(1, n/3).Draw(t, "more")) },
			"next":    next,
			"next2":   next,
			"parked":  func(*rapid.T) { s.nextParked() },
			"parked2": func(*rapid.T) { s.nextParked() },
			"settle":  settleOne,
			"settle2": settleOne,
			"settle3": settleOne,
			"ack":     ack,
			"ack2":    ack,
			"ack all": func(*rapid.T) { s.ack(s.acked + uint64(len(s.m.Unlogged()))) },
			"store":   func(*rapid.T) { s.store() },
			"wait": func(t *rapid.T) {
				s.now = s.now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			},
			"restart": func(t *rapid.T) { s.restart() },
			"rewrite": func(*rapid.T) { s.rewrite() },
			"discard": func(t *rapid.T) { s.discard(rapid.SampledFrom(keys).Draw(t, "key")) },
			"release": func(t *rapid.T) {
				if i := rapid.IntRange(0, 3).Draw(t, "span"); s.beside && i < len(s.spans) && !s.spans[len(s.spans)-1-i].Parked {
					s.release(s.spans[len(s.spans)-1-i])
				}
			},
			"others take": func(t *rapid.T) {
				s.othersTake(rapid.IntRange(0, 5).Draw(t, "events"), penstock.Bytes(rapid.IntRange(0, 200).Draw(t, "bytes")))
			},
			"others give": func(*rapid.T) { s.othersGive() },
			"":            func(*rapid.T) { s.check() },
		})
		if s.fault {
			s.store()
			s.restart()
		}
		s.finish()
	})
}
