package bench

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// small runs a row fast: the shape is the same, the figures mean nothing.
func small(t *testing.T) Config {
	return Config{Rounds: 1, Dir: t.TempDir(), slice: time.Microsecond, events: 640}
}

// TestEveryRowRuns runs each row at a small size, with all its checks.
func TestEveryRowRuns(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			c := small(t)
			if strings.HasPrefix(name, "latency/") {
				c.events = 8
			}
			got, err := Run(t.Context(), []string{name}, c)
			if err != nil {
				t.Fatal(err)
			}
			r := got[0]
			if len(got) != 1 || r.Name != name || r.Baseline == "" || r.NsPerEvent <= 0 || r.BaselineNs <= 0 || r.Ratio <= 0 || r.EventsPerS <= 0 || r.AllocsPerEvent < 0 {
				t.Errorf("row %+v", got)
			}
			if latency := strings.HasPrefix(name, "latency/"); latency != (r.P50 > 0 && r.P99 >= r.P50 && r.P999 >= r.P99) {
				t.Errorf("percentiles %v %v %v", r.P50, r.P99, r.P999)
			}
			if left, err := os.ReadDir(c.Dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestRowsAreWrittenAsTheSpecificationSays(t *testing.T) {
	b, err := json.Marshal(Row{Name: "queue/consume/b100", NsPerEvent: 0.25, EventsPerS: 4e9, Baseline: "chan", BaselineNs: 20, Ratio: 80})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"name":"queue/consume/b100","ns_per_event":0.25,"events_per_s":4000000000,"allocs_per_event":0,"baseline":"chan","baseline_ns":20,"ratio":80}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
}

func TestSelectTakesPartsOfNames(t *testing.T) {
	for _, c := range []struct {
		patterns []string
		want     []string
	}{
		{[]string{"queue/flow"}, []string{"queue/flow/b1", "queue/flow/b100", "queue/flow/b1000"}},
		{[]string{"queue/flow/b100", "queue/flow/"}, []string{"queue/flow/b100", "queue/flow/b1", "queue/flow/b1000"}},
		{[]string{"stage/demand1"}, []string{"stage/demand1"}},
		{nil, Names()},
	} {
		got, err := Select(c.patterns)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, %v; want %q", c.patterns, got, err, c.want)
		}
	}
	for _, p := range []string{"nothing", "queue/flow/b", "queu", ""} {
		if _, err := Select([]string{p}); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), `"`+p+`"`) {
			t.Errorf("%q: %v, want ErrInvalid and the pattern", p, err)
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	names := Names()
	slices.Sort(names)
	if n := len(slices.Compact(names)); n != len(rows) || n == 0 {
		t.Errorf("%d names of %d rows", n, len(rows))
	}
}

func TestRunRefusesAndEnds(t *testing.T) {
	if _, err := Run(t.Context(), Names(), Config{Rounds: -1}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("negative rounds: %v", err)
	}
	if _, err := Run(t.Context(), []string{"queue"}, Config{}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("part of a name: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	c := small(t)
	seen := []string{}
	c.Progress = func(done, total int, row string) {
		if seen = append(seen, row); done == 1 {
			cancel(cause)
		}
	}
	got, err := Run(ctx, Names()[2:5], c)
	if len(got) != 1 || !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || !strings.Contains(err.Error(), Names()[3]) {
		t.Errorf("%d rows, %v; want the first row and both causes", len(got), err)
	}
	if !slices.Equal(seen, Names()[2:4]) {
		t.Errorf("progress %q", seen)
	}
}

func TestRowThatFailsIsNamed(t *testing.T) {
	lost := errors.New("an event was lost")
	for name, c := range map[string]struct{ ours, base side }{
		"ours":     {func(*clock) error { return lost }, func(c *clock) error { c.start(); c.stop(1); return nil }},
		"baseline": {func(c *clock) error { c.start(); c.stop(1); return nil }, func(*clock) error { return lost }},
	} {
		closed := false
		r := row{name: "x/y", open: func(env) (pair, error) {
			return pair{c.ours, c.base, func() error { closed = true; return nil }}, nil
		}}
		if _, err := r.run(t.Context(), small(t)); !errors.Is(err, lost) || !closed {
			t.Errorf("%s: %v, closed %v", name, err, closed)
		}
	}
}

// TestTallyFindsEveryFault gives one fault at a time to the checks of the
// untimed pass, and those that can be seen in it to the checks in the clock.
func TestTallyFindsEveryFault(t *testing.T) {
	good := [][]int{{0, 2, 4}, {1, 3}, {6, 8}, {5, 7, 9}} // lanes 0, 1, 0, 1
	for name, c := range map[string]struct {
		deal  func(b [][]int) [][]int
		timed bool // found without looking at every event
		fine  bool
	}{
		"none":            {func(b [][]int) [][]int { return b }, true, true},
		"batch lost":      {func(b [][]int) [][]int { return append(b[:2:2], nil, b[3]) }, true, false},
		"last batch lost": {func(b [][]int) [][]int { return b[:3] }, true, false},
		"batch repeated":  {func(b [][]int) [][]int { return [][]int{b[0], b[1], b[0], b[3]} }, true, false},
		"batches swapped": {func(b [][]int) [][]int { return [][]int{b[2], b[1], b[0], b[3]} }, true, false},
		"first lost":      {func(b [][]int) [][]int { b[3] = b[3][1:]; return b }, true, false},
		"one lost inside": {func(b [][]int) [][]int { b[3] = []int{5, 9}; return b }, true, false},
		"one repeated":    {func(b [][]int) [][]int { b[3] = []int{5, 7, 7, 9}; return b }, true, false},
		"swapped inside":  {func(b [][]int) [][]int { b[0] = []int{2, 0, 4}; return b }, true, false},
		"wrong inside":    {func(b [][]int) [][]int { b[3] = []int{5, 5, 9}; return b }, false, false},
		"wrong lane":      {func(b [][]int) [][]int { return [][]int{b[1], b[0], b[3], b[2]} }, true, true}, // lanes have no names, only contents
		"more":            {func(b [][]int) [][]int { b[3] = append(b[3], 11); return b }, true, false},
	} {
		for _, every := range []bool{true, false} {
			b := [][]int{}
			for _, s := range good {
				b = append(b, slices.Clone(s))
			}
			viaAt, viaInts := newTally(&clock{every: every}, 2, 10), newTally(&clock{every: every}, 2, 10)
			for i, s := range c.deal(b) {
				if len(s) > 0 {
					viaAt.batch(i%2, len(s), func(i int) int { return s[i] })
					viaInts.ints(i%2, s)
				}
			}
			for how, err := range map[string]error{"batch": viaAt.done(10), "ints": viaInts.done(10)} {
				if found := err != nil; found != (!c.fine && (every || c.timed)) {
					t.Errorf("%s, every %v, %s: %v", name, every, how, err)
				}
			}
		}
	}
	if checkSum(55, 10) != nil || checkSum(54, 10) == nil {
		t.Error("checkSum")
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		s    []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 4}, 4}, {[]float64{4, 1, 2, 9}, 3}} {
		if got := median(c.s); got != c.want {
			t.Errorf("%v: %v", c.s, got)
		}
	}
}

func TestLatenciesArePercentilesOfAllRounds(t *testing.T) {
	var ours []time.Duration
	for i := range 1000 {
		ours = append(ours, time.Duration(1000-i))
	}
	var r Row
	r.latencies(ours, []time.Duration{2000, 1002, 300})
	if r.P50 != 501 || r.P99 != 991 || r.P999 != 1000 || r.NsPerEvent != 501 || r.BaselineNs != 1002 || r.Ratio != 2 {
		t.Errorf("%+v", r)
	}
}

// A preempted goroutine finds the time of a short round used up before its
// first iteration.
func TestRoundWithoutTimeRunsOnce(t *testing.T) {
	n := 0
	f, err := round(func(c *clock) error {
		n++
		c.start()
		c.stop(1)
		return nil
	}, 0)
	if err != nil || n != 1 || f.ns < 0 {
		t.Fatalf("%d iterations, figure %+v, error %v; want one iteration", n, f, err)
	}
}
