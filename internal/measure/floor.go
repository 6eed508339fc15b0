package measure

import "sync"

// Stack is a slice behind a mutex, without a bound and without waiting: what
// one writes by hand when nobody has to wait. The zero value is empty.
type Stack[T any] struct {
	mu   sync.Mutex
	held []T
	head int
}

// Push adds one event.
func (s *Stack[T]) Push(v T) {
	s.mu.Lock()
	s.held = append(s.held, v)
	s.mu.Unlock()
}

// PushAll adds events in one step.
func (s *Stack[T]) PushAll(vs []T) {
	s.mu.Lock()
	s.held = append(s.held, vs...)
	s.mu.Unlock()
}

// Pop copies the first events to out and returns how many.
func (s *Stack[T]) Pop(out []T) int {
	s.mu.Lock()
	n := copy(out, s.held[s.head:])
	if s.head += n; s.head == len(s.held) {
		s.held, s.head = s.held[:0], 0
	}
	s.mu.Unlock()
	return n
}

// Swap is a slice behind a mutex that holds limit events at most; producers and
// consumers wait, and a consumer takes everything that is there in exchange for
// an empty slice.
type Swap[T any] struct {
	mu              sync.Mutex
	notFull, filled sync.Cond
	held            []T
	limit           int
	closed          bool
}

// NewSwap returns an empty Swap.
func NewSwap[T any](limit int) *Swap[T] {
	s := &Swap[T]{limit: limit, held: make([]T, 0, limit)}
	s.notFull.L, s.filled.L = &s.mu, &s.mu
	return s
}

// Push adds one event, and waits while the slice is full.
func (s *Swap[T]) Push(v T) {
	s.mu.Lock()
	for len(s.held) == s.limit {
		s.notFull.Wait()
	}
	s.held = append(s.held, v)
	if len(s.held) == 1 {
		s.filled.Signal()
	}
	s.mu.Unlock()
}

// PushAll adds at most limit events in one step, and waits while they do not fit.
func (s *Swap[T]) PushAll(vs []T) {
	s.mu.Lock()
	for len(s.held)+len(vs) > s.limit {
		s.notFull.Wait()
	}
	was := len(s.held)
	s.held = append(s.held, vs...)
	if was == 0 {
		s.filled.Signal()
	}
	s.mu.Unlock()
}

// Take returns everything that is there and keeps spare in its place; it waits
// while nothing is there. After Close it returns an empty slice at last.
func (s *Swap[T]) Take(spare []T) []T {
	s.mu.Lock()
	for len(s.held) == 0 && !s.closed {
		s.filled.Wait()
	}
	was := s.held
	s.held = spare[:0]
	s.notFull.Broadcast()
	s.mu.Unlock()
	return was
}

// Close ends the waiting of consumers.
func (s *Swap[T]) Close() {
	s.mu.Lock()
	s.closed = true
	s.filled.Broadcast()
	s.mu.Unlock()
}

// Recycled is a channel of batches whose slices go round: Free holds the empty
// ones. There are as many as hold limit events, and two more for the hands of
// both sides.
type Recycled[T any] struct{ Full, Free chan []T }

// NewRecycled returns a Recycled of batches of the given size.
func NewRecycled[T any](batch, limit int) Recycled[T] {
	n := (limit + batch - 1) / batch
	r := Recycled[T]{make(chan []T, n), make(chan []T, n+2)}
	for range n + 2 {
		r.Free <- make([]T, 0, batch)
	}
	return r
}
