package seglog

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

const (
	wordBits    = 64
	looksAtOnce = 128 // of a spinning Wait, before it lets others run
)

// Waker lets one consumer of several places (partitions) sleep until one of
// them has something new. Any number of goroutines call Notify; one goroutine
// at a time calls Take and Wait.
//
// The appender publishes, then sets the dirty bit of its place, then looks
// whether the consumer is parked. The consumer takes the dirty bits, then
// reads what is published; before it sleeps it says that it is parked, then
// looks at the dirty bits again.
//
// # Why no wake-up is lost
//
// Go's atomic operations behave as if executed in one total order, so "before"
// below means in that order. Let P be a publication.
//
// (1) P is followed by a set bit whose setter looked at parked later. Either
// this appender's Or changed the bit from 0 to 1: it is the setter. Or it
// found the bit 1, set by an earlier setter and not taken since; that Take is
// still to come, so it comes after P and the consumer's reading after it sees
// P. The appender need not look at parked: the earlier setter does, after its
// own Or.
//
// (2) While a bit is set, the consumer does not sleep for good. Setter: Or,
// then load parked. Consumer: store parked = 1, then load the bits. In the one
// order, either the setter's load comes after the store, sees 1, and the
// compare-and-swap that takes parked to 0 is followed by a token in ready; or
// the store comes after the setter's load, hence after its Or, and the
// consumer's load sees the bit and it does not sleep. When another setter
// wins the compare-and-swap, that one sends the token.
//
// (3) ready holds one token, and the only receiver is the consumer, so a token
// sent before the consumer reaches its receive is kept. A send that finds the
// channel full has found a token that will wake the same receive.
//
// (4) A token left behind by a Wait that ended for another reason makes one
// later Wait return with nothing new. Callers look again in a loop, so that
// costs one look.
//
// An appender whose consumer is busy pays one load of a word that the consumer
// writes once per Take, not once per event.
//
// (5) Ring is (2) with rung in the place of the dirty bits: it sets rung, then
// looks at parked; Wait stores parked = 1, then looks at rung. Wait clears it
// before it returns, so what was done before Ring is seen after Wait.
//
// Invariants: parked is 1 only while the consumer is in Wait. ready holds at
// most one token.
type Waker struct {
	ready chan struct{}
	dirty []atomic.Uint64 // a bit per place
	looks int             // of Wait, before it parks
	tarry tarry           // what Wait does instead without looks

	_      [cacheLine]byte
	parked atomic.Uint32
	rung   atomic.Bool
	closed atomic.Bool
	_      [cacheLine]byte
}

// NewWaker returns a waker for the places [0, places).
func NewWaker(places int) *Waker {
	// The words get lines of their own.
	const perLine = cacheLine / 8
	words := (places + wordBits - 1) / wordBits
	return &Waker{
		ready: make(chan struct{}, 1),
		dirty: make([]atomic.Uint64, words+2*perLine)[perLine : perLine+words],
		tarry: tarry{useless: runtime.GOMAXPROCS(0) == 1},
	}
}

// Spin makes Wait look so many times before it parks, which spares its caller
// the way through the scheduler when something comes at once. Without it, or
// with 0, Wait pauses for up to some ten microseconds as long as that is worth
// it; see tarry. It is called before the waker is used.
func (w *Waker) Spin(looks int) { w.looks = looks }

// Notify says that something new was published at place. It does not block.
func (w *Waker) Notify(place int) { w.Place(place).Notify() }

// Place is one place of a waker, for those who notify it often.
type Place struct {
	dirty *atomic.Uint64
	bit   uint64
	waker *Waker
}

// Place returns the place with the given number, in [0, places).
func (w *Waker) Place(place int) Place {
	return Place{&w.dirty[place/wordBits], 1 << (place % wordBits), w}
}

// Of reports whether the place belongs to w.
func (p Place) Of(w *Waker) bool { return p.waker == w }

// Notify says that something new was published at the place. It does not
// block.
func (p Place) Notify() {
	if p.dirty.Load()&p.bit == 0 { // otherwise (1): the earlier setter looks at parked
		p.mark()
	}
}

// Mark returns the word and the bit that Notify sets in it: while it is set,
// Notify does nothing. Who asks for both before a publication and looks at them
// after it needs the place no more.
func (p *Place) Mark() (dirty *atomic.Uint64, bit uint64) { return p.dirty, p.bit }

// NoPlace is a place that is never marked, of no waker; it is not notified.
var NoPlace = Place{dirty: new(atomic.Uint64)}

func (p Place) mark() {
	if p.dirty.Or(p.bit)&p.bit == 0 {
		p.waker.wake()
	}
}

func (w *Waker) wake() {
	if w.parked.Load() == 1 && w.parked.CompareAndSwap(1, 0) {
		select {
		case w.ready <- struct{}{}:
		default:
		}
	}
}

// Words returns how many words of dirty bits there are.
func (w *Waker) Words() int { return len(w.dirty) }

// Take returns the dirty bits of word i, in [0, Words), and clears them: bit b
// stands for place 64*i + b. What was published before the bit was set is seen
// by reads after Take.
func (w *Waker) Take(i int) uint64 {
	if w.dirty[i].Load() == 0 {
		return 0
	}
	return w.dirty[i].Swap(0)
}

// Ring makes the Wait that is under way, or else the next one, return nil: it
// says that something changed that belongs to no place. It does not block.
func (w *Waker) Ring() {
	if !w.rung.Swap(true) {
		w.wake()
	}
}

// Close makes this and every later Wait return [penstock.ErrClosed].
func (w *Waker) Close() {
	w.closed.Store(true)
	w.wake()
}

// Wait blocks until a place is dirty, and returns nil then, after Ring, or when
// alarm fires (a nil alarm never does). It returns [penstock.ErrClosed] after Close,
// and an error that matches ctx.Err() and its cause when ctx ends first. It may
// return nil with nothing new; callers look and wait again.
func (w *Waker) Wait(ctx context.Context, alarm <-chan time.Time) error {
	if w.looks > 0 {
		w.look(ctx)
	} else if w.tarry.begin() {
		w.tarry.end(w.comesSoon())
	}
	w.parked.Store(1)
	if w.closed.Load() {
		w.parked.Store(0)
		return penstock.ErrClosed
	}
	if w.anyDirty() || w.rung.Load() {
		w.parked.Store(0)
		w.answer()
		return nil
	}
	select {
	case <-w.ready:
	case <-alarm:
	case <-ctx.Done():
		w.parked.Store(0)
		return penstock.ContextError(ctx)
	}
	w.parked.Store(0)
	w.answer()
	if w.closed.Load() {
		return penstock.ErrClosed
	}
	return nil
}

// look looks until there is a reason not to park, as often as Spin says. Now
// and then it lets others run: they may be those that it waits for.
func (w *Waker) look(ctx context.Context) {
	for i := 1; i <= w.looks && !w.anyDirty() && !w.rung.Load() && !w.closed.Load(); i++ {
		if i%looksAtOnce == 0 {
			if ctx.Err() != nil {
				return
			}
			runtime.Gosched()
		}
	}
}

// answer clears rung; the caller looks at what changed after that.
func (w *Waker) answer() {
	if w.rung.Load() {
		w.rung.Store(false)
	}
}

func (w *Waker) anyDirty() bool {
	for i := range w.dirty {
		if w.dirty[i].Load() != 0 {
			return true
		}
	}
	return false
}
