package seglog

import (
	"fmt"
	"math/bits"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// cacheLine keeps fields that different goroutines write apart: two lines of
// 64 bytes, because processors fetch neighbours, and one line where lines have
// 128.
const cacheLine = 128

// Config of a [Log].
type Config struct {
	// SegmentSize is the number of events per segment. 0 lets it grow with the
	// backlog from 64 to 4096 in powers of two, so that an idle partition costs
	// little, and to no more than 4 MiB when events are large. Such segments are
	// shared with the other logs of the type when they are finished.
	SegmentSize int
	// Clock gives append times. Required; several logs may share one.
	Clock *Clock
}

// Log is one partition in memory.
//
// Appends are serial: the caller holds a lock of its own around Append,
// AppendStrided and AppendPicked. Everything else is safe for concurrent use
// with them. Readers take no lock: they load the published end and look at the
// slots below it ([Cursor.View]).
//
// Invariants: released <= end. Every event in [released, end) lies in the
// chain from head to tail. A slot below released holds the zero value when T
// holds pointers, and its segment is out of the chain unless it also holds
// slots at or above released, or is the tail or was it at the last release.
// While something is lent, slots are not cleared, and those below frozen never
// are; a segment with such slots is unclear, and not kept for reuse. At most maxFree segments are kept for reuse.
type Log[T any] struct {
	config   Config // immutable
	pointers bool   // T holds pointers, so finished slots are cleared
	most     int    // the largest adaptive segment, in events
	shelf    *shelf[T]

	_     [cacheLine]byte // written by the appender only
	tail  *segment[T]
	slots []T   // of tail
	n     int   // used slots of tail
	stamp int64 // append time of the newest event, or noStamp
	clock *Clock

	// Read by whoever asks for the end, on lines that an event in turn does not
	// write to.
	_         [cacheLine]byte
	published atomic.Uint64 // the end: every event below it is readable; of a joined log see turns.go
	joinedAt  atomic.Uint64 // how many turns there were when the log was joined
	turn      *Turn         // nil when the log takes no turns
	place, of uint32        // which turns are the log's: those of remainder place when divided by of

	_        [cacheLine]byte
	mu       sync.Mutex // guards what stands below
	head     *segment[T]
	late     *segment[T] // in the chain, near its end
	released penstock.Offset
	free     []*segment[T]
	lent     int             // readers that lost their hold and may still look
	frozen   penstock.Offset // what lies below may be looked at for ever
}

// noStamp differs from every reading of the clock, a stale one included.
const noStamp = -1

// New returns an empty log whose first event gets offset 0. It panics when
// config.Clock is nil or config.SegmentSize is negative.
func New[T any](config Config) *Log[T] {
	if config.Clock == nil || config.SegmentSize < 0 {
		panic(fmt.Sprintf("seglog: New: bad config %+v", config))
	}
	none := &segment[T]{} // no slots: the first append rolls, so an unused log costs nothing
	typ := reflect.TypeFor[T]()
	most := max(1, largestBytes/max(1, int(typ.Size())))
	most = 1 << (bits.Len(uint(most)) - 1) // so that smaller ones have a place on the shelf too
	return &Log[T]{
		config: config, clock: config.Clock, pointers: hasPointers(typ), most: most, shelf: shelfOf[T](typ),
		tail: none, head: none, late: none, stamp: noStamp,
	}
}

// hasPointers reports whether a value of the type can keep other memory alive.
func hasPointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return t.Len() > 0 && hasPointers(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if hasPointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return false
	}
	return true
}

// End returns one past the offset of the newest readable event.
func (l *Log[T]) End() penstock.Offset {
	e := l.published.Load()
	if e&joined != 0 {
		return l.endByTurns(e)
	}
	return penstock.Offset(e)
}

// HoldsPointers reports whether a finished event can keep other memory alive,
// so that releasing it soon is worth a call.
func (l *Log[T]) HoldsPointers() bool { return l.pointers }

// Slot returns where the next event of a joined log goes, if its append takes no
// further step than to write it there, to call Filled, and to publish it by the
// turn: the tail has a slot, and the time of the last event still holds.
// Otherwise it returns nil, and the caller calls Put. Both are inlined in their
// callers. The caller holds the turn.
func (l *Log[T]) Slot() *T {
	if l.clock.now.Load() == l.stamp {
		if slots, n := l.slots, l.n; uint(n) < uint(len(slots)) {
			return &slots[n]
		}
	}
	return nil
}

// Filled says that an event was written to the Slot.
func (l *Log[T]) Filled() { l.n++ }

// Append adds one event and publishes it. The caller holds the append lock.
func (l *Log[T]) Append(v T) {
	l.Put(v)
	l.published.Add(1) // not Store, which is an exchange and costs twice as much on amd64
}

// Put adds one event to a joined log, whose turn publishes it. The caller holds
// the turn.
func (l *Log[T]) Put(v T) {
	s, i := l.tail, l.n
	if i >= len(s.items) {
		s, i = l.roll(1), 0
	}
	s.items[i] = v
	if now := l.clock.now.Load(); now != l.stamp {
		l.restamp(i)
	}
	l.n = i + 1
}

// restamp takes the time for the events from slot on.
func (l *Log[T]) restamp(slot int) {
	if now := l.clock.UnixNano(); now != l.stamp {
		l.stamp = now
		l.tail.restamp(slot, now)
	}
}

// AppendStrided adds values[first], values[first+stride] and so on, and
// publishes them together. metas is nil or as long as values; it is copied.
// It returns the offset of the first event and how many were added. The caller
// holds the append lock.
func (l *Log[T]) AppendStrided(values []T, metas []penstock.Meta, first, stride int) (penstock.Offset, int) {
	begin := l.tail.base + penstock.Offset(l.n)
	for i := first; i < len(values); {
		left := (len(values)-i-1)/stride + 1
		dst := l.room(left)
		k := min(left, len(dst))
		if stride == 1 {
			copy(dst, values[i:])
		} else {
			pickStrided(dst[:k], values[i:], stride)
		}
		if metas != nil {
			side := l.tail.ensureMetas()[l.n:]
			for j := range k {
				side[j] = metas[i+j*stride]
			}
		}
		l.n += k
		i += k * stride
	}
	return l.publish(begin)
}

// pickStrided sets dst[k] to src[k*stride] for all of dst. It takes four at a
// time: a loop of one takes twice as long where it falls across a boundary of
// what the processor fetches at once.
func pickStrided[T any](dst, src []T, stride int) {
	j := 0
	for len(dst) >= 4 {
		four := src[j : j+3*stride+1]
		dst[0], dst[1], dst[2], dst[3] = four[0], four[stride], four[2*stride], four[3*stride]
		dst = dst[4:]
		j += 4 * stride
	}
	for k := range dst {
		dst[k] = src[j]
		j += stride
	}
}

// AppendPicked adds values[i] for each i of picked, in that order, and
// publishes them together. Otherwise it is as [Log.AppendStrided].
func (l *Log[T]) AppendPicked(values []T, metas []penstock.Meta, picked []int32) (penstock.Offset, int) {
	begin := l.tail.base + penstock.Offset(l.n)
	for len(picked) > 0 {
		dst := l.room(len(picked))
		k := min(len(dst), len(picked))
		for j, i := range picked[:k] {
			dst[j] = values[i]
		}
		if metas != nil {
			side := l.tail.ensureMetas()[l.n:]
			for j, i := range picked[:k] {
				side[j] = metas[i]
			}
		}
		l.n += k
		picked = picked[k:]
	}
	return l.publish(begin)
}

// room returns the free slots of the tail, at least one and better need, and
// stamps them.
func (l *Log[T]) room(need int) []T {
	if l.n >= len(l.tail.items) {
		l.roll(need)
	}
	if now := l.clock.now.Load(); now != l.stamp {
		l.restamp(l.n)
	}
	return l.tail.items[l.n:]
}

func (l *Log[T]) publish(begin penstock.Offset) (penstock.Offset, int) {
	end := l.tail.base + penstock.Offset(l.n)
	l.published.Store(uint64(end))
	return begin, int(end - begin)
}

// roll links a new tail for need events, or for some of them, behind the full
// one.
func (l *Log[T]) roll(need int) *segment[T] {
	base := l.tail.end()
	s := l.take(base, need)
	s.reuse(base, l.stamp)
	l.tail.next.Store(s)
	l.tail, l.slots, l.n = s, s.items, 0
	return s
}
