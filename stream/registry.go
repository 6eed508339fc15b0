package stream

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock/penstock"
)

// QualifiedStreamID names a stream together with its provider.
type QualifiedStreamID struct {
	Provider string
	penstock.StreamID
}

// SubscriptionRecord is what a registry knows of a subscription. Stream and
// name identify it.
type SubscriptionRecord struct {
	Stream QualifiedStreamID
	Name   string
	// Incarnation is the revision that created the subscription; a name that
	// was unsubscribed and is used again has a new one.
	Incarnation uint64
	// Attached is the revision of the last Subscribe. When it changes, the
	// agent asks the consumer anew where it wants to start.
	Attached uint64
}

// Roster is the set of subscriptions of one stream that are not faulted, at
// one revision of the registry.
type Roster struct {
	Revision      uint64
	Subscriptions []SubscriptionRecord // must not be changed
}

// Producer is told when the subscriptions of a stream change.
type Producer interface {
	// ProducerID identifies the producer; the same after a restart.
	ProducerID() string
	// RosterChanged hands over the new set. It acknowledges at once: it must
	// not wait for a handshake or for user code. Notices may arrive in any
	// order; one with a revision not above the last one seen is stale.
	RosterChanged(s QualifiedStreamID, r Roster)
}

// Registry knows the producers and the subscriptions of each stream.
// Implementations must be safe for concurrent use and must not hold a lock
// while they call a Producer. Every method must return soon after its ctx has
// ended.
type Registry interface {
	// RegisterProducer stores the producer and returns the stream's roster.
	// Later changes reach the producer as notices. Repeating it is allowed.
	RegisterProducer(ctx context.Context, s QualifiedStreamID, p Producer) (Roster, error)
	// UnregisterProducer removes it; removing an unknown one is no error.
	UnregisterProducer(ctx context.Context, s QualifiedStreamID, p Producer) error
	// Subscribe creates the subscription or, when it exists, attaches it anew.
	// The error matches ErrFaulted for a faulted one.
	Subscribe(ctx context.Context, s QualifiedStreamID, name string) (SubscriptionRecord, error)
	// Unsubscribe removes the subscription with the record's stream and name,
	// faulted or not, if it has the record's incarnation; incarnation 0 stands
	// for any. The error matches penstock.ErrNotFound when there is none.
	Unsubscribe(ctx context.Context, r SubscriptionRecord) error
	// Fault marks one incarnation of a subscription as given up. It reports
	// false when that incarnation does not exist any more.
	Fault(ctx context.Context, r SubscriptionRecord) (bool, error)
	// Subscriptions returns the subscriptions that are not faulted, by name.
	Subscriptions(ctx context.Context, s QualifiedStreamID) ([]SubscriptionRecord, error)
	// Faulted returns the faulted subscriptions, by name.
	Faulted(ctx context.Context, s QualifiedStreamID) ([]SubscriptionRecord, error)
}

// MemoryRegistry is a registry in this process. It is gone with it: after a
// restart every subscription has to be made again, and before the provider
// runs, or the provider passes over what arrives for it (see [Provider.Run]).
// It is safe for concurrent use.
type MemoryRegistry struct {
	mu       sync.Mutex
	revision uint64
	streams  map[QualifiedStreamID]*registryEntry
}

type registryEntry struct {
	producers []Producer
	subs      []SubscriptionRecord // by name
	faulted   []SubscriptionRecord // by name
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
	if !slices.ContainsFunc(e.producers, sameProducer(p)) {
		e.producers = append(e.producers, p)
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
func (m *MemoryRegistry) Subscribe(_ context.Context, s QualifiedStreamID, name string) (SubscriptionRecord, error) {
	m.mu.Lock()
	e := m.entry(s)
	if _, found := find(e.faulted, name); found {
		m.mu.Unlock()
		return SubscriptionRecord{}, fmt.Errorf("subscription %q of stream %s: %w", name, s.StreamID, ErrFaulted)
	}
	m.revision++
	rec := SubscriptionRecord{Stream: s, Name: name, Incarnation: m.revision, Attached: m.revision}
	i, found := find(e.subs, name)
	if found {
		rec.Incarnation = e.subs[i].Incarnation
		e.subs[i] = rec
	} else {
		e.subs = slices.Insert(e.subs, i, rec)
	}
	notify := m.notice(s, e)
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
// lock.
func (m *MemoryRegistry) notice(s QualifiedStreamID, e *registryEntry) func() {
	producers, r := slices.Clone(e.producers), m.roster(e)
	return func() {
		for _, p := range producers {
			p.RosterChanged(s, r)
		}
	}
}

func sameProducer(p Producer) func(Producer) bool {
	return func(q Producer) bool { return q.ProducerID() == p.ProducerID() }
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
