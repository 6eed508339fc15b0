package seglog

import "github.com/penstock/penstock"

// joined marks, in published, a log whose end follows from the turns: the rest
// of the word is then the end less the log's share of all turns, modulo 1<<63.
const joined = 1 << 63

// TakesTurns makes the log one of n whose single events go in turn: turn t is
// its own when t mod n is place. It is called before the first append.
func (l *Log[T]) TakesTurns(t *Turn, place, n int) {
	l.turn, l.place, l.of = t, uint64(place), uint64(n)
}

// share returns how many of so many turns are the log's.
func (l *Log[T]) share(turns uint64) uint64 { return (turns + l.of - 1 - l.place) / l.of }

// Join makes the log's end follow the turns from now on. The caller holds the
// turn, which is aligned, and is the only appender until it calls Part.
func (l *Log[T]) Join() {
	end := l.published.Load()
	l.published.Store(end - l.share(l.turn.turns()) | joined)
}

// Part ends Join: appends publish what they append themselves. The caller holds
// the turn.
func (l *Log[T]) Part() { l.published.Store(uint64(l.End())) }

// endByTurns returns the end of a joined log, of which e was read.
//
// The second look makes the two words belong together. When it finds what the
// first did, the log's end was that difference and its share of the turns at both
// looks, though it may have been parted between them. Turns only rise, so the
// sum lies between the ends that it had then: nothing that was there at the first
// look is missing, and everything below is there at the second.
func (l *Log[T]) endByTurns(e uint64) penstock.Offset {
	for {
		end := (e + l.share(l.turn.turns())) &^ joined
		again := l.published.Load()
		switch {
		case again == e:
			return penstock.Offset(end)
		case again&joined == 0:
			return penstock.Offset(again)
		}
		e = again
	}
}
