package measure

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		s    []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 4}, 4}, {[]float64{4, 1, 2, 9}, 3}} {
		in := slices.Clone(c.s)
		if got := Median(in); got != c.want || !slices.Equal(in, c.s) {
			t.Errorf("%v: %v", c.s, got)
		}
	}
}

// TestRatioIsPairedByRound: a machine that is twice as slow in one round is so
// for both sides, and the ratio does not notice.
func TestRatioIsPairedByRound(t *testing.T) {
	base, ours := []float64{30, 300, 33}, []float64{10, 100, 10}
	if got := Ratio(base, ours); got != (Spread{3, 3, 3.3}) {
		t.Errorf("%+v", got)
	}
	c := Compare("chan", base, ours, Goal{Must: 2, Goal: 3.1})
	if c.Ratio != 3 || c.RatioMin != 3 || c.RatioMax != 3.3 || c.BaselineNs != 33 || c.Verdict != Enough {
		t.Errorf("%+v", c)
	}
}

func TestPercentileOfUnsortedSamples(t *testing.T) {
	var s []time.Duration
	for i := range 1000 {
		s = append(s, time.Duration(1000-i))
	}
	for q, want := range map[float64]float64{0.5: 501, 0.99: 991, 0.999: 1000, 1: 1000} {
		if got := Percentile(s, q); got != want {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if got := Percentiles([][]time.Duration{{3, 1, 2}, {9}}, 0.5); !slices.Equal(got, []float64{2, 9}) {
		t.Errorf("by round: %v", got)
	}
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		goal  Goal
		ratio float64
		want  string
	}{
		{Goal{}, 0.1, ""},
		{Goal{1.5, 1.9}, 1.9, Met},
		{Goal{1.5, 1.9}, 1.89, Enough},
		{Goal{1.5, 1.9}, 1.5, Enough},
		{Goal{1.5, 1.9}, 1.49, Missed},
		{Goal{Goal: 2}, 2, Met},
		{Goal{Goal: 2}, 1.99, Missed},
		{Goal{Must: 0.9}, 0.9, Met},
		{Goal{Must: 0.9}, 0.89, Missed},
	} {
		if got := c.goal.Verdict(c.ratio); got != c.want {
			t.Errorf("%+v, ratio %v: %q, want %q", c.goal, c.ratio, got, c.want)
		}
	}
	if NoAllocs(0.0049) != Met || NoAllocs(0.005) != Missed {
		t.Error("allocations")
	}
}

// TestRowsAreWrittenAsDocumented holds the names that programs read.
func TestRowsAreWrittenAsDocumented(t *testing.T) {
	r := Row{Name: "queue/consume/b100", NsPerEvent: 0.25, EventsPerS: 4e9, Baseline: "chan", BaselineNs: 20, Ratio: 80}
	want := `{"name":"queue/consume/b100","ns_per_event":0.25,"events_per_s":4000000000,"allocs_per_event":0,"baseline":"chan","baseline_ns":20,"ratio":80`
	check := func(want string) {
		t.Helper()
		if b, err := json.Marshal(r); err != nil || string(b) != want {
			t.Errorf("%v\ngot  %s\nwant %s", err, b, want)
		}
	}
	check(want + "}")
	r.Rounds, r.RatioMin, r.RatioMax, r.AllocsVerdict = 7, 70, 90, Met
	r.Judged(Goal{60, 69})
	r.Others = []Comparison{{Baseline: "mutex and slice", BaselineNs: 1, Ratio: 4, RatioMin: 3, RatioMax: 5, Goal: 1, Verdict: Met}}
	check(want + `,"rounds":7,"ratio_min":70,"ratio_max":90,"must":60,"goal":69,"verdict":"goal","allocs_verdict":"goal",` +
		`"others":[{"baseline":"mutex and slice","baseline_ns":1,"ratio":4,"ratio_min":3,"ratio_max":5,"goal":1,"verdict":"goal"}]}`)
}

// once is a side whose clock runs for d per iteration of one event.
func once(name string, d time.Duration, log *[]string) Side {
	return Side{name, func(c *Clock) error {
		if log != nil && !c.Every && !c.Allocs {
			*log = append(*log, name)
		}
		c.Add(d, 1)
		return nil
	}}
}

func TestEveryRoundRunsEverySideAndBeginsWithAnother(t *testing.T) {
	var log []string
	got, err := Run(t.Context(), Plan{Rounds: 3, Slice: time.Microsecond}, once("a", 3*time.Microsecond, &log), once("b", 6*time.Microsecond, &log))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Fields("a b b a a b"); !slices.Equal(log, want) {
		t.Errorf("order %q, want %q", log, want)
	}
	if len(got) != 2 || !slices.Equal(got[0].Ns, []float64{3000, 3000, 3000}) || !slices.Equal(got[1].Ns, []float64{6000, 6000, 6000}) {
		t.Errorf("%+v", got)
	}
}

func TestASideThatFailsIsNamed(t *testing.T) {
	lost := errors.New("an event was lost")
	for name, when := range map[string]func(c *Clock) bool{
		"untimed": func(c *Clock) bool { return c.Every },
		"allocs":  func(c *Clock) bool { return c.Allocs },
		"timed":   func(c *Clock) bool { return !c.Every && !c.Allocs },
	} {
		bad := Side{"bad side", func(c *Clock) error {
			c.Add(1, 1)
			if when(c) {
				return lost
			}
			return nil
		}}
		got, err := Run(t.Context(), Plan{Rounds: 1}, once("good", 1, nil), bad)
		if got != nil || !errors.Is(err, lost) || !strings.Contains(err.Error(), "bad side") {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	idle := Side{"idle", func(*Clock) error { return nil }}
	if _, err := Run(t.Context(), Plan{Rounds: 1}, idle); err == nil {
		t.Error("a side that counts no event passes")
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	n := 0
	side := Side{"a", func(c *Clock) error {
		if n++; n == 30 {
			cancel(cause)
		}
		c.Add(time.Millisecond, 1)
		return nil
	}}
	if _, err := Run(ctx, Plan{Rounds: 1000, Slice: 1}, side); !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
	if n > 40 {
		t.Errorf("%d iterations", n)
	}
}

// A preempted goroutine finds the time of a short round used up before its
// first iteration.
func TestRoundWithoutTimeRunsOnce(t *testing.T) {
	var s Series
	n := 0
	err := s.round(Side{"a", func(c *Clock) error { n++; c.Start(); c.Stop(1); return nil }}, 0)
	if err != nil || n != 1 || len(s.Ns) != 1 || s.Ns[0] < 0 {
		t.Fatalf("%d iterations, %+v, error %v; want one iteration", n, s, err)
	}
}

func TestAllocationsOfEveryGoroutineAreCounted(t *testing.T) {
	const events = 100
	side := Side{"a", func(c *Clock) error {
		kept := make([]*[64]int, 0, events)
		done := make(chan struct{})
		c.Start()
		go func() {
			for range events {
				kept = append(kept, new([64]int))
			}
			close(done)
		}()
		<-done
		c.Stop(events)
		if len(kept) != events {
			return errors.New("lost")
		}
		return nil
	}}
	got, err := Run(t.Context(), Plan{Rounds: 1}, side)
	if err != nil || got[0].Allocs < 1 || got[0].Allocs > 1.5 {
		t.Errorf("%+v, %v", got, err)
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
		"one for another": {func(b [][]int) [][]int { b[3] = []int{5, 7, 11}; return b }, true, false},
		"more":            {func(b [][]int) [][]int { b[3] = append(b[3], 11); return b }, true, false},
	} {
		for _, every := range []bool{true, false} {
			b := [][]int{}
			for _, s := range good {
				b = append(b, slices.Clone(s))
			}
			byBatch, byWord, byLine := NewTally(&Clock{Every: every}, 2, 10), NewTally(&Clock{Every: every}, 2, 10), NewTally(&Clock{Every: every}, 2, 10)
			for i, s := range c.deal(b) {
				if len(s) > 0 {
					byBatch.Batch(i%2, len(s), func(i int) int { return s[i] })
					Take(byWord, i%2, events[Word](s))
					Take(byLine, i%2, events[Line](s))
				}
			}
			for how, k := range map[string]*Tally{"batch": byBatch, "word": byWord, "line": byLine} {
				err := k.Done(10)
				if found := err != nil; found != (!c.fine && (every || c.timed)) {
					t.Errorf("%s, every %v, %s: %v", name, every, how, err)
				}
			}
		}
	}
}

func events[T Event](numbers []int) (vs []T) {
	for _, n := range numbers {
		var v T
		v[0] = n
		vs = append(vs, v)
	}
	return vs
}

// TestCrowdFindsEveryFault: two producers of five events each, 0 to 4 and 5 to
// 9, and two consumers.
func TestCrowdFindsEveryFault(t *testing.T) {
	for name, c := range map[string]struct {
		a, b  []int
		timed bool // found without looking at every event
		fine  bool
	}{
		"none":                {[]int{0, 5, 1, 6}, []int{2, 7, 3, 8, 4, 9}, true, true},
		"lost":                {[]int{0, 5, 1, 6}, []int{2, 7, 3, 8, 4}, true, false},
		"repeated at one":     {[]int{0, 5, 1, 6, 6}, []int{2, 7, 3, 8, 4}, true, false},
		"repeated at two":     {[]int{0, 5, 1, 6}, []int{2, 6, 7, 8, 4, 9}, false, false},
		"out of order":        {[]int{1, 5, 0, 6}, []int{2, 7, 3, 8, 4, 9}, true, false},
		"never produced":      {[]int{0, 5, 1, 10}, []int{2, 7, 3, 8, 4, 9}, true, false},
		"more than there are": {[]int{0, 5, 1, 6}, []int{2, 7, 3, 8, 4, 9, 9}, true, false},
	} {
		for _, every := range []bool{true, false} {
			clock := &Clock{Every: every}
			a, b := NewCrowd(clock, 1, 2, 5), NewCrowd(clock, 1, 2, 5)
			for _, n := range c.a {
				Join(a, 0, events[Word]([]int{marked(n)}))
			}
			for _, n := range c.b {
				Join(b, 0, events[Line]([]int{marked(n)}))
			}
			err := Together(a, b)
			if found := err != nil; found != (!c.fine && (every || c.timed)) {
				t.Errorf("%s, every %v: %v", name, every, err)
			}
		}
	}
}

// marked turns the number of an event of TestCrowdFindsEveryFault into that
// which its producer gives it.
func marked(n int) int { return By[Word](n/5, n%5+1)[n%5][0] }

func TestFloorsLoseNothing(t *testing.T) {
	const n, bound = 1000, 16
	var k Stack[int]
	k.Push(0)
	k.PushAll([]int{1, 2, 3})
	out := make([]int, 3)
	if got := k.Pop(out); got != 3 || !slices.Equal(out, []int{0, 1, 2}) {
		t.Errorf("stack: %d %v", got, out)
	}
	if got := k.Pop(out); got != 1 || out[0] != 3 || k.Pop(out) != 0 {
		t.Errorf("stack: %d %v", got, out)
	}
	s := NewSwap[int](bound)
	var producers sync.WaitGroup
	for range 2 {
		producers.Go(func() {
			for i := 0; i < n; i += 4 {
				s.Push(i)
				s.PushAll([]int{i + 1, i + 2, i + 3})
			}
		})
	}
	go func() { producers.Wait(); s.Close() }()
	sum, count, largest, spare := 0, 0, 0, []int{}
	for {
		vs := s.Take(spare)
		if len(vs) == 0 {
			break
		}
		largest = max(largest, len(vs))
		for _, v := range vs {
			sum += v
			count++
		}
		spare = vs
	}
	if count != 2*n || sum != n*(n-1) || largest > bound {
		t.Errorf("swap: %d events, sum %d, at most %d at once", count, sum, largest)
	}
	r := NewRecycled[int](10, 100)
	if len(r.Free) != 12 || cap(r.Full) != 10 || cap(<-r.Free) != 10 {
		t.Errorf("recycled: %d free, room for %d", len(r.Free), cap(r.Full))
	}
}

func TestMachineTellsTheKindOnly(t *testing.T) {
	m := This()
	if m.Cores < 1 || m.Procs < 1 || m.OS == "" || m.Arch == "" || !strings.HasPrefix(m.Go, "go") && !strings.HasPrefix(m.Go, "devel") {
		t.Errorf("%+v", m)
	}
	if used, ok := ProcessorTime(); !ok || used <= 0 {
		t.Errorf("processor time %v, %v", used, ok)
	}
}

// TestAllStandAtTheLineBeforeTheClockStarts: nobody works before it, each works
// once, and what went wrong is told.
func TestAllStandAtTheLineBeforeTheClockStarts(t *testing.T) {
	for _, n := range []int{1, 2, 7} {
		var c Clock
		calls := make([]int, n)
		early := make([]bool, n)
		err := c.AtOnce(n, func(i int) error {
			calls[i]++
			early[i] = c.began.IsZero()
			if i == 0 {
				return errors.New("the first fails")
			}
			return nil
		})
		c.Stop(n)
		if err == nil || err.Error() != "the first fails" {
			t.Errorf("%d: error %v", n, err)
		}
		for i := range n {
			if calls[i] != 1 || early[i] {
				t.Errorf("%d: %d worked %d times, before the clock: %v", n, i, calls[i], early[i])
			}
		}
	}
}
