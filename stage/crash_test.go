package stage

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// checkGates checks that every gate that emits one event for one has accounted
// for what it was given.
func checkGates(t *testing.T, g *Graph) {
	t.Helper()
	checkConservation(t, g)
	for _, s := range g.Stats() {
		if s.Kind == KindGate && s.In != s.Emitted+s.Filtered+s.Dropped+s.Failed {
			t.Errorf("%s: %d in, but %d emitted + %d filtered + %d dropped + %d failed", s.Name, s.In, s.Emitted, s.Filtered, s.Dropped, s.Failed)
		}
	}
}

// runWithin runs the graph and fails the test when that takes longer than d.
func runWithin(t *testing.T, g *Graph, d time.Duration) error {
	t.Helper()
	guard := time.AfterFunc(d, func() { g.Abort(errors.New("it hangs")) })
	defer guard.Stop()
	return g.Run(context.Background())
}

// A call that leaves its goroutine ends the gate, whatever it does about errors:
// it used to go on with one worker less, and in the end with none.
func TestGoexitInAConcurrentCallEndsItsGate(t *testing.T) {
	for name, opts := range map[string][]Option{"resume": {OnError(Resume)}, "restart": {OnError(Restart)}, "resume a panic": {OnPanic(Resume)}} {
		for _, n := range []int{1, 3} {
			bubble(t, func(t *testing.T, g *Graph) {
				gate := MapConcurrent(n, func(_ context.Context, v int) (int, error) {
					if v == 5 {
						runtime.Goexit()
					}
					return v, nil
				}, opts...)
				sink, got := collector[int]("sink")
				Connect(g, FromSlice("source", ints(0, 50)), gate)
				Connect(g, gate, sink)
				err := runWithin(t, g, time.Hour)
				var p *penstock.PanicError
				if !errors.As(err, &p) || p.Value != nil {
					t.Errorf("%s: Run: %v, want the end of a goroutine", name, err)
				}
				equal(t, "events before it", flat(got()), ints(0, 5))
				checkGates(t, g)
			})
		}
	}
}

// User code of an operator that panics, or leaves its goroutine, loses events
// that are counted, and the others come through.
func TestOperatorsAccountForCallsThatCrash(t *testing.T) {
	for how, crash := range crashes {
		for name, build := range map[string]func(at func()) *Gate[int, int]{
			"cost": func(at func()) *Gate[int, int] {
				l, err := NewLimiter(LimiterConfig{Events: 10, Per: time.Second, Burst: 1})
				if err != nil {
					t.Fatal(err)
				}
				return ThrottleCost(l, func(*int) int { at(); return 1 }, OnError(Resume))
			},
			"discard": func(at func()) *Gate[int, int] {
				return BufferGate[int](3, KeepLast, OnDiscard(func(int) { at() }), OnError(Resume))
			},
			"key": func(at func()) *Gate[int, int] {
				return MapPartitioned(2, func(v *int) int { at(); return *v }, func(_ context.Context, v int) (int, error) { return v, nil }, OnError(Resume))
			},
		} {
			for n := range 12 {
				t.Run(how+" in "+name, func(t *testing.T) {
					bubble(t, func(t *testing.T, g *Graph) {
						calls := 0
						gate := build(func() {
							if calls++; calls == n {
								crash()
							}
						})
						slow := NewSink("slow", func(context.Context, []int) error {
							time.Sleep(time.Second)
							return nil
						})
						Connect(g, FromSlice("source", ints(0, 12)), gate, Demand(3, 1))
						Connect(g, gate, slow, Demand(1, 0))
						err := runWithin(t, g, time.Hour)
						s := g.Stats()[1]
						if name != "discard" && how == "panic" && (err != nil || n > 0 && s.Failed != 1 && s.Failed != 2 || s.In != 12) {
							t.Errorf("call %d: %v, %+v; want one chunk lost", n, err, s)
						}
						if name == "discard" && n > 0 && n <= calls && err == nil {
							t.Errorf("call %d: a hook that crashes ends its stage", n)
						}
						checkGates(t, g)
					})
				})
			}
		}
	}
}

func TestBatchersAccountForWeighingThatPanics(t *testing.T) {
	for _, reaction := range []Reaction{Stop, Resume} {
		for n := 1; n < 9; n++ {
			bothWays(t, func(t *testing.T, g *Graph) {
				calls, in := 0, 0
				batch := BatchWeighted(4, 0, func(*int) int {
					if calls++; calls == n {
						panic("weigh")
					}
					return 1
				}, OnError(reaction))
				Connect(g, FromSlice("source", ints(0, 9)), batch, Demand(3, 0))
				Connect(g, batch, NewSink("sink", func(_ context.Context, batches [][]int) error {
					in += len(flat(batches))
					return nil
				}))
				if err := runWithin(t, g, time.Hour); (err == nil) != (reaction == Resume) {
					t.Error(err)
				}
				if s := g.Stats()[1]; s.In != int64(in)+s.Failed+s.Dropped || s.Failed != 3 || reaction == Resume && (in != 6 || s.In != 9) {
					t.Errorf("call %d: %+v, and %d events in batches", n, s, in)
				}
			})
		}
	}
}

// The others go on when the Init of one of them does not return.
func TestRestForOneGoesOnWhenAnInitLeavesItsGoroutine(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
			if in[0] == 1 {
				return errBoom
			}
			out.EmitAll(in...)
			return nil
		}).Broadcast()
		inits := 0
		leaves := NewSink("leaves", func(context.Context, []int) error { return nil }, Init(func(context.Context) error {
			if inits++; inits > 1 {
				runtime.Goexit()
			}
			return nil
		}))
		stays, got := collector[int]("stays")
		Connect(g, src, gate)
		Connect(g, gate, leaves)
		Connect(g, gate, stays)
		start(t, g)
		emit.Push(1)
		time.Sleep(time.Minute)
		emit.Push(2, 3, 4)
		time.Sleep(time.Minute)
		equal(t, "events of the one that stays", flat(got()), []int{2, 3, 4})
		equal(t, "the other has ended", isOver(leaves.Done()), true)
		emit.Finish()
		if err := g.Wait(); err == nil {
			t.Error("the graph says nothing of it")
		}
	}, RestForOne(Backoff(time.Millisecond, time.Second, 0)))
}

// A producer that ends in the middle of a request answers it.
func TestRequestIsAnsweredByAProducerThatCrashes(t *testing.T) {
	for name, request := range map[string]func(ctx context.Context, src *Source[int], to Inleter[int]) (*Subscription, error){
		"subscribe": func(ctx context.Context, src *Source[int], to Inleter[int]) (*Subscription, error) {
			return Subscribe(ctx, src, to)
		},
		"wait": func(ctx context.Context, src *Source[int], to Inleter[int]) (*Subscription, error) {
			return SubscribeWait(ctx, src, to)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				release, entered := make(chan struct{}), make(chan struct{}, 1)
				src := Pull("source", func(context.Context, int, *Output[int]) error {
					select {
					case entered <- struct{}{}:
					default:
					}
					<-release
					return nil
				}).OnSubscribers(func(c Change) {
					if !c.Arrived {
						runtime.Goexit()
					}
				})
				first, second := newLockstep[int]("first"), newLockstep[int]("second")
				if err := g.Add(first, second, idle()); err != nil {
					t.Fatal(err)
				}
				sub := Connect(g, src, first)
				start(t, g)
				<-entered
				sub.Cancel()
				var got *Subscription
				var err error
				done := make(chan struct{})
				go func() { // the request: ends with its answer; the receive below waits
					defer close(done)
					got, err = request(context.Background(), src, second)
				}()
				synctest.Wait()
				close(release)
				synctest.Wait()
				if !isOver(done) {
					t.Fatal("no answer")
				}
				switch {
				case name == "wait" && !errors.Is(err, ErrProducerNotAlive):
					t.Errorf("the answer is %v", err)
				case name == "subscribe" && (err != nil || !isOver(got.Done()) || got.Err() == nil):
					t.Errorf("subscription over %v with %v (%v)", isOver(got.Done()), got.Err(), err)
				}
			})
		})
	}
}

func TestBackoffNearTheLargestDurationDoesNotWrap(t *testing.T) {
	for _, jitter := range []float64{0, 0.5, 1} {
		r := Backoff(math.MaxInt64, math.MaxInt64, jitter).filled()
		var tl tally
		now := time.Now()
		for range 3 {
			var wait time.Duration
			var ok bool
			if tl, wait, ok = tl.next(r, now, 0.999); !ok || wait != longestBackoff {
				t.Errorf("jitter %v: %v, %v", jitter, wait, ok)
			}
			if now.Add(wait).UnixNano() < now.UnixNano() {
				t.Error("its end has no number")
			}
		}
	}
	if _, wait, _ := (tally{}).next(Backoff(math.MaxInt64, math.MaxInt64, 0).filled(), time.Now(), 0); wait != longestBackoff {
		t.Errorf("%v", wait)
	}
}

// detail is an error that cannot be compared.
type detail struct{ of any }

func (detail) Error() string { return "detail" }

func TestErrorsThatCannotBeComparedEndNothingElse(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		sink := NewSink("sink", func(ctx context.Context, _ []int) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		Connect(g, FromSlice("source", ints(0, 5)), sink)
		if err := g.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		g.Abort(detail{[]int{1}})
		var d detail
		if err := g.Wait(); !errors.As(err, &d) {
			t.Errorf("Wait: %v", err)
		}
	})
}

// A source that has failed and emitted nothing is called again, though nobody
// wakes it.
func TestResumedSourceIsCalledAgain(t *testing.T) {
	for _, panics := range []bool{false, true} {
		bubble(t, func(t *testing.T, g *Graph) {
			calls := 0
			src := Pull("source", func(_ context.Context, _ int, out *Output[int]) error {
				switch calls++; {
				case calls == 1 && panics:
					panic("boom")
				case calls == 1:
					return errBoom
				case calls == 3:
					return Done
				}
				out.Emit(calls)
				return nil
			}, OnError(Resume))
			sink, got := collector[int]("sink")
			Connect(g, src, sink, Demand(1, 0))
			begin := time.Now()
			if err := runWithin(t, g, time.Hour); err != nil {
				t.Error(err)
			}
			equal(t, "events", flat(got()), []int{2})
			equal(t, "time", time.Since(begin), DefaultRestartMin)
		})
	}
}

// What a hook says is no failure of a callback.
func TestErrorOfOnCancelledEndsItsStage(t *testing.T) {
	for name, opts := range map[string][]GraphOption{"alone": nil, "one for one": {OneForOne(Restarts{})}, "rest for one": {RestForOne(Restarts{})}} {
		bubble(t, func(t *testing.T, g *Graph) {
			sink := NewSink("sink", func(context.Context, []int) error { return nil }, OnError(Resume))
			sink.OnCancelled(func(*Subscription, error) error { return errBoom })
			Connect(g, FromSlice("source", ints(0, 5)), sink)
			if err := runWithin(t, g, time.Hour); !errors.Is(err, errBoom) {
				t.Errorf("%s: %v", name, err)
			}
		}, opts...)
	}
}

func TestPoolsAndSlotsRefuseReactions(t *testing.T) {
	for name, o := range map[string]Option{"OnError": OnError(Resume), "OnPanic": OnPanic(Resume), "RestartBy": RestartBy(Restarts{})} {
		g := NewGraph()
		Connect(g, Empty[int]("empty"), NewPool("pool", 1, func(context.Context, int) error { return nil }, o))
		if err := g.Start(t.Context()); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a forgotten Connect looks like is told at the start.
func TestStagesWithoutConsumersAreWarnedOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := logTo()
		g := NewGraph(Logger(log))
		pass, quiet := Pass[int]("pass"), Pass[int]("quiet")
		src := FromSlice("source", ints(0, 5)).Dispatch(Partition(3, func(v int) int { return v }))
		Connect(g, src.Out().Partition(0), pass)
		Connect(g, src.Out().Partition(2), quiet)
		if err := g.Add(quiet); err != nil {
			t.Fatal(err)
		}
		start(t, g)
		for _, line := range []string{`stage=source reason="nobody is subscribed to 1 of its 3 partitions"`, `stage=pass reason="nobody is subscribed to it"`} {
			if !strings.Contains(written(), line) {
				t.Errorf("%q does not say %q", written(), line)
			}
		}
		if strings.Contains(written(), "stage=quiet") {
			t.Errorf("%q tells of one that waits on purpose", written())
		}
	})
}

func TestNamedStagesKeepTheirNames(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		enrich, again := Map(func(v int) int { return v }, Named("enrich")), Map(func(v int) int { return v })
		Connect(g, FromSlice("source", ints(0, 5)), enrich)
		Connect(g, enrich, again)
		Connect(g, again, Discard[int](Named("nowhere")))
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		var names []string
		for _, s := range g.Stats() {
			names = append(names, s.Name)
		}
		equal(t, "names", names, []string{"source", "enrich", "map#3", "nowhere"})
	})
}

// The stack of a panic that a stage goes on after stands in the log: nobody else
// tells of it.
func TestStackOfAPanicIsLoggedWhereTheStageGoesOn(t *testing.T) {
	for _, reaction := range []Reaction{Resume, Restart} {
		synctest.Test(t, func(t *testing.T) {
			log, written := logTo()
			g := NewGraph(Logger(log))
			calls := 0
			sink := NewSink("sink", func(context.Context, []int) error {
				if calls++; calls == 1 {
					panic("boom")
				}
				return nil
			}, OnError(reaction))
			Connect(g, FromSlice("source", ints(0, 5)), sink, Demand(1, 0))
			if err := g.Run(t.Context()); err != nil {
				t.Error(err)
			}
			if !strings.Contains(written(), "stack=") || !strings.Contains(written(), "crash_test.go") {
				t.Errorf("the log has no stack: %q", written())
			}
		})
	}
}

// A stage that is added by several at once is added once, and so is its Init.
func TestAddOfOneStageByManyInitsItOnce(t *testing.T) {
	for range 20 {
		g := NewGraph(Logger(slog.New(slog.DiscardHandler)))
		if err := g.Add(idle(), newLockstep[int]("other")); err != nil {
			t.Fatal(err)
		}
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		var inits atomic.Int32
		sink := Discard[int](Init(func(context.Context) error {
			inits.Add(1)
			runtime.Gosched()
			return nil
		}))
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := g.Add(sink); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		g.Abort(nil)
		g.Wait()
		if n := inits.Load(); n != 1 {
			t.Fatalf("Init ran %d times", n)
		}
	}
}

func TestSizesOutOfReachAreRefused(t *testing.T) {
	f := func(_ context.Context, v int) (int, error) { return v, nil }
	for name, gate := range map[string]*Gate[int, int]{
		"concurrent":  MapConcurrent(math.MaxInt, f),
		"partitioned": MapPartitioned(math.MaxInt, func(v *int) int { return *v }, f),
		"partition":   Pass[int]("pass").Dispatch(Partition(math.MaxInt, func(v int) int { return v })),
	} {
		g := NewGraph()
		Connect(g, Empty[int]("empty"), gate)
		Connect(g, gate, Discard[int]())
		if err := g.Start(t.Context()); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A feed that leaves its goroutine ends its source, whatever that does about
// errors: it used to be started again.
func TestGoexitInAFeedEndsItsSource(t *testing.T) {
	for how, opts := range map[string]struct {
		stage []Option
		graph []GraphOption
	}{
		"resume":          {stage: []Option{OnError(Resume)}},
		"restart":         {stage: []Option{OnError(Restart)}},
		"resume a panic":  {stage: []Option{OnPanic(Resume)}},
		"restart a panic": {stage: []Option{OnPanic(Restart)}},
		"one for one":     {graph: []GraphOption{OneForOne(Restarts{})}},
		"rest for one":    {graph: []GraphOption{RestForOne(Restarts{})}},
	} {
		for name, make1 := range map[string]func(begun func()) *Source[string]{
			"func": func(begun func()) *Source[string] {
				return Func("source", func(_ context.Context, yield func(string) bool) error {
					begun()
					yield("a")
					yield("b")
					runtime.Goexit()
					return nil
				}, opts.stage...)
			},
			"lines": func(begun func()) *Source[string] {
				begun()
				return Lines("source", &exitingReader{text: "a\nb\nc"}, opts.stage...)
			},
		} {
			t.Run(how+" "+name, func(t *testing.T) {
				bubble(t, func(t *testing.T, g *Graph) {
					begun := 0
					src := make1(func() { begun++ })
					sink, got := collector[string]("sink")
					Connect(g, src, sink)
					err := runWithin(t, g, time.Hour)
					var p *penstock.PanicError
					if !errors.As(err, &p) || p.Value != nil || !strings.Contains(p.Where, "source") {
						t.Errorf("Run: %v, want the end of a goroutine", err)
					}
					s := g.Stats()[0]
					equal(t, "begun, restarts, resumed", []int64{int64(begun), s.Restarts, s.Resumed}, []int64{1, 0, 0})
					equal(t, "events before it", flat(got()), []string{"a", "b"})
					checkConservation(t, g)
				}, opts.graph...)
			})
		}
	}
}

// exitingReader gives its text and then leaves the goroutine of who reads.
type exitingReader struct{ text string }

func (r *exitingReader) Read(p []byte) (int, error) {
	if r.text == "" {
		runtime.Goexit()
	}
	n := copy(p, r.text)
	r.text = r.text[n:]
	return n, nil
}
