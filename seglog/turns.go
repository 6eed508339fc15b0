package seglog

import "github.com/penstock/penstock"

// joined marks, in published, a log whose end follows from the turns: the rest
// of the word is then the end less the log's share of all turns, modulo 1<<63.
const joined = 1 << 63

// TakesTurns makes the log one of n whose single events go in turn: turn t is
// its own when t mod n is place. It is called before the first append.
func (l *Log[T]) TakesTurns(t *Turn, place, n int) {
	l.turn, l.place, l.of = t, uint32(place), uint32(n)
}

// share returns how many of so many turns are the log's.
func (l *Log[T]) share(turns uint64) uint64 {
	return (turns + uint64(l.of-1-l.place)) / uint64(l.of)
}

// Join makes the log's end follow the turns from now on. The caller holds the
// turn, which is aligned, and is the only appender until it calls Part.
func (l *Log[T]) Join() {
	end, turns := l.published.Load(), l.turn.turns()
	l.joinedAt.Store(turns)
	l.published.Store(end - l.share(turns) | joined)
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

// A Look is one reading of the turns, from which the ends of several logs follow.
// The word of the turns is written for every event, so each reading of it takes
// the line away from who appends. The zero Look has read nothing. It is for one
// goroutine.
type Look struct {
	turns uint64
	taken bool
}

// Again makes the next [Log.EndBy] read anew.
func (k *Look) Again() { k.taken = false }

// Taken reports whether a reading stands.
func (k *Look) Taken() bool { return k.taken }

// EndBy is [Log.End] at the reading of k, or at a later moment: it is not above
// the end, and everything that was readable when k read is below it. Without a
// reading it takes one. The logs that k is used with share their turns.
//
// That holds because the word that is added to the log's share of the turns is
// looked at after the reading, and not used with one from before it came to be:
// joinedAt is stored before that word is, so it is seen with it. With as many
// turns as there were then, the sum is the end then, whichever was first.
func (l *Log[T]) EndBy(k *Look) penstock.Offset {
	for {
		e := l.published.Load()
		if e&joined == 0 {
			return penstock.Offset(e)
		}
		if k.taken && k.turns >= l.joinedAt.Load() {
			return penstock.Offset((e + l.share(k.turns)) &^ joined)
		}
		k.turns, k.taken = l.turn.turns(), true
	}
}
