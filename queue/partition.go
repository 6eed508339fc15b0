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
// the topic's turn only (BQ-57; [Topic.produceNext]).
type partition[T any] struct {
	index int
	next  *partition[T] // whose turn is after this one's, in a ring
	marks *seglog.Marks
	log   *seglog.Log[T]    // nil on disk
	file  *filePartition[T] // nil in memory

	ledger *ledger // sizes of its events; nil without Config.CapacityBytes

	// returned is how far capacity was given back; guarded by the budget.
	returned penstock.Offset
	debt     debt

	// wakers is replaced as a whole when a consumer comes or goes, so that
	// producers go through it without a lock (BQ-83). It is replaced with
	// the turn and appendMu held: a producer that loads it with one of them held
	// and so before it publishes, or later, misses nobody. Who came later scans
	// later, and sees what was published.
	wakers atomic.Pointer[[]seglog.Place]
	alone  seglog.Place // the only one of wakers, else one that is never marked; for the turn's holder

	_        [128]byte
	appendMu sync.Mutex
}

func newPartition[T any](index int) *partition[T] {
	p := &partition[T]{index: index, marks: seglog.NewMarks(), alone: seglog.NoPlace}
	p.wakers.Store(&[]seglog.Place{})
	return p
}

// notify wakes the consumers of the partition that sleep. It is called after
// a publication, without a lock (BQ-58).
func (p *partition[T]) notify() {
	for _, w := range *p.wakers.Load() {
		w.Notify()
	}
}

// addWaker makes producers wake the owner of w.
func (t *Topic[T]) addWaker(p *partition[T], w seglog.Place) {
	t.changeWakers(p, func(list []seglog.Place) []seglog.Place { return append(list, w) })
}

// removeWaker makes producers forget w.
func (t *Topic[T]) removeWaker(p *partition[T], w *seglog.Waker) {
	t.changeWakers(p, func(list []seglog.Place) []seglog.Place {
		return slices.DeleteFunc(list, func(x seglog.Place) bool { return x.Of(w) })
	})
}

func (t *Topic[T]) changeWakers(p *partition[T], change func([]seglog.Place) []seglog.Place) {
	t.turn.Lock()
	defer t.turn.Unlock()
	p.appendMu.Lock()
	defer p.appendMu.Unlock()
	list := change(slices.Clone(*p.wakers.Load()))
	p.wakers.Store(&list)
	p.alone = seglog.NoPlace
	if len(list) == 1 {
		p.alone = list[0]
	}
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
