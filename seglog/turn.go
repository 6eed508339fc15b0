package seglog

import (
	"runtime"
	"sync/atomic"
	"time"
)

// A Turn is the lock of those who append single events to the logs of a topic
// in turn. Its release can publish what was appended: an event then costs two
// locked instructions, to take the lock and to give it back, where a lock and
// the end of a log apart cost three.
//
// It can do so for one event per turn while the logs are joined ([Log.Join]):
// then turn t is that of log t mod n of n, and the end of a log follows from how
// many turns there were. Whoever wants to append in any other way parts them
// first ([Log.Part]); both are done with the lock held.
//
// The lock is as fair as a [sync.Mutex]: whoever comes takes it when it is free,
// but once somebody has waited for a millisecond it is handed over in line.
// Those who wait stand in line at gate, a channel. The first of them looks a few
// times and then parks on another one.
//
// # Why it excludes and wakes
//
// The bit locked goes from 0 to 1 only by a compare-and-swap that saw 0, and
// back only by its holder. A waiter sets waiting in a word that has locked, with
// one compare-and-swap, and parks then. Only a holder that gives back, or the
// waiter itself, clears waiting; the holder sees it in the result of the addition
// that clears locked, so a bit that is set is seen by the next who gives back,
// and that one leaves a token. ready keeps one token, and has one receiver at a
// time. A token that nobody waits for makes a later waiter look once in vain.
//
// Invariant: at most one goroutine, the holder of gate, waits for a token.
type Turn struct {
	_     [cacheLine]byte
	word  atomic.Uint64 // turns, shifted left by turnShift, and the bits below
	_     [cacheLine - 8]byte
	gate  chan struct{} // full while somebody is the first of those who wait
	ready chan struct{}
}

const (
	locked    = 1 << iota
	waiting   // the holder of gate parks, or is about to
	starving  // nobody but the holder of gate may take it
	turnShift = iota

	oneTurn = 1 << turnShift

	// turnLooks is how often the holder of gate looks before it parks: the lock
	// is held for some ten nanoseconds.
	turnLooks = 200
	// starvesAfter is how long it waits before it is let past the others.
	starvesAfter = time.Millisecond
)

// Init prepares the zero Turn, which is unlocked.
func (t *Turn) Init() { t.gate, t.ready = make(chan struct{}, 1), make(chan struct{}, 1) }

// TryLock takes the lock if it is free, and reports whether it did. It is
// inlined in its callers.
func (t *Turn) TryLock() bool {
	w := t.word.Load()
	return w&(locked|starving) == 0 && t.word.CompareAndSwap(w, w|locked)
}

// Lock takes the lock.
func (t *Turn) Lock() {
	if !t.TryLock() {
		t.lockSlow()
	}
}

// Unlock gives the lock back.
func (t *Turn) Unlock() {
	const minus = 1<<64 - locked
	if w := t.word.Add(minus); w&waiting != 0 {
		t.wake(w)
	}
}

// Publish ends a turn of joined logs and gives the lock back: the event that was
// put in the slot is readable.
func (t *Turn) Publish() {
	if w := t.word.Add(oneTurn - locked); w&waiting != 0 {
		t.wake(w)
	}
}

// Release is Publish whose caller wakes: it returns true when somebody waits for
// the lock, and then Wake has to be called.
func (t *Turn) Release() bool { return t.word.Add(oneTurn-locked)&waiting != 0 }

// Wake wakes who waits for the lock, if it is free.
func (t *Turn) Wake() {
	if w := t.word.Load(); w&waiting != 0 {
		t.wake(w)
	}
}

// wake leaves a token for who waits. When the word has changed meanwhile, some
// other goroutine holds the lock and will look at the bit.
func (t *Turn) wake(w uint64) {
	if w&locked == 0 && t.word.CompareAndSwap(w, w&^waiting) {
		select {
		case t.ready <- struct{}{}:
		default:
		}
	}
}

func (t *Turn) lockSlow() {
	t.gate <- struct{}{}
	defer func() { <-t.gate }()
	looks := turnLooks
	if runtime.GOMAXPROCS(0) == 1 {
		looks = 0
	}
	var since time.Time
	for {
		w := t.word.Load()
		switch {
		case w&locked == 0:
			if t.word.CompareAndSwap(w, w&^(waiting|starving)|locked) {
				return
			}
		case looks > 0:
			looks--
		default:
			set := uint64(waiting)
			if since.IsZero() {
				since = time.Now()
			} else if time.Since(since) > starvesAfter {
				set |= starving
			}
			if w&set == set || t.word.CompareAndSwap(w, w|set) {
				<-t.ready
			}
		}
	}
}

// turns returns how many turns there were.
func (t *Turn) turns() uint64 { return t.word.Load() >> turnShift }

// Align makes the number of turns one whose next is that of log first of n. The
// caller holds the lock, and no log is joined.
func (t *Turn) Align(first, n int) {
	at := int(t.turns() % uint64(n))
	t.word.Add(uint64((first-at+n)%n) << turnShift)
}
