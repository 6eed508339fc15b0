package seglog

import (
	"math/bits"
	"reflect"
	"sync"
)

// A shelf keeps the finished segments of all logs of one type of event beyond
// the few that each log keeps for itself, until some log takes them or the
// garbage collector wants the memory. A log that grows, and one that is new,
// so finds memory that is there and often still in a cache, where a fresh
// segment is cleared first; and a burst leaves nothing behind in the partition
// that had it.
//
// What comes in is cleared like what a log uses again itself, has no metadata,
// and nobody looks at it: see [Log.keep]. Only the adaptive sizes have a place.
type shelf[T any] struct {
	bySize [shelves]sync.Pool // of *segment[T]
}

// shelves is the number of adaptive sizes: the powers of two from smallest to
// largest.
const shelves = 7

// allShelves has a *shelf[T] per type T, under its reflect.Type. There are as
// many as the program has types of events.
var allShelves sync.Map

func shelfOf[T any](typ reflect.Type) *shelf[T] {
	if s, ok := allShelves.Load(typ); ok {
		return s.(*shelf[T])
	}
	s, _ := allShelves.LoadOrStore(typ, new(shelf[T]))
	return s.(*shelf[T])
}

// place returns where segments of a size lie, nil when they have no place.
func (s *shelf[T]) place(size int) *sync.Pool {
	if size < smallest || size > largest || size&(size-1) != 0 {
		return nil
	}
	return &s.bySize[bits.TrailingZeros(uint(size))-bits.TrailingZeros(smallest)]
}

// put takes a cleared segment that is in no chain.
func (s *shelf[T]) put(seg *segment[T]) {
	if p := s.place(len(seg.items)); p != nil {
		seg.metas.Store(nil) // a log without metadata must not find any
		seg.next.Store(nil)  // it would keep what follows alive
		p.Put(seg)
	}
}

// take returns a segment of a size, nil when there is none.
func (s *shelf[T]) take(size int) *segment[T] {
	if p := s.place(size); p != nil {
		if seg, ok := p.Get().(*segment[T]); ok {
			return seg
		}
	}
	return nil
}

// Retire gives back what the log keeps for reuse. It is called when nothing
// more is to be appended; a later append is none the worse for it.
func (l *Log[T]) Retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, s := range l.free {
		l.shelf.put(s)
		l.free[i] = nil
	}
	l.free = l.free[:0]
}
