package settle_test

import (
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// A selector that panics at one look at an event and not at the next one tells
// no key and then one that is parked. The span was empty then, and its
// settlement an error that ended the run.
func TestKeyThatComesAndGoesGivesNoEmptySpan(t *testing.T) {
	p := parking(1, "a")
	asked := map[penstock.Offset]int{}
	p.Key = func(o penstock.Offset) string {
		if asked[o]++; o > 0 && asked[o] == 1 {
			return ""
		}
		return "a"
	}
	m := newMachine(t, settle.Config{Policy: plain, Parking: p})
	mustSettle(t, m, 0, next(t, m, 0, 1, 1), park(0))
	logAll(m)
	for o := penstock.Offset(1); o < 3; o++ {
		s := next(t, m, 0, o+1, 1)
		wantSpan(t, s, settle.Span{From: o, To: o + 1, Attempt: 1})
		retry := settle.Outcome{From: o, To: o + 1, Verdict: settle.Retry, Cause: errFirst}
		asked[o] = 0
		mustSettle(t, m, 0, s, retry)
		due, _ := m.Due()
		s = next(t, m, due.Sub(start), o+1, 1) // a retry is asked about in the same way
		wantSpan(t, s, settle.Span{From: o, To: o + 1, Attempt: 2})
		mustSettle(t, m, due.Sub(start), s)
	}
}
