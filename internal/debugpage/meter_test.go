package debugpage

import (
	"math"
	"testing"
	"time"
)

func TestRatesAreTheMeanOfAboutTenSeconds(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	var m Meter
	m.Start(start, 100, 0)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	for _, c := range []struct {
		name         string
		at           float64 // seconds
		in, out      uint64
		rateIn, rate float64
		over, still  float64
	}{
		{"too short to tell", 0.05, 105, 5, 0, 0, 0, 0},
		{"since the beginning", 2, 120, 10, 10, 5, 2, 0},
		{"nothing committed", 4, 140, 10, 10, 2.5, 4, 2},
		{"still since the beginning", 10, 200, 40, 10, 4, 10, 0},
		{"since ten seconds ago", 12, 300, 60, 90. / 5, 5, 10, 0},
		{"readings are kept a second apart", 12.1, 301, 60, 181 / 10.1, 50 / 10.1, 10.1, 0.1},
		{"a gap of a quarter of a minute", 27, 500, 60, 200. / 15, 0, 15, 15},
		{"stale readings are the last resort", 3627, 36500, 3660, 10, 1, 3600, 0},
		{"a young one is better", 3627.5, 36600, 3665, 200, 10, 0.5, 0},
		{"a counter that went back", 3630, 36600, 10, 0, 0, 0, 0},
		{"begins again", 3632, 36600, 20, 0, 5, 2, 0},
	} {
		r := m.Read(at(c.at), c.in, c.out)
		near := func(what string, got, want float64) {
			if math.Abs(got-want) > 1e-6*max(1, want) {
				t.Errorf("%s: %s %v, want %v", c.name, what, got, want)
			}
		}
		near("in", r.In, c.rateIn)
		near("out", r.Out, c.rate)
		near("over", r.Over.Seconds(), c.over)
		near("still", r.Still.Seconds(), c.still)
	}
	if r := m.Read(at(1), 36600, 20); r.Still != 0 || r.Out != 5 {
		t.Errorf("a reader that comes late sees %+v", r)
	}
}

func TestMeterIsBounded(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var m Meter
	m.Start(now, 0, 0)
	for i := range uint64(10_000) {
		now = now.Add(700 * time.Millisecond)
		m.Read(now, i, i)
		if len(m.kept) > rateKept || cap(m.kept) > rateKept {
			t.Fatalf("%d readings", len(m.kept))
		}
	}
	if r := m.Read(now, 9999, 9999); r.Over < rateSpan || r.Over > rateSpan+2*rateStep {
		t.Errorf("rates over %s", r.Over)
	}
}
