package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

var errFinal = errors.New("final")

func retrier(t *testing.T, c RetryConfig) *Retrier {
	t.Helper()
	r, err := NewRetrier(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A call that fails is made again, later and later, and its result comes in its
// place.
func TestRetryCallsAgainInPlace(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var mu sync.Mutex
		begin := time.Now()
		var at []time.Duration
		f := WithRetry(retrier(t, RetryConfig{Attempts: 4, Min: time.Second, Max: 3 * time.Second, Jitter: -1}), func(_ context.Context, v int) (int, error) {
			if v != 5 {
				return v, nil
			}
			mu.Lock()
			defer mu.Unlock()
			if at = append(at, time.Since(begin)); len(at) < 4 {
				return 0, errBoom
			}
			return 50, nil
		}, nil)
		want := ints(0, 12)
		want[5] = 50
		equal(t, "out", through(t, g, ints(0, 12), MapConcurrent(3, f)), want)
		equal(t, "calls at", at, []time.Duration{0, time.Second, 3 * time.Second, 6 * time.Second})
	})
}

// What is given up for good fails its gate, or is put aside and counted.
func TestRetryGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		giveUp func(aside *[]int) func(context.Context, int, error) error
		calls  int
		want   error
	}{
		"fails":       {errBoom, func(*[]int) func(context.Context, int, error) error { return nil }, 3, errBoom},
		"is final":    {errFinal, func(*[]int) func(context.Context, int, error) error { return nil }, 1, errFinal},
		"is aside":    {errBoom, putAside(nil), 3, nil},
		"final aside": {errFinal, putAside(nil), 1, nil},
		"aside fails": {errBoom, putAside(errFinal), 3, errFinal},
	} {
		t.Run(name, func(t *testing.T) {
			for _, unordered := range []bool{false, true} {
				bubble(t, func(t *testing.T, g *Graph) {
					calls := 0
					var aside []int
					r := retrier(t, RetryConfig{Attempts: 3, Final: func(err error) bool { return errors.Is(err, errFinal) }})
					f := WithRetry(r, func(_ context.Context, v int) (int, error) {
						if v == 5 {
							calls++
							return 0, c.err
						}
						return v, nil
					}, c.giveUp(&aside))
					gate := MapConcurrent(1, f)
					if unordered {
						gate = MapConcurrentUnordered(1, f)
					}
					sink, got := collector[int]("sink")
					Connect(g, FromSlice("source", ints(0, 10)), gate)
					Connect(g, gate, sink)
					if err := g.Run(t.Context()); !errors.Is(err, c.want) {
						t.Errorf("Run: %v, want %v", err, c.want)
					}
					equal(t, "calls", calls, c.calls)
					want := ints(0, 5)
					if c.want == nil {
						want = slices.Delete(ints(0, 10), 5, 6)
						equal(t, "aside", aside, []int{5})
					}
					equal(t, "out", flat(got()), want)
					equal(t, "failed", g.Stats()[1].Failed, int64(1))
					checkGates(t, g)
				})
			}
		})
	}
}

func putAside(result error) func(aside *[]int) func(context.Context, int, error) error {
	return func(aside *[]int) func(context.Context, int, error) error {
		return func(_ context.Context, v int, err error) error {
			if err == nil {
				return errors.New("without a reason")
			}
			*aside = append(*aside, v)
			return result
		}
	}
}

// The end of the graph ends a wait.
func TestAbortEndsTheWaitOfARetry(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		f := WithRetry(retrier(t, RetryConfig{Min: time.Hour, Max: time.Hour}), func(context.Context, int) (int, error) { return 0, errBoom }, nil)
		gate := MapConcurrent(2, f)
		Connect(g, FromSlice("source", ints(0, 10)), gate)
		Connect(g, gate, Discard[int]())
		start(t, g)
		time.Sleep(time.Minute)
		begin := time.Now()
		g.Abort(errEnding)
		if err := g.Wait(); !errors.Is(err, errEnding) || errors.Is(err, errBoom) {
			t.Error(err)
		}
		equal(t, "time", time.Since(begin), time.Duration(0))
		checkGates(t, g)
	})
}

func TestRetriersAndBreakersAreChecked(t *testing.T) {
	for field, c := range map[string]RetryConfig{
		"Attempts": {Attempts: -1}, "Min": {Min: -1}, "Max": {Max: -1}, "Jitter": {Jitter: 1.5}, "Max: 1ns is below": {Min: 2, Max: 1},
	} {
		if _, err := NewRetrier(c); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "RetryConfig."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for field, c := range map[string]BreakerConfig{"Failures": {Failures: -1}, "Cooldown": {Cooldown: -1}} {
		if _, err := NewBreaker(c); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v", field, err)
		}
	}
	f := func(context.Context, int) (int, error) { return 0, nil }
	b, err := NewBreaker(BreakerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []func(context.Context, int) (int, error){
		WithRetry(nil, f, nil), WithRetry[int, int](retrier(t, RetryConfig{}), nil, nil), WithBreaker(nil, f), WithBreaker[int, int](b, nil),
	} {
		g := NewGraph()
		gate := MapConcurrent(1, f)
		Connect(g, Empty[int]("empty"), gate)
		Connect(g, gate, Discard[int]())
		if err := g.Start(t.Context()); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("nil: %v", err)
		}
	}
}

// A breaker opens after failures in a row, lets one call try after its cooldown,
// and closes when that has succeeded.
func TestBreakerOpensAndTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes []string
		b, err := NewBreaker(BreakerConfig{Failures: 2, Cooldown: time.Second, Counts: func(err error) bool { return !errors.Is(err, errFinal) },
			OnChange: func(s BreakerState) { changes = append(changes, s.String()) }})
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		var answer error
		f := WithBreaker(b, func(context.Context, int) (int, error) { calls++; return calls, answer })
		call := func(with, want error) {
			t.Helper()
			answer = with
			if _, err := f(t.Context(), 0); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
		call(errBoom, errBoom)
		call(nil, nil) // not in a row
		call(errBoom, errBoom)
		call(errFinal, errFinal) // an answer
		call(errBoom, errBoom)
		equal(t, "state", b.State(), BreakerClosed)
		call(errBoom, errBoom)
		equal(t, "state", b.State(), BreakerOpen)
		before := calls
		call(nil, ErrBreakerOpen)
		time.Sleep(time.Second - 1)
		call(nil, ErrBreakerOpen)
		equal(t, "calls while it is open", calls, before)
		time.Sleep(time.Nanosecond)
		call(errBoom, errBoom) // a try that fails
		call(nil, ErrBreakerOpen)
		time.Sleep(time.Second)
		call(nil, nil)
		equal(t, "state", b.State(), BreakerClosed)
		equal(t, "opened", b.Opened(), int64(2))
		equal(t, "changes", changes, []string{"open", "half_open", "open", "half_open", "closed"})
		call(errBoom, errBoom)
		func() {
			defer func() { _ = recover() }()
			_, _ = WithBreaker(b, func(context.Context, int) (int, error) { panic("counts") })(t.Context(), 0)
		}()
		equal(t, "state after a panic", b.State(), BreakerOpen)
	})
}

// While it is open calls wait, and so do the producers; one call tries at a time.
func TestBreakerThatWaitsMakesProducersWait(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		b, err := NewBreaker(BreakerConfig{Failures: 3, Cooldown: time.Minute, Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		var c calls
		begin := time.Now()
		broken := func() bool { return time.Since(begin) < 2*time.Minute+30*time.Second }
		f := WithRetry(retrier(t, RetryConfig{Attempts: 100, Min: time.Millisecond, Max: time.Second}), WithBreaker(b, func(_ context.Context, v int) (int, error) {
			c.enter()
			defer c.now.Add(-1)
			time.Sleep(time.Millisecond)
			if broken() {
				return 0, errBoom
			}
			return v, nil
		}), nil)
		var w wants
		sink, got := collector[int]("sink")
		gate := MapConcurrent(4, f)
		Connect(g, counter(&w, 1), gate, Demand(4, 0))
		Connect(g, gate, sink)
		start(t, g)
		time.Sleep(2*time.Minute + 29*time.Second)
		equal(t, "events while it is broken", len(flat(got())), 0)
		equal(t, "wants", len(w.all()), 2)
		if n := b.Opened(); n != 3 {
			t.Errorf("it has opened %d times, want once, and after each of two tries", n)
		}
		c.most.Store(0)
		time.Sleep(time.Minute)
		if all := flat(got()); len(all) < 100 || !slices.Equal(all, ints(0, len(all))) {
			t.Errorf("%d events afterwards", len(all))
		}
		equal(t, "state", b.State(), BreakerClosed)
	})
}

// TestCircuitModel holds the machine against what it promises.
func TestCircuitModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c circuit
		limit := rapid.IntRange(1, 3).Draw(t, "limit")
		now := time.Unix(0, 0)
		type began struct{ turn int64 }
		var calls []began
		inRow, try := 0, int64(-1) // of the closed circuit; the turn of the call that tries
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				before, until := c.state, c.until
				wait, ok := c.admit(now)
				want := before == BreakerClosed || before == BreakerOpen && !now.Before(until)
				if ok != want || !ok && before == BreakerOpen && wait != until.Sub(now) || !ok && before == BreakerHalfOpen && wait != 0 {
					t.Fatalf("%v until %v: admit at %v says %v, %v", before, until, now, wait, ok)
				}
				if ok {
					calls = append(calls, began{turn: c.turn})
					if before == BreakerOpen {
						if c.state != BreakerHalfOpen {
							t.Fatalf("a try, and the circuit is %v", c.state)
						}
						try = c.turn
					}
				}
			case 1:
				now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "passes")))
			case 2:
				if len(calls) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(calls)-1).Draw(t, "call")
				turn := calls[i].turn
				calls = slices.Delete(calls, i, i+1)
				how := result(rapid.IntRange(0, 2).Draw(t, "result"))
				before := c
				c.settle(turn, how, limit, now.Add(10))
				switch {
				case turn != before.turn:
					if c != before {
						t.Fatalf("a late result has changed %+v to %+v", before, c)
					}
				case before.state == BreakerHalfOpen:
					if turn != try || c.state != [...]BreakerState{BreakerClosed, BreakerOpen, BreakerOpen}[how] {
						t.Fatalf("%v of a try: %v", how, c.state)
					}
					inRow = 0
				default:
					if how == failure {
						inRow++
					} else if how == success {
						inRow = 0
					}
					if (c.state == BreakerOpen) != (inRow >= limit) {
						t.Fatalf("%d failures in a row of %d: %v", inRow, limit, c.state)
					}
					if c.state == BreakerOpen {
						inRow = 0
					}
				}
			}
		}
	})
}

// Those who wait for a breaker end with their context.
func TestWaitForABreakerEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := NewBreaker(BreakerConfig{Failures: 1, Cooldown: time.Hour, Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		f := WithBreaker(b, func(context.Context, int) (int, error) { return 0, errBoom })
		_, _ = f(t.Context(), 0)
		why := fmt.Errorf("why")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, why)
		defer cancel()
		begin := time.Now()
		if _, err := f(ctx, 0); !errors.Is(err, why) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		equal(t, "time", time.Since(begin), time.Minute)
		// A try that is cut off says nothing: the next may try at once.
		slow := WithBreaker(b, func(ctx context.Context, _ int) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		time.Sleep(time.Hour)
		ctx2, cancel2 := context.WithTimeout(t.Context(), time.Second)
		defer cancel2()
		_, _ = slow(ctx2, 0)
		equal(t, "state", b.State(), BreakerOpen)
		if _, err := WithBreaker(b, func(context.Context, int) (int, error) { return 1, nil })(t.Context(), 0); err != nil {
			t.Error(err)
		}
		equal(t, "state", b.State(), BreakerClosed)
		equal(t, "opened", b.Opened(), int64(1))
	})
}

// What is given up once is not tried again by a retrier around it, nor put aside
// a second time.
func TestRetryPassesOnWhatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, aside := 0, 0
		r := retrier(t, RetryConfig{Attempts: 2})
		put := func(context.Context, int, error) error { aside++; return nil }
		f := WithRetry(r, WithRetry(r, func(context.Context, int) (int, error) { calls++; return 0, errBoom }, put), put)
		if _, err := f(t.Context(), 1); !errors.Is(err, ErrGivenUp) || !errors.Is(err, errBoom) {
			t.Error(err)
		}
		equal(t, "calls", calls, 2)
		equal(t, "put aside", aside, 1)
	})
}

// A hook that does not return from the news of a try keeps that call, and not all
// that come after it: the breaker used to be half open for good.
func TestBreakerWhoseHookCrashesTriesAgain(t *testing.T) {
	for how, crash := range crashes {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fails, crashed := true, false
				b, err := NewBreaker(BreakerConfig{Failures: 1, Cooldown: time.Second, OnChange: func(s BreakerState) {
					if s == BreakerHalfOpen && !crashed {
						crashed = true
						crash()
					}
				}})
				must(t, err)
				f := WithBreaker(b, func(_ context.Context, v int) (int, error) {
					if fails {
						return 0, errBoom
					}
					return v, nil
				})
				if _, err := f(t.Context(), 1); !errors.Is(err, errBoom) {
					t.Fatal(err)
				}
				fails = false
				time.Sleep(time.Second)
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					defer func() { _ = recover() }()
					_, _ = f(t.Context(), 2)
				}()
				<-gone
				equal(t, "crashed", crashed, true)
				equal(t, "opened", b.Opened(), int64(1)) // what was not tried has not failed
				if v, err := f(t.Context(), 3); v != 3 || err != nil {
					t.Errorf("%d, %v", v, err)
				}
				equal(t, "state", b.State(), BreakerClosed)
			})
		})
	}
}
