package seglog

import (
	"testing"

	"github.com/penstock/penstock"
)

// TestLowWaterMarkStaysBehind: by what Lag says, of what all holds have passed,
// and never back; the committed mark does not, and a hold may begin between.
func TestLowWaterMarkStaysBehind(t *testing.T) {
	m := NewMarks()
	m.Lag(func(low penstock.Offset) penstock.Offset { return low - min(low, 10) })
	at := func(o penstock.Offset) Start {
		return func(penstock.Offset, penstock.Offset) penstock.Offset { return o }
	}
	want := func(low, committed penstock.Offset) {
		t.Helper()
		if m.Low() != low || m.Committed() != committed {
			t.Errorf("low %d, committed %d, want %d and %d", m.Low(), m.Committed(), low, committed)
		}
	}
	first := m.Add(at(0))
	first.Commit(5)
	first.Lower(5)
	want(0, 5)
	first.Commit(25)
	want(0, 25)
	first.Lower(25)
	want(15, 25)
	second := m.Add(at(3)) // below the mark, so at it
	if second.Committed() != 15 || second.Low() != 15 {
		t.Errorf("the second begins at %d, want 15", second.Committed())
	}
	first.Commit(100)
	first.Lower(100)
	want(15, 25)
	second.Commit(24)
	second.Lower(24)
	want(15, 25) // 24 less 10 is below the mark
	second.Commit(40)
	second.Lower(40)
	want(30, 40)
	m.Remove(second)
	want(90, 100)
	m.Remove(first)
	want(90, 100)
}
