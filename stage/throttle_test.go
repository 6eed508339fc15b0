package stage

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

func left(err error) int {
	var d *penstock.DrainError
	if errors.As(err, &d) {
		return d.Left
	}
	return 0
}

func limiter(t interface{ Fatal(...any) }, c LimiterConfig) *Limiter {
	l, err := NewLimiter(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// timed is a sink that notes when each event came.
func timed[T any](name string) (*Sink[T], func() []time.Duration) {
	var mu sync.Mutex
	var at []time.Duration
	began := time.Now()
	s := NewSink(name, func(_ context.Context, in []T) error {
		mu.Lock()
		defer mu.Unlock()
		for range in {
			at = append(at, time.Since(began))
		}
		return nil
	})
	return s, func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return at
	}
}

func TestThrottleLetsABurstPassAndThenKeepsItsRate_STC160(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		gate := Throttle[int](limiter(t, LimiterConfig{Events: 10, Burst: 5}))
		sink, at := timed[int]("sink")
		Connect(g, FromSlice("source", ints(0, 20)), gate)
		Connect(g, gate, sink)
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		var want []time.Duration
		for i := range 20 {
			want = append(want, max(0, time.Duration(i-4)*100*time.Millisecond))
		}
		equal(t, "times", at(), want)
		checkConservation(t, g)
	})
}

func TestThrottleByCost(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		gate := ThrottleCost(limiter(t, LimiterConfig{Events: 10, Burst: 4}), func(v *int) int { return *v })
		sink, at := timed[int]("sink")
		Connect(g, FromSlice("source", []int{3, 2, 0, -7, 9, 1}), gate)
		Connect(g, gate, sink)
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		ms := time.Millisecond
		// 3 of 4 tokens; 2 with the one that is left; 9, more than the burst, when they have come.
		equal(t, "times", at(), []time.Duration{0, 100 * ms, 100 * ms, 100 * ms, 1000 * ms, 1100 * ms})
	})
}

func TestThrottleThatEnforcesFails(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		gate := Throttle[int](limiter(t, LimiterConfig{Events: 10, Burst: 5, Enforce: true}))
		sink, got := collector[int]("sink")
		Connect(g, FromSlice("source", ints(0, 8)), gate)
		Connect(g, gate, sink)
		if err := g.Run(context.Background()); !errors.Is(err, ErrRateExceeded) {
			t.Errorf("Run returned %v", err)
		}
		equal(t, "what was allowed", got(), [][]int{ints(0, 5)})
		s := stat(t, g, 1)
		equal(t, "failed", s.Failed, int64(3))
		equal(t, "in", s.In, s.Emitted+s.Failed)
	})
}

// Gates that share a limiter have its rate together.
func TestThrottlesShareALimiter(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		l := limiter(t, LimiterConfig{Events: 100})
		sink, at := timed[int]("sink")
		for _, name := range []string{"a", "b", "c"} {
			gate := Throttle[int](l)
			Connect(g, FromSlice(name, ints(0, 10)), gate)
			Connect(g, gate, sink, CancelMode(Transient))
		}
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		for i, at := range at() {
			equal(t, "time", at, time.Duration(i)*10*time.Millisecond)
		}
	})
}

// The tokens that an aborted gate had reserved come back.
func TestAbortedThrottleGivesItsTokensBack(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		l := limiter(t, LimiterConfig{Events: 1, Per: time.Hour, Burst: 2})
		gate := Throttle[int](l)
		sink, got := collector[int]("sink")
		Connect(g, FromSlice("source", ints(0, 5)), gate)
		Connect(g, gate, sink)
		start(t, g)
		synctest.Wait()
		equal(t, "burst", got(), [][]int{{0, 1}})
		g.Abort(nil)
		equal(t, "left", left(g.Wait()), 3)
		time.Sleep(time.Hour)
		if !l.take(time.Now(), 1) {
			t.Error("the token that came later is not there")
		}
		checkConservation(t, g)
	})
}

// A drain keeps to the rate, and to its deadline.
func TestThrottleDrainsAtItsRate(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		gate := Throttle[int](limiter(t, LimiterConfig{Events: 1}))
		sink, at := timed[int]("sink")
		src, emit := Push[int]("source")
		emit.Push(ints(0, 10)...)
		Connect(g, src, gate, Max(20))
		Connect(g, gate, sink)
		start(t, g)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 3500*time.Millisecond)
		defer cancel()
		err := g.Stop(ctx)
		equal(t, "passed", len(at()), 4)
		equal(t, "left", left(err), 6)
		checkConservation(t, g)
	})
}

// While nobody asks a throttle holds one chunk and asks for no more.
func TestThrottleHoldsOneChunk(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		gate := Throttle[int](limiter(t, LimiterConfig{Events: 1}))
		sink, _ := collector[int]("sink")
		Connect(g, counter(&w, 1), gate, Demand(6, 2))
		Connect(g, gate, sink)
		start(t, g)
		synctest.Wait()
		equal(t, "wants", w.all(), []int{6})
		equal(t, "held", stat(t, g, 1).Held, int64(3))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if h := stat(t, g, 1).Held; h > 4 {
			t.Errorf("%d events are held", h)
		}
	})
}

func TestLimiterConfigNamesTheWrongField(t *testing.T) {
	for name, c := range map[string]LimiterConfig{
		"Events": {},
		"Per":    {Events: 1, Per: -1},
		"Burst":  {Events: 1, Burst: -1},
	} {
		var f *penstock.FieldError
		if _, err := NewLimiter(c); !errors.As(err, &f) || f.Field != "LimiterConfig."+name {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []LimiterConfig{{Events: math.MaxInt, Per: time.Hour}, {Events: 1, Per: time.Hour, Burst: math.MaxInt}} {
		if _, err := NewLimiter(c); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%+v was taken: %v", c, err)
		}
	}
}

// A limiter agrees with arithmetic that has no bounds: never more than the
// burst and the rate allow, and never a token less.
func TestLimiterKeepsToItsRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := LimiterConfig{
			Events: rapid.IntRange(1, 1000).Draw(t, "events"),
			Per:    time.Duration(rapid.Int64Range(1, int64(10*time.Second)).Draw(t, "per")),
			Burst:  rapid.IntRange(1, 100).Draw(t, "burst"),
		}
		l := limiter(t, c)
		now := time.Unix(0, 0)
		l.refill(now)
		// In units of a token divided by per, as floats would not be exact.
		credit, full := int64(c.Burst)*int64(c.Per), int64(c.Burst)*int64(c.Per)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			d := rapid.Int64Range(0, int64(30*time.Second)).Draw(t, "elapsed")
			if rapid.Bool().Draw(t, "short") {
				d %= int64(c.Per)/int64(c.Events) + 2
			}
			now = now.Add(time.Duration(d))
			credit = min(full, credit+d*int64(c.Events)) // fits: 30e9 * 1000
			cost := int64(rapid.IntRange(0, 200).Draw(t, "cost"))
			need := cost * int64(c.Per)
			if rapid.Bool().Draw(t, "reserve") {
				wait := int64(l.reserve(now, cost))
				credit -= need
				want := int64(0)
				if credit < 0 {
					want = (-credit + int64(c.Events) - 1) / int64(c.Events)
				}
				if wait != want {
					t.Fatalf("reserve waits %d, want %d", wait, want)
				}
				if rapid.Bool().Draw(t, "give back") {
					l.giveBack(cost)
					credit = min(full, credit+need)
				}
				continue
			}
			ok := need <= credit
			if ok {
				credit -= need
			}
			if l.take(now, cost) != ok {
				t.Fatalf("take(%d) with credit %d of %d: %v", cost, credit, c.Per, !ok)
			}
		}
	})
}
