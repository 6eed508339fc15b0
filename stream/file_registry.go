package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/penstock/penstock"
)

// FileRegistry is the registry of a [Store]: subscriptions outlive the process.
// A change is acknowledged, and producers are told of it, when it is on disk.
// Each change writes all subscriptions anew; changes that are asked for while
// one is written share the next write. So it is for thousands of
// subscriptions that change now and then; 64 MiB is the most they may take,
// some 100 bytes each.
//
// A change that fails has changed nothing, unless its error matches
// penstock.ErrUnknownOutcome: then it is read back from the disk before the
// next one, and repeating it is safe. So is a change whose context ended while
// it was being written. Producers are not stored: agents register again.
// A FileRegistry is safe for concurrent use.
type FileRegistry struct {
	store *Store
	live  MemoryRegistry // what is on disk, and the producers
	turn  chan struct{}  // of capacity 1: whoever has put something in writes

	mu       sync.Mutex
	mappers  map[string]string // by provider: the fingerprint; changed by the writer only
	pending  []*registryChange
	doubtful bool // the file may hold something else: read it first
}

// registryChange is one change that is asked for.
type registryChange struct {
	stream QualifiedStreamID                   // the one it may change
	apply  func(scratch *MemoryRegistry) error // not called under a lock
	mapper func(mappers map[string]string) error
	done   chan struct{}
	err    error // read it after done
}

const registryFile = "registry"

func openFileRegistry(s *Store) (*FileRegistry, error) {
	f := &FileRegistry{store: s, turn: make(chan struct{}, 1)}
	f.live.streams = map[QualifiedStreamID]*registryEntry{}
	return f, f.read()
}

// read makes the file's content the present one and keeps the producers.
func (f *FileRegistry) read() error {
	data, err := f.store.load(registryFile)
	if err != nil {
		return err
	}
	state := registryState{mappers: map[string]string{}}
	if data != nil {
		if err := state.decode(data); err != nil {
			return fmt.Errorf("store %q: %s: %w", f.store.dir, registryFile, err)
		}
	}
	stored := map[QualifiedStreamID]*registryEntry{}
	for _, r := range state.records {
		e := stored[r.Stream]
		if e == nil {
			e = &registryEntry{}
			stored[r.Stream] = e
		}
		if r.faulted {
			e.faulted = append(e.faulted, r.SubscriptionRecord)
		} else {
			e.subs = append(e.subs, r.SubscriptionRecord)
		}
	}
	f.live.mu.Lock()
	for s, e := range f.live.streams {
		if len(e.producers) > 0 {
			if stored[s] == nil {
				stored[s] = &registryEntry{}
			}
			stored[s].producers = e.producers
		}
	}
	f.live.streams = stored
	f.live.revision = max(f.live.revision, state.revision)
	f.live.mu.Unlock()
	f.mu.Lock()
	f.mappers, f.doubtful = state.mappers, false
	f.mu.Unlock()
	return nil
}

// change asks for a change and waits until it is on disk and the producers
// have been told. A context that ends before anybody has begun with it takes it
// back.
func (f *FileRegistry) change(ctx context.Context, c *registryChange) error {
	if err := penstock.ContextError(ctx); err != nil {
		return err
	}
	c.done = make(chan struct{})
	f.mu.Lock()
	f.pending = append(f.pending, c)
	f.mu.Unlock()
	select {
	case f.turn <- struct{}{}:
		tell := f.writePending()
		<-f.turn
		tell()
	case <-c.done:
	case <-ctx.Done():
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	f.mu.Lock()
	i := slices.Index(f.pending, c)
	if i >= 0 {
		f.pending = slices.Delete(f.pending, i, i+1)
	}
	f.mu.Unlock()
	if i >= 0 {
		return penstock.ContextError(ctx)
	}
	return fmt.Errorf("%w: %w", penstock.ErrUnknownOutcome, penstock.ContextError(ctx))
}

// writePending carries out every change that is asked for in one write. The
// caller has the turn; it calls what is returned without it.
func (f *FileRegistry) writePending() (tell func()) {
	f.mu.Lock()
	changes, doubtful := f.pending, f.doubtful
	f.pending = nil
	f.mu.Unlock()
	if len(changes) == 0 {
		return func() {}
	}
	var notify []func()
	tell = func() {
		for _, n := range notify {
			n()
		}
		for _, c := range changes {
			close(c.done)
		}
	}
	if doubtful {
		if err := f.read(); err != nil {
			for _, c := range changes {
				c.err = err
			}
			return tell
		}
		notify = f.live.noticeAll()
	}
	w := f.begin(changes)
	changed := false
	for _, c := range changes {
		if c.apply != nil {
			c.err = c.apply(w.scratch)
		} else {
			c.err = c.mapper(w.mappers)
		}
		changed = changed || c.err == nil
	}
	if !changed {
		return tell
	}
	if err := f.write(w); err != nil {
		for _, c := range changes {
			if c.err == nil {
				c.err = err
			}
		}
		return tell
	}
	notify = append(notify, f.publish(w)...)
	return tell
}

// registryWrite is what one write makes of the present state.
type registryWrite struct {
	scratch *MemoryRegistry // the streams that may change; without producers, so that nobody is told
	touched map[QualifiedStreamID]bool
	mappers map[string]string
}

// begin copies what the changes may change.
func (f *FileRegistry) begin(changes []*registryChange) registryWrite {
	w := registryWrite{scratch: NewMemoryRegistry(), touched: map[QualifiedStreamID]bool{}}
	f.live.mu.Lock()
	w.scratch.revision = f.live.revision
	for _, c := range changes {
		if c.mapper != nil || w.touched[c.stream] {
			continue
		}
		w.touched[c.stream] = true
		if e := f.live.streams[c.stream]; e != nil {
			w.scratch.streams[c.stream] = &registryEntry{subs: slices.Clone(e.subs), faulted: slices.Clone(e.faulted)}
		}
	}
	f.live.mu.Unlock()
	f.mu.Lock()
	w.mappers = maps.Clone(f.mappers)
	f.mu.Unlock()
	return w
}

// write stores the present state with what has changed.
func (f *FileRegistry) write(w registryWrite) error {
	state := registryState{revision: w.scratch.revision, mappers: w.mappers}
	f.live.mu.Lock()
	for s, e := range f.live.streams {
		if !w.touched[s] {
			state.add(e)
		}
	}
	f.live.mu.Unlock()
	for _, e := range w.scratch.streams {
		state.add(e)
	}
	data, err := state.encode()
	if err != nil {
		return err
	}
	if err = f.store.replace(registryFile, data); errors.Is(err, penstock.ErrUnknownOutcome) {
		f.mu.Lock()
		f.doubtful = true
		f.mu.Unlock()
	}
	return err
}

// publish makes what was stored the present state and returns the calls that
// tell the producers, to be made without a lock.
func (f *FileRegistry) publish(w registryWrite) (notify []func()) {
	f.mu.Lock()
	f.mappers = w.mappers
	f.mu.Unlock()
	m := &f.live
	m.mu.Lock()
	defer m.mu.Unlock()
	m.revision = w.scratch.revision
	for s := range w.touched {
		e := m.entry(s)
		e.subs, e.faulted = nil, nil
		if n := w.scratch.streams[s]; n != nil {
			e.subs, e.faulted = n.subs, n.faulted
		}
		notify = append(notify, m.notice(s, e))
		m.forget(s, e)
	}
	return notify
}

// noticeAll returns the calls that tell all producers of all streams.
func (m *MemoryRegistry) noticeAll() (notify []func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s, e := range m.streams {
		if len(e.producers) > 0 {
			notify = append(notify, m.notice(s, e))
		}
	}
	return notify
}

// quiesce waits until nothing is being written.
func (f *FileRegistry) quiesce() {
	f.turn <- struct{}{}
	<-f.turn
}

// RegisterProducer implements [Registry].
func (f *FileRegistry) RegisterProducer(ctx context.Context, s QualifiedStreamID, p Producer) (Roster, error) {
	return f.live.RegisterProducer(ctx, s, p)
}

// UnregisterProducer implements [Registry].
func (f *FileRegistry) UnregisterProducer(ctx context.Context, s QualifiedStreamID, p Producer) error {
	return f.live.UnregisterProducer(ctx, s, p)
}

// Subscribe implements [Registry].
func (f *FileRegistry) Subscribe(ctx context.Context, r SubscriptionRecord) (rec SubscriptionRecord, err error) {
	if err := storable(r); err != nil {
		return SubscriptionRecord{}, fmt.Errorf("subscription of stream %s: %w", r.Stream.StreamID, err)
	}
	c := &registryChange{stream: r.Stream}
	var made SubscriptionRecord
	c.apply = func(m *MemoryRegistry) (err error) {
		made, err = m.Subscribe(ctx, r)
		return err
	}
	if err := f.change(ctx, c); err != nil {
		return SubscriptionRecord{}, err
	}
	return made, nil
}

// Unsubscribe implements [Registry].
func (f *FileRegistry) Unsubscribe(ctx context.Context, r SubscriptionRecord) error {
	return f.change(ctx, &registryChange{stream: r.Stream, apply: func(m *MemoryRegistry) error { return m.Unsubscribe(ctx, r) }})
}

// Fault implements [Registry].
func (f *FileRegistry) Fault(ctx context.Context, r SubscriptionRecord) (bool, error) {
	err := f.change(ctx, &registryChange{stream: r.Stream, apply: func(m *MemoryRegistry) error {
		done, err := m.Fault(ctx, r)
		if err == nil && !done {
			err = errNothingToFault
		}
		return err
	}})
	if errors.Is(err, errNothingToFault) {
		return false, nil
	}
	return err == nil, err
}

// errNothingToFault spares a write that would change nothing.
var errNothingToFault = errors.New("no such incarnation")

// Reset implements [Registry].
func (f *FileRegistry) Reset(ctx context.Context, r SubscriptionRecord) error {
	return f.change(ctx, &registryChange{stream: r.Stream, apply: func(m *MemoryRegistry) error { return m.Reset(ctx, r) }})
}

// Producers implements [Registry].
func (f *FileRegistry) Producers(ctx context.Context, s QualifiedStreamID) ([]string, error) {
	return f.live.Producers(ctx, s)
}

// Subscriptions implements [Registry].
func (f *FileRegistry) Subscriptions(ctx context.Context, s QualifiedStreamID) ([]SubscriptionRecord, error) {
	return f.live.Subscriptions(ctx, s)
}

// Faulted implements [Registry].
func (f *FileRegistry) Faulted(ctx context.Context, s QualifiedStreamID) ([]SubscriptionRecord, error) {
	return f.live.Faulted(ctx, s)
}

// KeepMapper implements [MapperKeeper].
func (f *FileRegistry) KeepMapper(ctx context.Context, provider, fingerprint string, force bool) error {
	if n := max(len(provider), len(fingerprint)); n > penstock.MaxFieldBytes {
		return fmt.Errorf("mapper of a provider: %d bytes, at most %d: %w", n, penstock.MaxFieldBytes, penstock.ErrTooLarge)
	}
	f.mu.Lock()
	same := f.mappers[provider] == fingerprint && !f.doubtful
	f.mu.Unlock()
	if same {
		return nil
	}
	return f.change(ctx, &registryChange{mapper: func(mappers map[string]string) error {
		if kept := mappers[provider]; kept != "" && kept != fingerprint && !force {
			return &MapperError{Provider: provider, Kept: kept, Given: fingerprint}
		}
		mappers[provider] = fingerprint
		return nil
	}})
}
