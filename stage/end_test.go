package stage

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// finite emits the given ints and returns Done with the last of them, or, when
// late is set, on the call after.
func finite(name string, n int, late bool) *Source[int] {
	next := 0
	return Pull(name, func(_ context.Context, want int, out *Output[int]) error {
		if next == n {
			return Done
		}
		for ; want > 0 && next < n; want-- {
			out.Emit(next)
			next++
		}
		if next == n && !late {
			return Done
		}
		return nil
	})
}

func flat[T any](batches [][]T) []T { return slices.Concat(batches...) }

func TestDoneDeliversThenEnds_STC99(t *testing.T) {
	for _, late := range []bool{false, true} {
		bothWays(t, func(t *testing.T, g *Graph) {
			sink, got := collector[int]("sink")
			Connect(g, finite("source", 3, late), sink)
			if err := g.Run(context.Background()); err != nil {
				t.Error(err)
			}
			equal(t, "batches", got(), [][]int{{0, 1, 2}})
		})
	}
	bothWays(t, func(t *testing.T, g *Graph) {
		src := Pull("source", func(_ context.Context, _ int, out *Output[int]) error {
			out.EmitAll(1, 2, 3)
			return Done
		})
		sink, got := collector[int]("sink")
		sub := Connect(g, src, sink)
		start(t, g)
		equal(t, "end of the sink", sink.Wait(), nil)
		equal(t, "batches", got(), [][]int{{1, 2, 3}})
		if !isOver(sub.Done()) || sub.Err() != nil {
			t.Errorf("the subscription ended with %v", sub.Err())
		}
	})
}

func TestDoneWithTheLastEventsEndsNormally_STC100(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		sink, got := collector[int]("sink")
		Connect(g, finite("source", 8, false), sink, Demand(6, 2))
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		equal(t, "events", flat(got()), ints(0, 8))
	})
}

func TestEmptySourceEndsItsSubscribers(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		sink, got := collector[int]("sink")
		Connect(g, finite("source", 0, false), sink)
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		equal(t, "batches", got(), [][]int(nil))
	})
}

func TestDoneServesSurplusBeforeTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src := Pull("source", func(_ context.Context, _ int, out *Output[int]) error {
			out.EmitAll(ints(0, 500)...)
			return Done
		})
		sink, got := collector[int]("sink")
		Connect(g, src, sink, Demand(6, 2))
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		equal(t, "events", flat(got()), ints(0, 500))
	})
}

func TestDrainDeadlineDiscardsAndReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := logTo()
		g := NewGraph(Logger(log))
		src := Pull("source", func(_ context.Context, _ int, out *Output[int]) error {
			out.EmitAll(ints(0, 500)...)
			return Done
		}, Drain(time.Second))
		sink := newLockstep[int]("lockstep")
		Connect(g, src, sink, Demand(6, 2))
		start(t, g)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		st := g.Stats()[0]
		if !st.Ended || st.Discarded != 494 || st.Sent != 6 {
			t.Errorf("source: %+v, want it ended with 494 discarded", st)
		}
		if !strings.Contains(written(), "reason=drain_timeout") || sumOf(t, written()) != 494 {
			t.Errorf("log %q, want 494 events and the reason", written())
		}
		sink.step()
		sink.step()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestFailureReachesTheEndInOrderAndKeepsItsIdentity(t *testing.T) {
	for _, fuse := range []bool{true, false} {
		bubble(t, func(t *testing.T, g *Graph) {
			src, emit := Push[int]("broken")
			double := Map(func(v int) int { return 2 * v })
			sink, got := collector[int]("sink")
			Connect(g, src, double)
			Connect(g, double, sink)
			emit.Push(1, 2, 3)
			emit.Fail(io.ErrUnexpectedEOF)
			err := g.Run(context.Background())
			if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), `"broken"`) {
				t.Errorf("Run: %v, want the error and the stage's name", err)
			}
			equal(t, "events before it", got(), [][]int{{2, 4, 6}})
		}, Fuse(fuse))
	}
}

func TestSinkErrorEndsTheGraphAndCountsTheRest(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		boom := errors.New("boom")
		calls := 0
		sink := NewSink("sink", func(context.Context, []int) error {
			if calls++; calls == 3 {
				return boom
			}
			return nil
		})
		Connect(g, counter(&w, 1), sink, Demand(6, 2))
		err := g.Run(context.Background())
		if !errors.Is(err, boom) {
			t.Errorf("Run: %v, want boom", err)
		}
		checkConservation(t, g)
		if st := g.Stats()[1]; st.Failed != 4 || st.In != 10 {
			t.Errorf("sink: %+v, want 10 in and 4 of them failed", st)
		}
	})
}

func TestSinkDoneEndsTheGraphNormally(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		waiting := Pull("waiting", func(ctx context.Context, _ int, _ *Output[int]) error {
			<-ctx.Done() // only the end of the graph wakes it
			return ctx.Err()
		})
		seen := 0
		sink := NewSink("sink", func(_ context.Context, in []int) error {
			if seen += len(in); seen >= 10 {
				return Done
			}
			return nil
		})
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
			out.Forward(in)
			return nil
		})
		Connect(g, counter(&w, 1), gate)
		Connect(g, gate, sink, Max(4))
		Connect(g, waiting, sink, Max(4))
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		checkConservation(t, g)
	})
}

func TestPanicBecomesAnError(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		act  func()
		want any
	}{"panic": {func() { panic(boom) }, boom}, "goexit": {runtime.Goexit, nil}} {
		for _, where := range []string{"source", "gate", "sink"} {
			t.Run(name+" in "+where, func(t *testing.T) {
				bubble(t, func(t *testing.T, g *Graph) {
					calls := 0
					act := func(stage string) {
						if stage != where {
							return
						}
						if calls++; calls > 4 { // only that stage counts
							c.act()
						}
					}
					n := 0
					src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
						act("source")
						for range want {
							out.Emit(n)
							n++
						}
						return nil
					})
					gate := Map(func(v int) int {
						act("gate")
						return v
					})
					sink := NewSink("sink", func(context.Context, []int) error {
						act("sink")
						return nil
					})
					Connect(g, src, gate)
					Connect(g, gate, sink)
					err := g.Run(context.Background())
					var p *penstock.PanicError
					if !errors.As(err, &p) || p.Value != c.want || len(p.Stack) == 0 {
						t.Fatalf("Run: %v, want a PanicError with %v and a stack", err, c.want)
					}
					if name == "panic" && !errors.Is(err, boom) {
						t.Errorf("Run: %v does not match what was passed to panic", err)
					}
					if !strings.Contains(p.Where, strings.Replace(where, "gate", "map#2", 1)) {
						t.Errorf("where: %q, want the name of the %s", p.Where, where)
					}
					checkConservation(t, g)
				}, Fuse(where != "sink"))
			})
		}
	}
}

func TestModesDecideWhetherAConsumerGoesOn(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		mode Mode
		err  error
		goes bool // the sink gets the other source's events
		want error
	}{
		"permanent, normal end": {Permanent, nil, false, nil},
		"permanent, failure":    {Permanent, boom, false, boom},
		"transient, normal end": {Transient, nil, true, nil},
		"transient, failure":    {Transient, boom, false, boom},
		"temporary, normal end": {Temporary, nil, true, nil},
		"temporary, failure":    {Temporary, boom, true, boom},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				first, emitFirst := Push[int]("first")
				second, emitSecond := Push[int]("second")
				sink, got := collector[int]("sink")
				Connect(g, first, sink, CancelMode(c.mode))
				Connect(g, second, sink, CancelMode(c.mode))
				emitFirst.Push(1)
				emitFirst.Fail(c.err)
				start(t, g)
				synctest.Wait()
				equal(t, "events of the first", got(), [][]int{{1}})
				emitSecond.Push(2)
				synctest.Wait()
				if c.goes {
					equal(t, "events of the second", got(), [][]int{{2}})
				} else {
					equal(t, "events of the second", got(), [][]int(nil))
				}
				emitSecond.Finish()
				if err := g.Wait(); !errors.Is(err, c.want) {
					t.Errorf("Wait: %v, want %v", err, c.want)
				}
			})
		})
	}
}

// The source fails first and ends last, because it serves what it holds.
func TestFirstFailureIsTheFirstInTime(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		first, second := errors.New("first"), errors.New("second")
		src, emit := Push[int]("source")
		slow := newLockstep[int]("slow")
		Connect(g, src, slow, Demand(1, 0))
		other, emitOther := Push[int]("other")
		sink := NewSink("failing", func(context.Context, []int) error { return second })
		Connect(g, other, sink)
		start(t, g)
		emit.Push(1, 2, 3)
		emit.Fail(first)
		synctest.Wait()
		emitOther.Push(1)
		synctest.Wait()
		for range 3 {
			slow.step()
		}
		err := g.Wait()
		if !errors.Is(err, first) || !errors.Is(err, second) || !strings.HasPrefix(err.Error(), `stage "source": first`) {
			t.Errorf("Wait: %v, want the first failure first", err)
		}
	})
}

func TestOneSinkFailsTheOtherGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		boom := errors.New("boom")
		src, emit := Push[int]("push")
		bad := NewSink("bad", func(context.Context, []int) error { return boom })
		good, got := collector[int]("good")
		Connect(g, src, bad, Demand(8, 2))
		Connect(g, src, good, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		emit.Push(1) // to bad, which has asked for more
		synctest.Wait()
		emit.Push(2, 3)
		synctest.Wait()
		equal(t, "events of the other", got(), [][]int{{2, 3}})
		emit.Finish()
		if err := g.Wait(); !errors.Is(err, boom) {
			t.Errorf("Wait: %v, want boom", err)
		}
	})
}

func TestRunDrainsWhenItsContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		ctx, cancel := context.WithCancel(context.Background())
		var last context.Context
		sum := 0
		sink := NewSink("sink", func(ctx context.Context, in []int) error {
			last = ctx
			time.Sleep(time.Second)
			sum += len(in)
			return ctx.Err()
		})
		src := counter(&w, 1)
		Connect(g, src, sink)
		// Ends the run in the middle; the timer waits for nobody.
		time.AfterFunc(1500*time.Millisecond, cancel)
		if err := g.Run(ctx); err != nil {
			t.Errorf("Run: %v, want nil after a full drain", err)
		}
		if st := g.Stats(); st[0].Emitted != int64(sum) || st[1].In != int64(sum) {
			t.Errorf("processed %d: %+v", sum, st)
		}
		if last.Err() == nil {
			t.Error("the callbacks' context lives after Run")
		}
	})
}

func TestRunCutsALongDrainShort(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		ctx, cancel := context.WithCancel(context.Background())
		sink := newLockstep[int]("lockstep")
		Connect(g, counter(&w, 1), sink)
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		err := g.Run(ctx)
		var d *penstock.DrainError
		if !errors.As(err, &d) || d.Left != 1000 || !d.Gone || !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v, want a DrainError with 1000 left that are gone", err)
		}
		if took := time.Since(begin); took != 4*time.Second {
			t.Errorf("Run took %v, want a second and the drain of three", took)
		}
	}, DrainWithin(3*time.Second))
}

func TestStopDrainsUntilItsContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		a, emitA := Push[int]("a")
		b, emitB := Push[int]("b")
		sink, got := collector[int]("sink")
		Connect(g, a, sink, Demand(2, 1))
		Connect(g, b, sink, Demand(2, 1))
		if err := emitA.Push(ints(0, 50)...); err != nil {
			t.Error(err)
		}
		if err := emitB.Push(ints(50, 90)...); err != nil {
			t.Error(err)
		}
		start(t, g)
		if err := g.Stop(t.Context()); err != nil {
			t.Errorf("Stop: %v", err)
		}
		all := flat(got())
		slices.Sort(all)
		equal(t, "events of both, though the modes are Permanent", all, ints(0, 90))
		if err := emitA.Push(1); !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("Push after Stop: %v", err)
		}
		if err := g.Stop(t.Context()); err != nil {
			t.Errorf("second Stop: %v", err)
		}
	})
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		sink := newLockstep[int]("lockstep")
		Connect(g, counter(&w, 1), sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var d *penstock.DrainError
		if err := g.Stop(ctx); !errors.As(err, &d) || d.Left != 6 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Stop: %v, want a DrainError with 6 left", err)
		}
	})
}

func TestAbortEndsAtOnceWithItsError(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		boom := errors.New("boom")
		sink := newLockstep[int]("lockstep")
		gate := Map(func(v int) int { return v })
		Connect(g, counter(&w, 1), gate, Demand(6, 2))
		Connect(g, gate, sink, Demand(2, 1))
		start(t, g)
		synctest.Wait()
		g.Abort(boom)
		g.Abort(io.EOF)
		err := g.Wait()
		var d *penstock.DrainError
		if !errors.Is(err, boom) || errors.Is(err, io.EOF) || !errors.As(err, &d) || d.Left == 0 {
			t.Errorf("Wait: %v, want boom and what was left", err)
		}
		checkConservation(t, g)
		emitted, processed := g.Stats()[0].Emitted, g.Stats()[2].In
		if int64(d.Left) != emitted-processed {
			t.Errorf("%d left, want %d emitted and not processed", d.Left, emitted-processed)
		}
	})
}

func TestOnEndEmitsTheTail_STC72(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var held []int
		sum := NewGate("ten", func(_ context.Context, in []int, out *Output[[]int]) error {
			for _, v := range in {
				if held = append(held, v); len(held) == 10 {
					out.Emit(held)
					held = nil
				}
			}
			return nil
		}).OnEnd(func(out *Output[[]int]) error {
			out.Emit(held)
			return nil
		})
		sink, got := collector[[]int]("sink")
		Connect(g, finite("source", 25, false), sum, Demand(6, 2))
		Connect(g, sum, sink, Demand(1, 0))
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		equal(t, "outputs", flat(got()), [][]int{ints(0, 10), ints(10, 20), ints(20, 25)})
	})
}

func TestGateDoneEndsBothFaces(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		gate := NewGate("take", func(_ context.Context, in []int, out *Output[int]) error {
			out.Forward(in[:3])
			return Done
		})
		sink, got := collector[int]("sink")
		Connect(g, counter(&w, 1), gate)
		Connect(g, gate, sink)
		if err := g.Run(context.Background()); err != nil {
			t.Error(err)
		}
		equal(t, "batches", got(), [][]int{{0, 1, 2}})
		checkConservation(t, g)
	})
}

func TestMisbuiltGraphsAreRefused(t *testing.T) {
	sinkOf := func(name string) *Sink[int] {
		return NewSink(name, func(context.Context, []int) error { return nil })
	}
	id := func() *Gate[int, int] { return Map(func(v int) int { return v }) }
	for name, c := range map[string]struct {
		build func(g *Graph)
		want  error
	}{
		"empty": {func(*Graph) {}, penstock.ErrInvalid},
		"cycle": {func(g *Graph) {
			a, b := id(), id()
			Connect(g, a, b)
			Connect(g, b, a)
		}, ErrCycle},
		"same name":       {func(g *Graph) { Connect(g, finite("x", 1, false), sinkOf("x")) }, penstock.ErrInvalid},
		"no name":         {func(g *Graph) { Connect(g, finite("", 1, false), sinkOf("x")) }, penstock.ErrInvalid},
		"no producer":     {func(g *Graph) { Connect(g, id(), sinkOf("x")) }, penstock.ErrInvalid},
		"not by NewGraph": {func(g *Graph) { *g = Graph{}; Connect(g, finite("s", 1, false), sinkOf("x")) }, penstock.ErrInvalid},
		"unknown mode":    {func(g *Graph) { Connect(g, finite("s", 1, false), sinkOf("x"), CancelMode(9)) }, penstock.ErrInvalid},
		"two graphs": {func(g *Graph) {
			s := finite("s", 1, false)
			Connect(NewGraph(), s, sinkOf("x"))
			Connect(g, s, sinkOf("x"))
		}, penstock.ErrInvalid},
	} {
		g := NewGraph()
		c.build(g)
		if err := g.Run(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for name, connect := range map[string]func(g *Graph){
		"pull":    func(g *Graph) { Connect(g, Pull[int]("s", nil), sinkOf("x")) },
		"hybrid":  func(g *Graph) { s, _ := Hybrid[int]("s", nil); Connect(g, s, sinkOf("x")) },
		"sink":    func(g *Graph) { Connect(g, finite("s", 1, false), NewSink[int]("x", nil)) },
		"gate":    func(g *Graph) { Connect(g, finite("s", 1, false), NewGate[int, int]("x", nil)) },
		"map":     func(g *Graph) { Connect(g, finite("s", 1, false), Map[int, int](nil)) },
		"map ptr": func(g *Graph) { Connect(g, finite("s", 1, false), MapPtr[int, int](nil)) },
		"flatmap": func(g *Graph) { Connect(g, finite("s", 1, false), FlatMap[int, int](nil)) },
		"filter":  func(g *Graph) { Connect(g, finite("s", 1, false), Filter[int](nil)) },
	} {
		g := NewGraph()
		connect(g)
		if err := g.Run(t.Context()); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "callback") {
			t.Errorf("%s without a callback: %v", name, err)
		}
	}
	g := NewGraph(DrainWithin(-1))
	Connect(g, finite("s", 1, false), sinkOf("x"))
	if err := g.Run(t.Context()); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("negative drain: %v", err)
	}
}

func TestAGraphRunsOnce(t *testing.T) {
	g := NewGraph()
	if err := g.Wait(); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("Wait before Start: %v", err)
	}
	if err := g.Stop(t.Context()); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("Stop before Start: %v", err)
	}
	g.Abort(nil)
	sink, _ := collector[int]("sink")
	Connect(g, finite("source", 1, false), sink)
	if err := g.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if err := g.Run(t.Context()); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("second Run: %v", err)
	}
	if err := g.Wait(); err != nil {
		t.Errorf("Wait after the end: %v", err)
	}
	g.Abort(nil)
	defer func() {
		if recover() == nil {
			t.Error("Connect after Start did not panic")
		}
	}()
	Connect(g, finite("late", 1, false), sink)
}

func TestDrySourceSleepsUntilWokenOrWantRises(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		give := 0
		next := 0
		src := Pull("dry", func(_ context.Context, want int, out *Output[int]) error {
			w.add(want)
			for range min(give, want) {
				out.Emit(next)
				next++
			}
			give = 0
			return nil
		})
		sink := newLockstep[int]("lockstep")
		Connect(g, src, sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		equal(t, "first want, then quiet", w.all(), []int{6})
		src.Wake()
		synctest.Wait()
		equal(t, "want after a wake", w.all(), []int{6})
		give = 5
		src.Wake()
		synctest.Wait()
		equal(t, "want while it makes progress", w.all(), []int{6, 1})
		equal(t, "batch", sink.all(), [][]int{{0, 1, 2, 3}})
		sink.step()
		equal(t, "want after it rose", w.all(), []int{5})
	})
}

func TestDrySourceNoticesThatWantRisesFromWhereItFell(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		give := 11
		src := Pull("dry", func(_ context.Context, want int, out *Output[int]) error {
			w.add(want)
			for range min(give, want) {
				out.Emit(1)
				give--
			}
			return nil
		})
		large := newLockstep[int]("large")
		once := make(chan struct{})
		leaves := NewSink("leaves", func(context.Context, []int) error {
			<-once
			return Done
		})
		Connect(g, src, large, Demand(10, 8))
		Connect(g, src, leaves, Demand(4, 3))
		start(t, g)
		synctest.Wait()
		equal(t, "wants", w.all(), []int{14, 3})
		close(once)
		synctest.Wait()
		equal(t, "want after a consumer has left", w.all(), []int(nil))
		large.step()
		equal(t, "want of 2 after none", w.all(), []int{2})
	})
}

func TestGateWithoutConsumerTakesItsFirstDemandAndStops(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		gate := Map(func(v int) int { return v })
		Connect(g, counter(&w, 1), gate, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		equal(t, "wants", w.all(), []int{6}) // ST-70
		if s := g.Stats()[1]; s.In != 4 || s.Buffered != 4 {
			t.Errorf("gate: %+v, want the output of one batch of 4 held", s)
		}
		begin := time.Now()
		if err := g.Stop(t.Context()); err != nil {
			t.Errorf("Stop: %v", err)
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("Stop took %v", d)
		}
		checkConservation(t, g)
	})
}

func TestConsumerServesItsProducersInTurn(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		a, b := counter(&w, 1), Pull("other", func(_ context.Context, want int, out *Output[int]) error {
			for range want {
				out.Emit(-1)
			}
			return nil
		})
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
			out.EmitAll(in...)
			return nil
		})
		sink := newLockstep[int]("lockstep")
		Connect(g, a, gate, Demand(4, 2))
		Connect(g, b, gate, Demand(4, 2))
		Connect(g, gate, sink, Demand(2, 0))
		start(t, g)
		synctest.Wait()
		others := 0
		for range 20 {
			for _, v := range flat(sink.all()) {
				if v < 0 {
					others++
				}
			}
			sink.step()
		}
		if others < 18 || others > 22 {
			t.Errorf("%d of 40 events are of the second producer, want half", others)
		}
	})
}

// checkConservation checks that no event of a graph that has ended vanished
// (P-1).
func checkConservation(t interface {
	Helper()
	Errorf(format string, args ...any)
}, g *Graph) {
	t.Helper()
	left := int64(0)
	for _, s := range g.Stats() {
		if s.Kind != KindSink && s.Emitted+s.Pushed != s.Dispatched+s.FilteredOut+s.Buffered+s.Discarded {
			t.Errorf("%s: %d emitted + %d pushed, but %d dispatched + %d buffered + %d discarded",
				s.Name, s.Emitted, s.Pushed, s.Dispatched, s.Buffered, s.Discarded)
		}
		if !s.Ended || s.InCallback {
			t.Errorf("%s: %+v, want it ended", s.Name, s)
		}
		left += s.Sent - s.In - s.Undelivered
	}
	if left != 0 {
		t.Errorf("%d events were sent and neither processed nor counted as undelivered", left)
	}
}
