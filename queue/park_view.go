package queue

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// ParkedMax is how many keys [Group.Parked] returns at most.
const ParkedMax = 1000

// ParkedKey is a key that [Group.Run] has parked: its events wait in the retry
// log of the group, the others of its partition do not wait for them.
type ParkedKey struct {
	Key       string          // "" for an event without one, which is parked alone; a key above 1 KiB is cut and its end is a hash
	Partition int             // of the events
	Offset    penstock.Offset // of the first event
	Events    int             // the first and its followers
	Bytes     penstock.Bytes  // as far as sizes are known: on disk always, in memory with Config.Size
	Since     time.Time       // when the first of them was parked

	// Of the first event, which the others wait for.

	Attempts   int       // deliveries made
	Due        time.Time // when it comes next; zero means at once
	DeadLetter bool      // it is given up, and waits to be handed over
	Cause      string    // text of the last failure
}

// shownParking is a copy of what is parked in a partition, for others to read.
type shownParking struct {
	orders orders // given by others
	seq    uint64 // of the last entry that is shown; the owner's

	mu     sync.Mutex
	events map[penstock.Offset]shownEvent
	held   uint64 // the retry log is known to hold the entries up to it
}

type shownEvent struct {
	seq     uint64 // of its first entry; 0 when it was there at the start of the run
	key     string
	size    penstock.Bytes
	attempt int
	due     time.Time
	dead    bool
	cause   string
	since   time.Time
}

// reset shows what a run begins with, and the orders that stand.
func (s *shownParking) reset(entries []parkedEntry, list []order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq, s.held = 0, 0
	clear(s.events)
	for i := range entries {
		s.events[entries[i].Offset] = shown(entries[i].Entry, entries[i].since)
	}
	s.orders.list = list
	s.orders.some.Store(false)
}

func shown(e settle.Entry, since time.Time) shownEvent {
	return shownEvent{key: e.Key, size: e.Size, attempt: e.Attempt, due: e.Due, dead: e.Dead, cause: causeText(e.Cause), since: since}
}

// note shows what those of the entries change that are new.
func (s *shownParking) note(entries []settle.Entry, now time.Time) {
	texts := make([]shownEvent, 0, len(entries)) // an Error method is user code: not under the lock
	for _, e := range entries {
		if e.Seq > s.seq { // only the owner writes it
			texts = append(texts, shown(e, now))
		}
	}
	if len(texts) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, e := range entries[len(entries)-len(texts):] {
		s.seq = e.Seq
		s.overBy(&e)
		if e.Gone {
			delete(s.events, e.Offset)
			continue
		}
		texts[i].seq = e.Seq
		if was, ok := s.events[e.Offset]; ok {
			texts[i].since, texts[i].seq = was.since, was.seq
		}
		s.events[e.Offset] = texts[i]
	}
}

// change applies do to the events of a key.
func (s *shownParking) change(key string, do func(*shownEvent)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for o, e := range s.events {
		if e.key == key {
			do(&e)
			s.events[o] = e
		}
	}
}

// keys appends what is parked, key by key.
func (s *shownParking) keys(out []ParkedKey, partition int) []ParkedKey {
	type name struct {
		key   string
		alone penstock.Offset
	}
	places := make(map[name]int)
	s.mu.Lock()
	defer s.mu.Unlock()
	for o, e := range s.events {
		id := name{key: e.key}
		if e.key == "" {
			id.alone = o
		}
		i, ok := places[id]
		if !ok {
			i = len(out)
			places[id] = i
			out = append(out, ParkedKey{Key: e.key, Partition: partition, Offset: o, Since: e.since})
		}
		k := &out[i]
		k.Events++
		k.Bytes += e.size
		if e.since.Before(k.Since) {
			k.Since = e.since
		}
		if o <= k.Offset {
			k.Offset, k.Attempts, k.Due, k.DeadLetter, k.Cause = o, e.attempt, e.due, e.dead, e.cause
		}
	}
	return out
}

// Parked returns the keys that are parked, those that have been for longest
// first, at most ParkedMax. It may be called at any time and does not wait for
// handlers. What the retry log of a topic on disk holds from before is known
// from the first Run on, or when another use of the group was refused because
// of it.
func (g *Group[T]) Parked() []ParkedKey {
	all := g.parkedKeys()
	if len(all) > ParkedMax {
		all = all[:ParkedMax:ParkedMax]
	}
	return all
}

func (g *Group[T]) parkedKeys() []ParkedKey {
	if g.parking == nil {
		return nil
	}
	var all []ParkedKey
	for _, k := range g.parking.lanes {
		all = k.shown.keys(all, k.part.index)
	}
	slices.SortFunc(all, func(a, b ParkedKey) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return all
}

// parkedStats sums up what is parked.
func (g *Group[T]) parkedStats() (s ParkedStats) {
	for _, k := range g.parkedKeys() {
		if s.Keys == 0 {
			s.Oldest, s.Reason = k.Since, k.Cause
		}
		s.Keys++
		s.Events += k.Events
		s.Bytes += k.Bytes
	}
	return s
}
