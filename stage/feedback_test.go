package stage

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

type job struct{ ID, Tries int }

// loop is source -> in -> work -> out; work sends jobs around until they were
// tried three times; each try takes each.
func loop(g *Graph, n int, p Policy, each time.Duration, opts ...SubOption) (*Emitter[job], func() [][]job) {
	src, emit := Push[job]("source")
	in := Pass[job]("in")
	work := Map(func(j job) job { time.Sleep(each); j.Tries++; return j }).Broadcast()
	sink, got := collector[job]("sink")
	Connect(g, src, in, Demand(4, 2))
	Connect(g, in, work, Demand(4, 2))
	Connect(g, work.Out().Where(func(j job) bool { return j.Tries == 3 }), sink)
	Feedback(g, work.Out().Where(func(j job) bool { return j.Tries < 3 }), in, n, p, opts...)
	return emit, got
}

func TestFeedbackSendsEventsAround(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		emit, got := loop(g, 100, KeepFirst, 0)
		start(t, g)
		var want []job
		for i := range 20 {
			emit.Push(job{ID: i})
			want = append(want, job{i, 3})
		}
		synctest.Wait()
		jobs := flat(got())
		slices.SortFunc(jobs, func(a, b job) int { return a.ID - b.ID })
		equal(t, "jobs", jobs, want)
		emit.Finish() // the circle ends with its only producer from outside
		must(t, g.Wait())
		conserved(t, g)
	})
}

func TestFeedbackDropsAndNeverWaitsForItself(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		emit, got := loop(g, 1, KeepFirst, time.Millisecond, Demand(1, 0)) // two fit, and work gives two at a time
		start(t, g)
		var jobs []job
		for i := range 500 {
			jobs = append(jobs, job{ID: i})
		}
		emit.Push(jobs...)
		time.Sleep(time.Minute)
		emit.Finish()
		must(t, g.Wait())
		var buffer Stats
		for _, s := range g.Stats() {
			if len(s.Name) > 8 && s.Name[:8] == "feedback" {
				buffer = s
			}
		}
		through := len(flat(got()))
		if buffer.Dropped == 0 || through == 0 {
			t.Errorf("%d dropped, %d came through", buffer.Dropped, through)
		}
		conserved(t, g)
	})
}

func TestMisbuiltFeedbackIsRefused(t *testing.T) {
	for name, build := range map[string]func(g *Graph, gate *Gate[int, int]){
		"no buffer":       func(g *Graph, gate *Gate[int, int]) { Feedback(g, gate, gate, 0, KeepLast) },
		"one that waits":  func(g *Graph, gate *Gate[int, int]) { Feedback(g, gate, gate, 1, Wait) },
		"one that fails":  func(g *Graph, gate *Gate[int, int]) { Feedback(g, gate, gate, 1, Fail) },
		"FailFast":        func(g *Graph, gate *Gate[int, int]) { Feedback(g, gate, gate, 1, KeepLast, FailFast()) },
		"a circle beside": func(g *Graph, gate *Gate[int, int]) { p := Pass[int]("p"); Connect(g, gate, p); Connect(g, p, gate) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				gate := Pass[int]("gate").Broadcast()
				Connect(g, Never[int]("source"), gate)
				Connect(g, gate, Discard[int]())
				build(g, gate)
				if err := g.Start(t.Context()); !errors.Is(err, penstock.ErrInvalid) {
					t.Errorf("Start: %v, want ErrInvalid", err)
				}
			})
		})
	}
}

func TestFailFastOvertakesTheEvents(t *testing.T) {
	boom := errors.New("boom")
	for _, fast := range []bool{false, true} {
		bubble(t, func(t *testing.T, g *Graph) {
			src, emit := Push[int]("source")
			sink := newLockstep[int]("sink")
			other, got := collector[int]("other")
			opts := []SubOption{Demand(2, 1)}
			if fast {
				opts = append(opts, FailFast())
			}
			src.Broadcast()
			Connect(g, src, sink, opts...)
			Connect(g, src, other, Demand(2, 1))
			must(t, g.Start(t.Context()))
			emit.Push(0, 1, 2, 3)
			synctest.Wait() // 0 is in hands, 1 on its way
			emit.Fail(boom)
			synctest.Wait()
			sink.step()
			if !fast {
				for range 3 {
					sink.step()
				}
			}
			if err := g.Wait(); !errors.Is(err, boom) || !errors.Is(sink.Wait(), boom) {
				t.Errorf("Wait: %v, of the sink %v", err, sink.Wait())
			}
			seen := flat(sink.all())
			if fast {
				equal(t, "seen", seen, []int{0})
				equal(t, "undelivered", g.Stats()[0].Undelivered+g.Stats()[1].Undelivered, int64(1))
				equal(t, "of the other", flat(got()), ints(0, 4)) // in order, as ever
			} else {
				equal(t, "seen", seen, ints(0, 4))
			}
			conserved(t, g)
		})
	}
}

func TestFailFastReachesAGateThatWaits(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		boom := errors.New("boom")
		src, emit := Push[int]("source")
		gate := Pass[int]("gate")
		sink := newLockstep[int]("sink")
		Connect(g, src, gate, Demand(2, 1), FailFast())
		Connect(g, gate, sink, Demand(1, 0), FailFast())
		must(t, g.Start(t.Context()))
		emit.Push(ints(0, 9)...)
		synctest.Wait()
		emit.Fail(boom)
		synctest.Wait()
		sink.step()
		if err := g.Wait(); !errors.Is(err, boom) {
			t.Errorf("Wait: %v", err)
		}
		equal(t, "seen", flat(sink.all()), []int{0})
		conserved(t, g)
	})
}
