package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// The slots of a lane are never more than max, and none is asked for twice or
// forgotten: occupied + freed + asked for and not come = max.
func TestLaneModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := lane{max: rapid.IntRange(1, 20).Draw(t, "max")}
		l.min = rapid.IntRange(0, l.max-1).Draw(t, "min")
		open := l.max
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "comes") && open > 0 {
				open--
				l.take()
			} else if l.occupied > 0 {
				ask := l.free()
				open += ask
				switch {
				case l.occupied <= l.min && l.freed > 0:
					t.Fatalf("%+v: freed slots are not asked for", l)
				case ask > 0 && l.occupied > l.min:
					t.Fatalf("%+v: asked for %d above min", l, ask)
				}
			}
			if l.occupied < 0 || l.freed < 0 || l.occupied+l.freed+open != l.max {
				t.Fatalf("%+v, open %d", l, open)
			}
			if open == 0 && l.occupied == 0 {
				t.Fatalf("%+v: nothing will come any more", l)
			}
		}
	})
}

// In no span of within, half open, more than most restarts are allowed; and one
// is refused only where there are that many.
func TestToleranceModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(0, 4).Draw(t, "most")
		tol := tolerance{most: most, within: 5 * time.Second}
		now := time.Unix(0, 0)
		var allowed []time.Time
		for range rapid.IntRange(0, 50).Draw(t, "restarts") {
			now = now.Add(time.Duration(rapid.IntRange(0, 6).Draw(t, "seconds")) * time.Second)
			recent := 0
			for _, at := range allowed {
				if now.Sub(at) < tol.within {
					recent++
				}
			}
			if got := tol.allow(now); got != (recent < most) {
				t.Fatalf("allowed: %v, with %d of %d within the span", got, recent, most)
			} else if got {
				allowed = append(allowed, now)
			}
			if len(tol.recent) > most {
				t.Fatalf("%d are remembered", len(tol.recent))
			}
		}
	})
}

func TestFatesOfChildren(t *testing.T) {
	started, failed := runEnd{started: true, err: errBoom}, runEnd{err: errBoom}
	for name, c := range map[string]struct {
		end      runEnd
		restarts int
		mode     Mode
		most     int
		want     fate
	}{
		"done":                        {runEnd{started: true}, 0, Transient, 3, fulfilled},
		"done by its start":           {runEnd{}, 0, Temporary, 3, fulfilled},
		"done, though told":           {runEnd{started: true, told: true}, 0, Transient, 3, fulfilled},
		"told":                        {runEnd{started: true, told: true, err: errBoom}, 0, Transient, 3, stopped},
		"temporary":                   {started, 0, Temporary, 3, gaveUp},
		"transient":                   {started, 0, Transient, 3, again},
		"transient again":             {started, 7, Transient, 3, again},
		"no tolerance":                {started, 0, Transient, 0, tooOften},
		"its start fails":             {failed, 0, Transient, 3, gaveUp},
		"its start fails, temporary":  {failed, 0, Temporary, 3, gaveUp},
		"its restart fails":           {failed, 1, Transient, 3, again},
		"its restart fails too often": {failed, 1, Transient, 0, tooOften},
	} {
		tol := tolerance{most: c.most, within: time.Second}
		if got := judge(c.end, c.restarts, c.mode, &tol, time.Unix(0, 0)); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// wild are children that do what chance says.
type wild struct {
	done, starts atomic.Int64
	plans        [][]int // per event: what its runs do, the last for ever
}

// What a run of a wild child does.
const (
	does = iota
	fails
	panics
	exits
	failsToStart
	startPanics
	endsInStart
	listens // until it is told to stop
)

func (w *wild) start(ctx context.Context, v int) (func() error, error) {
	n := w.starts.Add(1)
	plan := w.plans[v%len(w.plans)]
	what := plan[int(n)%len(plan)]
	switch what {
	case failsToStart:
		return nil, errBoom
	case startPanics:
		panic("start")
	case endsInStart:
		w.done.Add(1)
		return nil, nil
	}
	return func() error {
		time.Sleep(time.Duration(v%7) * time.Millisecond)
		switch what {
		case fails:
			return errBoom
		case panics:
			panic("child")
		case exits:
			runtime.Goexit()
		case listens:
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Second):
			}
		}
		w.done.Add(1)
		return nil
	}, nil
}

// TestRandomChildrenKeepTheirSlots runs random children in slots of random
// subscriptions, with terminations and every kind of end: there are never more
// children than slots, every event is counted once, and nothing is left behind.
func TestRandomChildrenKeepTheirSlots(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var plans [][]int
		for range rapid.IntRange(1, 5).Draw(rt, "plans") {
			plans = append(plans, rapid.SliceOfN(rapid.IntRange(does, listens), 1, 4).Draw(rt, "plan"))
		}
		restart := rapid.SampledFrom([]Mode{Temporary, Transient}).Draw(rt, "restart")
		most := rapid.IntRange(0, 40).Draw(rt, "tolerance")
		how := rapid.SampledFrom([]string{"end", "stop", "abort", "cancel"}).Draw(rt, "how")
		sources := rapid.IntRange(1, 3).Draw(rt, "sources")
		events := rapid.IntRange(0, 60).Draw(rt, "events")
		terminations := rapid.IntRange(0, 20).Draw(rt, "terminations")
		maxes := rapid.SliceOfN(rapid.IntRange(1, 6), sources, sources).Draw(rt, "max")
		mins := make([]int, sources)
		for i := range mins {
			mins[i] = rapid.IntRange(0, maxes[i]-1).Draw(rt, "min")
		}
		pool := rapid.IntRange(0, 3).Draw(rt, "pool") == 0
		when := time.Duration(rapid.IntRange(0, 100).Draw(rt, "when")) * time.Millisecond
		var bad string
		synctest.Test(t, func(*testing.T) {
			w := &wild{plans: plans}
			g := NewGraph(Logger(slog.New(slog.DiscardHandler)), withPoison())
			var sink interface {
				Inleter[int]
				Stage
			}
			var told atomic.Int64
			var slots *Slots[int]
			if pool {
				sink = NewPool("children", 3, func(ctx context.Context, v int) error {
					wait, err := w.start(ctx, v)
					if err == nil && wait != nil {
						err = wait()
					}
					return err
				}).OnFailed(func(int, error) { told.Add(1) })
			} else {
				slots = NewSlots("children", w.start, ChildRestart(restart), ChildTolerance(most, time.Second)).
					OnFailed(func(int, error) { told.Add(1) })
				sink = slots
			}
			var subs []*Subscription
			bound := 0
			for i := range sources {
				opts := []SubOption{CancelMode(Transient)}
				if bound += 3; !pool {
					opts = append(opts, Demand(maxes[i], mins[i]))
					bound += maxes[i] - 3
				}
				subs = append(subs, Connect(g, FromSlice(fmt.Sprint("source ", i), ints(0, events)), sink, opts...))
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if err := g.Start(ctx); err != nil {
				bad = err.Error()
				return
			}
			guard := time.AfterFunc(time.Hour, func() { bad = "hangs"; g.Abort(nil) })
			defer guard.Stop()
			go func() { // ends with its count
				for range terminations {
					time.Sleep(3 * time.Millisecond)
					if slots != nil {
						all := slots.Children()
						if n := slots.Counts(); n.Total > bound || n.Active+n.Restarting+n.Terminating != n.Total {
							bad = fmt.Sprintf("%+v in %d slots", n, bound)
						}
						if len(all) > 0 {
							slots.Terminate(all[len(all)/2].ID)
						}
					}
				}
			}()
			time.Sleep(when)
			switch how {
			case "stop":
				sink.Stop()
			case "abort":
				g.Abort(nil)
			case "cancel":
				for _, s := range subs {
					s.Cancel()
				}
				synctest.Wait()
				cancel()
			}
			g.Wait()
			time.Sleep(time.Second)
			c := &complaints{}
			checkConservation(c, g)
			st := g.Stats()
			k := st[slices.IndexFunc(st, func(s Stats) bool { return s.Name == "children" })]
			switch {
			case bad != "":
			case len(c.all) > 0:
				bad = c.all[0]
			case k.In != w.done.Load()+k.Failed+k.Dropped:
				bad = fmt.Sprintf("%d came, %d done, %+v", k.In, w.done.Load(), k)
			case told.Load() != k.Failed+k.Dropped:
				bad = fmt.Sprintf("the hook heard of %d, %+v", told.Load(), k)
			case k.Held != 0 || k.InCallback || k.Abandoned != 0 || k.Slots != 0:
				bad = fmt.Sprintf("left behind: %+v", k)
			case how == "end" && !errors.Is(sink.Wait(), ErrChildTolerance) && k.In != int64(sources*events):
				bad = fmt.Sprintf("%d of %d events", k.In, sources*events)
			}
		})
		if bad != "" {
			rt.Fatal(bad)
		}
	})
}

// complaints collects what a check finds.
type complaints struct{ all []string }

func (c *complaints) Helper() {}
func (c *complaints) Errorf(format string, args ...any) {
	c.all = append(c.all, fmt.Sprintf(format, args...))
}
