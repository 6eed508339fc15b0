package stream

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// openProviders are the open providers of the process, for [DebugHandler]. It
// is the one variable of the package: a service has nothing to register (ADR
// 0036, 0075).
var openProviders providers

// providers knows providers without keeping them alive: one that is dropped
// without Close can be collected, and leaves with it.
type providers struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]weak.Pointer[Provider] // by number, in the order of Open
}

// show adds a provider.
func (s *providers) show(p *Provider) {
	s.mu.Lock()
	s.last++
	id := s.last
	if s.open == nil {
		s.open = make(map[uint64]weak.Pointer[Provider])
	}
	s.open[id] = weak.Make(p)
	s.mu.Unlock()
	p.number = id
	p.dropped = runtime.AddCleanup(p, s.hide, id)
}

// hide takes a provider out. A second call does nothing.
func (s *providers) hide(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, id)
}

// list returns the providers by name, and those of one name in the order of
// Open.
func (s *providers) list() []*Provider {
	s.mu.Lock()
	var out []*Provider
	for _, w := range s.open {
		if p := w.Value(); p != nil {
			out = append(out, p)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(out, func(a, b *Provider) int {
		return cmp.Or(cmp.Compare(a.config.Name, b.config.Name), cmp.Compare(a.number, b.number))
	})
	return out
}
