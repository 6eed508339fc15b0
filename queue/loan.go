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
	log         lender // of a topic in memory; nil on disk
	closeSource func() // on disk gives back what the source holds; nil in memory

	mu    sync.Mutex
	state loanState
}

// lender is the part of a log that loans use.
type lender interface {
	Lend()    // keeps what the hold kept as it is
	Return()  // ends that
	Abandon() // ends that; what was kept is still looked at
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
	if l.log != nil {
		l.log.Lend()
	}
}

// end says that the owner looks at nothing any more.
func (l *loan) end() { l.endBy(lender.Return) }

// forget says that the owner is gone.
func (l *loan) forget() { l.endBy(lender.Abandon) }

func (l *loan) endBy(how func(lender)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wasLent := l.state == lent
	if l.state == ended {
		return
	}
	l.state = ended
	if wasLent && l.log != nil {
		how(l.log)
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
	return &loan{log: weakLog[T]{weak.Make(p.log)}}
}

// weakLog is a log that it does not keep alive.
type weakLog[T any] struct{ log weak.Pointer[seglog.Log[T]] }

func (w weakLog[T]) Lend()    { w.tell((*seglog.Log[T]).Lend) }
func (w weakLog[T]) Return()  { w.tell((*seglog.Log[T]).Return) }
func (w weakLog[T]) Abandon() { w.tell((*seglog.Log[T]).Abandon) }

func (w weakLog[T]) tell(what func(*seglog.Log[T])) {
	if l := w.log.Value(); l != nil {
		what(l)
	}
}
