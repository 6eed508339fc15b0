package queue

import (
	"sort"
	"sync"

	"github.com/penstock/penstock"
)

// ledgerPiece is how many events a piece of a ledger covers.
const ledgerPiece = 256

// ledger knows the sizes of the events of a partition that may not have given
// their capacity back, so that what a commit gives back in bytes is what was
// taken. It exists only where capacity is bounded in bytes. It keeps running
// sums: the bytes between two offsets are one subtraction, however many events
// lie there. It takes 8 bytes per event, and allocates nothing once it has
// grown to the backlog.
//
// An entry is added before its event becomes readable, so whoever sees a
// commit finds the entries below it.
//
// Invariants: sums[i] of piece k is the bytes of all events in [0, at] for the
// offset at = base + k*ledgerPiece + i, counted from the first that was added.
// base <= start <= end; what lies below start has no size any more.
type ledger struct {
	mu     sync.Mutex
	base   penstock.Offset // of the first entry of pieces[first]
	start  penstock.Offset // released up to here
	end    penstock.Offset
	below  penstock.Bytes // sum up to start
	total  penstock.Bytes // sum up to end
	pieces []*[ledgerPiece]penstock.Bytes
	first  int // pieces before it are gone
	spare  *[ledgerPiece]penstock.Bytes
}

// begin makes an empty ledger one whose first event has the offset at.
func (l *ledger) begin(at penstock.Offset) { l.base, l.start, l.end = at, at, at }

// add adds the sizes of the next event or events.
func (l *ledger) add(sizes ...penstock.Bytes) { l.addStrided(sizes, 0, 1) }

// addStrided adds sizes[first], sizes[first+stride] and so on.
func (l *ledger) addStrided(sizes []penstock.Bytes, first, stride int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := first; i < len(sizes); i += stride {
		l.push(sizes[i])
	}
}

// addPicked adds sizes[i] for each i of picked.
func (l *ledger) addPicked(sizes []penstock.Bytes, picked []int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range picked {
		l.push(sizes[i])
	}
}

func (l *ledger) push(size penstock.Bytes) {
	at := int(l.end - l.base)
	if at/ledgerPiece == len(l.pieces)-l.first {
		l.grow()
	}
	l.total += size
	l.pieces[l.first+at/ledgerPiece][at%ledgerPiece] = l.total
	l.end++
}

func (l *ledger) grow() {
	if l.first > len(l.pieces)/2 { // each piece is moved once, however many there are
		n := copy(l.pieces, l.pieces[l.first:])
		clear(l.pieces[n:])
		l.pieces, l.first = l.pieces[:n], 0
	}
	piece := l.spare
	if l.spare = nil; piece == nil {
		piece = new([ledgerPiece]penstock.Bytes)
	}
	l.pieces = append(l.pieces, piece)
}

// sum returns the bytes of the events below the offset at, in [start, end].
func (l *ledger) sum(at penstock.Offset) penstock.Bytes {
	if at <= l.start {
		return l.below
	}
	i := int(min(at, l.end)-l.base) - 1
	return l.pieces[l.first+i/ledgerPiece][i%ledgerPiece]
}

// bytes returns the size of the events in [from, to) that were not released.
func (l *ledger) bytes(from, to penstock.Offset) penstock.Bytes {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from >= to {
		return 0
	}
	return l.sum(to) - l.sum(from)
}

// reach returns the lowest offset up to which the events from the offset from on
// are at least size bytes, and the end when there are not so many.
func (l *ledger) reach(from penstock.Offset, size penstock.Bytes) penstock.Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from >= l.end {
		return from
	}
	n := sort.Search(int(l.end-from), func(i int) bool { return l.sum(from+penstock.Offset(i)+1)-l.sum(from) >= size })
	return min(from+penstock.Offset(n)+1, l.end)
}

// release forgets the events below the offset to and returns their size.
func (l *ledger) release(to penstock.Offset) penstock.Bytes {
	l.mu.Lock()
	defer l.mu.Unlock()
	to = min(to, l.end)
	if to <= l.start {
		return 0
	}
	size := l.sum(to) - l.below
	l.start, l.below = to, l.below+size
	for l.base+ledgerPiece <= l.start {
		l.spare, l.pieces[l.first] = l.pieces[l.first], nil
		l.first++
		l.base += ledgerPiece
	}
	return size
}
