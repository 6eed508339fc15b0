package stage

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// gathered runs a source into a collector and returns the batches.
func gathered[T any](t *testing.T, g *Graph, src *Source[T], opts ...SubOption) ([][]T, error) {
	t.Helper()
	sink, got := collector[T]("sink")
	Connect(g, src, sink, opts...)
	err := g.Run(context.Background())
	checkConservation(t, g)
	return got(), err
}

func count(from, to int) iter.Seq[int] { return slices.Values(ints(from, to)) }

func TestFromSeqDeliversTheRestAndEnds_STC98(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		got, err := gathered(t, g, FromSeq("seq", count(1, 6)), Demand(6, 2))
		equal(t, "error", err, nil)
		equal(t, "batches", got, [][]int{{1, 2, 3, 4}, {5}})
	})
}

func TestFromSliceAndConcatKeepOrder(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		got, err := gathered(t, g, FromSlice("slice", ints(0, 100)), Demand(6, 2))
		equal(t, "error", err, nil)
		equal(t, "events", slices.Concat(got...), ints(0, 100))
	})
	bubble(t, func(t *testing.T, g *Graph) {
		got, err := gathered(t, g, Concat("concat", count(0, 5), count(5, 5), count(5, 11)), Demand(6, 2))
		equal(t, "error", err, nil)
		equal(t, "events", slices.Concat(got...), ints(0, 11))
	})
}

// An iterator is stepped only as far as somebody has asked, and cleans up when
// its source ends before it.
func TestFromSeqStepsAsFarAsDemand(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		steps, cleaned := 0, false
		src := FromSeq("seq", func(yield func(int) bool) {
			defer func() { cleaned = true }()
			for ; yield(steps); steps++ {
			}
		})
		sink := newLockstep[int]("sink")
		Connect(g, src, sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		equal(t, "steps", steps, 5) // 6 were yielded; the sixth yield has not returned
		sink.step()
		equal(t, "steps", steps, 9)
		equal(t, "cleaned", cleaned, false)
		g.Abort(nil)
		g.Wait()
		equal(t, "cleaned", cleaned, true)
	})
}

// A slow iterator does not keep its events until all that was asked for is
// there.
func TestFromSeqHandsOverWhatASlowIteratorHas(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src := FromSeq("seq", func(yield func(int) bool) {
			for i := range 100 {
				time.Sleep(400 * time.Microsecond)
				if !yield(i) {
					return
				}
			}
		})
		got, err := gathered(t, g, src)
		equal(t, "error", err, nil)
		for _, b := range got {
			if len(b) > 4 {
				t.Errorf("a batch of %d events, %v apart", len(b), 400*time.Microsecond)
			}
		}
		equal(t, "events", slices.Concat(got...), ints(0, 100))
	})
}

func TestFromSeq2EndsWithTheFirstError(t *testing.T) {
	for name, last := range map[string]error{"error": errBoom, "done": Done} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				got, err := gathered(t, g, FromSeq2("seq", func(yield func(int, error) bool) {
					_ = yield(1, nil) && yield(2, nil) && yield(3, last) && yield(4, nil)
				}))
				if want := last == errBoom; errors.Is(err, errBoom) != want || err != nil != want {
					t.Errorf("Run returned %v", err)
				}
				equal(t, "events", slices.Concat(got...), []int{1, 2})
			})
		})
	}
}

func TestSourceFunctionsThatPanicFailTheirSource(t *testing.T) {
	for name, src := range map[string]func(end func()) *Source[int]{
		"seq": func(end func()) *Source[int] {
			return FromSeq("src", func(yield func(int) bool) { yield(1); end() })
		},
		"func": func(end func()) *Source[int] {
			return Func("src", func(_ context.Context, yield func(int) bool) error { yield(1); end(); return nil })
		},
	} {
		for how, end := range map[string]func(){"panic": func() { panic("src") }, "goexit": runtime.Goexit} {
			t.Run(name+" "+how, func(t *testing.T) {
				bubble(t, func(t *testing.T, g *Graph) {
					_, err := gathered(t, g, src(end))
					var p *penstock.PanicError
					if !errors.As(err, &p) || !strings.Contains(p.Where, `"src"`) {
						t.Errorf("Run returned %v", err)
					}
				})
			})
		}
	}
}

// A cleanup that panics when its source ends is an error of the source.
func TestFromSeqWhoseCleanupPanics(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src := FromSeq("src", func(yield func(int) bool) {
			defer func() { panic("cleanup") }()
			for yield(1) {
			}
		})
		take, sink := Take[int](3), NewSink("sink", func(context.Context, []int) error { return nil })
		Connect(g, src, take)
		Connect(g, take, sink)
		var p *penstock.PanicError
		if err := g.Run(context.Background()); !errors.As(err, &p) || p.Value != "cleanup" {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestFromChanTakesOnlyWhatIsAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		ch := make(chan int, 100)
		for i := range 20 {
			ch <- i
		}
		sink := newLockstep[int]("sink")
		Connect(g, FromChan("chan", ch), sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		equal(t, "left in the channel", len(ch), 14)
		// The first batches are as large as what had come when the sink looked, so
		// it is counted what was handled, not how often.
		for handled := 0; handled < 12; {
			for _, b := range sink.all() {
				handled += len(b)
			}
			sink.step()
			taken := 20 - len(ch)
			if open := taken - handled; open <= 2 || open > 6 {
				t.Errorf("%d events were handled and %d taken, of a demand between 2 and 6", handled, taken)
			}
		}
	})
}

func TestFromChanEndsWithItsChannel(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		ch := make(chan int)
		// A feeder: ends after 50 events; the range over the channel waits.
		go func() {
			defer close(ch)
			for i := range 50 {
				ch <- i
			}
		}()
		got, err := gathered(t, g, FromChan("chan", ch), Demand(4, 1))
		equal(t, "error", err, nil)
		equal(t, "events", slices.Concat(got...), ints(0, 50))
	})
}

// An idle channel keeps neither a drain nor the end of a graph waiting.
func TestFromChanThatIsIdleEndsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		ch := make(chan int)
		sink, got := collector[int]("sink")
		Connect(g, FromChan("chan", ch), sink)
		start(t, g)
		ch <- 1
		synctest.Wait()
		began := time.Now()
		if err := g.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		equal(t, "time", time.Since(began), time.Duration(0))
		equal(t, "events", got(), [][]int{{1}})
	})
}

// Whatever the moment of the stop: what was received from the channel arrives.
func TestFromChanLosesNothingInADrain(t *testing.T) {
	for stopAt := range 200 {
		bubble(t, func(t *testing.T, g *Graph) {
			ch := make(chan int)
			quit := make(chan struct{})
			sent := make(chan int)
			// A producer: ends when quit closes; the receive from sent waits.
			go func() {
				n := 0
				for {
					select {
					case ch <- n:
						n++
					case <-quit:
						sent <- n
						return
					}
				}
			}()
			var seen atomic.Int64
			sink := NewSink("sink", func(_ context.Context, in []int) error {
				seen.Add(int64(len(in)))
				return nil
			})
			Connect(g, FromChan("chan", ch), sink, Demand(3, 1))
			start(t, g)
			for seen.Load() < int64(stopAt) {
				runtime.Gosched()
			}
			if err := g.Stop(context.Background()); err != nil {
				t.Error(err)
			}
			close(quit)
			equal(t, "delivered", seen.Load(), int64(<-sent))
			checkConservation(t, g)
		})
	}
}

func TestFuncReadsAheadIntoItsBuffer(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var n atomic.Int64
		src := Func("func", func(_ context.Context, yield func(int) bool) error {
			for yield(int(n.Add(1))) {
			}
			return nil
		}, Buffer(10, KeepLast))
		sink := newLockstep[int]("sink")
		Connect(g, src, sink, Demand(4, 0))
		start(t, g)
		synctest.Wait()
		first := n.Load()
		if first < 10 || first > 14 {
			t.Errorf("%d were read", first)
		}
		equal(t, "discarded", stat(t, g, 0).Discarded, int64(0))
	})
}

// The context of a Func ends when its source is told to stop, not only with the
// graph; what was yielded before is delivered, and its error counts.
func TestFuncIsToldToStop(t *testing.T) {
	for name, last := range map[string]error{"nil": nil, "context": context.Canceled, "done": Done, "boom": errBoom} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				type key struct{}
				value := ""
				src := Func("func", func(ctx context.Context, yield func(int) bool) error {
					value, _ = ctx.Value(key{}).(string)
					yield(1)
					<-ctx.Done()
					time.Sleep(time.Second)
					if yield(2) { // it was in hands: it is delivered
						t.Error("yield wants more")
					}
					return last
				})
				sink, got := collector[int]("sink")
				Connect(g, src, sink)
				if err := g.Start(context.WithValue(context.Background(), key{}, "graph")); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				err := g.Stop(context.Background())
				if errors.Is(err, errBoom) != (last == errBoom) || err != nil != (last == errBoom) {
					t.Errorf("Stop returned %v", err)
				}
				equal(t, "events", slices.Concat(got()...), []int{1, 2})
				equal(t, "value", value, "graph")
				checkConservation(t, g)
			})
		})
	}
}

// What a Func yields after an abort is counted.
func TestFuncThatYieldsAfterTheEndIsCounted(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src := Func("func", func(ctx context.Context, yield func(int) bool) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			if yield(1) {
				t.Error("yield wants more")
			}
			return nil
		})
		sink, _ := collector[int]("sink")
		Connect(g, src, sink)
		start(t, g)
		synctest.Wait()
		g.Abort(nil)
		g.Wait()
		s := stat(t, g, 0)
		equal(t, "pushed", s.Pushed, int64(1))
		equal(t, "discarded", s.Discarded, int64(1))
		checkConservation(t, g)
	})
}

func TestTickBeginsWithDemandAndSkipsWhatNobodyTakes(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		began := time.Now()
		sink := newLockstep[time.Time]("sink")
		Connect(g, Tick("tick", time.Second), sink, Demand(1, 0))
		start(t, g)
		time.Sleep(4500 * time.Millisecond)
		synctest.Wait()
		sink.step()
		time.Sleep(time.Second)
		synctest.Wait()
		sink.step()
		var at []time.Duration
		for _, b := range sink.all() {
			at = append(at, b[0].Sub(began))
		}
		equal(t, "first", at[0], time.Second)
		if len(at) > 3 {
			t.Errorf("ticks at %v: those that nobody asked for were made", at)
		}
	})
}

func TestEmptyFailedAndNever(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		got, err := gathered(t, g, Empty[int]("empty"))
		equal(t, "error", err, nil)
		equal(t, "batches", got, [][]int(nil))
	})
	bubble(t, func(t *testing.T, g *Graph) {
		if _, err := gathered(t, g, FailedWith[int]("failed", errBoom)); !errors.Is(err, errBoom) {
			t.Errorf("Run returned %v", err)
		}
	})
	bubble(t, func(t *testing.T, g *Graph) {
		sink, _ := collector[int]("sink")
		Connect(g, Never[int]("never"), sink)
		start(t, g)
		time.Sleep(time.Hour)
		equal(t, "ended", stat(t, g, 0).Ended, false)
		equal(t, "error", g.Stop(context.Background()), nil)
	})
}

func TestLines(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		got, err := gathered(t, g, Lines("lines", strings.NewReader("a\n\nbc\r\nd")))
		equal(t, "error", err, nil)
		equal(t, "lines", slices.Concat(got...), []string{"a", "", "bc", "d"})
	})
	bubble(t, func(t *testing.T, g *Graph) {
		_, err := gathered(t, g, Lines("lines", strings.NewReader("a\n"+strings.Repeat("x", 1<<17))))
		if err == nil || !strings.Contains(err.Error(), "too long") {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestSourcesRefuseWhatCannotBe(t *testing.T) {
	for name, src := range map[string]Outleter[int]{
		"seq":    FromSeq[int]("s", nil),
		"seq2":   FromSeq2[int]("s", nil),
		"func":   Func[int]("s", nil),
		"failed": FailedWith[int]("s", nil),
	} {
		bubble(t, func(t *testing.T, g *Graph) {
			sink, _ := collector[int]("sink")
			Connect(g, src, sink)
			if err := g.Start(context.Background()); !errors.Is(err, penstock.ErrInvalid) {
				t.Errorf("%s: Start returned %v", name, err)
			}
		})
	}
	bubble(t, func(t *testing.T, g *Graph) {
		sink, _ := collector[time.Time]("sink")
		Connect(g, Tick("tick", 0), sink)
		if err := g.Start(context.Background()); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("Start returned %v", err)
		}
	})
}

// The feed of a source that was given up is not started once more. It used to
// be, now and then, before the source had told it to stop.
func TestFeedOfAGivenUpSourceIsNotStartedAgain(t *testing.T) {
	for range 200 {
		bubble(t, func(t *testing.T, g *Graph) {
			var calls atomic.Int32
			src := Func("func", func(context.Context, func(int) bool) error {
				calls.Add(1)
				return errBoom
			}, RestartBy(Backoff(1, 1, 0).AtMost(1, 0)))
			Connect(g, src, Discard[int]())
			if err := g.Run(t.Context()); !errors.Is(err, errBoom) {
				t.Error(err)
			}
			equal(t, "calls", calls.Load(), int32(2))
		})
		if t.Failed() {
			break
		}
	}
}
