package stage

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// slotsOf returns slots of max and min that count from 0, their graph started.
func slotsOf(t *testing.T, g *Graph, demandMax, demandMin int, opts ...Option) (*Slots[int], *shift, *wants) {
	t.Helper()
	var w wants
	s := newShift()
	slots := NewSlots("slots", Task(s.work), opts...)
	Connect(g, counter(&w, 1), slots, Demand(demandMax, demandMin))
	start(t, g)
	return slots, s, &w
}

func TestSlotsAskWhenMinIsReached_STC116(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		_, s, w := slotsOf(t, g, 2, 0)
		equal(t, "begun", s.all(), []int{0, 1})
		equal(t, "begun by the first end", s.end(0, nil), []int(nil))
		equal(t, "wants", w.all(), []int{2})
		equal(t, "begun by the second end", s.end(1, nil), []int{2, 3})
		equal(t, "wants", w.all(), []int{2})
	})
}

// Exactly what was freed is asked for, whenever no more than min are occupied.
func TestSlotsAskForWhatWasFreed(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		slots, s, w := slotsOf(t, g, 5, 3)
		equal(t, "begun", s.all(), ints(0, 5))
		equal(t, "first", s.end(0, nil), []int(nil))
		equal(t, "second", s.end(1, nil), []int{5, 6})
		equal(t, "third", s.end(2, errBoom), []int(nil))
		equal(t, "wants", w.all(), []int{5, 2})
		equal(t, "children", slots.Counts(), ChildCounts{Active: 4, Total: 4})
	})
}

func TestTransientChildRunsAgainInItsSlot_STC118(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		slots, s, w := slotsOf(t, g, 1, 0, ChildRestart(Transient))
		equal(t, "begun", s.all(), []int{0})
		equal(t, "begun by the crash", s.end(0, errBoom), []int{0})
		equal(t, "restarts", slots.Children()[0].Restarts, 1)
		equal(t, "begun by the end", s.end(0, nil), []int{1})
		equal(t, "wants", w.all(), []int{1, 1})
		st := only(t, g, "slots")
		equal(t, "in, failed, restarts", []int64{st.In, st.Failed, st.ChildRestarts}, []int64{2, 0, 1})
	})
}

func TestTemporaryChildLeavesItsSlot_STC119(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		_, s, _ := slotsOf(t, g, 1, 0)
		equal(t, "begun", s.all(), []int{0})
		equal(t, "begun by the crash", s.end(0, errBoom), []int{1})
		equal(t, "failed", only(t, g, "slots").Failed, int64(1))
	})
}

func TestFirstCrashEndsSlotsOfNoTolerance_STC120(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		slots, s, _ := slotsOf(t, g, 3, 2, ChildRestart(Transient), ChildTolerance(0, 5*time.Second))
		s.all()
		s.end(1, errBoom)
		err := slots.Wait()
		if !errors.Is(err, ErrChildTolerance) || !errors.Is(err, errBoom) || !strings.Contains(err.Error(), "slots") {
			t.Errorf("error: %v", err)
		}
		st := only(t, g, "slots")
		equal(t, "in, failed, dropped", []int64{st.In, st.Failed, st.Dropped}, []int64{3, 1, 2})
		g.Wait()
		checkConservation(t, g)
	})
}

// Four crashes within five seconds are one too many; a window later none are.
func TestToleranceIsThreeInFiveSeconds(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		slots, s, _ := slotsOf(t, g, 1, 0, ChildRestart(Transient))
		s.all()
		for range 3 {
			equal(t, "again", s.end(0, errBoom), []int{0})
		}
		time.Sleep(5 * time.Second) // half open: three restarts count no more
		for range 3 {
			equal(t, "again", s.end(0, errBoom), []int{0})
		}
		time.Sleep(5*time.Second - 1)
		s.end(0, errBoom)
		if err := slots.Wait(); !errors.Is(err, ErrChildTolerance) {
			t.Errorf("error: %v", err)
		}
		equal(t, "restarts", only(t, g, "slots").ChildRestarts, int64(6))
	})
}

// A start that fails, or panics, is its event's failure also where children are
// started again; a restart that fails is tried again and counts.
func TestFailedStartIsItsEventsAlone(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var failed []int
		var starts [3]int // one slot: one at a time
		slots := NewSlots("slots", func(_ context.Context, v int) (func() error, error) {
			starts[v]++
			switch {
			case v == 0:
				return nil, errBoom
			case v == 1:
				panic("boom")
			case starts[v] == 2 || starts[v] == 3:
				return nil, errBoom // the restarts fail twice
			case starts[v] == 1:
				return func() error { return errBoom }, nil
			}
			return func() error { return nil }, nil
		}, ChildRestart(Transient)).OnFailed(func(v int, err error) { failed = append(failed, v) })
		Connect(g, FromSlice("source", ints(0, 3)), slots, Demand(1, 0))
		equal(t, "error", g.Run(context.Background()), nil)
		equal(t, "failed", failed, []int{0, 1})
		equal(t, "starts", starts, [3]int{1, 1, 4})
		st := only(t, g, "slots")
		equal(t, "failed, restarts", []int64{st.Failed, st.ChildRestarts}, []int64{2, 3})
		checkConservation(t, g)
	})
}

func TestChildThatEndsBeforeItsStartReturns_STC123(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		release := make(chan struct{})
		var over atomic.Int64
		slots := NewSlots("slots", func(_ context.Context, v int) (func() error, error) {
			ended := make(chan error, 1)
			ended <- nil // it has ended
			over.Add(1)
			<-release // and its start has not returned
			return func() error { return <-ended }, nil
		})
		Connect(g, counter(&w, 1), slots, Demand(1, 0))
		start(t, g)
		for n := range 5 {
			synctest.Wait()
			equal(t, "ended", over.Load(), int64(n+1))
			equal(t, "wants", w.all(), []int{1})
			equal(t, "children", slots.Counts(), ChildCounts{Active: 1, Total: 1})
			release <- struct{}{}
		}
		synctest.Wait()
		close(release)
		g.Abort(nil)
	})
}

// Children outlive their subscription; then the mode decides about the stage.
func TestChildrenOutliveTheirSubscription(t *testing.T) {
	for mode, ends := range map[Mode]bool{Permanent: true, Transient: true, Temporary: false} {
		t.Run(mode.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				s := newShift()
				slots := NewSlots("slots", Task(s.work))
				src, emit := Push[int]("source")
				equal(t, "add", g.Add(slots, src), nil)
				start(t, g)
				sub := subscribe(t, src, slots, Demand(2, 1), CancelMode(mode))
				emit.Push(0, 1, 2)
				equal(t, "begun", s.all(), []int{0, 1})
				emit.Fail(errBoom)
				equal(t, "the rest", s.end(0, nil), []int{2}) // came before the end
				<-sub.Done()
				equal(t, "children", slots.Counts().Total, 2)
				equal(t, "slots", only(t, g, "slots").Slots, 0)
				s.end(1, nil)
				s.end(2, errBoom)
				synctest.Wait()
				select {
				case <-slots.Done():
					equal(t, "ended", true, ends)
					equal(t, "with the failure", errors.Is(slots.Wait(), errBoom), true)
				default:
					equal(t, "ended", false, ends)
				}
			})
		})
	}
}

// A subscription that was cancelled is made anew while its children go on: it
// has all its slots, and theirs ask for nobody.
func TestSlotsOfANewSubscription(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		s := newShift()
		src, slots := counter(&w, 1), NewSlots("slots", Task(s.work))
		equal(t, "add", g.Add(slots, src), nil)
		start(t, g)
		sub := subscribe(t, src, slots, Demand(2, 1), CancelMode(Temporary))
		equal(t, "begun", s.all(), []int{0, 1})
		sub.Cancel()
		<-sub.Done()
		subscribe(t, src, slots, Demand(2, 1))
		equal(t, "begun by the new one", s.all(), []int{2, 3})
		equal(t, "children", slots.Counts().Total, 4)
		equal(t, "begun by old ends", append(s.end(0, nil), s.end(1, nil)...), []int(nil))
		equal(t, "begun by a new end", s.end(2, nil), []int{4})
		equal(t, "wants", w.all(), []int{2, 2, 1})
	})
}

func TestChildrenAreCountedAndTerminated_STC126(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		slots, s, _ := slotsOf(t, g, 1, 0, ChildRestart(Transient))
		equal(t, "begun", s.all(), []int{0})
		equal(t, "counts", slots.Counts(), ChildCounts{Active: 1, Total: 1})
		all := slots.Children()
		equal(t, "children", all, []Child[int]{{ID: 1, Event: 0, State: ChildRunning, Began: time.Now(), Producer: "counter"}})
		equal(t, "error", slots.Terminate(all[0].ID), nil)
		equal(t, "begun by Terminate", s.all(), []int{1})
		st := only(t, g, "slots")
		equal(t, "failed, dropped, restarts", []int64{st.Failed, st.Dropped, st.ChildRestarts}, []int64{0, 1, 0})
		err := slots.Terminate(all[0].ID)
		if !errors.Is(err, ErrChildNotFound) || !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("an unknown child: %v", err)
		}
	})
}

// A child that does not listen is terminating until it is abandoned; then its
// slot is free, once, also when it returns later.
func TestChildThatDoesNotStopIsAbandoned(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		deaf := make(chan struct{})
		var begun atomic.Int64
		var told []error
		slots := NewSlots("slots", Task(func(_ context.Context, v int) error {
			begun.Add(1)
			<-deaf
			return errBoom
		}), ChildShutdown(2*time.Second)).OnFailed(func(_ int, err error) { told = append(told, err) })
		src, emit := Push[int]("source")
		Connect(g, src, slots, Demand(2, 1))
		start(t, g)
		emit.Push(ints(0, 5)...)
		synctest.Wait()
		equal(t, "error", slots.Terminate(1), nil)
		equal(t, "counts", slots.Counts(), ChildCounts{Active: 1, Terminating: 1, Total: 2})
		time.Sleep(2*time.Second - 1)
		equal(t, "begun before the deadline", begun.Load(), int64(2))
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		equal(t, "begun after it", begun.Load(), int64(3))
		equal(t, "told", len(told) == 1 && errors.Is(told[0], ErrAbandoned), true)
		st := only(t, g, "slots")
		equal(t, "dropped, abandoned, held", []int64{st.Dropped, st.Abandoned, st.Held}, []int64{1, 1, 2})
		close(deaf) // the abandoned one returns too
		equal(t, "error", g.Stop(context.Background()), nil)
		st = only(t, g, "slots")
		equal(t, "in, failed, dropped, abandoned", []int64{st.In, st.Failed, st.Dropped, st.Abandoned}, []int64{5, 4, 1, 1})
		checkConservation(t, g)
	})
}

// At its end the stage tells all children to stop, waits for as long as they
// have, and says what it left behind.
func TestShutdownTellsChildrenAndAbandonsTheRest(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		deaf := make(chan struct{})
		slots := NewSlots("slots", Task(func(ctx context.Context, v int) error {
			if v == 1 {
				<-deaf
				return nil
			}
			<-ctx.Done()
			time.Sleep(time.Second)
			return context.Cause(ctx)
		}))
		src, emit := Push[int]("source")
		Connect(g, src, slots, Demand(3, 2))
		start(t, g)
		emit.Push(ints(0, 3)...)
		synctest.Wait()
		began := time.Now()
		g.Abort(errBoom)
		err := g.Wait()
		equal(t, "time", time.Since(began), DefaultChildShutdown)
		if !errors.Is(err, errBoom) || !errors.Is(err, ErrAbandoned) {
			t.Errorf("error: %v", err)
		}
		equal(t, "left", left(err), 3)
		st := only(t, g, "slots")
		equal(t, "dropped, abandoned, held", []int64{st.Dropped, st.Abandoned, st.Held}, []int64{3, 1, 0})
		checkConservation(t, g)
		close(deaf)
	})
}

// Without Drain a stage whose input is over waits for its children; with it they
// are told to stop.
func TestDrainBoundsHowLongChildrenGoOn(t *testing.T) {
	for name, opts := range map[string][]Option{"no limit": nil, "drain": {Drain(time.Minute)}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				began := time.Now()
				slots := NewSlots("slots", Task(func(ctx context.Context, v int) error {
					select {
					case <-time.After(time.Hour):
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}), opts...)
				Connect(g, FromSlice("source", ints(0, 3)), slots, Demand(3, 2))
				equal(t, "error", g.Run(context.Background()), nil)
				st := only(t, g, "slots")
				if len(opts) == 0 {
					equal(t, "time, dropped", []any{time.Since(began), st.Dropped}, []any{time.Hour, int64(0)})
				} else {
					equal(t, "time, dropped", []any{time.Since(began), st.Dropped}, []any{time.Minute, int64(3)})
				}
				checkConservation(t, g)
			})
		})
	}
}

func TestStatusShowsSlots(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		slots, s, _ := slotsOf(t, g, 3, 0, ChildRestart(Transient))
		s.all()
		s.end(1, errBoom)
		s.end(2, nil)
		equal(t, "told to stop", slots.Terminate(1), nil)
		synctest.Wait()
		st := g.Status()
		at := st.Stages[1]
		equal(t, "state", at.State, Moving)
		equal(t, "why", at.Why, "1 of 3 slots in use, 1 restart")
		equal(t, "in use, slots", []int64{at.Held, int64(at.Slots)}, []int64{1, 3})
		e := st.Edges[0]
		equal(t, "processed, in flight, open", []int64{e.Processed, e.InFlight, e.Open}, []int64{2, 1, 0})
		if !strings.Contains(st.Constraint, "counter → slots") {
			t.Errorf("constraint: %s", st.Constraint)
		}
	})
}
