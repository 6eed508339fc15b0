package seglog

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// replaced marks the commit of a hold that counts no more.
const replaced = 1 << 63

// Hold is one group's place in a partition. Its two positions are written by
// the group's owner of the partition, one goroutine at a time, and read by
// anyone.
//
// Invariant: low <= commit, and neither goes back; [Marks.Seek] and
// [Marks.Replace] make another hold. The highest bit of commit says that the
// hold was replaced: what is added later does not count.
type Hold struct {
	_      [cacheLine]byte
	commit atomic.Uint64
	low    atomic.Uint64
	_      [cacheLine - 16]byte
}

// Committed returns the offset below which the group has finished.
func (h *Hold) Committed() penstock.Offset { return penstock.Offset(h.commit.Load() &^ replaced) }

// Low returns the offset below which the group looks at nothing any more.
func (h *Hold) Low() penstock.Offset { return penstock.Offset(h.low.Load()) }

// Commit raises the commit to the offset to, which is not below it. There is
// one writer, so adding the difference is storing it, at half the cost. It
// returns false when the hold was replaced: the commit does not count.
func (h *Hold) Commit(to penstock.Offset) bool {
	return h.commit.Add(uint64(to)-h.commit.Load()&^replaced)&replaced == 0
}

// Advance raises the commit by n events; n is not negative. It returns false
// when the hold was replaced: the commit does not count.
func (h *Hold) Advance(n int) bool {
	// The bit is that of the sign, and what was there before had it too, which is
	// what the processor's addition leaves: one test of a register.
	return int64(h.commit.Add(uint64(n))-uint64(n)) >= 0
}

// Lower raises low to the offset to, which is not below it and not above the
// commit: what lies below is no longer in hands.
func (h *Hold) Lower(to penstock.Offset) { h.low.Store(uint64(to)) }

// Marks joins the holds of one partition. It is safe for concurrent use.
//
// Invariants: low <= committed; neither goes back; low <= the low and
// committed <= the commit of every hold. Without a hold both stand still.
type Marks struct {
	mu        sync.Mutex
	holds     []*Hold
	committed penstock.Offset
	low       penstock.Offset
	lag       func(low penstock.Offset) penstock.Offset // nil: the low-water mark does not stay behind
}

// Lag makes the low-water mark stay behind the lows of the holds: where all of
// them have passed low, the mark rises to what at says, which is not above low.
// What lies between is kept, and new holds may begin in it. It is called before
// the first Add; at is called with the marks locked, and must not block.
func (m *Marks) Lag(at func(low penstock.Offset) penstock.Offset) { m.lag = at }

// NewMarks returns marks at offset 0 without a hold.
func NewMarks() *Marks { return &Marks{} }

// Start says where a new hold begins.
type Start func(committed, low penstock.Offset) penstock.Offset

// Add makes a hold. start is given the marks and returns where the hold
// begins; a place below low is raised to it. It is called with the marks
// locked, so that what lies above stays alive from then on; it must not block.
func (m *Marks) Add(start Start) *Hold {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance()
	at := max(start(m.committed, m.low), m.low)
	h := &Hold{}
	h.commit.Store(uint64(at))
	h.low.Store(uint64(at))
	m.holds = append(m.holds, h)
	return h
}

// floor returns the lowest offset that a hold can be moved to: the committed
// mark where what lies below it has given its capacity back, else the low-water
// mark.
func (m *Marks) floor(given bool) penstock.Offset {
	if given {
		return m.committed
	}
	return m.low
}

// Seek makes a hold with its commit at the offset to, which keeps besides what
// old keeps now: whoever has old may still look at that. It returns nil when to
// is below the floor, and the floor. Remove(old) completes the move. Without
// given, the committed mark may stay above the new commit.
func (m *Marks) Seek(old *Hold, to penstock.Offset, given bool) (*Hold, penstock.Offset) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance()
	floor := m.floor(given)
	if to < floor {
		return nil, floor
	}
	h := &Hold{}
	h.commit.Store(uint64(to))
	h.low.Store(uint64(min(old.Low(), to)))
	m.holds = append(m.holds, h)
	return h, floor
}

// Replace takes a hold out whose owner may be at work, and returns one in its
// place that begins, with both positions, at the commit of old, or at the
// offset at if that is higher. From then on Commit and Advance of old return
// false: each commit of old counts in the new hold, or its caller is told that
// it does not. What old kept besides, the new hold does not keep.
func (m *Marks) Replace(old *Hold, at penstock.Offset) *Hold {
	m.mu.Lock()
	defer m.mu.Unlock()
	at = max(at, penstock.Offset(old.commit.Or(replaced)&^replaced))
	h := &Hold{}
	h.commit.Store(uint64(at))
	h.low.Store(uint64(at))
	m.holds = append(slices.DeleteFunc(m.holds, func(x *Hold) bool { return x == old }), h)
	m.advance()
	return h
}

// Expire raises both marks to an offset when there is no hold, and returns by
// how much the committed one rose. With holds it does nothing: they have to be
// moved first.
func (m *Marks) Expire(to penstock.Offset) (n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.holds) > 0 {
		return 0
	}
	if to > m.committed {
		n = uint64(to - m.committed)
		m.committed = to
	}
	m.low = max(m.low, to)
	return n
}

// Remove takes a hold out; one that is not there is ignored. The marks may
// rise with it.
func (m *Marks) Remove(h *Hold) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds = slices.DeleteFunc(m.holds, func(x *Hold) bool { return x == h })
	m.advance()
}

// Committed returns the committed mark: the smallest commit of all holds.
func (m *Marks) Committed() penstock.Offset {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance()
	return m.committed
}

// Low returns the low-water mark: the smallest low of all holds.
func (m *Marks) Low() penstock.Offset {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance()
	return m.low
}

// Holds returns how many holds there are.
func (m *Marks) Holds() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.holds)
}

// advance raises the marks to the minimum of the holds.
func (m *Marks) advance() {
	if len(m.holds) == 0 {
		return
	}
	// low is read before commit: both rise, and low <= commit holds in each
	// hold, so the minimum of the lows cannot pass the minimum of the commits.
	low, committed := m.holds[0].Low(), m.holds[0].Committed()
	for _, h := range m.holds[1:] {
		low = min(low, h.Low())
		committed = min(committed, h.Committed())
	}
	if m.lag != nil && low > m.low {
		low = min(low, m.lag(low))
	}
	m.low = max(m.low, low)
	m.committed = max(m.committed, committed)
}
