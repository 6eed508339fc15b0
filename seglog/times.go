package seglog

import (
	"sort"

	"github.com/penstock/penstock"
)

// TimesAt sets times[i] to when the event at offsets[i] was appended, in Unix
// nanoseconds, or to 0 when that event is not kept or not readable yet. The
// offsets rise, or repeat; times is as long. All of them cost one walk of the
// segments between the first and the last, during which no segment can be added
// or taken away. It allocates nothing.
func (l *Log[T]) TimesAt(offsets []penstock.Offset, times []int64) {
	clear(times)
	end := l.End() // read first: what lies below was written before
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.head
	for i, at := range offsets {
		if at < l.released || at >= end {
			continue
		}
		if late := l.late.base; at >= late && late > s.base {
			s = l.late // spares those near the end a walk of the backlog
		}
		for at >= s.end() {
			s = s.next.Load() // not nil: at is below the published end
		}
		times[i] = s.timeOf(int(at - s.base))
	}
}

// timeOf returns the append time of a published slot.
func (s *segment[T]) timeOf(slot int) int64 {
	list := s.more.Load()
	if list == nil {
		return s.first
	}
	runs := list.runs[:list.n.Load()]
	i := sort.Search(len(runs), func(i int) bool { return runs[i].from > slot })
	if i == 0 {
		return s.first
	}
	return runs[i-1].unixNano
}

// Released returns the offset below which the log keeps nothing.
func (l *Log[T]) Released() penstock.Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.released
}
