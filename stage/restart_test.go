package stage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

var errKilled = errors.New("killed")

// steady are restarts without chance.
func steady(min, max time.Duration) Restarts { return Backoff(min, max, 0).AtMost(3, time.Minute) }

// chain is source -> gate -> sink by names. The source counts from 0; its
// mailbox kills it.
type chain struct {
	kill *Mailbox[bool]
	d    diary // Inits, and the batches of the sink
}

func newChain(g *Graph) *chain {
	c := &chain{kill: NewMailbox[bool](g, "kill", 0)}
	numbers, gated, summed := NewName[int](g, "numbers"), NewName[int](g, "gated"), NewName[[2]int](g, "summed")
	Connect(g, numbers, gated, Demand(2, 0))
	sums, in := NewName[[2]int](g, "sums"), summed
	Connect(g, sums, in, Demand(2, 0))
	reset := func(name string, v *int) Option {
		return Init(func(context.Context) error {
			c.d.add("init %s", name)
			*v = 0
			return nil
		})
	}
	var n, sum, unused int
	src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
		for range want {
			out.Emit(n)
			n++
		}
		return nil
	}, reset("source", &n)).As(numbers)
	OnMessage(src, c.kill, func(context.Context, bool, *Output[int]) error { return errKilled })
	NewGate("gate", func(_ context.Context, in []int, out *Output[[2]int]) error {
		for _, v := range in {
			sum += v
			out.Emit([2]int{v, sum})
		}
		return nil
	}, reset("gate", &sum)).InAs(gated).OutAs(sums)
	step := time.NewTicker(time.Second)
	NewSink("sink", func(ctx context.Context, in [][2]int) error {
		c.d.add("%v", in)
		select {
		case <-step.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	}, reset("sink", &unused)).As(summed)
	return c
}

func TestRestForOneDeliversAFreshChain_STC127(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		c := newChain(g)
		start(t, g)
		time.Sleep(1500 * time.Millisecond)
		equal(t, "at first", c.d.all(), []string{"init source", "init gate", "init sink", "[[0 0] [1 1]]", "[[2 3] [3 6]]"})
		must(t, c.kill.TrySend(true))
		time.Sleep(time.Second / 4)
		equal(t, "while the sink is in its callback", c.d.all(), []string{"init source", "init gate"})
		time.Sleep(time.Second)
		equal(t, "then", c.d.all(), []string{"init sink", "[[0 0] [1 1]]"})
		st := g.Stats()
		for _, s := range st {
			equal(t, "restarts of "+s.Name, s.Restarts, int64(1))
		}
		g.Abort(nil)
		g.Wait()
		conserved(t, g)
	}, RestForOne(steady(100*time.Millisecond, time.Second)))
}

// conserved checks that every event of a graph without overflow is somewhere.
func conserved(t *testing.T, g *Graph) {
	t.Helper()
	var sent, in, undelivered int64
	for _, s := range g.Stats() {
		sent, in, undelivered = sent+s.Sent, in+s.In, undelivered+s.Undelivered
		if s.Kind != KindSink && s.Emitted+s.Pushed != s.Dispatched+s.Buffered+s.Discarded {
			t.Errorf("%s: %d emitted + %d pushed, but %d dispatched + %d buffered + %d discarded", s.Name, s.Emitted, s.Pushed, s.Dispatched, s.Buffered, s.Discarded)
		}
	}
	if sent != in+undelivered {
		t.Errorf("%d events sent, but %d taken and %d undelivered", sent, in, undelivered)
	}
}

func TestProducerRestartLeavesItsConsumers(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		c := newChain(g)
		start(t, g)
		time.Sleep(1500 * time.Millisecond)
		c.d.all()
		must(t, c.kill.TrySend(true))
		time.Sleep(4 * time.Second)
		// what was on its way stays: 4 and 5 are of before
		equal(t, "then", c.d.all(), []string{"init source", "[[4 10] [5 15]]", "[[0 15] [1 16]]", "[[2 18] [3 21]]", "[[4 25] [5 30]]"})
		st := g.Stats()
		equal(t, "restarts", []int64{st[0].Restarts, st[1].Restarts, st[2].Restarts}, []int64{1, 0, 0})
		g.Abort(nil)
		g.Wait()
		conserved(t, g)
	}, OneForOne(steady(100*time.Millisecond, time.Second)))
}

func TestRestartBeginsTheGateAnew_STC132(t *testing.T) {
	for _, how := range []string{"error", "panic"} {
		t.Run(how, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				sum := 100
				gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
					sum += len(in)
					if err := failOn3(how, in); err != nil {
						return err
					}
					out.Emit(sum)
					return nil
				}, OnError(Restart), Init(func(context.Context) error { sum = 0; return nil }))
				sink, got := collector[int]("sink")
				src, emit := Push[int]("source")
				Connect(g, src, gate, Demand(2, 0))
				Connect(g, gate, sink)
				start(t, g)
				emit.Push(ints(0, 10)...)
				synctest.Wait()
				equal(t, "before", flat(got()), []int{2})
				equal(t, "state", g.Status().Stages[1].State, Restarting)
				time.Sleep(DefaultRestartMax)
				synctest.Wait()
				equal(t, "after", flat(got()), []int{2, 4, 6})
				st := g.Stats()[1]
				equal(t, "in, failed, restarts, undelivered", []int64{st.In, st.Failed, st.Restarts, st.Undelivered}, []int64{10, 2, 1, 0})
			})
		})
	}
}

func TestRestartsComeLaterAndLater(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		began := time.Now()
		var d diary
		src := Pull("source", func(context.Context, int, *Output[int]) error { return errKilled },
			Init(func(context.Context) error { d.add("%v", time.Since(began)); return nil }))
		other, emit := Push[int]("other")
		sink, got := collector[int]("of other")
		Connect(g, src, Discard[int]())
		Connect(g, other, sink)
		must(t, g.Start(t.Context()))
		time.Sleep(550 * time.Millisecond)
		st := g.Status().Stages[0]
		equal(t, "state", []any{st.State, st.Why, st.Restarts}, []any{Restarting, `is restarted in 150ms: stage "source": killed`, int64(2)})
		equal(t, "at", st.RestartAt.Sub(began), 700*time.Millisecond)
		emit.Push(1, 2)
		err := g.Wait()
		equal(t, "starts", d.all(), []string{"0s", "100ms", "300ms", "700ms"})
		equal(t, "ended", time.Since(began), 700*time.Millisecond)
		var r *RestartError
		if !errors.As(err, &r) || r.Stage != "source" || r.Restarts != 3 || r.Window != time.Minute || !errors.Is(r.First, errKilled) || !errors.Is(err, errKilled) {
			t.Errorf("Wait: %#v", err)
		}
		equal(t, "other branch", flat(got()), []int{1, 2})
	}, OneForOne(steady(100*time.Millisecond, time.Second)))
}

func TestFirstCauseIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		n := 0
		causes := []error{errors.New("first"), errors.New("second"), errors.New("third")}
		sink := NewSink("sink", func(context.Context, []int) error { n++; return causes[n-1] }, RestartBy(Backoff(1, 1, 0).AtMost(2, time.Hour)))
		Connect(g, FromSlice("source", ints(0, 9)), sink, Demand(1, 0))
		err := g.Run(t.Context())
		var r *RestartError
		if !errors.As(err, &r) {
			t.Fatalf("Run: %v", err)
		}
		equal(t, "causes", []bool{errors.Is(r.First, causes[0]), errors.Is(r.Last, causes[2]), errors.Is(err, causes[0])}, []bool{true, true, true})
		equal(t, "text", strings.HasPrefix(err.Error(), `stage "sink": given up after 2 restarts without 1h0m0s of quiet: stage "sink": third; at first: stage "sink": first`), true)
	})
}

func TestQuietWindowSetsTheBudgetBack(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		sink := NewSink("sink", func(context.Context, []int) error { return errKilled }, RestartBy(Backoff(time.Second, time.Second, 0).AtMost(1, time.Minute)))
		Connect(g, src, sink)
		start(t, g)
		for range 5 {
			emit.Push(1)
			time.Sleep(time.Minute + time.Second)
			synctest.Wait()
		}
		equal(t, "restarts", g.Stats()[1].Restarts, int64(5))
		emit.Push(1)
		time.Sleep(time.Minute) // a second too early
		emit.Push(1)
		var r *RestartError
		if err := g.Wait(); !errors.As(err, &r) {
			t.Errorf("Wait: %v", err)
		}
	})
}

func TestStopEndsABackoffAtOnce(t *testing.T) {
	for _, how := range []string{"stop", "abort", "drain", "drain and fail"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				n := 0
				fine := how == "drain"
				sink := NewSink("sink", func(_ context.Context, in []int) error {
					if n += len(in); fine && n > 2 {
						return nil
					}
					return errKilled
				}, RestartBy(steady(time.Hour, time.Hour)))
				Connect(g, FromSlice("source", ints(0, 6)), sink, Demand(4, 2))
				must(t, g.Start(t.Context()))
				began := time.Now()
				synctest.Wait()
				var err error
				switch how {
				case "stop":
					sink.Stop()
				case "abort":
					g.Abort(errEnding)
				default:
					err = g.Stop(t.Context())
				}
				if werr := g.Wait(); err == nil {
					err = werr
				}
				equal(t, "waited", time.Since(began), time.Duration(0))
				st := g.Stats()[1]
				switch how {
				case "stop":
					equal(t, "result, in", []any{err, st.In}, []any{nil, int64(2)})
				case "abort":
					equal(t, "aborted", errors.Is(err, errEnding), true)
				case "drain":
					equal(t, "result, in, failed", []any{err, st.In, st.Failed}, []any{nil, int64(6), int64(2)})
				case "drain and fail":
					equal(t, "failed", []any{errors.Is(err, errKilled), st.In, st.Restarts}, []any{true, int64(4), int64(1)})
				}
				conserved(t, g)
			})
		})
	}
}

func TestMessagesWaitForTheRestartAndTimersEnd(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		box := NewMailbox[string](g, "box", 0)
		var d diary
		began := time.Now()
		src := Never[int]("source", Init(func(context.Context) error {
			d.add("init %v", time.Since(began))
			_, err := box.Every(time.Minute, "tick")
			return err
		}), OnError(Restart), RestartBy(steady(10*time.Second, time.Hour)))
		OnMessage(src, box, func(_ context.Context, m string, _ *Output[int]) error {
			if d.add("%s %v", m, time.Since(began)); m == "die" {
				return errKilled
			}
			return nil
		})
		Connect(g, src, Discard[int]())
		start(t, g)
		time.Sleep(70 * time.Second)
		must(t, box.TrySend("die"))
		must(t, box.TrySend("then"))
		synctest.Wait()
		equal(t, "before", d.all(), []string{"init 0s", "tick 1m0s", "die 1m10s"})
		time.Sleep(80 * time.Second) // at 2m30s
		synctest.Wait()
		equal(t, "after", d.all(), []string{"init 1m20s", "then 1m20s", "tick 2m20s"})
	})
}

func TestOperatorsDropWhatTheyHoldAtARestart(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		batch := BatchWeighted(100, 0, func(v *int) int {
			if *v < 0 {
				panic(errKilled)
			}
			return 1
		}, OnError(Restart))
		sink, got := collector[[]int]("sink")
		Connect(g, src, batch)
		Connect(g, batch, sink)
		start(t, g)
		emit.Push(1, 2, 3)
		synctest.Wait()
		emit.Push(4, -1, 5)
		time.Sleep(time.Minute)
		emit.Push(6, 7)
		emit.Finish()
		must(t, g.Wait())
		equal(t, "batches", flat(got()), [][]int{{6, 7}})
		st := g.Stats()[1]
		equal(t, "in, dropped, failed", []int64{st.In, st.Dropped, st.Failed}, []int64{8, 3, 3})
	})
}

func TestSequencesAndFeedsBeginAnew(t *testing.T) {
	for _, name := range []string{"seq", "func", "func panics"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				tries := 0
				var src *Source[int]
				if name == "seq" {
					src = FromSeq2("source", func(yield func(int, error) bool) {
						tries++
						for i := range 3 {
							if !yield(10*tries+i, nil) {
								return
							}
						}
						if tries < 3 {
							yield(0, errKilled)
						}
					})
				} else {
					src = Func("source", func(_ context.Context, yield func(int) bool) error {
						tries++
						for i := range 3 {
							if !yield(10*tries + i) {
								return nil
							}
						}
						if tries < 3 {
							if name == "func" {
								return errKilled
							}
							panic(errKilled)
						}
						return nil
					})
				}
				sink, got := collector[int]("sink")
				Connect(g, src, sink)
				if err := g.Run(t.Context()); err != nil {
					t.Error(err)
				}
				equal(t, "events", flat(got()), []int{10, 11, 12, 20, 21, 22, 30, 31, 32})
				equal(t, "restarts", g.Stats()[0].Restarts, int64(2))
			}, OneForOne(steady(time.Second, time.Minute)))
		})
	}
}

func TestFeedThatFailsWhileTheGraphDrains(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src := Func("source", func(ctx context.Context, _ func(int) bool) error {
			<-ctx.Done()
			return errKilled
		})
		Connect(g, src, Discard[int]())
		must(t, g.Start(t.Context()))
		synctest.Wait()
		if err := g.Stop(t.Context()); !errors.Is(err, errKilled) {
			t.Errorf("Stop: %v", err)
		}
	}, OneForOne(Restarts{}))
}

func TestInitThatFailsAtARestartIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		inits := 0
		sink := NewSink("sink", func(_ context.Context, in []int) error { return failOn3("error", in) },
			Init(func(ctx context.Context) error {
				switch inits++; inits {
				case 2:
					return errOdd
				case 3:
					panic(errOdd)
				case 4:
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}))
		src, emit := Push[int]("source")
		Connect(g, src, sink, Demand(1, 0))
		start(t, g)
		emit.Push(ints(0, 6)...)
		time.Sleep(time.Minute)
		synctest.Wait()
		st := g.Stats()[1]
		equal(t, "inits, in, failed", []int64{int64(inits), st.In, st.Failed}, []int64{5, 6, 1})
	}, OneForOne(Backoff(time.Second, time.Second, 0).AtMost(9, time.Hour)))
}

func TestAskedEventsThatAreSweptAreAskedForAgain(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		box := NewMailbox[bool](g, "kill", 0)
		OnMessage(src, box, func(context.Context, bool, *Output[int]) error { return errKilled })
		sink := newLockstep[int]("sink")
		sub := Connect(g, src, sink, Manual())
		start(t, g)
		sub.Ask(3)
		emit.Push(0)
		synctest.Wait()
		emit.Push(1)
		emit.Push(2)
		synctest.Wait() // 0 is in hands, 1 and 2 are on their way
		must(t, box.TrySend(true))
		time.Sleep(time.Second)
		emit.Push(3, 4, 5)
		sink.step()
		equal(t, "before", sink.all(), [][]int{{0}, {3, 4}})
		sink.step()
		equal(t, "after", sink.all(), [][]int(nil))
		st := g.Stats()
		equal(t, "undelivered, buffered", []int64{st[1].Undelivered, st[0].Buffered}, []int64{2, 1})
	}, RestForOne(steady(time.Millisecond, time.Millisecond)))
}

// TestRandomFailuresReachNobodyFromBefore has random stages of a random chain
// fail, under rest for one: no stage ever gets events of two incarnations of the
// one before it without having begun anew between, and every event is counted.
func TestRandomFailuresReachNobodyFromBefore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		gates := rapid.IntRange(0, 3).Draw(rt, "gates")
		fails := rapid.SliceOfN(rapid.IntRange(0, 30), gates+2, gates+2).Draw(rt, "fails at")
		panics := rapid.Bool().Draw(rt, "panics")
		demand := rapid.IntRange(1, 6).Draw(rt, "demand")
		fuse := rapid.Bool().Draw(rt, "fuse")
		synctest.Test(t, func(t *testing.T) {
			g := NewGraph(RestForOne(Backoff(time.Millisecond, 4*time.Millisecond, 0.5).AtMost(1000, time.Hour)), Fuse(fuse), withPoison())
			type life struct{ born, calls, seen int }
			lives := make([]life, gates+2)
			opts := func(i int) []Option {
				return []Option{Init(func(context.Context) error {
					lives[i] = life{born: lives[i].born + 1, calls: lives[i].calls, seen: -1}
					return nil
				})}
			}
			call := func(i int, in []int) error {
				for _, v := range in {
					if l := &lives[i]; l.seen == -1 {
						l.seen = v
					} else if l.seen != v {
						t.Errorf("stage %d got events of lives %d and %d", i, l.seen, v)
					}
				}
				if lives[i].calls++; lives[i].calls%40 == fails[i] {
					if panics {
						panic(errKilled)
					}
					return errKilled
				}
				return nil
			}
			emitted := 0
			var from Outleter[int] = Pull("source", func(_ context.Context, want int, out *Output[int]) error {
				for range want {
					out.Emit(lives[0].born)
				}
				if emitted += want; emitted > 400 {
					return Done
				}
				return call(0, nil)
			}, opts(0)...)
			for i := 1; i <= gates; i++ {
				gate := NewGate(fmt.Sprint("gate", i), func(_ context.Context, in []int, out *Output[int]) error {
					err := call(i, in)
					for range in {
						out.Emit(lives[i].born)
					}
					return err
				}, opts(i)...)
				Connect(g, from, gate, Demand(demand, 0))
				from = gate
			}
			sink := NewSink("sink", func(_ context.Context, in []int) error { return call(gates+1, in) }, opts(gates+1)...)
			Connect(g, from, sink, Demand(demand, 0))
			if err := g.Run(t.Context()); err != nil {
				rt.Fatalf("Run: %v", err)
			}
			conserved(t, g)
			if t.Failed() {
				rt.Fatal("see above")
			}
		})
	})
}

func TestGivenUpGraphIsCutShortAfterItsDrain(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		stuck := newLockstep[int]("stuck")
		Connect(g, FromSlice("other", ints(0, 9)), stuck, Demand(2, 0))
		sink := NewSink("sink", func(context.Context, []int) error {
			synctest.Wait() // until the other sink holds a batch: the end would stop its source before
			return errKilled
		}, RestartBy(Restarts{}.AtMost(-1, 0)))
		Connect(g, FromSlice("source", ints(0, 9)), sink)
		began := time.Now()
		err := g.Run(t.Context())
		equal(t, "drained for", time.Since(began), 3*time.Second)
		var r *RestartError
		var d *penstock.DrainError
		if !errors.As(err, &r) || !errors.As(err, &d) {
			t.Errorf("Run: %v", err)
		}
	}, DrainWithin(3*time.Second))
}

// What a feed has read ahead is what the failed stage has emitted: it does not
// reach those that begin anew.
func TestRestForOneDropsWhatAFeedHasReadAhead(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		life := 0
		src := Func("func", func(_ context.Context, yield func(int) bool) error {
			life++
			for i := range 5 {
				if !yield(10*life + i) {
					return nil
				}
			}
			if life == 1 {
				return errBoom
			}
			return nil
		}, Buffer(10, KeepLast))
		sink := newLockstep[int]("sink")
		Connect(g, src, sink, Demand(1, 0))
		start(t, g)
		synctest.Wait() // one is in hands, and four are in the buffer
		time.Sleep(time.Minute)
		for range 6 {
			sink.step()
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		equal(t, "events", flat(sink.all()), []int{10, 20, 21, 22, 23, 24})
		equal(t, "discarded", stat(t, g, 0).Discarded, int64(4))
		checkConservation(t, g)
	}, RestForOne(Backoff(time.Second, time.Second, 0)))
}
