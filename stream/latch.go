package stream

import "sync"

// latch is a drain latch: a counter with a closed flag (G-10). Work enters
// before it starts and leaves when its effect is complete; close refuses new
// entries and tells when the last one has left.
//
// Invariants: entered >= 0; drained is closed exactly when the latch is closed
// and entered is 0; it is never reopened.
type latch struct {
	drained chan struct{}

	mu      sync.Mutex
	entered int
	closed  bool
}

func newLatch() *latch { return &latch{drained: make(chan struct{})} }

// enter counts one piece of work in; false means that admission is closed.
func (l *latch) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.entered++
	return true
}

// leave counts one piece of work out.
func (l *latch) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entered == 0 {
		panic("stream: latch left more often than entered")
	}
	l.entered--
	l.settle()
}

// close closes admission and returns the channel that is closed when all work
// has left. It can be called again.
func (l *latch) close() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.settle()
	}
	return l.drained
}

func (l *latch) settle() {
	if l.closed && l.entered == 0 {
		close(l.drained)
	}
}
