package stage

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

func TestBackoffDoublesUpToMaxWithinItsBudget(t *testing.T) {
	ms := time.Millisecond
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		r      Restarts
		chance float64
		waits  []time.Duration // each failure at the very moment of the restart
	}{
		"doubles":   {Backoff(100*ms, 1000*ms, 0).AtMost(6, time.Hour), 0.9, []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1000 * ms, 1000 * ms}},
		"is longer": {Backoff(100*ms, 300*ms, 0.5).AtMost(3, time.Hour), 0.5, []time.Duration{125 * ms, 250 * ms, 375 * ms}},
		"flat":      {Backoff(50*ms, 50*ms, 0).AtMost(3, time.Hour), 0, []time.Duration{50 * ms, 50 * ms, 50 * ms}},
		"none":      {Backoff(50*ms, 50*ms, 0).AtMost(-1, time.Hour), 0, nil},
		"long":      {Backoff(time.Hour, 1<<62, 0).AtMost(3, time.Hour), 0, []time.Duration{time.Hour, 2 * time.Hour, 4 * time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []time.Duration
			var s tally
			at := now
			for range 100 {
				after, wait, ok := s.next(c.r.filled(), at, c.chance)
				if !ok {
					break
				}
				got = append(got, wait)
				s, at = after, after.last
			}
			equal(t, "waits", got, c.waits)
		})
	}
}

func TestCountGoesBackOnlyAfterAQuietWindow(t *testing.T) {
	r := Backoff(time.Second, time.Minute, 0).AtMost(2, 10*time.Second).filled()
	var s tally
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, step := range []struct {
		ran  time.Duration // since the last restart
		wait time.Duration
		ok   bool
	}{
		{time.Hour, time.Second, true},
		{10*time.Second - 1, 2 * time.Second, true}, // not quiet for long enough
		{10 * time.Second, time.Second, true},
		{5 * time.Second, 2 * time.Second, true},
		{9 * time.Second, 0, false}, // never a window without a failure
	} {
		after, wait, ok := s.next(r, at.Add(step.ran), 0)
		if wait != step.wait || ok != step.ok {
			t.Fatalf("after %v: %v, %v, want %v, %v", step.ran, wait, ok, step.wait, step.ok)
		}
		s, at = after, after.last
	}
}

// TestRandomFailuresKeepTheBudget says what next promises, of any failures.
func TestRandomFailuresKeepTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		min := time.Duration(rapid.IntRange(1, 1000).Draw(t, "min"))
		max := min + time.Duration(rapid.IntRange(0, 5000).Draw(t, "more"))
		jitter := rapid.Float64Range(0, 1).Draw(t, "jitter")
		r := Backoff(min, max, jitter).AtMost(rapid.IntRange(1, 8).Draw(t, "budget"), time.Duration(rapid.IntRange(1, 3000).Draw(t, "window"))).filled()
		var s tally
		at := time.Unix(0, 0)
		since, last := 0, time.Duration(0) // restarts since the last quiet window
		for range 40 {
			ran := time.Duration(rapid.IntRange(0, 5000).Draw(t, "ran"))
			if since > 0 && ran >= r.window {
				since, last = 0, 0
			}
			after, wait, ok := s.next(r, at.Add(ran), rapid.Float64Range(0, 0.999).Draw(t, "chance"))
			if ok != (since < r.budget) {
				t.Fatalf("restart %v after %d of %d", ok, since, r.budget)
			}
			if !ok {
				return
			}
			base := min << since
			if base > max {
				base = max
			}
			if wait < base || wait > base+time.Duration(float64(base)*jitter) {
				t.Fatalf("waits %v, want %v and up to %v of it more", wait, base, jitter)
			}
			if jitter == 0 && wait < last {
				t.Fatalf("waits %v after %v", wait, last)
			}
			since, last = since+1, wait
			s, at = after, after.last
		}
	})
}

func TestMisbuiltRestartsAreRefused(t *testing.T) {
	for name, o := range map[string]any{
		"negative min":      OneForOne(Backoff(-1, 0, 0)),
		"negative max":      OneForOne(Backoff(0, -1, 0)),
		"max below min":     RestForOne(Backoff(2, 1, 0)),
		"negative jitter":   RestForOne(Backoff(0, 0, -0.1)),
		"jitter above 1":    OneForOne(Backoff(0, 0, 1.1)),
		"negative window":   OneForOne(Restarts{}.AtMost(1, -1)),
		"of a stage":        RestartBy(Backoff(-1, 0, 0)),
		"unknown reaction":  OnError(Repanic),
		"unknown for panic": OnPanic(Repanic + 1),
		"nil Init":          Init(nil),
		"negative start":    StartWithin(-1),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				var opts []Option
				switch o := o.(type) {
				case GraphOption:
					o(g)
				case Option:
					opts = append(opts, o)
				}
				Connect(g, Never[int]("source", opts...), Discard[int]())
				if err := g.Start(t.Context()); !errors.Is(err, penstock.ErrInvalid) {
					t.Errorf("Start: %v, want ErrInvalid", err)
				}
			})
		})
	}
}

func TestWhatIsReachedFromOneStage(t *testing.T) {
	edges := [][2]string{{"a", "b"}, {"b", "c"}, {"x", "b"}, {"b", "d"}, {"d", "e"}, {"c", "e"}, {"x", "y"}, {"e", "b"}}
	for from, want := range map[string]map[string]bool{
		"a": {"a": true, "b": true, "c": true, "d": true, "e": true},
		"d": {"d": true, "e": true, "b": true, "c": true},
		"y": {"y": true},
		"x": {"x": true, "b": true, "y": true, "c": true, "d": true, "e": true},
	} {
		equal(t, "from "+from, reached(from, edges), want)
	}
}
