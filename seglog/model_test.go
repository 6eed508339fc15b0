package seglog

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
)

// modelHold is what a hold should be, and the reader that owns it.
type modelHold struct {
	hold             *Hold
	cursor           Cursor[*int]
	low, commit, pos penstock.Offset
}

// model is a plain slice with the same operations as log and marks. Every
// event is a pointer to its own offset.
type model struct {
	log   *Log[*int]
	marks *Marks
	end   penstock.Offset
	holds []*modelHold

	committed, low, released penstock.Offset
}

func (m *model) append(t *rapid.T) {
	n := rapid.IntRange(0, 9).Draw(t, "n")
	values := make([]*int, n)
	for i := range values {
		v := int(m.end) + i
		values[i] = &v
	}
	switch rapid.SampledFrom([]string{"single", "strided", "picked"}).Draw(t, "form") {
	case "single":
		for _, v := range values {
			m.log.Append(v)
		}
	case "strided":
		m.log.AppendStrided(values, nil, 0, 1)
	case "picked":
		picked := make([]int32, n)
		for i := range picked {
			picked[i] = int32(i)
		}
		m.log.AppendPicked(values, nil, picked)
	}
	m.end += penstock.Offset(n)
}

func (m *model) add(t *rapid.T) {
	if len(m.holds) == 8 {
		t.Skip("enough holds")
	}
	where := rapid.SampledFrom([]string{"low", "committed", "end"}).Draw(t, "where")
	h := &modelHold{cursor: m.log.Cursor()}
	h.hold = m.marks.Add(func(committed, low penstock.Offset) penstock.Offset {
		if committed != m.committed || low != m.low {
			t.Fatalf("start is given (%d, %d), want (%d, %d)", committed, low, m.committed, m.low)
		}
		switch where {
		case "low":
			return low
		case "committed":
			return committed
		}
		return m.log.End()
	})
	h.low = map[string]penstock.Offset{"low": m.low, "committed": m.committed, "end": m.end}[where]
	h.commit, h.pos = h.low, h.low
	m.holds = append(m.holds, h)
}

func (m *model) pick(t *rapid.T) *modelHold {
	if len(m.holds) == 0 {
		t.Skip("no hold")
	}
	return m.holds[rapid.IntRange(0, len(m.holds)-1).Draw(t, "hold")]
}

func (m *model) remove(t *rapid.T) {
	h := m.pick(t)
	m.marks.Remove(h.hold)
	m.marks.Remove(h.hold) // a second time changes nothing
	for i, x := range m.holds {
		if x == h {
			m.holds = append(m.holds[:i:i], m.holds[i+1:]...)
			break
		}
	}
}

// read views any run that the hold keeps alive, also one that was read before.
func (m *model) read(t *rapid.T) {
	h := m.pick(t)
	at := penstock.Offset(rapid.Uint64Range(uint64(h.low), uint64(m.end)).Draw(t, "at"))
	limit := penstock.Offset(rapid.Uint64Range(uint64(at), uint64(m.end)).Draw(t, "limit"))
	span := h.cursor.View(at, limit)
	if at < limit && len(span.Values) == 0 {
		t.Fatalf("view of [%d, %d) is empty", at, limit)
	}
	if len(span.Values) > int(limit-at) {
		t.Fatalf("view of [%d, %d) has %d events", at, limit, len(span.Values))
	}
	for i, v := range span.Values {
		if v == nil || *v != int(at)+i {
			t.Fatalf("offset %d holds %v", int(at)+i, v)
		}
	}
	h.pos = max(h.pos, at+penstock.Offset(len(span.Values)))
}

func (m *model) commit(t *rapid.T) {
	h := m.pick(t)
	h.commit = penstock.Offset(rapid.Uint64Range(uint64(h.commit), uint64(max(h.commit, h.pos))).Draw(t, "to"))
	h.hold.Commit(h.commit)
}

func (m *model) lower(t *rapid.T) {
	h := m.pick(t)
	h.low = penstock.Offset(rapid.Uint64Range(uint64(h.low), uint64(h.commit)).Draw(t, "to"))
	h.cursor.Leave(h.low)
	h.hold.Lower(h.low)
}

func (m *model) release(*rapid.T) {
	m.log.Release(m.marks.Low())
	m.released = max(m.released, m.low)
}

// check compares marks and chain with the model after every operation.
func (m *model) check(t *rapid.T) {
	if len(m.holds) > 0 {
		low, committed := m.holds[0].low, m.holds[0].commit
		for _, h := range m.holds {
			low, committed = min(low, h.low), min(committed, h.commit)
		}
		m.low, m.committed = max(m.low, low), max(m.committed, committed)
	}
	if got := m.marks.Committed(); got != m.committed {
		t.Fatalf("committed mark %d, want %d", got, m.committed)
	}
	if got := m.marks.Low(); got != m.low {
		t.Fatalf("low-water mark %d, want %d", got, m.low)
	}
	if got := m.log.End(); got != m.end {
		t.Fatalf("end %d, want %d", got, m.end)
	}
	if got := m.log.Usage(); got.Released != m.released || got.Free > maxFree {
		t.Fatalf("usage %+v, want released %d and at most %d free", got, m.released, maxFree)
	}
	m.checkChain(t)
}

func (m *model) checkChain(t *rapid.T) {
	at := m.log.head.base
	if at > m.released {
		t.Fatalf("the head begins at %d, above %d", at, m.released)
	}
	for s := m.log.head; s != nil; s = s.next.Load() {
		if s.base != at {
			t.Fatalf("a segment begins at %d, want %d", s.base, at)
		}
		if next := s.next.Load(); next != nil && s != m.log.head && s.end() <= m.released {
			t.Fatalf("segment [%d, %d) is kept below %d", s.base, s.end(), m.released)
		}
		for _, v := range s.items {
			switch alive := at >= m.released && at < m.end; {
			case alive && (v == nil || *v != int(at)):
				t.Fatalf("offset %d holds %v", at, v)
			case !alive && v != nil:
				t.Fatalf("offset %d, released up to %d, end %d, keeps %d alive", at, m.released, m.end, *v)
			}
			at++
		}
	}
	for _, s := range m.log.free {
		for _, v := range s.items {
			if v != nil {
				t.Fatalf("a free segment keeps %d alive", *v)
			}
		}
	}
}

func TestLogAndMarksFollowTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := NewClock()
		defer clock.Stop()
		size := rapid.SampledFrom([]int{0, 1, 2, 3, 7}).Draw(t, "segment size")
		m := &model{log: New[*int](Config{SegmentSize: size, Clock: clock}), marks: NewMarks()}
		t.Repeat(map[string]func(*rapid.T){
			"append":  m.append,
			"add":     m.add,
			"remove":  m.remove,
			"read":    m.read,
			"commit":  m.commit,
			"lower":   m.lower,
			"release": m.release,
			"":        m.check,
		})
	})
}
