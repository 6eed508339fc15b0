package judge

import (
	"fmt"
	"math/bits"
)

const (
	// MaxEvents is the largest number of events that one ledger judges. At that
	// size it holds some 150 MiB.
	MaxEvents = 20_000_000
	// MaxKeys is the largest number of different keys whose order is judged.
	MaxKeys = 1 << 20
	// NoKey is the key number of an event without a key; no order is asked of it.
	NoKey uint32 = 0
)

// ID is the number of an event in one run, counted from 0 without gaps.
type ID uint32

// Ledger takes down what the driver saw and judges it. Feed it in the order in
// which things were seen. It is not safe for concurrent use.
//
// Invariants: every id in acked, and in handled and dead of each group, was
// refused as a phantom unless it is in sent; keyOf is known for each id in sent.
type Ledger struct {
	sent, acked bitmap
	keyOf       pagedKeys
	keys        map[string]uint32
	keysMax     int
	lastAcked   []uint32 // by key number: id+1 of the newest acknowledged event
	ackOrder    uint64   // acknowledgements that went back within a key
	phantoms    uint64   // reports of ids that were never sent
	crashes     int
	names       []string
	groups      map[string]*group
}

type group struct {
	handled, dead bitmap
	delivered     uint64
	highest       []uint32 // by key number: id+1 of the newest first delivery
	violations    uint64
	maxLag        uint64
}

// NewLedger returns a ledger for the named groups.
func NewLedger(groups ...string) *Ledger {
	l := &Ledger{keys: map[string]uint32{}, keysMax: MaxKeys, names: groups, groups: map[string]*group{}}
	for _, g := range groups {
		l.groups[g] = &group{}
	}
	return l
}

// KeyNumber returns the number that stands for a key in [Ledger.Sent], the
// same for equal keys. ok is false when more than [MaxKeys] keys were seen.
// The empty key is [NoKey].
func (l *Ledger) KeyNumber(key string) (n uint32, ok bool) {
	if key == "" {
		return NoKey, true
	}
	if n, ok := l.keys[key]; ok {
		return n, true
	}
	if len(l.keys) >= l.keysMax {
		return NoKey, false
	}
	n = uint32(len(l.keys) + 1)
	l.keys[key] = n
	return n, true
}

// Sent notes that an event was journaled and is about to leave. A repeat of
// an unanswered event changes nothing. It panics when id is not below
// [MaxEvents]: the driver stops before.
func (l *Ledger) Sent(id ID, key uint32) {
	if id >= MaxEvents {
		panic(fmt.Sprintf("judge: event %d is above the limit of %d", id, MaxEvents))
	}
	if l.sent.set(id) {
		l.keyOf.set(id, key)
	}
}

// Acked notes that an event was acknowledged.
func (l *Ledger) Acked(id ID) {
	if !l.sent.has(id) {
		l.phantoms++
		return
	}
	if !l.acked.set(id) {
		return
	}
	if key := l.keyOf.get(id); key != NoKey {
		l.lastAcked = grow(l.lastAcked, key)
		if l.lastAcked[key] > uint32(id) {
			l.ackOrder++
		}
		l.lastAcked[key] = max(l.lastAcked[key], uint32(id)+1)
	}
}

// Handled notes one delivery: a handler of the group reported the event. A
// first delivery that comes after the first delivery of a newer event of the
// same key is a violation of the order.
func (l *Ledger) Handled(name string, id ID) {
	g := l.groups[name]
	if g == nil || !l.sent.has(id) {
		l.phantoms++
		return
	}
	g.delivered++
	if !g.handled.set(id) {
		return
	}
	if key := l.keyOf.get(id); key != NoKey {
		g.highest = grow(g.highest, key)
		if g.highest[key] > uint32(id) {
			g.violations++
		}
		g.highest[key] = max(g.highest[key], uint32(id)+1)
	}
}

// Dead notes that the event came out of the dead-letter topic for the group.
func (l *Ledger) Dead(name string, id ID) {
	g := l.groups[name]
	if g == nil || !l.sent.has(id) {
		l.phantoms++
		return
	}
	g.dead.set(id)
}

// Lag notes how many events the group was behind at one moment.
func (l *Ledger) Lag(name string, events uint64) {
	if g := l.groups[name]; g != nil {
		g.maxLag = max(g.maxLag, events)
	}
}

// Crash notes that the node was killed.
func (l *Ledger) Crash() { l.crashes++ }

// Crashes returns how many times the node was killed.
func (l *Ledger) Crashes() int { return l.crashes }

// Produced returns the number of acknowledged events.
func (l *Ledger) Produced() uint64 { return l.acked.n }

// Unanswered returns the number of events that were sent and not acknowledged.
func (l *Ledger) Unanswered() uint64 { return l.sent.n - l.acked.n }

// Open returns how many acknowledged events the group has neither handled nor
// dead-lettered. It walks the bitmaps: some microseconds per million events.
func (l *Ledger) Open(name string) uint64 {
	g := l.groups[name]
	if g == nil {
		return 0
	}
	var open uint64
	for i := range l.acked.words() {
		open += uint64(bits.OnesCount64(l.acked.word(i) &^ (g.handled.word(i) | g.dead.word(i))))
	}
	return open
}

// Settled returns how many different events the group has handled, and how
// many are dead.
func (l *Ledger) Settled(name string) (handled, dead uint64) {
	g := l.groups[name]
	if g == nil {
		return 0, 0
	}
	return g.handled.n, g.deadOnly()
}

// deadOnly counts the events that were dead-lettered and never handled.
func (g *group) deadOnly() uint64 {
	if g.dead.n == 0 {
		return 0
	}
	var n uint64
	for i := range g.dead.words() {
		n += uint64(bits.OnesCount64(g.dead.word(i) &^ g.handled.word(i)))
	}
	return n
}

// grow returns s with room for index key.
func grow(s []uint32, key uint32) []uint32 {
	for int(key) >= len(s) {
		s = append(s, 0)
	}
	return s
}
