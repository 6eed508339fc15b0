package penstocktest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock/stage"
)

// failures is a testing.TB that keeps what it is told instead of failing.
type failures struct {
	testing.TB
	said []string
}

func (f *failures) Helper() {}

func (f *failures) Errorf(format string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

func (f *failures) Error(args ...any) { f.said = append(f.said, fmt.Sprint(args...)) }

// take returns what was said since the last call.
func (f *failures) take() string {
	said := strings.Join(f.said, "\n")
	f.said = nil
	return said
}

// Every expectation that does not hold says what came instead, and the one that
// follows begins anew.
func TestExpectationsThatDoNotHoldFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failures{TB: t}
		g := stage.NewGraph()
		src := NewSource[int](f, "in")
		out := NewConsumer[int](f, "out")
		stage.Connect(g, src, out, stage.Manual())
		Start(t, g)
		check := func(step, want string) {
			t.Helper()
			if got := f.take(); got != want {
				t.Errorf("%s: %q, want %q", step, got, want)
			}
		}
		out.Ask(3)
		src.ExpectDemand(4)
		check("demand", `source "in": 3 events are asked for, want 4`)
		src.ExpectDemand(3)
		src.Send(1, 2)
		src.ExpectDemand(1)
		check("demand that is right", "")
		out.Expect()
		check("nothing expected", `consumer "out": got [1 2], want []`)
		out.Expect(1, 2)
		check("looked at twice", `consumer "out": got [], want [1 2]`)
		src.Send(3, 4)
		src.ExpectDemand(0)
		out.ExpectBatches([]int{3, 4})
		check("batches", `consumer "out": got batches [[3]], want [[3 4]]`)
		out.ExpectEnd(nil)
		check("end", `consumer "out" has not ended`)
		src.ExpectCancelled()
		check("cancelled", `source "in": 1 subscriptions are left, want none`)
		out.Ask(-1)
		if !strings.HasPrefix(f.take(), `consumer "out": Ask(-1): `) {
			t.Error("a wrong ask is not told")
		}
		boom := errors.New("boom")
		src.Fail(boom)
		out.Ask(5)
		out.Expect(4)
		out.ExpectEnd(nil)
		if said := f.take(); !strings.Contains(said, "boom, want <nil>") {
			t.Errorf("end with a failure: %q", said)
		}
		out.ExpectEnd(boom)
		src.Send(9)
		if !strings.HasPrefix(f.take(), `source "in": Send: `) {
			t.Error("sending to a source that has ended is not told")
		}
		src.ExpectCancelled()
		src.ExpectDemand(0)
		check("after the end", "")
	})
}

// A consumer that left has asked for nothing, whatever its callback was told.
func TestDemandOfOneWhoLeftIsGone(t *testing.T) {
	Stages(t, func(t *testing.T, g *stage.Graph) {
		src := NewSource[int](t, "in")
		pass := stage.Map(func(v int) int { return v })
		out := NewConsumer[int](t, "out")
		stage.Connect(g, src, pass, stage.Demand(6, 2))
		stage.Connect(g, pass, out)
		Start(t, g)
		src.ExpectDemand(6)
		src.Send(1, 2, 3)
		src.ExpectDemand(3)
		src.Send(4)
		src.ExpectDemand(6) // at min
		out.Expect(1, 2, 3, 4)
		out.Cancel()
		out.ExpectEnd(nil)
		CheckCounts(t, g)
	})
}

func TestCountsThatDoNotAddUp(t *testing.T) {
	whole := func() []stage.Stats {
		return []stage.Stats{
			{Name: "in", Kind: stage.KindSource, Pushed: 10, Dispatched: 7, Sent: 7, Buffered: 2, Discarded: 1},
			{Name: "out", Kind: stage.KindSink, In: 4, Undelivered: 1},
		}
	}
	edges := []stage.EdgeStatus{{From: "in", To: "out", Sent: 6, Processed: 4}}
	if err := addUp(whole(), edges); err != nil {
		t.Error(err)
	}
	for name, lose := range map[string]func(s []stage.Stats){
		`stage "in"`:          func(s []stage.Stats) { s[0].Buffered-- },
		"7 events were sent":  func(s []stage.Stats) { s[1].In-- },
		"8 events were sent":  func(s []stage.Stats) { s[0].Sent++ },
		"3 dispatched, 0 fil": func(s []stage.Stats) { s[0].Dispatched = 3 },
		"1 filtered out":      func(s []stage.Stats) { s[0].FilteredOut = 1 },
	} {
		s := whole()
		lose(s)
		if err := addUp(s, edges); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Events for which there is no partition are not called missing.
func TestCountsOfPartitionsThatMayBeNone(t *testing.T) {
	Stages(t, func(t *testing.T, g *stage.Graph) {
		src := stage.FromSlice("source", []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}).
			Dispatch(stage.PartitionTo(2, func(v *int) (int, bool) { return *v % 2, *v%3 != 0 }))
		for i := range 2 {
			stage.Connect(g, src.Out().Partition(i), stage.Discard[int]())
		}
		if err := g.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := g.Stats()[0]; s.FilteredOut != 4 || s.Dispatched != 6 {
			t.Fatalf("the source: %+v, want 4 filtered out", s)
		}
		CheckCounts(t, g)
	})
}
