package seglog

import "github.com/penstock/penstock"

// Span is a run of readable events that lie next to each other in memory.
// Values and Metas are views of the log: they are valid until the low-water
// mark passes them, and must not be written to.
type Span[T any] struct {
	First  penstock.Offset
	Values []T
	Metas  []penstock.Meta // nil, or as long as Values
}

// Cursor is one reader's place in the chain of segments. It is a hint that
// saves a walk, not a hold: the reader's [Hold] keeps the events alive. It is
// not safe for concurrent use.
//
// Invariant: seg is nil or in the chain, because the hold's low is below its
// end (see [Cursor.Leave]). When the hold was removed, seg may be out of the
// chain; its links then still lead back to it, because what is lent is not used
// again ([Log.Lend]).
type Cursor[T any] struct {
	log *Log[T]
	seg *segment[T]
}

// Cursor returns a cursor that is nowhere yet.
func (l *Log[T]) Cursor() Cursor[T] { return Cursor[T]{log: l} }

// View returns the events from offset at to the end of its segment, at most up
// to limit. limit is at most an end that the caller has read from the log, and
// at is at or above the low of the caller's hold. The span is empty when
// at >= limit, and when the hold was removed and the events are gone. It copies
// nothing, allocates nothing and takes no lock unless the cursor has to find
// its segment again.
func (c *Cursor[T]) View(at, limit penstock.Offset) Span[T] {
	if at >= limit {
		return Span[T]{First: at}
	}
	s := c.seg
	if s == nil || at < s.base {
		s = c.log.find(at)
	}
	if s == nil {
		return Span[T]{First: at} // the hold is gone, and the events with it
	}
	for at >= s.end() {
		s = s.next.Load() // not nil: at is below the published end
	}
	c.seg = s
	from, to := int(at-s.base), int(min(limit, s.end())-s.base)
	span := Span[T]{First: at, Values: s.items[from:to:to]}
	if m := s.metas.Load(); m != nil {
		span.Metas = (*m)[from:to:to]
	}
	return span
}

// SegmentEnd returns one past the last slot of the segment that the cursor's
// last View was in: when nothing keeps other memory alive, releasing less than
// that gives nothing back. The view was not empty.
func (c *Cursor[T]) SegmentEnd() penstock.Offset { return c.seg.end() }

// Times appends the append times of the span's events to dst. The span is the
// result of the cursor's last View.
func (c *Cursor[T]) Times(dst []penstock.TimeRun, span Span[T]) []penstock.TimeRun {
	if len(span.Values) == 0 {
		return dst
	}
	from := int(span.First - c.seg.base)
	return c.seg.times(dst, from, from+len(span.Values))
}

// Leave tells the cursor that the hold's low is about to rise to low. It is
// called before [Hold.Lower], while the hold still keeps the cursor's segment
// in the chain.
func (c *Cursor[T]) Leave(low penstock.Offset) {
	for c.seg != nil && low >= c.seg.end() {
		c.seg = c.seg.next.Load()
	}
}
