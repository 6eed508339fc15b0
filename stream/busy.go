package stream

// busySet is the streams that may hold progress back. A stream knows its place
// in it, so that neither to add nor to remove one is a look-up.
//
// Invariant: list[i].busy is i+1; that of a stream which is not in the set is 0.
type busySet struct{ list []*streamEntry }

func (b *busySet) len() int { return len(b.list) }

// add puts a stream in, unless it is there.
func (b *busySet) add(e *streamEntry) {
	if e.busy == 0 {
		b.list = append(b.list, e)
		e.busy = len(b.list)
	}
}

// remove takes a stream out, if it is there. The last one takes its place, so
// who goes through the list and removes goes backwards.
func (b *busySet) remove(e *streamEntry) {
	if e.busy == 0 {
		return
	}
	n := len(b.list) - 1
	last := b.list[n]
	b.list[e.busy-1], last.busy = last, e.busy
	b.list[n], b.list = nil, b.list[:n]
	e.busy = 0
}

func (b *busySet) clear() {
	for _, e := range b.list {
		e.busy = 0
	}
	b.list = nil
}

// snapshot is memory of progressView, used again.
type snapshot struct{ streams []streamView }

// snapshotKept bounds, in streams, the memory that is kept for the next one.
const snapshotKept = 4096

// next returns room for a stream behind n others.
func (s *snapshot) next(n int) *streamView {
	switch {
	case n < len(s.streams):
	case n < cap(s.streams):
		s.streams = s.streams[:n+1]
	default:
		s.streams = append(s.streams, streamView{})
	}
	v := &s.streams[n]
	v.registering, v.subs = false, v.subs[:0]
	return v
}
