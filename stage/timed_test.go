package stage

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

const second = time.Second

// pushed connects a push source, a gate and a timed sink, and starts them.
func pushed[Out any](t *testing.T, g *Graph, gate *Gate[int, Out], opts ...SubOption) (*Emitter[int], func() [][]Out, func() []time.Duration) {
	t.Helper()
	src, emit := Push[int]("source")
	sink, got := collector[Out]("sink")
	watch, at := timed[Out]("watch")
	tap := NewGate("tap", func(ctx context.Context, in []Out, out *Output[Out]) error {
		if err := watch.f(ctx, in); err != nil {
			return err
		}
		out.Forward(in)
		return nil
	})
	Connect(g, src, gate)
	Connect(g, gate, tap, opts...)
	Connect(g, tap, sink)
	start(t, g)
	return emit, got, at
}

func TestDelayKeepsOrderAndDistance(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		emit, got, at := pushed(t, g, Delay[int](3*second, 0))
		emit.Push(0, 1)
		time.Sleep(second)
		emit.Push(2)
		synctest.Wait()
		equal(t, "held", stat(t, g, 1).Held, int64(3))
		emit.Finish() // what is held still waits its time
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		equal(t, "out", got(), [][]int{{0, 1}, {2}})
		equal(t, "times", at(), []time.Duration{3 * second, 3 * second, 4 * second})
		checkConservation(t, g)
	})
}

func TestDelayTakesNoMoreThanItsLimit(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		delay := Delay[int](second, 5)
		sink, got := collector[int]("sink")
		Connect(g, counter(&w, 1), delay, Demand(4, 2))
		Connect(g, delay, sink)
		start(t, g)
		synctest.Wait()
		equal(t, "held", stat(t, g, 1).Held, int64(6)) // fewer than 5, and one chunk of 2
		w.all()
		time.Sleep(second)
		synctest.Wait()
		equal(t, "out", len(got()) > 0, true)
	})
}

func TestDebouncePassesWhatStays(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		emit, got, at := pushed(t, g, Debounce[int](3*second))
		emit.Push(0, 1)
		time.Sleep(2 * second)
		emit.Push(2)
		time.Sleep(10 * second)
		emit.Push(3)
		time.Sleep(second)
		emit.Finish() // the last one passes at once
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		equal(t, "out", got(), [][]int{{2}, {3}})
		equal(t, "times", at(), []time.Duration{5 * second, 13 * second})
		s := stat(t, g, 1)
		equal(t, "filtered", s.Filtered, int64(2))
		equal(t, "in", s.In, s.Emitted+s.Filtered)
		checkConservation(t, g)
	})
}

func TestSamplePassesTheLastOfEverySpan(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		emit, got, at := pushed(t, g, Sample[int](10*second))
		emit.Push(0)
		time.Sleep(4 * second)
		emit.Push(1, 2)
		time.Sleep(8 * second) // 12 s
		emit.Push(3)
		time.Sleep(20 * second) // 32 s; nothing came in the span from 20 s on
		emit.Push(4)
		time.Sleep(10 * second) // 42 s
		emit.Push(5, 6)
		synctest.Wait()
		emit.Finish()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		equal(t, "out", got(), [][]int{{2}, {3}, {4}, {6}})
		equal(t, "times", at(), []time.Duration{10 * second, 20 * second, 40 * second, 42 * second})
		checkConservation(t, g)
	})
}

// While nobody asks, Sample and Debounce replace what they hold and never make
// their producers wait.
func TestLatestIsReplacedWhileNobodyAsks(t *testing.T) {
	for name, gate := range map[string]func() *Gate[int, int]{
		"sample":   func() *Gate[int, int] { return Sample[int](second) },
		"debounce": func() *Gate[int, int] { return Debounce[int](second) },
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				src, emit := Push[int]("source")
				sink := newLockstep[int]("sink")
				gate := gate()
				Connect(g, src, gate, Demand(4, 2))
				Connect(g, gate, sink, Demand(1, 0))
				start(t, g)
				for i := range 50 {
					emit.Push(i)
					time.Sleep(1500 * time.Millisecond)
					synctest.Wait()
				}
				equal(t, "first", sink.all(), [][]int{{0}})
				equal(t, "buffered", src.Buffered(), 0)
				sink.step()
				equal(t, "next", sink.all(), [][]int{{49}})
				go1 := sink.go1
				emit.Finish()
				go1 <- struct{}{}
				if err := g.Wait(); err != nil {
					t.Error(err)
				}
				checkConservation(t, g)
			})
		})
	}
}

func TestHeldEventsGoOutBeforeTheError(t *testing.T) {
	for name, gate := range map[string]func() *Gate[int, int]{
		"delay":    func() *Gate[int, int] { return Delay[int](second, 0) },
		"debounce": func() *Gate[int, int] { return Debounce[int](second) },
		"sample":   func() *Gate[int, int] { return Sample[int](second) },
		"throttle": func() *Gate[int, int] { return Throttle[int](limiter(t, LimiterConfig{Events: 1})) },
		"buffer":   func() *Gate[int, int] { return BufferGate[int](10, Wait) },
		"concurrent": func() *Gate[int, int] {
			return MapConcurrent(2, func(ctx context.Context, v int) (int, error) { time.Sleep(second); return v, nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				emit, got, _ := pushed(t, g, gate())
				emit.Push(0, 1, 2)
				emit.Fail(errBoom)
				if err := g.Wait(); !errors.Is(err, errBoom) {
					t.Errorf("Wait returned %v", err)
				}
				last := got()
				if len(last) == 0 || last[len(last)-1][len(last[len(last)-1])-1] != 2 {
					t.Errorf("got %v before the error", last)
				}
				checkConservation(t, g)
			})
		})
	}
}

// After the end of a graph no timer of an operator is left to wake it.
func TestTimersStopWithTheirStage(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		l := limiter(t, LimiterConfig{Events: 1, Per: time.Hour})
		gates := []*Gate[int, int]{Delay[int](time.Hour, 0), Debounce[int](time.Hour), Sample[int](time.Hour), Throttle[int](l)}
		var alarms []*alarm
		for _, gate := range gates {
			src, emit := Push[int](gate.in.name + " source")
			sink, _ := collector[int](gate.in.name + " sink")
			Connect(g, src, gate)
			Connect(g, gate, sink)
			emit.Push(0, 1)
			switch d := gate.drv.(type) {
			case *delayed[int]:
				alarms = append(alarms, &d.timer)
			case *latest[int]:
				alarms = append(alarms, &d.timer)
			case *throttle[int]:
				alarms = append(alarms, &d.timer)
			}
		}
		start(t, g)
		synctest.Wait()
		for i, a := range alarms {
			if !a.set() {
				t.Errorf("alarm %d is not set", i)
			}
		}
		g.Abort(nil)
		g.Wait()
		for i, a := range alarms {
			if a.timer.Stop() {
				t.Errorf("the timer of %d still ran", i)
			}
		}
	})
}
