package seglog

import (
	"sync/atomic"

	"github.com/penstock/penstock"
)

// segment is a fixed number of slots for events with consecutive offsets.
//
// The appender writes slots, metas and stamps before it publishes the end of
// the log; a reader reads only what lies below the published end. The two
// side structures are behind atomic pointers because an appender may add them
// while a reader looks at older slots.
type segment[T any] struct {
	base  penstock.Offset
	items []T
	metas atomic.Pointer[[]penstock.Meta] // nil until an event with metadata arrives; then as long as items
	first int64                           // append time of the first slot, Unix nanoseconds
	more  atomic.Pointer[stamps]          // further append times; nil or empty when all slots share first
	next  atomic.Pointer[segment[T]]

	unclear bool // finished slots were not cleared; guarded by the log's mu
}

// end returns one past the offset of the last slot.
func (s *segment[T]) end() penstock.Offset { return s.base + penstock.Offset(len(s.items)) }

// reuse makes a cleared segment ready for events from base on.
func (s *segment[T]) reuse(base penstock.Offset, stamp int64) {
	s.base, s.first = base, stamp
	if list := s.more.Load(); list != nil { // nobody reads it any more
		list.n.Store(0)
	}
	s.next.Store(nil)
}

// ensureMetas returns the side array for metadata, made at the first use.
func (s *segment[T]) ensureMetas() []penstock.Meta {
	if m := s.metas.Load(); m != nil {
		return *m
	}
	m := make([]penstock.Meta, len(s.items))
	s.metas.Store(&m)
	return m
}

// stamp is the append time of the events from slot from on.
type stamp struct {
	from     int
	unixNano int64
}

// stamps is an append-only list. The appender writes runs[n] before it raises
// n; when the array is full it goes on in a longer copy.
type stamps struct {
	n    atomic.Int64
	runs []stamp
}

// restamp records that slots from slot on were appended at unixNano. Only the
// appender calls it, before it publishes slot.
func (s *segment[T]) restamp(slot int, unixNano int64) {
	if slot == 0 {
		s.first = unixNano
		return
	}
	list := s.more.Load()
	switch {
	case list == nil:
		list = &stamps{runs: make([]stamp, 4)}
		s.more.Store(list)
	case int(list.n.Load()) == len(list.runs):
		longer := &stamps{runs: make([]stamp, min(2*len(list.runs), len(s.items)))}
		longer.n.Store(int64(copy(longer.runs, list.runs)))
		list = longer
		s.more.Store(list)
	}
	n := list.n.Load()
	list.runs[n] = stamp{from: slot, unixNano: unixNano}
	list.n.Store(n + 1)
}

// times appends the append times of the published slots [from, to) to dst.
func (s *segment[T]) times(dst []penstock.TimeRun, from, to int) []penstock.TimeRun {
	at, begin := s.first, from
	if list := s.more.Load(); list != nil {
		for _, r := range list.runs[:list.n.Load()] {
			if r.from >= to {
				break
			}
			if r.from > begin {
				dst = append(dst, penstock.TimeRun{N: r.from - begin, UnixNano: at})
				begin = r.from
			}
			at = r.unixNano
		}
	}
	return append(dst, penstock.TimeRun{N: to - begin, UnixNano: at})
}
