package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestSmallPlanTellsOfEveryGroup runs the command with few events. The ratio
// of so short a run says nothing and is not looked at.
func TestSmallPlanTellsOfEveryGroup(t *testing.T) {
	var out bytes.Buffer
	p := plan{Events: 3000, Rate: 20_000, Groups: 3, Slower: 100, Rounds: 2, EventBytes: eventBytes}
	err := run(t.Context(), p, &out)
	var r report
	if jerr := json.Unmarshal(out.Bytes(), &r); jerr != nil {
		t.Fatalf("%v, %v: %q", err, jerr, out.String())
	}
	if r.Held != (err == nil) || r.plan != p || len(r.P99With) != 2 || len(r.P99Without) != 2 {
		t.Errorf("report %+v, %v", r, err)
	}
	for _, us := range append(r.P99With, r.P99Without...) {
		if us <= 0 {
			t.Errorf("p99 of %v us", us)
		}
	}
	if r.Slow.Lag == 0 || r.Slow.Why == "" || r.Slow.Handled+r.Slow.Lag > uint64(p.Events) {
		t.Errorf("the slow group: %+v", r.Slow)
	}
}

func TestPlanNamesTheBadFlag(t *testing.T) {
	good := plan{Events: 1, Rate: 1, Groups: 2, Slower: 1, Rounds: 1}
	for flag, change := range map[string]func(*plan){
		"-events": func(p *plan) { p.Events = 0 },
		"-rate":   func(p *plan) { p.Rate = -1 },
		"-groups": func(p *plan) { p.Groups = 1 },
		"-slower": func(p *plan) { p.Slower = 0 },
		"-rounds": func(p *plan) { p.Rounds = 0 },
	} {
		p := good
		change(&p)
		if err := run(t.Context(), p, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: error %v", flag, err)
		}
	}
}

func TestVerdictNamesWhatIsBroken(t *testing.T) {
	good := report{RatioMax: ratioMax, Ratio: spread{Median: 1.2}, HeapStart: 1, HeapWithout: 5, HeapWith: 60, HeapBound: 80, HeapEnd: 2}
	if good.judge(); !good.Held {
		t.Error(good.Broken)
	}
	for word, change := range map[string]func(*report){
		"p99":                    func(r *report) { r.Ratio.Median = 1.6 },
		"without the slow group": func(r *report) { r.HeapWithout = 20 },
		"with it":                func(r *report) { r.HeapWith = 81 },
		"in the end":             func(r *report) { r.HeapEnd = 12 },
	} {
		r := good
		change(&r)
		if r.judge(); r.Held || !strings.Contains(r.Broken, word) {
			t.Errorf("%s: held %v, %q", word, r.Held, r.Broken)
		}
	}
}

func TestBucketsHoldTheirDurations(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 63, 64, 65, 127, 128, 1000, 123_456_789, time.Hour, math.MaxInt64} {
		i := bucket(d)
		if low, high := lower(i), lower(i+1); low > d || high <= d && high > low || float64(d-low) > float64(d)/perDoubling {
			t.Errorf("%d is in bucket %d, [%d, %d)", d, i, low, high)
		}
	}
	var h histogram
	for i := range 1000 {
		h.add(time.Duration(i) * time.Microsecond)
	}
	for q, want := range map[float64]float64{0: 0, 0.5: 500, 0.99: 990} {
		if got := h.percentile(q); got > want || got < want*63/64-1 {
			t.Errorf("percentile %v is %v us, want about %v", q, got, want)
		}
	}
}

func TestOnlyWhatIsLeftByADrainIsForgiven(t *testing.T) {
	if err := errors.New("broken"); drained(err) == nil {
		t.Error("an error of Run is forgiven")
	}
}
