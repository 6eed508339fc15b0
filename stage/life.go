package stage

import "sync/atomic"

// A life is the time of a stage, or of a subscription, until its end. A Start
// that fails ends the lives of all that the graph has, with its error, so that
// nobody waits for what will not come; the next Start gives them new ones.
//
// Invariant: err is set before over is closed, by the one who turned ended.
type life struct {
	ended atomic.Bool
	over  chan struct{}
	err   error
}

func newLife() *life { return &life{over: make(chan struct{})} }

// claim reports whether the caller is the one who ends the life, with close.
func (l *life) claim() bool { return !l.ended.Swap(true) }

// close ends a life that was claimed.
func (l *life) close(err error) {
	l.err = err
	close(l.over)
}

// end is claim and close; of a life that has ended it changes nothing.
func (l *life) end(err error) {
	if l.claim() {
		l.close(err)
	}
}

// isOver reports whether the life has ended.
func (l *life) isOver() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}
