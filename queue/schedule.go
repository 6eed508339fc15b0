package queue

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// schedule decides which events of a partition a worker gets next, so that
// events of one key come in their order and in one worker at a time, while
// different keys go on beside each other. It is pure state: it holds offsets
// and keys, no events, and knows neither workers nor time.
//
// Events come in by add, in tasks; a worker gets some by pick; what failed is
// told by fail; finish lets their keys go on. An event that failed holds the
// later ones of its key back until it has come in again and is finished, or
// until it is no longer expected (see recheck). Events without a key wait for
// nobody. Of those that may start, retries come before new events, and lower
// offsets before higher ones, so that the commit moves on.
//
// Invariants: every task is in exactly one line. A line is in fresh or again
// exactly when its first task may start. The tasks of a line rise in offset.
// ready and readyBytes are sums over the lines in fresh.
type schedule struct {
	lines      map[string]*line // by key
	fresh      lineHeap         // their first task is new
	again      lineHeap         // their first task was delivered before, or is a dead letter
	failing    int              // lines with failed events
	spare      []*line
	ready      int            // new events that may start
	readyBytes penstock.Bytes // their size, if tasks have one
	events     int            // all that have not started
	retries    int            // of events, those delivered before
}

// Bounds of what is kept for reuse: lines, and tasks in each.
const (
	spareLines = settle.WindowMax
	spareTasks = 64
)

// task is a run of events of one key that have not started, or that a worker
// has.
type task struct {
	span  settle.Span // a part of what the machine handed out
	batch uint64      // which span of the machine's that was
	epoch uint32      // of the writer; one batch has one
	taken int64       // when the machine handed it out, in Unix nanoseconds
	size  penstock.Bytes
	bad   bool  // cannot be decoded: alone in its batch
	line  *line // set by add; nil in the hands of a worker without a key
}

func (t *task) again() bool { return t.span.Attempt > 1 || t.span.DeadLetter }

// joins reports whether t can be in one batch with first.
func (t *task) joins(first *task) bool {
	return !t.bad && !first.bad && t.span.Attempt == first.span.Attempt && t.epoch == first.epoch && t.span.DeadLetter == first.span.DeadLetter &&
		(!t.span.DeadLetter || t.batch == first.batch)
}

// line is the events of one key in their order. An event without a key, or a
// run of such events, is in a line of its own.
type line struct {
	key    string
	keyed  bool
	busy   bool              // a worker has events of it
	tasks  []task            // from head on: not started
	head   int               // spares moving the rest
	events int               // in tasks
	size   penstock.Bytes    // of tasks
	failed []penstock.Offset // failed, and not back; they rise
	in     *lineHeap
	place  int // in in
}

// add takes a task in; key "" means that its events have none.
func (s *schedule) add(key string, t task) {
	l := s.lineOf(key)
	t.line = l
	n := t.span.Len()
	s.events += n
	if t.again() {
		s.retries += n
	}
	s.leaveHeap(l)
	l.events += n
	l.size += t.size
	s.unfail(l, func(o penstock.Offset) bool { return o >= t.span.From && o < t.span.To })
	if last := len(l.tasks); last == l.head || l.tasks[last-1].span.From < t.span.From {
		l.tasks = append(l.tasks, t)
	} else {
		at, _ := slices.BinarySearchFunc(l.tasks[l.head:], t.span.From, func(t task, o penstock.Offset) int { return cmp.Compare(t.span.From, o) })
		l.tasks = slices.Insert(l.tasks, l.head+at, t)
	}
	s.enterHeap(l)
}

func (s *schedule) lineOf(key string) *line {
	if key != "" {
		if l := s.lines[key]; l != nil {
			return l
		}
	}
	var l *line
	if n := len(s.spare); n > 0 {
		l, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		l = &line{}
	}
	if key != "" {
		if s.lines == nil {
			s.lines = make(map[string]*line)
		}
		l.key, l.keyed = key, true
		s.lines[key] = l
	}
	return l
}

// pick appends to out what one worker gets: at most max events, and at most
// limit in size, unless one is larger; limit 0 is none. It reports whether the
// limit cut it. The result is sorted by offset. With retriesOnly it gives no
// new events.
func (s *schedule) pick(max int, limit penstock.Bytes, retriesOnly bool, out []task) (picked []task, bySize bool) {
	h := &s.again
	if len(*h) == 0 {
		if h = &s.fresh; retriesOnly {
			return out, false
		}
	}
	p := picking{out: out, room: max, limit: limit}
	for p.room > 0 && len(*h) > 0 && !p.full {
		l := (*h)[0]
		if len(p.out) > 0 && !l.first().joins(&p.out[0]) {
			break
		}
		s.leaveHeap(l)
		before := len(p.out)
		p.take(l)
		for i := range p.out[before:] {
			t := &p.out[before+i]
			s.forget(t)
			if !l.keyed {
				t.line = nil // l is another one by the time that t is finished
			}
		}
		l.busy = l.busy || l.keyed && len(p.out) > before
		s.enterHeap(l)
	}
	slices.SortFunc(p.out, func(a, b task) int { return cmp.Compare(a.span.From, b.span.From) })
	return p.out, p.full
}

// picking is a pick under way.
type picking struct {
	out   []task
	room  int
	size  penstock.Bytes
	limit penstock.Bytes
	full  bool // the next event does not fit limit
}

// take moves tasks from the front of a line to out, as long as they may start
// and fit.
func (p *picking) take(l *line) {
	for p.room > 0 && l.head < len(l.tasks) {
		t := &l.tasks[l.head]
		if len(l.failed) > 0 && t.span.From > l.failed[0] || len(p.out) > 0 && !t.joins(&p.out[0]) {
			return
		}
		if p.limit > 0 {
			if len(p.out) > 0 && t.size > p.limit-p.size {
				p.full = true
				return
			}
			p.size += min(t.size, p.limit-p.size)
		}
		n := t.span.Len()
		if n > p.room {
			first := *t
			first.span = t.span.Part(t.span.From, t.span.From+penstock.Offset(p.room))
			t.span = t.span.Part(first.span.To, t.span.To)
			p.out, p.room = append(p.out, first), 0
			return
		}
		p.out = append(p.out, *t)
		p.room -= n
		*t = task{} // drop the error
		l.head++
	}
	if p.limit > 0 && p.size >= p.limit {
		p.full = true
	}
}

// fail tells that the event at an offset of a task that a worker has failed: it
// is expected to come in again, and later ones of its key wait for it. It is
// told before finish.
func (s *schedule) fail(t *task, o penstock.Offset) {
	l := t.line
	if l == nil {
		return
	}
	if len(l.failed) == 0 {
		s.failing++
	}
	if at, found := slices.BinarySearch(l.failed, o); !found {
		l.failed = slices.Insert(l.failed, at, o)
	}
}

// unfail forgets those failed events of a line that are not to be waited for.
func (s *schedule) unfail(l *line, not func(penstock.Offset) bool) {
	if len(l.failed) == 0 {
		return
	}
	if l.failed = slices.DeleteFunc(l.failed, not); len(l.failed) == 0 {
		s.failing--
	}
}

// finish tells that a worker is done with what pick gave it.
func (s *schedule) finish(tasks []task) {
	for i := range tasks {
		if l := tasks[i].line; l != nil {
			l.busy = false
		}
	}
	for i := range tasks {
		if l := tasks[i].line; l != nil && l.keyed && l.in == nil { // else it was seen at another task
			s.enterHeap(l)
		}
	}
}

// recheck asks of each failed event whether it left the partition for the retry
// log, and is not expected any more. Later events of its key that have not
// started then leave too: their spans are appended to out, sorted by offset, to
// be given back.
func (s *schedule) recheck(left func(penstock.Offset) bool, out []settle.Span) []settle.Span {
	if s.failing == 0 {
		return out
	}
	for _, l := range s.lines {
		first, any := penstock.Offset(0), false
		s.unfail(l, func(o penstock.Offset) bool {
			gone := left(o)
			if gone && !any {
				first, any = o, true
			}
			return gone
		})
		if any {
			s.leaveHeap(l)
			out = s.evict(l, first, out)
			s.enterHeap(l)
		}
	}
	slices.SortFunc(out, func(a, b settle.Span) int { return cmp.Compare(a.From, b.From) })
	return out
}

// evict takes the tasks behind an offset out of a line.
func (s *schedule) evict(l *line, behind penstock.Offset, out []settle.Span) []settle.Span {
	keep := l.head
	for keep < len(l.tasks) && l.tasks[keep].span.From < behind {
		keep++
	}
	for i := keep; i < len(l.tasks); i++ {
		t := &l.tasks[i]
		s.forget(t)
		out = append(out, t.span)
		*t = task{}
	}
	l.tasks = l.tasks[:keep]
	return out
}

// forget takes a task, which left its line, out of the sums.
func (s *schedule) forget(t *task) {
	n := t.span.Len()
	s.events -= n
	if t.again() {
		s.retries -= n
	}
	t.line.events -= n
	t.line.size -= t.size
}

func (l *line) first() *task { return &l.tasks[l.head] }

// startable reports whether the first task may start.
func (l *line) startable() bool {
	return !l.busy && l.head < len(l.tasks) && (len(l.failed) == 0 || l.first().span.From < l.failed[0])
}

// enterHeap puts a line where it belongs after a change: among those that may
// start, or nowhere, and drops one that holds nothing.
func (s *schedule) enterHeap(l *line) {
	if l.head == len(l.tasks) {
		l.tasks, l.head = l.tasks[:0], 0
		if !l.busy && len(l.failed) == 0 {
			s.drop(l)
			return
		}
	} else if l.head > len(l.tasks)/2 && l.head > 32 {
		n := copy(l.tasks, l.tasks[l.head:])
		clear(l.tasks[n:])
		l.tasks, l.head = l.tasks[:n], 0
	}
	if !l.startable() {
		return
	}
	if l.first().again() {
		heap.Push(&s.again, l)
		l.in = &s.again
		return
	}
	heap.Push(&s.fresh, l)
	l.in = &s.fresh
	s.ready += l.events
	s.readyBytes += l.size
}

// leaveHeap takes a line out before a change.
func (s *schedule) leaveHeap(l *line) {
	if l.in == nil {
		return
	}
	if l.in == &s.fresh {
		s.ready -= l.events
		s.readyBytes -= l.size
	}
	heap.Remove(l.in, l.place)
	l.in = nil
}

func (s *schedule) drop(l *line) {
	if l.keyed {
		delete(s.lines, l.key)
	}
	*l = line{tasks: l.tasks, failed: l.failed}
	if cap(l.tasks) > spareTasks {
		l.tasks = nil
	}
	if len(s.spare) < spareLines {
		s.spare = append(s.spare, l)
	}
}

// lineHeap orders lines by the offsets of their first tasks.
type lineHeap []*line

func (h lineHeap) Len() int           { return len(h) }
func (h lineHeap) Less(i, j int) bool { return h[i].first().span.From < h[j].first().span.From }
func (h lineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push is for package heap.
func (h *lineHeap) Push(x any) {
	l := x.(*line)
	l.place = len(*h)
	*h = append(*h, l)
}

// Pop is for package heap.
func (h *lineHeap) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return l
}
