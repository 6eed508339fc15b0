package stage

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// quietLog is for graphs whose warnings a test does not look at.
func quietLog() GraphOption { return Logger(slog.New(slog.DiscardHandler)) }

// stageNamed returns the picture of a stage.
func stageNamed(t *testing.T, s Status, name string) StageStatus {
	t.Helper()
	for _, st := range s.Stages {
		if st.Name == name {
			return st
		}
	}
	t.Fatalf("no stage %q in %+v", name, s.Stages)
	return StageStatus{}
}

func says(t *testing.T, st StageStatus, state State, why string) {
	t.Helper()
	if st.State != state || !strings.Contains(st.Why, why) {
		t.Errorf("%s is %s: %q; want %s: %q", st.Name, st.State, st.Why, state, why)
	}
}

// TestStatusNamesWhatHoldsTheGraphUp: a callback that does not come back is
// named, with how long it has been running, and so is the subscription to it.
func TestStatusNamesWhatHoldsTheGraphUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wants
		src, gate, sink := counter(&w, 1), Map(func(v int) int { return v }), newLockstep[int]("printer")
		g := NewGraph(quietLog())
		Connect(g, src, gate)
		Connect(g, gate, sink, Demand(10, 5))
		if s := g.Status(); s.State != Ready || s.Stages[0].State != Ready || s.Constraint != "the graph was not started" || len(s.Edges) != 2 {
			t.Errorf("before the start: %+v", s)
		}
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer g.Abort(nil)
		synctest.Wait()
		if s := g.Status(); !strings.HasPrefix(s.Constraint, "map#2 → printer: ") || !s.Edges[1].Constraint || s.Edges[0].Constraint {
			t.Errorf("at once: %q", s.Constraint)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		s := g.Status()
		if s.State != Moving || len(s.Stages) != 3 || len(s.Edges) != 2 {
			t.Fatalf("%+v", s)
		}
		says(t, stageNamed(t, s, "printer"), Busy, "in its callback for 3s; 10 events with it and on their way to it")
		says(t, stageNamed(t, s, "counter"), NoDemand, "its consumers have asked for no more; held up by printer, in its callback for 3s")
		says(t, stageNamed(t, s, "map#2"), NoDemand, "it holds 240 events; held up by printer")
		if want := "map#2 → printer: printer has 10 events and asks for no more; printer has been in its callback for 3s"; s.Constraint != want {
			t.Errorf("constraint %q, want %q", s.Constraint, want)
		}
		for i, want := range []EdgeStatus{
			{From: "counter", To: "map#2", Partition: -1, Max: 1000, Min: 750, Asked: 1000, Sent: 1000, Processed: 250, InFlight: 750, to: 1},
			{From: "map#2", To: "printer", Partition: -1, Max: 10, Min: 5, Asked: 10, Sent: 10, InFlight: 10, Constraint: true, from: 1, to: 2},
		} {
			if s.Edges[i] != want {
				t.Errorf("edge %+v, want %+v", s.Edges[i], want)
			}
		}
		if x := s.Stages; x[0].Executor != 0 || x[1].Executor != 1 || x[2].Executor != 2 {
			t.Errorf("executors %d, %d, %d", x[0].Executor, x[1].Executor, x[2].Executor)
		}
		time.Sleep(time.Hour)
		says(t, stageNamed(t, g.Status(), "printer"), Stuck, "in its callback for 1h0m")
		sink.step()
		says(t, stageNamed(t, g.Status(), "printer"), Moving, "moving")
	})
}

// TestStatusWhileNothingComes: who waits for whom, and who has nobody.
func TestStatusWhileNothingComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, emit := Push[int]("in")
		alone, _ := Push[int]("alone", Buffer(10, KeepLast))
		sink := NewSink("out", func(context.Context, []int) error { return nil })
		orphan := NewSink("orphan", func(context.Context, []int) error { return nil })
		g := NewGraph(quietLog())
		Connect(g, src, sink)
		if err := g.Add(alone, orphan); err != nil {
			t.Fatal(err)
		}
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer g.Abort(nil)
		synctest.Wait()
		s := g.Status()
		says(t, stageNamed(t, s, "in"), Idle, "has nothing to give; 1,000 events asked for")
		says(t, stageNamed(t, s, "out"), Idle, "waits for events from in")
		says(t, stageNamed(t, s, "alone"), NoConsumer, "no consumer is subscribed")
		says(t, stageNamed(t, s, "orphan"), NoProducer, "is subscribed to no producer")
		if want := "no subscription: the graph waits for in"; s.Constraint != want {
			t.Errorf("constraint %q, want %q", s.Constraint, want)
		}
		time.Sleep(2 * time.Second)
		if err := emit.Push(1, 2, 3, 4); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s = g.Status()
		for _, name := range []string{"in", "out"} {
			st := stageNamed(t, s, name)
			says(t, st, Moving, "moving, 2/s")
			if st.InPerSecond != 2 || st.OutPerSecond != 2 || st.Over != 2*time.Second {
				t.Errorf("rates of %s: %+v", name, st)
			}
		}
		says(t, stageNamed(t, g.Status(), "in"), Idle, "has nothing to give")
	})
}

func TestStatusTellsDropsAndForgetsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, emit := Push[int]("in", Buffer(10, KeepLast), OnDiscard(func(int) {}))
		sink := newLockstep[int]("out")
		g := NewGraph(quietLog())
		Connect(g, src, sink, Demand(1, 0))
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer g.Abort(nil)
		synctest.Wait()
		for i := range 20 {
			if err := emit.Push(i); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		st := stageNamed(t, g.Status(), "in")
		says(t, st, Dropping, "dropped 9 events within the last minute, its buffer was full; held up by out")
		if st.Discarded != 9 || st.Buffered != 10 {
			t.Errorf("%+v", st)
		}
		time.Sleep(2 * time.Minute)
		says(t, stageNamed(t, g.Status(), "in"), NoDemand, "it holds 10 events")
	})
}

func TestStatusSaysWhoFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		src, emit := Push[int]("in")
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error { return boom })
		sink := NewSink("out", func(context.Context, []int) error { return nil })
		g := NewGraph(quietLog())
		Connect(g, src, gate)
		Connect(g, gate, sink)
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := emit.Push(1); err != nil {
			t.Fatal(err)
		}
		if err := g.Wait(); !errors.Is(err, boom) {
			t.Errorf("Wait: %v", err)
		}
		s := g.Status()
		if s.State != Failed || s.State.Severity() != penstock.Alarm || s.Constraint != "the graph has ended" || len(s.Edges) != 0 {
			t.Errorf("%+v", s)
		}
		says(t, stageNamed(t, s, "gate"), Failed, `failed: stage "gate": boom`)
		says(t, stageNamed(t, s, "out"), Ended, `ended by the failure of a stage before it: stage "gate": boom`)
		says(t, stageNamed(t, s, "in"), Ended, "ended")
	})
}

// TestTimeInUserCodeAddsUp: what has returned, and since when the call runs that
// has not.
func TestTimeInUserCodeAddsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, emit := Push[int]("in")
		sink := NewSink("out", func(context.Context, []int) error { time.Sleep(100 * time.Millisecond); return nil })
		g := NewGraph(quietLog())
		Connect(g, src, sink, Demand(1, 0))
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer g.Abort(nil)
		if err := emit.Push(make([]int, 10)...); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		time.Sleep(250 * time.Millisecond)
		st := stageNamed(t, g.Status(), "out")
		if st.InUserCode != 200*time.Millisecond || !st.Since.Equal(begin.Add(200*time.Millisecond)) || !st.InCallback {
			t.Errorf("in the middle: %v, since %v", st.InUserCode, st.Since.Sub(begin))
		}
		time.Sleep(time.Minute)
		if st := stageNamed(t, g.Status(), "out"); st.InUserCode != time.Second || !st.Since.IsZero() {
			t.Errorf("at the end: %v, since %v", st.InUserCode, st.Since)
		}
	})
}

// TestStopNamesCallbacksThatDoNotReturn: the error of a drain that was cut short,
// and its log line, name the stage and say for how long it was in its callback.
func TestStopNamesCallbacksThatDoNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &recorder{}
		src, emit := Push[int]("in")
		sink := NewSink("printer", func(ctx context.Context, _ []int) error {
			<-ctx.Done()
			time.Sleep(time.Hour) // longer than anybody waits
			return ctx.Err()
		})
		other := NewSink("other", func(context.Context, []int) error { return nil })
		g := NewGraph(Logger(slog.New(log)))
		Connect(g, src, sink)
		Connect(g, src, other)
		if err := g.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := emit.Push(1, 2, 3); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		var over atomic.Bool
		stopped := make(chan error, 1)
		go func() { // ends with Stop; the test waits for it
			stopped <- g.Stop(ctx)
			over.Store(true)
		}()
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if over.Load() {
			t.Error("Stop did not wait for the callback")
		}
		if text := log.text(); !strings.Contains(text, "drain deadline passed") || !strings.Contains(text, "printer for 7s") || strings.Contains(text, "other") {
			t.Errorf("log: %s", text)
		}
		s := g.Status()
		says(t, stageNamed(t, s, "printer"), Busy, "in its callback for 8s")
		if s.State != Draining {
			t.Errorf("the graph is %s", s.State)
		}
		err := <-stopped
		drain, ok := errors.AsType[*penstock.DrainError](err)
		if !ok || len(drain.Busy) != 1 || drain.Busy[0] != "printer for 7s" || !strings.Contains(err.Error(), "in user code: printer for 7s") {
			t.Errorf("Stop: %v", err)
		}
	})
}

// recorder keeps what is logged.
type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }
func (r *recorder) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *recorder) WithGroup(string) slog.Handler            { return r }
func (r *recorder) Handle(_ context.Context, rec slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := rec.Message
	rec.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	r.lines = append(r.lines, line)
	return nil
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}

// TestStatusUnderLoad is for the race detector, and checks that the counters of
// an edge are never out of order.
func TestStatusUnderLoad(t *testing.T) {
	const total = 200_000
	n := 0
	src := Pull("counter", func(_ context.Context, want int, out *Output[int]) error {
		for range min(want, total-n) {
			out.Emit(n)
			n++
		}
		if n == total {
			return Done
		}
		return nil
	})
	hub := NewGate("hub", func(_ context.Context, in []int, out *Output[int]) error { out.Forward(in); return nil }).Broadcast()
	g := NewGraph(quietLog())
	Connect(g, src, hub, Demand(20, 10))
	for _, name := range []string{"a", "b"} {
		Connect(g, hub, NewSink(name, func(context.Context, []int) error { return nil }), Demand(30, 7))
	}
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // ends with the graph; the loop below waits for it
		defer close(ended)
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}()
	for looks := 0; ; looks++ {
		s := g.Status()
		for _, e := range s.Edges {
			if e.Processed < 0 || e.Processed > e.Sent || e.Sent > e.Asked || e.Open > int64(e.Max) || e.InFlight > int64(e.Max) {
				t.Fatalf("%+v", e)
			}
		}
		_ = s.DOT()
		select {
		case <-ended:
			s := g.Status()
			if st := stageNamed(t, s, "a"); looks == 0 || st.In != total || s.State != Ended {
				t.Errorf("%d looks; %s; %+v", looks, s.State, st)
			}
			return
		default:
		}
	}
}

func TestStatesHaveNamesAndSeverities(t *testing.T) {
	names := map[string]bool{}
	for s := State(0); s < states; s++ {
		if n := s.String(); n == "" || names[n] || strings.ContainsAny(n, " -()") {
			t.Errorf("state %d is called %q", uint8(s), n)
		}
		names[s.String()] = true
	}
	if states.String() != "state(13)" || Mode(7).String() != "mode(7)" || Transient.String()+Temporary.String()+Permanent.String() != "transienttemporarypermanent" {
		t.Error(states, Mode(7), Transient)
	}
	for s, want := range map[State]penstock.Severity{
		Moving: penstock.Fine, NoDemand: penstock.Fine, Ended: penstock.Fine, NoProducer: penstock.Notice, Busy: penstock.Notice,
		NoConsumer: penstock.Warning, Restarting: penstock.Warning, Stuck: penstock.Warning, Failed: penstock.Alarm,
	} {
		if s.Severity() != want {
			t.Errorf("%s is %s, want %s", s, s.Severity(), want)
		}
	}
}
