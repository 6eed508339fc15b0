package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

var errOdd = errors.New("odd")

// failOn3 returns an error, or panics, for a batch with a 3 in it.
func failOn3(how string, in []int) error {
	for _, v := range in {
		if v != 3 {
			continue
		}
		if how == "panic" {
			panic(errOdd)
		}
		return errOdd
	}
	return nil
}

func TestResumeLosesTheFailingBatchAlone_STC132(t *testing.T) {
	for _, how := range []string{"error", "panic"} {
		t.Run(how, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				log, lines := logTo()
				g.log = log
				gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
					if err := failOn3(how, in); err != nil {
						return err
					}
					out.Forward(in)
					return nil
				}, OnError(Resume))
				sink, got := collector[int]("sink")
				Connect(g, finite("source", 10, false), gate, Demand(4, 2))
				Connect(g, gate, sink)
				if err := g.Run(t.Context()); err != nil {
					t.Error(err)
				}
				equal(t, "events", flat(got()), []int{0, 1, 4, 5, 6, 7, 8, 9})
				st := g.Stats()[1]
				equal(t, "in, failed, resumed", []int64{st.In, st.Failed, st.Resumed}, []int64{10, 2, 1})
				equal(t, "warnings", strings.Count(lines(), "stage goes on after failures"), 1)
				equal(t, "failure", strings.Contains(g.Status().Stages[1].Failure, "odd"), true)
			})
		})
	}
}

func TestResumeOfASinkAndOfASource(t *testing.T) {
	for _, how := range []string{"error", "panic"} {
		bubble(t, func(t *testing.T, g *Graph) {
			n := 0
			src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
				n++
				out.Emit(n)
				switch {
				case n == 10:
					return Done
				case n%3 == 0:
					return failOn3(how, []int{3}) // after an error 3, 6 and 9 go out
				}
				return nil
			}, OnError(Resume))
			var seen []int
			sink := NewSink("sink", func(_ context.Context, in []int) error {
				seen = append(seen, in...)
				return failOn3(how, in)
			}, OnError(Resume))
			Connect(g, src, sink, Demand(1, 0))
			if how == "panic" { // a call that emitted nothing is called again by Wake
				g.Start(t.Context())
				for range 5 {
					synctest.Wait()
					src.Wake()
				}
				g.Wait()
				equal(t, "seen", seen, []int{1, 2, 4, 5, 7, 8, 10})
				return
			}
			if err := g.Run(t.Context()); err != nil {
				t.Error(err)
			}
			equal(t, "seen", seen, ints(1, 11))
			st := g.Stats()
			equal(t, "source resumed; sink resumed, failed", []int64{st[0].Resumed, st[1].Resumed, st[1].Failed}, []int64{3, 1, 1})
		})
	}
}

// TestPoisonedSlabsOfPanicsAreNotUsedAgain keeps what a panic was given, while
// the stage goes on.
func TestPoisonedSlabsOfPanicsAreNotUsedAgain(t *testing.T) {
	for _, fan := range []string{"one", "broadcast", "forwarded"} {
		t.Run(fan, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				emitted := 0
				src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
					for range want {
						out.Emit(1)
					}
					if emitted += want; emitted > 2000 {
						return Done
					}
					return nil
				})
				if fan == "broadcast" {
					src.Broadcast()
					Connect(g, src, Discard[int](), Demand(8, 4))
				}
				var kept [][]int
				calls := 0
				change := func(in []int) {
					if calls++; calls%3 == 0 && len(kept) < 40 {
						for i := range in {
							in[i] = 5
						}
						kept = append(kept, in)
						panic(in)
					}
				}
				gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
					change(in)
					out.Forward(in)
					return nil
				}, OnPanic(Resume))
				sink := NewSink("sink", func(_ context.Context, in []int) error {
					for _, v := range in {
						if v != 1 {
							t.Errorf("event %d", v)
						}
					}
					return nil
				})
				Connect(g, src, gate, Demand(8, 4))
				Connect(g, gate, sink, Demand(8, 4))
				if err := g.Run(t.Context()); err != nil {
					t.Error(err)
				}
				equal(t, "panics", len(kept), 40)
				for _, in := range kept {
					for _, v := range in {
						if v != 5 {
							t.Fatalf("what a panic holds has become %v", in)
						}
					}
				}
			})
		})
	}
}

func TestOnPanicDiffersFromOnError(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		sink := NewSink("sink", func(_ context.Context, in []int) error { return failOn3("panic", in) }, OnError(Resume), OnPanic(Stop))
		Connect(g, finite("source", 10, false), sink, Demand(2, 0))
		err := g.Run(t.Context())
		var p *penstock.PanicError
		if !errors.As(err, &p) {
			t.Errorf("Run: %v, want a PanicError", err)
		}
	})
}

// TestConcurrentResumeLosesOneEvent has single calls fail.
func TestConcurrentResumeLosesOneEvent(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		for _, reaction := range []Reaction{Resume, Restart} {
			bubble(t, func(t *testing.T, g *Graph) {
				f := func(ctx context.Context, v int) (int, error) {
					if v == 7 {
						return 0, errOdd
					}
					if v == 13 && reaction == Resume {
						panic(errOdd)
					}
					return v, nil
				}
				gate := MapConcurrent(3, f, OnError(reaction))
				if !ordered {
					gate = MapConcurrentUnordered(3, f, OnError(reaction))
				}
				seen := map[int]bool{}
				sink := NewSink("sink", func(_ context.Context, in []int) error {
					for _, v := range in {
						seen[v] = true
					}
					return nil
				})
				Connect(g, finite("source", 100, false), gate, Demand(10, 5))
				Connect(g, gate, sink)
				if err := g.Run(t.Context()); err != nil {
					t.Errorf("Run: %v", err)
				}
				st := g.Stats()[1]
				if st.In != 100 || st.In != st.Emitted+st.Failed+st.Dropped || seen[7] || !seen[99] {
					t.Errorf("ordered %v, %v: %+v", ordered, reaction, st)
				}
				if reaction == Resume {
					equal(t, "failed, resumed, dropped", []int64{st.Failed, st.Resumed, st.Dropped}, []int64{2, 2, 0})
				} else {
					equal(t, "restarts", st.Restarts, int64(1))
				}
			})
		}
	}
}

func TestHooksAndGoexitEndTheStageAllTheSame(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
			out.Grow(want)
			return nil
		}, OnError(Resume)).OnSubscribers(func(Change) { panic("boom") })
		Connect(g, src, Discard[int]())
		var p *penstock.PanicError
		if err := g.Run(t.Context()); !errors.As(err, &p) {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestRepanicEndsTheProcess runs itself in a process of its own.
func TestRepanicEndsTheProcess(t *testing.T) {
	if os.Getenv("PENSTOCK_REPANIC") == "1" {
		g := NewGraph()
		sink := NewSink("sink", func(context.Context, []int) error { panic("the very first") }, OnPanic(Repanic))
		if os.Getenv("PENSTOCK_REPANIC_IN") == "worker" {
			gate := MapConcurrent(2, func(context.Context, int) (int, error) { panic("the very first") }, OnPanic(Repanic))
			Connect(g, FromSlice("source", []int{1}), gate)
			Connect(g, gate, Discard[int]())
		} else {
			Connect(g, FromSlice("source", []int{1}), sink)
		}
		g.Run(context.Background())
		fmt.Println("survived")
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, where := range []string{"callback", "worker"} {
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestRepanicEndsTheProcess$")
		cmd.Env = append(os.Environ(), "PENSTOCK_REPANIC=1", "PENSTOCK_REPANIC_IN="+where)
		out, err := cmd.CombinedOutput()
		if err == nil || strings.Contains(string(out), "survived") || !strings.Contains(string(out), "the very first") {
			t.Errorf("in a %s: %v: %s", where, err, out)
		}
		if !strings.Contains(string(out), "failure_test.go") {
			t.Errorf("in a %s: the trace does not show where the panic came from: %s", where, out)
		}
	}
}

// A call that fails when the input is over already is as little the end of its
// stage as one before.
func TestCallThatFailsAfterTheInputIsResumed(t *testing.T) {
	for _, reaction := range []Reaction{Stop, Resume, Restart} {
		bubble(t, func(t *testing.T, g *Graph) {
			gate := MapConcurrent(2, func(_ context.Context, v int) (int, error) {
				time.Sleep(time.Second) // by then the source has ended
				if v == 0 {
					return 0, errOdd
				}
				return v, nil
			}, OnError(reaction))
			sink, _ := collector[int]("sink")
			Connect(g, finite("source", 2, false), gate)
			Connect(g, gate, sink)
			err := g.Run(t.Context())
			st := g.Stats()[1]
			if reaction == Stop {
				if !errors.Is(err, errOdd) || st.Resumed != 0 {
					t.Errorf("Run: %v, %+v", err, st)
				}
				return
			}
			if err != nil || st.Failed != 1 || st.Resumed != 1 || st.Emitted != 1 {
				t.Errorf("reaction %d: Run: %v, %+v", reaction, err, st)
			}
		})
	}
}
