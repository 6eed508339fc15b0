package settle

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
)

// lot holds the parked keys of a machine and the changes that the retry log
// does not hold yet.
//
// Invariants: a key is here while it has events. The events of a key are sorted
// by offset, and those that are settled come first: one is delivered only when
// all before it in the partition have left their places, so none can come to
// lie before it later. An event that is settled stays until the log knows, so that later
// events of its key still come behind it: a crash before that repeats it, and
// what was handled after it would then be out of order. An event has at most
// one entry that is not logged, since it is delivered only when the log knows
// all about it; so there are at most as many entries as parked events.
type lot struct {
	after  time.Duration
	key    func(penstock.Offset) string
	sizeOf func(penstock.Offset) penstock.Bytes
	budget *demand.Budget

	keys   map[keyID]*parkedKey
	events map[penstock.Offset]*parkedEvent
	ready  readyKeys
	size   penstock.Bytes // of all events
	gone   int            // how many events are settled
	inHand int            // how many events are in hand

	unlogged []Entry
	emitted  uint64 // sequence number of the last entry
	logged   uint64 // sequence number of the last entry that the log holds

	full       bool            // the last Next met a follower for which there is no room
	fullAt     penstock.Offset // that follower
	fullBehind penstock.Offset // the first event of its key here
}

// keyID tells keys apart. An event without a key is alone in one of its own.
type keyID struct {
	key   string
	alone penstock.Offset // 0 with a key
}

type parkedKey struct {
	id     keyID
	events []*parkedEvent
	past   int          // how many of events, from the first, are settled
	inHand *parkedEvent // nil when none is
	place  int          // in ready, counted from 1; 0 when it is not there
}

// parkedEvent is a run of one event in the lot.
type parkedEvent struct {
	run
	key     *parkedKey
	size    penstock.Bytes
	counted bool   // in the budget
	gone    bool   // settled
	seq     uint64 // of its last entry; 0 when that was restored

	discard func(last error) error // not nil: in hand, and given up when that fails
}

// unfailed is the past of a follower that was never delivered.
var unfailed = &failure{}

func newKeyID(key string, o penstock.Offset) keyID {
	if key == "" {
		return keyID{alone: o}
	}
	return keyID{key: key}
}

// leader returns the first event here of the key of the event at o, when that
// comes behind it.
func (l *lot) leader(o penstock.Offset, key string) (penstock.Offset, bool) {
	if key == "" {
		return 0, false
	}
	if k := l.keys[keyID{key: key}]; k != nil && k.events[0].from < o {
		return k.events[0].from, true
	}
	return 0, false
}

// clear returns the end of the longest stretch of [from, to) that begins at
// from and has no followers. An event that parkFollowers has left is not asked
// about again: a selector that panics now and then would make it a follower
// after all, and the span empty.
func (l *lot) clear(from, to penstock.Offset) penstock.Offset {
	for ; from < to; from++ {
		if _, follows := l.leader(from, l.key(from)); follows {
			break
		}
	}
	return from
}

// park takes the event at o, which shares the fate of r, if there is room.
func (l *lot) park(o penstock.Offset, key string, r run) bool {
	size := max(l.sizeOf(o), 0)
	if !l.budget.TryAcquire(1, size) {
		return false
	}
	r.extent, r.inHand, r.serial = extent{o, o + 1}, false, 0
	if r.past == nil {
		r.past = unfailed
	}
	e := &parkedEvent{run: r, size: size, counted: true}
	l.add(e, key)
	l.emit(e, true)
	return true
}

// add puts e in its place among the events of its key. The caller updates the
// key.
func (l *lot) add(e *parkedEvent, key string) {
	id := newKeyID(key, e.from)
	k := l.keys[id]
	if k == nil {
		id.key = strings.Clone(id.key) // it may be a part of something large
		k = &parkedKey{id: id}
		l.keys[id] = k
	}
	e.key = k
	i, _ := slices.BinarySearchFunc(k.events, e.from, func(other *parkedEvent, o penstock.Offset) int { return cmp.Compare(other.from, o) })
	k.events = slices.Insert(k.events, i, e)
	l.events[e.from] = e
	l.size += e.size
}

// emit writes the state of e down for the retry log.
func (l *lot) emit(e *parkedEvent, isNew bool) {
	l.emitted++
	e.seq = l.emitted
	l.unlogged = append(l.unlogged, e.entry(isNew))
	l.update(e.key)
}

// entry returns the state of e.
func (e *parkedEvent) entry(isNew bool) Entry {
	out := Entry{Seq: e.seq, Offset: e.from, Key: e.key.id.key, Size: e.size, New: isNew, Gone: e.gone}
	if e.gone {
		return out
	}
	out.Attempt, out.Dead = e.attempt, e.dead
	if !e.dead {
		out.Attempt--
	}
	out.Due, out.Cause, out.HandOver = e.past.due, e.past.cause, e.past.handOver
	return out
}

// settle marks e, which was in hand, as settled.
func (l *lot) settle(e *parkedEvent) {
	e.gone, e.past = true, nil
	e.key.past++
	l.gone++
	l.emit(e, false)
}

// forget removes e, which is settled and the first of its key, once the log
// knows.
func (l *lot) forget(e *parkedEvent) {
	k := e.key
	k.events[0] = nil
	k.events = k.events[1:]
	k.past--
	if len(k.events) == 0 {
		delete(l.keys, k.id)
	}
	delete(l.events, e.from)
	l.size -= e.size
	l.gone--
	if e.counted {
		l.budget.Release(1, e.size)
	}
}

// head returns the first event that is not settled, nil when all are.
func (k *parkedKey) head() *parkedEvent {
	if k.past == len(k.events) {
		return nil
	}
	return k.events[k.past]
}

// update puts k among the ready keys, or removes it from there, after a change:
// a key is ready when none of its events is in hand and the log knows all about
// its head.
func (l *lot) update(k *parkedKey) {
	head := k.head()
	ready := head != nil && k.inHand == nil && head.seq <= l.logged
	switch {
	case ready == (k.place > 0): // with the same head: a new one is in hand or not logged first
	case ready:
		heap.Push(&l.ready, k)
	default:
		heap.Remove(&l.ready, k.place-1)
	}
}

// first returns the event to deliver next, due or not, of those below barrier;
// nil when there is none. Some key is ready.
func (l *lot) first(barrier penstock.Offset) *parkedEvent {
	if e := l.ready[0].head(); e.from < barrier {
		return e
	}
	var first *parkedEvent
	for _, k := range l.ready { // rare: after a restart, and while earlier events wait in their place
		if e := k.head(); e.from < barrier && (first == nil || e.before(first)) {
			first = e
		}
	}
	return first
}

// before orders events of different keys.
func (e *parkedEvent) before(other *parkedEvent) bool {
	if c := e.past.due.Compare(other.past.due); c != 0 {
		return c < 0
	}
	return e.from < other.from
}

// readyKeys is a heap of keys, ordered by their heads.
type readyKeys []*parkedKey

func (h readyKeys) Len() int           { return len(h) }
func (h readyKeys) Less(i, j int) bool { return h[i].head().before(h[j].head()) }
func (h readyKeys) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

// Push is for package heap.
func (h *readyKeys) Push(x any) {
	k := x.(*parkedKey)
	*h = append(*h, k)
	k.place = len(*h)
}

// Pop is for package heap.
func (h *readyKeys) Pop() any {
	last := len(*h) - 1
	k := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	k.place = 0
	return k
}

func sortedKeys[V any](m map[penstock.Offset]V) []penstock.Offset {
	return slices.Sorted(maps.Keys(m))
}
