package queue

import "sync"

// loan is what the owner of a cursor may still be looking at after the group
// was closed: Close must neither wait for a batch in hands nor pull the memory
// from under it. It is opened by Close and ended by the owner's next call, or
// when the cursor is collected as garbage (ADR 0027).
type loan struct {
	open        func() // nil, or keeps what the hold kept as it is
	giveBack    func() // ends open
	closeSource func()

	mu    sync.Mutex
	state loanState
}

type loanState uint8

const (
	notLent loanState = iota
	lent
	ended
)

// lend keeps what the owner may be looking at as it is. Close calls it before
// it takes the holds away.
func (l *loan) lend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != notLent {
		return
	}
	l.state = lent
	if l.open != nil {
		l.open()
	}
}

// end says that the owner looks at nothing any more.
func (l *loan) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	wasLent := l.state == lent
	if l.state == ended {
		return
	}
	l.state = ended
	if wasLent && l.giveBack != nil {
		l.giveBack()
	}
	l.closeSource()
}
