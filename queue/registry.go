package queue

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// openTopics are the open topics of the process, for [DebugHandler]. It is the one
// variable of the package: the handler takes no arguments, so that a service
// has nothing to register (ADR 0036).
var openTopics registry

// registry knows topics without keeping them alive: one that is dropped without
// Close can be collected, and leaves with it.
type registry struct {
	mu     sync.Mutex
	last   uint64
	topics map[uint64]func() (Stats, bool) // by number, in the order of Open
}

// show adds a topic.
func show[T any](r *registry, t *Topic[T]) {
	p := weak.Make(t)
	look := func() (Stats, bool) {
		if t := p.Value(); t != nil {
			return t.Stats(), true
		}
		return Stats{}, false
	}
	r.mu.Lock()
	r.last++
	id := r.last
	if r.topics == nil {
		r.topics = make(map[uint64]func() (Stats, bool))
	}
	r.topics[id] = look
	r.mu.Unlock()
	t.seen.number = id
	t.seen.dropped = runtime.AddCleanup(t, r.hide, id)
}

// hide takes a topic out. A second call does nothing.
func (r *registry) hide(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.topics, id)
}

// stats returns pictures of all topics, by name, and those of one name in the
// order of Open. No lock is held while they are taken.
func (r *registry) stats() []Stats {
	r.mu.Lock()
	ids := make([]uint64, 0, len(r.topics))
	looks := make(map[uint64]func() (Stats, bool), len(r.topics))
	for id, look := range r.topics {
		ids = append(ids, id)
		looks[id] = look
	}
	r.mu.Unlock()
	slices.Sort(ids)
	all := make([]Stats, 0, len(ids))
	for _, id := range ids {
		if s, ok := looks[id](); ok && !s.Closed {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b Stats) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
