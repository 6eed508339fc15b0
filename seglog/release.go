package seglog

import "github.com/penstock/penstock"

const (
	// maxFree is how many finished segments a log keeps for reuse.
	maxFree = 2
	// smallest and largest are the bounds of adaptive segment sizes, in events;
	// largestBytes bounds them for events so large that a few are many bytes.
	smallest     = 64
	largest      = 4096
	largestBytes = 4 << 20
)

// Release tells the log that nobody looks at events below low any more. They
// are cleared at once when they hold pointers, and segments wholly below low
// are kept for reuse or dropped; no append is needed for it ([Log.Lend] tells
// the exception). A low at or below an earlier one changes nothing. It panics
// when low is above the end.
//
// Every reader's next view begins at or above low, and no slice of an earlier
// view below low is used after the call.
func (l *Log[T]) Release(low penstock.Offset) {
	if low > l.End() {
		panic("seglog: Release: low-water mark above the end")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for low > l.released {
		s := l.head
		to := min(low, s.end())
		l.wipe(s, int(l.released-s.base), int(to-s.base))
		l.released = to
		if !l.dropHead() {
			return // low == to: nothing of the tail is left to release
		}
	}
}

// dropHead takes the head out of the chain when all of it is released and it
// is not the tail, and reports whether the walk may go on.
func (l *Log[T]) dropHead() bool {
	s := l.head
	if l.released < s.end() {
		return false
	}
	next := s.next.Load()
	if next == nil {
		return false // the tail: the appender links the next one to it
	}
	l.head = next
	if l.late == s {
		l.late = next
	}
	l.keep(s)
	return true
}

// wipe drops what the slots [from, to) of s keep alive.
func (l *Log[T]) wipe(s *segment[T], from, to int) {
	if l.lent > 0 {
		s.unclear = true
		return
	}
	if l.frozen > s.base+penstock.Offset(from) {
		s.unclear = true
		from = int(min(l.frozen, s.base+penstock.Offset(to)) - s.base)
	}
	if l.pointers {
		clear(s.items[from:to])
	}
	if m := s.metas.Load(); m != nil {
		clear((*m)[from:to])
	}
}

// keep puts a finished segment aside for reuse. The largest are kept here.
func (l *Log[T]) keep(s *segment[T]) {
	if len(s.items) == 0 || l.lent > 0 || s.unclear {
		return
	}
	if len(l.free) < maxFree {
		l.free = append(l.free, s)
		return
	}
	for i, f := range l.free {
		if len(f.items) < len(s.items) {
			l.free[i], s = s, f
		}
	}
	l.shelf.put(s)
}

// take returns a segment with free slots for events from base on.
func (l *Log[T]) take(base penstock.Offset, need int) *segment[T] {
	l.mu.Lock()
	l.late = l.tail
	want := l.config.SegmentSize
	if want == 0 {
		want = min(adaptive(base-l.released, need), l.most)
	}
	for i := len(l.free) - 1; i >= 0; i-- {
		s := l.free[i]
		if len(s.items) >= want {
			l.free = append(l.free[:i], l.free[i+1:]...)
			l.mu.Unlock()
			return s
		}
	}
	l.mu.Unlock()
	if s := l.shelf.take(want); s != nil {
		return s
	}
	return &segment[T]{items: make([]T, want)}
}

// adaptive returns the size of the next segment: it holds the events that are
// about to be appended, as far as one can, and is otherwise at most as large as
// the backlog, so that no more is cleared and kept than twice what is used.
func adaptive(backlog penstock.Offset, need int) int {
	size := smallest
	for size < largest && (backlog >= penstock.Offset(2*size) || need > size) {
		size *= 2
	}
	return size
}

// Usage says what a log keeps.
type Usage struct {
	Released penstock.Offset // events below it are gone
	End      penstock.Offset
	Segments int // in the chain
	Free     int // kept for reuse
	Slots    int // of both
}

// Usage walks the chain and returns what the log keeps.
func (l *Log[T]) Usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := Usage{Released: l.released, End: l.End(), Free: len(l.free)}
	for s := l.head; s != nil; s = s.next.Load() {
		u.Segments++
		u.Slots += len(s.items)
	}
	for _, s := range l.free {
		u.Slots += len(s.items)
	}
	return u
}

// Lend tells the log that a reader has lost its hold and may still be looking
// at what the hold kept. Until a matching Return, finished segments are left to
// the garbage collector as they are, neither cleared nor used again.
func (l *Log[T]) Lend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lent++
}

// Return ends one Lend: that reader looks at nothing any more. The last one
// clears what was finished with meanwhile and is still in the chain.
func (l *Log[T]) Return() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLend()
}

func (l *Log[T]) endLend() {
	if l.lent--; l.lent < 0 {
		panic("seglog: end of a Lend that was not")
	}
	if s := l.head; l.lent == 0 && s.unclear { // only the head can be
		s.unclear = false
		l.wipe(s, 0, int(l.released-s.base))
	}
}

// Abandon ends one Lend of a reader that will say no more, but whose views may
// still be in use. What is readable now is left to the garbage collector for
// good, segment by segment; what is appended from now on is cleared and used
// again as ever.
func (l *Log[T]) Abandon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = l.End()
	l.endLend()
}

// find returns the segment of the chain that holds offset at, the tail when at
// is its end, and nil when at is no longer kept.
func (l *Log[T]) find(at penstock.Offset) *segment[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at < l.released {
		return nil
	}
	s := l.head
	if at >= l.late.base {
		s = l.late // spares those who begin at the end a walk of the backlog
	}
	for at >= s.end() {
		next := s.next.Load()
		if next == nil {
			break
		}
		s = next
	}
	return s
}
