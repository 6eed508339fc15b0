package stream

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock/penstock"
)

// MemoryRegistry is a registry in this process. It is gone with it: after a
// restart every subscription has to be made again, and before the provider
// runs, or the provider passes over what arrives for it (see [Provider.Run]).
// It is safe for concurrent use.
type MemoryRegistry struct {
	mu       sync.Mutex
	revision uint64
	number   uint64 // of the last registration of a producer
	streams  map[QualifiedStreamID]*registryEntry
}

type registryEntry struct {
	producers []registration
	subs      []SubscriptionRecord // by name
	faulted   []SubscriptionRecord // by name
}

// registration is one registration of a producer.
type registration struct {
	Producer
	number uint64 // no other registration in the registry has it
}

// NewMemoryRegistry returns an empty registry.
func NewMemoryRegistry() *MemoryRegistry {
	return &MemoryRegistry{streams: map[QualifiedStreamID]*registryEntry{}}
}

// RegisterProducer implements [Registry].
func (m *MemoryRegistry) RegisterProducer(_ context.Context, s QualifiedStreamID, p Producer) (Roster, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entry(s)
	m.number++
	now := registration{p, m.number}
	if i := slices.IndexFunc(e.producers, sameProducer(p)); i >= 0 {
		e.producers[i] = now
	} else {
		e.producers = append(e.producers, now)
	}
	return m.roster(e), nil
}

// UnregisterProducer implements [Registry].
func (m *MemoryRegistry) UnregisterProducer(_ context.Context, s QualifiedStreamID, p Producer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.streams[s]; e != nil {
		e.producers = slices.DeleteFunc(e.producers, sameProducer(p))
		m.forget(s, e)
	}
	return nil
}

// Subscribe implements [Registry].
func (m *MemoryRegistry) Subscribe(_ context.Context, r SubscriptionRecord) (SubscriptionRecord, error) {
	m.mu.Lock()
	e := m.entry(r.Stream)
	if _, found := find(e.faulted, r.Name); found {
		m.mu.Unlock()
		return SubscriptionRecord{}, fmt.Errorf("subscription %q of stream %s: %w", r.Name, r.Stream.StreamID, ErrFaulted)
	}
	m.revision++
	rec := SubscriptionRecord{Stream: r.Stream, Name: r.Name, Filter: r.Filter, Incarnation: m.revision, Attached: m.revision}
	i, found := find(e.subs, r.Name)
	if found {
		rec.Incarnation = e.subs[i].Incarnation
		e.subs[i] = rec
	} else {
		e.subs = slices.Insert(e.subs, i, rec)
	}
	notify := m.notice(r.Stream, e)
	m.mu.Unlock()
	notify()
	return rec, nil
}

// Unsubscribe implements [Registry].
func (m *MemoryRegistry) Unsubscribe(_ context.Context, r SubscriptionRecord) error {
	m.mu.Lock()
	e := m.streams[r.Stream]
	if e == nil {
		e = &registryEntry{}
	}
	meant := func(rec SubscriptionRecord) bool {
		return rec.Name == r.Name && (r.Incarnation == 0 || r.Incarnation == rec.Incarnation)
	}
	before := len(e.subs) + len(e.faulted)
	e.subs = slices.DeleteFunc(e.subs, meant)
	e.faulted = slices.DeleteFunc(e.faulted, meant)
	if len(e.subs)+len(e.faulted) == before {
		m.mu.Unlock()
		return fmt.Errorf("subscription %q of stream %s: %w", r.Name, r.Stream.StreamID, penstock.ErrNotFound)
	}
	m.revision++
	notify := m.notice(r.Stream, e)
	m.forget(r.Stream, e)
	m.mu.Unlock()
	notify()
	return nil
}

// Fault implements [Registry].
func (m *MemoryRegistry) Fault(_ context.Context, r SubscriptionRecord) (bool, error) {
	m.mu.Lock()
	e := m.streams[r.Stream]
	if e == nil {
		m.mu.Unlock()
		return false, nil
	}
	i, found := find(e.subs, r.Name)
	if !found || e.subs[i].Incarnation != r.Incarnation {
		m.mu.Unlock()
		return false, nil
	}
	j, _ := find(e.faulted, r.Name)
	e.faulted = slices.Insert(e.faulted, j, e.subs[i])
	e.subs = slices.Delete(e.subs, i, i+1)
	m.revision++
	notify := m.notice(r.Stream, e)
	m.mu.Unlock()
	notify()
	return true, nil
}

// Reset implements [Registry].
func (m *MemoryRegistry) Reset(_ context.Context, r SubscriptionRecord) error {
	m.mu.Lock()
	e := m.entry(r.Stream)
	i, found := find(e.faulted, r.Name)
	if !found || r.Incarnation != 0 && e.faulted[i].Incarnation != r.Incarnation {
		_, sound := find(e.subs, r.Name)
		m.forget(r.Stream, e)
		m.mu.Unlock()
		if sound {
			return fmt.Errorf("it is not faulted: %w", penstock.ErrNotFound)
		}
		return penstock.ErrNotFound
	}
	m.revision++
	rec := e.faulted[i]
	rec.Attached = m.revision
	e.faulted = slices.Delete(e.faulted, i, i+1)
	j, _ := find(e.subs, r.Name)
	e.subs = slices.Insert(e.subs, j, rec)
	notify := m.notice(r.Stream, e)
	m.mu.Unlock()
	notify()
	return nil
}

// Producers implements [Registry].
func (m *MemoryRegistry) Producers(_ context.Context, s QualifiedStreamID) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.streams[s]
	if e == nil {
		return nil, nil
	}
	out := make([]string, len(e.producers))
	for i, p := range e.producers {
		out[i] = p.ProducerID()
	}
	slices.Sort(out)
	return out, nil
}

// Subscriptions implements [Registry].
func (m *MemoryRegistry) Subscriptions(_ context.Context, s QualifiedStreamID) ([]SubscriptionRecord, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.streams[s]; e != nil {
		return slices.Clone(e.subs), nil
	}
	return nil, nil
}

// Faulted implements [Registry].
func (m *MemoryRegistry) Faulted(_ context.Context, s QualifiedStreamID) ([]SubscriptionRecord, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.streams[s]; e != nil {
		return slices.Clone(e.faulted), nil
	}
	return nil, nil
}

func (m *MemoryRegistry) entry(s QualifiedStreamID) *registryEntry {
	e := m.streams[s]
	if e == nil {
		e = &registryEntry{}
		m.streams[s] = e
	}
	return e
}

// forget drops the entry of a stream that nobody uses.
func (m *MemoryRegistry) forget(s QualifiedStreamID, e *registryEntry) {
	if len(e.producers)+len(e.subs)+len(e.faulted) == 0 {
		delete(m.streams, s)
	}
}

func (m *MemoryRegistry) roster(e *registryEntry) Roster {
	return Roster{Revision: m.revision, Subscriptions: slices.Clone(e.subs)}
}

// notice returns the call that tells the producers, to be made without the
// lock. Those that are not there any more are forgotten.
func (m *MemoryRegistry) notice(s QualifiedStreamID, e *registryEntry) func() {
	producers, r := slices.Clone(e.producers), m.roster(e)
	return func() {
		var gone []uint64
		for _, p := range producers {
			if !p.RosterChanged(s, r) {
				gone = append(gone, p.number)
			}
		}
		if len(gone) > 0 {
			m.forgetProducers(s, gone)
		}
	}
}

func (m *MemoryRegistry) forgetProducers(s QualifiedStreamID, gone []uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.streams[s]; e != nil {
		e.producers = slices.DeleteFunc(e.producers, func(p registration) bool { return slices.Contains(gone, p.number) })
		m.forget(s, e)
	}
}

func sameProducer(p Producer) func(registration) bool {
	return func(q registration) bool { return q.ProducerID() == p.ProducerID() }
}

func find(recs []SubscriptionRecord, name string) (int, bool) {
	return slices.BinarySearchFunc(recs, name, func(r SubscriptionRecord, name string) int {
		switch {
		case r.Name < name:
			return -1
		case r.Name > name:
			return 1
		}
		return 0
	})
}
