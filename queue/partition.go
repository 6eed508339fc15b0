package queue

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/seglog"
)

// partition is one run of events with consecutive offsets.
//
// Appends are serial. Whoever appends holds appendMu, except a single
// round-robin event while no round-robin batch is under way: that one holds
// the topic's turnMu only (BQ-57; [Topic.appendNext]).
type partition[T any] struct {
	index int
	marks *seglog.Marks
	log   *seglog.Log[T]    // nil on disk
	file  *filePartition[T] // nil in memory

	// returned is how far capacity was given back; guarded by the budget.
	returned penstock.Offset

	// wakers is replaced as a whole when a group comes or goes, so that
	// producers read it without a lock (BQ-83).
	wakers   atomic.Pointer[[]waking]
	wakersMu sync.Mutex // serialises replacements

	_        [128]byte
	appendMu sync.Mutex
}

// waking is one consumer to wake, and the place that the partition has there.
type waking struct {
	waker *seglog.Waker
	place int
}

func newPartition[T any](index int) *partition[T] {
	p := &partition[T]{index: index, marks: seglog.NewMarks()}
	p.wakers.Store(&[]waking{})
	return p
}

// notify wakes the consumers of the partition that sleep. It is called after
// a publication, without a lock (BQ-58).
func (p *partition[T]) notify() {
	for _, w := range *p.wakers.Load() {
		w.waker.Notify(w.place)
	}
}

func (p *partition[T]) addWaker(w waking) {
	p.wakersMu.Lock()
	defer p.wakersMu.Unlock()
	list := append(slices.Clone(*p.wakers.Load()), w)
	p.wakers.Store(&list)
}

func (p *partition[T]) removeWaker(w *seglog.Waker) {
	p.wakersMu.Lock()
	defer p.wakersMu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*p.wakers.Load()), func(x waking) bool { return x.waker == w })
	p.wakers.Store(&list)
}

// end returns one past the newest readable event.
func (p *partition[T]) end() penstock.Offset {
	if p.log != nil {
		return p.log.End()
	}
	return p.file.end()
}

// earliest returns the first offset that is kept.
func (p *partition[T]) earliest() penstock.Offset {
	if p.log != nil {
		return p.log.Usage().Released
	}
	return p.file.earliest()
}
