package queue

import (
	"sync"
	"weak"

	"github.com/penstock/penstock/seglog"
)

// loan is what the owner of a cursor may still be looking at after the group
// was closed: Close must neither wait for a batch in hands nor pull the memory
// from under it. It is opened by Close and ended by the owner's next call, or
// abandoned when the cursor is collected as garbage: the owner may have kept
// the values of its batch and nothing else (ADR 0027).
type loan struct {
	open        func() // nil, or keeps what the hold kept as it is
	giveBack    func() // ends open
	abandon     func() // ends open; what was kept is still looked at
	closeSource func() // nil, or gives back what the source holds

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
func (l *loan) end() { l.endBy(l.giveBack) }

// forget says that the owner is gone.
func (l *loan) forget() { l.endBy(l.abandon) }

func (l *loan) endBy(how func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wasLent := l.state == lent
	if l.state == ended {
		return
	}
	l.state = ended
	if wasLent && how != nil {
		how()
	}
	if l.closeSource != nil {
		l.closeSource()
	}
}

// newLoan returns what a cursor of the partition owes. The cleanup of the
// cursor has the loan in hands and so keeps alive what it leads to, for one
// collection more than the cursor itself, so it leads to no event: what is to
// be said to a log is said to nobody once the log is gone.
func newLoan[T any](p *partition[T], s source[T]) *loan {
	if p.log == nil {
		return &loan{closeSource: s.close}
	}
	log := weak.Make(p.log)
	tell := func(what func(*seglog.Log[T])) func() {
		return func() {
			if l := log.Value(); l != nil {
				what(l)
			}
		}
	}
	return &loan{open: tell((*seglog.Log[T]).Lend), giveBack: tell((*seglog.Log[T]).Return), abandon: tell((*seglog.Log[T]).Abandon)}
}
