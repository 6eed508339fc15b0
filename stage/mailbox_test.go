package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

// diary records lines from several goroutines.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) add(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// all returns what was added since the last call.
func (d *diary) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lines
	d.lines = nil
	return l
}

// noting is a sink that writes every event into d.
func noting(d *diary) *Sink[int] {
	return NewSink("sink", func(_ context.Context, in []int) error {
		for _, v := range in {
			d.add("%d", v)
		}
		return nil
	})
}

func TestTimerEmitsAndEndsWithItsStage_STC112(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, _ := Push[int]("source")
		box := NewMailbox[int](g, "control", 0)
		var handled diary
		OnMessage(src, box, func(_ context.Context, m int, out *Output[int]) error {
			handled.add("%d", m)
			out.Emit(m)
			return nil
		})
		sink, got := collector[int]("sink")
		Connect(g, src, sink)
		start(t, g)
		began := time.Now()
		if _, err := box.After(50*time.Millisecond, 99); err != nil {
			t.Fatal(err)
		}
		if _, err := box.After(time.Hour, 100); err != nil {
			t.Fatal(err)
		}
		if _, err := box.Every(time.Minute, 101); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50*time.Millisecond - 1)
		synctest.Wait()
		equal(t, "batches before its time", len(got()), 0)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		equal(t, "time", time.Since(began), 50*time.Millisecond)
		equal(t, "batches", got(), [][]int{{99}})
		src.Stop()
		synctest.Wait()
		handled.all()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		equal(t, "messages after the end", handled.all(), []string(nil))
		equal(t, "timers that run", len(box.room), 0) // each has a place
		if _, err := box.After(1, 1); !errors.Is(err, ErrStageNotAlive) {
			t.Errorf("a timer after the end: %v", err)
		}
	})
}

func TestMessagesOfOneSenderKeepTheirOrder(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		const senders, each = 4, 500
		box := NewMailbox[[2]int](g, "control", 3)
		sink := NewSink("sink", func(context.Context, []int) error { return nil })
		last, wrong, seen, handling := [senders]int{}, 0, 0, 0
		OnSinkMessage(sink, box, func(_ context.Context, m [2]int) error {
			handling++
			if m[1] != last[m[0]]+1 || handling != 1 {
				wrong++
			}
			last[m[0]] = m[1]
			seen++
			handling--
			return nil
		})
		var w wants
		Connect(g, counter(&w, 1), sink, Manual())
		start(t, g)
		var all sync.WaitGroup
		for s := range senders {
			all.Go(func() {
				for i := range each {
					if err := box.Send(t.Context(), [2]int{s, i + 1}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		synctest.Wait()
		st := g.Stats()[1]
		g.Abort(nil)
		g.Wait()
		equal(t, "messages, and out of order", []int{seen, wrong}, []int{senders * each, 0})
		equal(t, "counted", []int64{st.Messages, st.MessagesWaiting}, []int64{senders * each, 0})
	})
}

func TestMessageBehindTheBufferWaitsForIt(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		box := NewMailbox[string](g, "control", 0)
		var d diary
		OnMessage(src, box, func(_ context.Context, m string, _ *Output[int]) error {
			d.add("%s", m)
			return nil
		})
		sub := Connect(g, src, noting(&d), Manual())
		emit.Push(1, 2, 3)
		must(t, box.TrySendBehind("a"))
		must(t, box.TrySendBehind("b"))
		emit.Push(4)
		must(t, box.TrySendBehind("c"))
		must(t, box.TrySend("now"))
		start(t, g)
		synctest.Wait()
		equal(t, "at the start", d.all(), []string{"now"})
		for _, step := range []struct {
			ask  int
			want []string
		}{{2, []string{"1", "2"}}, {1, []string{"3", "a", "b"}}, {1, []string{"4", "c"}}} {
			sub.Ask(step.ask)
			synctest.Wait()
			got := d.all()
			slices.Sort(got) // the sink and the source write beside each other
			equal(t, "after a step", got, step.want)
		}
		must(t, box.TrySendBehind("d"))
		synctest.Wait()
		equal(t, "with nothing buffered", d.all(), []string{"d"})
	})
}

func TestMarkersOfDroppedEventsStillArrive(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source", Buffer(3, KeepLast), OnDiscard(func(int) {}))
		box := NewMailbox[string](g, "control", 0)
		var d diary
		OnMessage(src, box, func(_ context.Context, m string, _ *Output[int]) error {
			d.add("%s", m)
			return nil
		})
		sub := Connect(g, src, noting(&d), Manual())
		start(t, g)
		emit.Push(1, 2, 3)
		must(t, box.TrySendBehind("a"))
		must(t, box.TrySendBehind("b"))
		emit.Push(4, 5)
		must(t, box.TrySendBehind("c"))
		synctest.Wait()
		equal(t, "with 3 still there", d.all(), []string(nil))
		emit.Push(6)
		synctest.Wait()
		equal(t, "with 1 to 3 dropped", d.all(), []string{"a", "b"})
		sub.Ask(2)
		synctest.Wait()
		got := d.all()
		slices.Sort(got)
		equal(t, "with 4 and 5 sent", got, []string{"4", "5", "c"})
	})
}

// TestRandomMarkersArriveInTheirPlace compares a source's buffer, with messages
// behind it, with a list.
func TestRandomMarkersArriveInTheirPlace(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		capacity := rapid.IntRange(0, 5).Draw(rt, "capacity")
		policy := rapid.SampledFrom([]Policy{KeepLast, KeepFirst}).Draw(rt, "policy")
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"push", "push", "push", "mark", "mark", "ask"}), 1, 40).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			g := NewGraph()
			src, emit := Push[int]("source", Buffer(capacity, policy), OnDiscard(func(int) {}))
			box := NewMailbox[int](g, "control", 0)
			var handled, want []int
			OnMessage(src, box, func(_ context.Context, m int, _ *Output[int]) error {
				handled = append(handled, m)
				return nil
			})
			sub := Connect(g, src, noting(new(diary)), Manual())
			start(t, g)
			var model []int // events, and markers as -1 - marker
			demand, marks := 0, 0
			for i, step := range steps {
				switch step {
				case "push":
					emit.Push(i)
					model = append(model, i)
				case "mark":
					must(t, box.TrySendBehind(marks))
					model = append(model, -1-marks)
					marks++
				case "ask":
					sub.Ask(1)
					demand++
				}
				synctest.Wait()
				model, demand = settleModel(model, demand, capacity, policy)
				for len(model) > 0 && model[0] < 0 {
					want = append(want, -1-model[0])
					model = model[1:]
				}
				if !slices.Equal(handled, want) {
					rt.Fatalf("after %v: handled %v, want %v", steps[:i+1], handled, want)
				}
			}
			g.Abort(nil)
			g.Wait()
		})
	})
}

// settleModel meets demand from the front, then drops what is too many.
func settleModel(model []int, demand, capacity int, policy Policy) ([]int, int) {
	drop := func(last bool) {
		for k := range model {
			i := k
			if last {
				i = len(model) - 1 - k
			}
			if model[i] >= 0 {
				model = slices.Delete(model, i, i+1)
				return
			}
		}
	}
	count := func() (n int) {
		for _, v := range model {
			if v >= 0 {
				n++
			}
		}
		return n
	}
	for demand > 0 && count() > 0 {
		drop(false)
		demand--
	}
	for count() > capacity {
		drop(policy == KeepFirst)
	}
	return model, demand
}

func TestMessageOfAGateComesBehindWhatWaits(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		var w wants
		gate := NewGate("gate", func(_ context.Context, in []int, out *Output[int]) error {
			out.EmitAll(in...)
			return nil
		})
		box := NewMailbox[int](g, "control", 0)
		var d diary
		OnMessage(gate, box, func(_ context.Context, m int, out *Output[int]) error {
			if m < 0 {
				d.add("handled %d", m)
				return nil
			}
			out.Emit(m)
			return nil
		})
		Connect(g, counter(&w, 1), gate, Demand(4, 0))
		sub := Connect(g, gate, noting(&d), Manual())
		start(t, g)
		synctest.Wait()
		for i := range 5 { // the gate holds 0 to 3
			must(t, box.TrySend(100+i))
		}
		synctest.Wait()
		must(t, box.TrySendBehind(-1))
		synctest.Wait()
		equal(t, "held", g.Stats()[1].Buffered, int64(9))
		sub.Ask(2)
		synctest.Wait()
		must(t, box.TrySend(105))
		synctest.Wait()
		equal(t, "before the marker", d.all(), []string{"0", "1"})
		sub.Ask(7)
		synctest.Wait()
		got := d.all()
		got = slices.DeleteFunc(got, func(l string) bool { return l == "handled -1" })
		equal(t, "then", got, []string{"2", "3", "100", "101", "102", "103", "104"})
		sub.Ask(2)
		synctest.Wait()
		equal(t, "the last, and the next input", d.all(), []string{"105", "4"})
	})
}

func TestGateHandlesNoMessageWhileTooMuchWaits(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		gate := Pass[int]("gate")
		box := NewMailbox[int](g, "control", 1)
		OnMessage(gate, box, func(_ context.Context, m int, out *Output[int]) error {
			out.Grow(m)
			return nil
		})
		Connect(g, Never[int]("source"), gate)
		sub := Connect(g, gate, noting(new(diary)), Manual())
		start(t, g)
		must(t, box.TrySend(DefaultBuffer))
		synctest.Wait()
		must(t, box.TrySend(1))
		synctest.Wait()
		st := g.Stats()
		equal(t, "held and waiting", []int64{st[1].Buffered, st[1].MessagesWaiting}, []int64{DefaultBuffer, 1})
		if err := box.TrySend(1); !errors.Is(err, penstock.ErrFull) {
			t.Errorf("into a full mailbox: %v", err)
		}
		sub.Ask(1)
		synctest.Wait()
		st = g.Stats()
		equal(t, "held and waiting later", []int64{st[1].Buffered, st[1].MessagesWaiting}, []int64{DefaultBuffer, 0})
	})
}

func TestMessagesMayEndTheStage(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		act  func() error
		want func(error) bool
	}{
		"normally":    {func() error { return Done }, func(err error) bool { return err == nil }},
		"by an error": {func() error { return boom }, func(err error) bool { return errors.Is(err, boom) }},
		"by a panic": {func() error { panic("boom") }, func(err error) bool {
			var p *penstock.PanicError
			return errors.As(err, &p) && p.Value == "boom"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				src, emit := Push[int]("source")
				box := NewMailbox[bool](g, "control", 0)
				OnMessage(src, box, func(context.Context, bool, *Output[int]) error { return c.act() })
				sink, got := collector[int]("sink")
				Connect(g, src, sink)
				emit.Push(1, 2)
				must(t, box.TrySendBehind(true))
				if err := g.Run(t.Context()); !c.want(err) {
					t.Errorf("Run: %v", err)
				}
				equal(t, "events before", flat(got()), []int{1, 2})
			})
		})
	}
}

func TestMailboxIsBoundedAndLetsGo(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		box := NewMailbox[int](g, "control", 2)
		if err := box.TrySend(1); !errors.Is(err, ErrStageNotAlive) {
			t.Errorf("without an owner: %v", err)
		}
		sink := newLockstep[int]("sink")
		var d diary
		OnSinkMessage(sink.Sink, box, func(_ context.Context, m int) error {
			d.add("%d", m)
			return nil
		})
		var w wants
		Connect(g, counter(&w, 1), sink, Demand(1, 0))
		start(t, g)
		synctest.Wait() // the sink holds its first batch
		must(t, box.TrySend(1))
		if _, err := box.After(time.Hour, 5); err != nil { // it has the other place
			t.Fatal(err)
		}
		if err := box.TrySend(2); !errors.Is(err, penstock.ErrFull) {
			t.Errorf("TrySend: %v", err)
		}
		if _, err := box.After(1, 2); !errors.Is(err, penstock.ErrFull) {
			t.Errorf("After: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := box.Send(ctx, 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Send: %v", err)
		}
		results := make(chan error, 2)
		for range 2 {
			go func() { results <- box.Send(context.Background(), 3) }()
		}
		synctest.Wait()
		for range 3 { // there is one place beside the timer's
			sink.step()
		}
		equal(t, "handled", d.all(), []string{"1", "3", "3"})
		must(t, <-results)
		must(t, <-results)
		must(t, box.TrySend(4))
		go func() { results <- box.Send(context.Background(), 5) }()
		synctest.Wait()
		g.Abort(nil)
		g.Wait()
		if err := <-results; !errors.Is(err, ErrStageNotAlive) {
			t.Errorf("Send at the end: %v", err)
		}
		equal(t, "lost", g.Stats()[1].MessagesLost, int64(1))
		equal(t, "places taken", len(box.room), 0)
		equal(t, "handled at the end", d.all(), []string(nil))
	})
}

func TestMessagesSentBeforeTheEndAreHandled(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		box := NewMailbox[int](g, "control", 0)
		sink := newLockstep[int]("sink")
		n := 0
		OnSinkMessage(sink.Sink, box, func(context.Context, int) error { n++; return nil })
		Connect(g, FromSlice("source", []int{1}), sink)
		start(t, g)
		synctest.Wait()
		for i := range 150 { // more than one turn handles
			must(t, box.TrySend(i))
		}
		must(t, box.TrySendBehind(150))
		sink.Stop()
		sink.step()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		equal(t, "handled", n, 151)
		if err := box.Send(t.Context(), 1); !errors.Is(err, ErrStageNotAlive) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestEveryKeepsStepAndGathersWhatIsLate(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		box := NewMailbox[int](g, "control", 0)
		sink := newLockstep[int]("sink")
		began := time.Now()
		var d diary
		OnSinkMessage(sink.Sink, box, func(context.Context, int) error {
			d.add("%v", time.Since(began))
			return nil
		})
		src, emit := Push[int]("source")
		Connect(g, src, sink)
		start(t, g)
		every, err := box.Every(time.Second, 1)
		must(t, err)
		time.Sleep(2500 * time.Millisecond)
		emit.Push(1)
		time.Sleep(3 * time.Second) // the sink blocks from 2.5 s to 5.5 s
		sink.step()
		time.Sleep(time.Second)
		synctest.Wait()
		equal(t, "times", d.all(), []string{"1s", "2s", "5.5s", "6s"})
		equal(t, "stopped", []bool{every.Stop(), every.Stop()}, []bool{true, false})
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "after Stop", d.all(), []string(nil))
		emit.Push(2)
		synctest.Wait()
		late, err := box.After(time.Second, 2)
		must(t, err)
		time.Sleep(2 * time.Second) // its message waits for the sink
		equal(t, "stopped late", late.Stop(), true)
		sink.step()
		equal(t, "its message", d.all(), []string(nil))
		equal(t, "places taken", len(box.room), 0)
		if _, err := box.Every(0, 1); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("Every 0: %v", err)
		}
	})
}

func TestMisbuiltMailboxesAreRefused(t *testing.T) {
	source := func(name string) *Source[int] { return Never[int](name) }
	ok := func(context.Context, int, *Output[int]) error { return nil }
	for name, c := range map[string]struct {
		build func(g *Graph, src *Source[int])
		want  error
	}{
		"negative capacity": {func(g *Graph, _ *Source[int]) { NewMailbox[int](g, "a", -1) }, penstock.ErrInvalid},
		"no name":           {func(g *Graph, _ *Source[int]) { NewMailbox[int](g, "", 0) }, penstock.ErrInvalid},
		"a name twice":      {func(g *Graph, _ *Source[int]) { NewMailbox[int](g, "a", 0); NewMailbox[string](g, "a", 0) }, ErrNameTaken},
		"no function":       {func(g *Graph, s *Source[int]) { OnMessage[int, int](s, NewMailbox[int](g, "a", 0), nil) }, penstock.ErrInvalid},
		"no mailbox":        {func(_ *Graph, s *Source[int]) { OnMessage(s, nil, ok) }, penstock.ErrInvalid},
		"of another graph":  {func(_ *Graph, s *Source[int]) { OnMessage(s, NewMailbox[int](NewGraph(), "a", 0), ok) }, penstock.ErrInvalid},
		"two of one stage": {func(g *Graph, s *Source[int]) {
			OnMessage(s, NewMailbox[int](g, "a", 0), ok)
			OnMessage(s, NewMailbox[int](g, "b", 0), ok)
		}, penstock.ErrInvalid},
		"one of two stages": {func(g *Graph, s *Source[int]) {
			box := NewMailbox[int](g, "a", 0)
			OnMessage(s, box, ok)
			OnMessage(twin(g, source("twin")), box, ok)
		}, ErrNameTaken},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				src := source("source")
				c.build(g, src)
				Connect(g, src, Discard[int]())
				if err := g.Start(t.Context()); !errors.Is(err, c.want) {
					t.Errorf("Start: %v, want %v", err, c.want)
				}
			})
		})
	}
}

// twin makes src a stage of g.
func twin(g *Graph, src *Source[int]) *Source[int] {
	Connect(g, src, Discard[int]())
	return src
}

// TestMailboxOutlivesItsStage has a second stage take the place of the first.
func TestMailboxOutlivesItsStage(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		box := NewMailbox[int](g, "control", 0)
		made := func(name string, d *diary) *Source[int] {
			s := Never[int](name)
			OnMessage(s, box, func(_ context.Context, m int, _ *Output[int]) error {
				d.add("%s %d", name, m)
				return nil
			})
			return s
		}
		var d diary
		first := made("first", &d)
		must(t, g.Add(first))
		must(t, g.Add(Discard[int]()))
		start(t, g)
		must(t, box.TrySend(1))
		synctest.Wait()
		if err := g.Add(made("early", &d)); !errors.Is(err, ErrNameTaken) {
			t.Errorf("while the first lives: %v", err)
		}
		first.Stop()
		synctest.Wait()
		if err := box.TrySend(2); !errors.Is(err, ErrStageNotAlive) {
			t.Errorf("between: %v", err)
		}
		must(t, g.Add(made("second", &d)))
		must(t, box.TrySend(3))
		synctest.Wait()
		equal(t, "handled", d.all(), []string{"first 1", "second 3"})
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A message whose handler never comes back was given to it all the same.
func TestMessageOfAHandlerThatCrashesIsCounted(t *testing.T) {
	for how, crash := range crashes {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				src, _ := Push[int]("source")
				box := NewMailbox[int](g, "box", 0)
				OnMessage(src, box, func(context.Context, int, *Output[int]) error {
					crash()
					return nil
				})
				Connect(g, src, Discard[int]())
				for i := range 3 {
					must(t, box.TrySend(i))
				}
				if err := g.Run(t.Context()); err == nil {
					t.Error("the stage has not failed")
				}
				s := stat(t, g, 0)
				equal(t, "handled, lost and waiting", [...]int64{s.Messages, s.MessagesLost, s.MessagesWaiting}, [...]int64{1, 2, 0})
			})
		})
	}
}

// A timer that is stopped while its stage looks whether messages are left does
// not hide the others.
func TestTimerThatIsStoppedHidesNoMessage(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, _ := Push[int]("source")
		box := NewMailbox[int](g, "box", 1000)
		OnMessage(src, box, func(context.Context, int, *Output[int]) error { return nil })
		must(t, box.TrySend(1))
		var timers []*MessageTimer
		for range 500 {
			timer, err := box.After(0, 2)
			must(t, err)
			timers = append(timers, timer)
		}
		synctest.Wait() // their messages are in the mailbox
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			for _, timer := range timers {
				timer.Stop()
			}
		}()
		for !isOver(stopped) {
			if !src.out.mail.rest() {
				t.Error("the mailbox is said to be empty")
				break
			}
		}
		<-stopped
	})
}
