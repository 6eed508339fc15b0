package stage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func TestKeepFirstDropsNewcomers_STC52(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var dropped []int
		src, emit := Push[int]("push", Buffer(3, KeepFirst), OnDiscard(func(n int) { dropped = append(dropped, n) }))
		sink, got := collector[int]("sink")
		Connect(g, src, sink, Demand(6, 2))
		if err := emit.Push(ints(1, 11)...); err != nil {
			t.Error(err)
		}
		equal(t, "dropped", dropped, []int{7})
		equal(t, "buffered", src.Buffered(), 3)
		start(t, g)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{{1, 2, 3}})
	})
}

func TestKeepLastDropsOldest_STC53(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var dropped []int
		src, emit := Push[int]("push", Buffer(3, KeepLast), OnDiscard(func(n int) { dropped = append(dropped, n) }))
		sink, got := collector[int]("sink")
		Connect(g, src, sink, Demand(6, 2))
		if err := emit.Push(ints(1, 11)...); err != nil {
			t.Error(err)
		}
		equal(t, "dropped", dropped, []int{7})
		start(t, g)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{{8, 9, 10}})
	})
}

func TestHybridServesPushedEventsFirst_STC56(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		n := 0
		src, emit := Hybrid("hybrid", func(_ context.Context, want int, out *Output[string]) error {
			w.add(want)
			for range want {
				out.Emit(strconv.Itoa(n))
				n++
			}
			return nil
		})
		sink := newLockstep[string]("lockstep")
		Connect(g, src, sink, Demand(4, 0))
		if err := emit.Push("a", "b", "c", "d", "e"); err != nil {
			t.Error(err)
		}
		start(t, g)
		synctest.Wait()
		equal(t, "want while a to d are in hand", w.all(), []int(nil))
		equal(t, "batch", sink.all(), [][]string{{"a", "b", "c", "d"}})
		sink.step()
		equal(t, "want", w.all(), []int{3})
		equal(t, "batch", sink.all(), [][]string{{"e"}})
		sink.step()
		equal(t, "batch", sink.all(), [][]string{{"0", "1", "2"}})
		sink.step()
		equal(t, "want", w.all(), []int{4})
		equal(t, "batch", sink.all(), [][]string{{"3", "4", "5", "6"}})
	})
}

func TestOverflowWarnsOnceAndSumsUp_STC57(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		log, written := logTo()
		g.log = log
		src, emit := Push[int]("push", Buffer(10, KeepLast))
		sink := newLockstep[int]("lockstep")
		Connect(g, src, sink, Demand(1, 0))
		lines := func() []string { return strings.Split(strings.TrimSpace(written()), "\n") }
		begin := time.Now()
		for i := range 1010 {
			emit.Push(i)
			if i == 10 && len(lines()) != 1 {
				t.Errorf("after the first dropped event: %q, want one line", written())
			}
			if i >= 10 && i%3 == 0 {
				time.Sleep(2 * time.Millisecond)
			}
		}
		if d := time.Since(begin); d >= time.Second {
			t.Fatalf("the pushes took %v, the case says less than a second", d)
		}
		time.Sleep(3 * time.Second)
		if n := len(lines()); n != 2 {
			t.Errorf("%d lines, want a warning and one summary: %q", n, written())
		}
		if sum := sumOf(t, written()); sum != 1000 {
			t.Errorf("the numbers add up to %d, want 1000: %q", sum, written())
		}
		for _, l := range lines() {
			if !strings.Contains(l, "level=WARN") || !strings.Contains(l, "stage=push") || !strings.Contains(l, "policy=keep_last") {
				t.Errorf("line %q", l)
			}
		}
		emit.Push(1, 2) // a second after the last: at once again
		if n := len(lines()); n != 3 {
			t.Errorf("%d lines, want the new overflow at once", n)
		}
		emit.Push(3) // summed up, and written at the end of the source at the latest
		emit.Finish()
		start(t, g)
		synctest.Wait()
		g.Abort(nil)
		g.Wait()
		if sum := sumOf(t, written()); sum != 1003+10-1 {
			t.Errorf("the numbers add up to %d, want 1003 and the 9 of the buffer that the abort discarded: %q", sum, written())
		}
	})
}

func sumOf(t *testing.T, log string) (sum int) {
	t.Helper()
	for _, m := range regexp.MustCompile(`events=(\d+)`).FindAllStringSubmatch(log, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

func TestOnDiscardEventsGetsWhatWasDropped_STC58(t *testing.T) {
	for _, c := range []struct {
		policy Policy
		push   [][]string
		want   [][]string
	}{
		{KeepLast, [][]string{{"1", "2"}, {"3", "4"}, {"5"}, {"6", "7", "8", "9", "10"}}, [][]string{nil, {"1"}, {"2"}, {"3", "4", "5", "6", "7"}}},
		{KeepFirst, [][]string{{"1", "2"}, {"3", "4"}, {"5"}, {"6", "7", "8", "9", "10"}}, [][]string{nil, {"4"}, {"5"}, {"6", "7", "8", "9", "10"}}},
	} {
		bothWays(t, func(t *testing.T, g *Graph) {
			var got []string
			src, emit := Push[string]("push", Buffer(3, c.policy))
			src.OnDiscardEvents(func(lost []string) { got = append(got, lost...) })
			Connect(g, src, newLockstep[string]("sink"), Manual())
			start(t, g)
			for i, p := range c.push {
				got = nil
				if err := emit.Push(p...); err != nil {
					t.Error(err)
				}
				equal(t, fmt.Sprintf("%v: dropped by push %d, when it returns", c.policy, i), got, c.want[i])
			}
		})
	}
}

func TestTryPushTakesWhatFits_STC60(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("push", Buffer(3, KeepLast))
		n, err := emit.TryPush(ints(0, 5)...)
		if n != 3 || err != nil {
			t.Errorf("TryPush: %d, %v; want 3", n, err)
		}
		sink, got := collector[int]("sink")
		Connect(g, src, sink, Demand(6, 2))
		start(t, g)
		synctest.Wait()
		equal(t, "batches", got(), [][]int{{0, 1, 2}})
		// Asked for 6, got 3, not yet at min: 3 are open, and 3 fit besides.
		if n, err := emit.TryPush(ints(3, 20)...); n != 6 || err != nil {
			t.Errorf("TryPush with demand: %d, %v; want open demand and capacity, 6", n, err)
		}
	})
}

func TestGroupingOfPushesChangesNothing(t *testing.T) {
	for _, p := range []Policy{KeepLast, KeepFirst} {
		for capacity := range 6 {
			for cut := range 8 {
				one, all := storeIn(capacity, p, ints(0, 7)), storeIn(capacity, p, ints(0, cut), ints(cut, 7))
				equal(t, fmt.Sprintf("%v capacity %d cut at %d", p, capacity, cut), all, one)
			}
		}
	}
}

func storeIn(capacity int, p Policy, pushes ...[]int) [2][]int {
	src, emit := Push[int]("push", Buffer(capacity, p))
	lost := []int{}
	src.OnDiscardEvents(func(vs []int) { lost = append(lost, vs...) })
	for _, vs := range pushes {
		emit.Push(vs...)
	}
	slices.Sort(lost)
	return [2][]int{src.in.empty(), lost}
}

func TestCapacityZeroKeepsOnlyWhatIsAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		dropped := 0
		src, emit := Push[int]("push", Buffer(0, KeepLast), OnDiscard(func(n int) { dropped += n }))
		sink, got := collector[int]("sink")
		Connect(g, src, sink, Demand(6, 2))
		emit.Push(1, 2)
		equal(t, "dropped without demand", dropped, 2)
		start(t, g)
		synctest.Wait()
		emit.Push(3, 4, 5, 6, 7, 8)
		synctest.Wait()
		equal(t, "dropped with demand", dropped, 2)
		equal(t, "batches", got(), [][]int{{3, 4, 5, 6}, {7, 8}})
	})
}

func TestPushWaitWaitsForRoomInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("push", Buffer(2, KeepLast))
		sink := newLockstep[int]("lockstep")
		Connect(g, src, sink, Demand(1, 0))
		errs := make(chan error, 3)
		for i := range 3 {
			// A pusher: ends when all its events were taken; errs waits for it.
			go func() { errs <- emit.PushWait(context.Background(), 10*i, 10*i+1, 10*i+2) }()
			synctest.Wait()
		}
		if n, err := emit.TryPush(99); n != 0 || err != nil {
			t.Errorf("TryPush while others wait: %d, %v; want 0", n, err)
		}
		start(t, g)
		synctest.Wait()
		var got []int
		for range 9 {
			for _, b := range sink.all() {
				got = append(got, b...)
			}
			sink.step()
		}
		equal(t, "events", got, []int{0, 1, 2, 10, 11, 12, 20, 21, 22})
		for range 3 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestPushWaitEndsWithItsContextAndItsSource(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		_, emit := Push[int]("push", Buffer(2, KeepLast))
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		first, second, third := make(chan error), make(chan error), make(chan error)
		// Three pushers: the first ends with ctx, the second gets its place and
		// ends with the source, as the third does; the channels wait for them.
		go func() { first <- emit.PushWait(ctx, 1, 2, 3) }()
		synctest.Wait()
		go func() { second <- emit.PushWait(context.Background(), 4) }()
		synctest.Wait()
		go func() { third <- emit.PushWait(context.Background(), 5) }()
		synctest.Wait()
		cancel(cause)
		var partial *penstock.PartialError
		if err := <-first; !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || !errors.As(err, &partial) || partial.Accepted != 2 {
			t.Errorf("first: %v, want both causes and 2 accepted", err)
		}
		emit.Finish()
		for _, c := range []chan error{second, third} {
			if err := <-c; !errors.Is(err, penstock.ErrClosed) || errors.As(err, &partial) {
				t.Errorf("waiter: %v, want ErrClosed and nothing accepted", err)
			}
		}
		if err := emit.Push(6); !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("Push after Finish: %v", err)
		}
		if _, err := emit.TryPush(6); !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("TryPush after Finish: %v", err)
		}
		if err := emit.PushWait(t.Context(), 6); !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("PushWait after Finish: %v", err)
		}
	})
}

func TestPushWaitWithAnEndedContextTakesNothing(t *testing.T) {
	src, emit := Push[int]("push", Buffer(2, KeepLast))
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	var partial *penstock.PartialError
	err := emit.PushWait(ctx, 1)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || errors.As(err, &partial) {
		t.Errorf("error %v, want both causes and nothing accepted", err)
	}
	if n := src.Buffered(); n != 0 {
		t.Errorf("%d events buffered, want none", n)
	}
}

func TestDiscardHookThatPanicsFailsTheSource(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("push", Buffer(1, KeepLast), OnDiscard(func(int) { panic("hook") }))
		sink, _ := collector[int]("sink")
		Connect(g, src, sink, Demand(1, 0))
		var p *penstock.PanicError
		if err := emit.Push(1, 2); !errors.As(err, &p) || p.Value != "hook" {
			t.Errorf("Push: %v, want the panic", err)
		}
		if err := g.Run(context.Background()); !errors.As(err, &p) || p.Value != "hook" {
			t.Errorf("Run: %v, want the panic", err)
		}
	})
}

func TestRoomForManyWakesAllThatItHasRoomFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, emit := Push[int]("push", Buffer(4, KeepLast))
		if err := emit.Push(0, 1, 2, 3); err != nil {
			t.Error(err)
		}
		for i := range 3 {
			// A pusher: ends when its event was taken; the bubble waits for it.
			go func() {
				if err := emit.PushWait(context.Background(), 4+i); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		equal(t, "taken", src.in.take(nil, 4), ints(0, 4))
		synctest.Wait()
		equal(t, "buffered then", src.in.take(nil, 4), ints(4, 7))
	})
}

func TestTryPushDoesNotOvertakeAWaiter(t *testing.T) {
	src, emit := Push[int]("push", Buffer(4, KeepLast))
	src.in.waiters = append(src.in.waiters, src.in.waiter()) // woken, and not running yet
	if n, err := emit.TryPush(1); n != 0 || err != nil {
		t.Errorf("TryPush: %d, %v; want 0 while somebody waits", n, err)
	}
}

func TestPromisedDemandIsNotPromisedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		dropped := 0
		more := make(chan struct{})
		src, emit := Hybrid("hybrid", func(_ context.Context, want int, out *Output[int]) error {
			<-more
			out.EmitAll(make([]int, want)...)
			return Done
		}, Buffer(1, KeepFirst), OnDiscard(func(n int) { dropped += n }))
		sink, got := collector[int]("sink")
		Connect(g, src, sink, Demand(6, 0))
		start(t, g)
		synctest.Wait()
		emit.Push(1, 2, 3) // the callback works on all of the demand
		equal(t, "dropped", dropped, 2)
		close(more)
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		equal(t, "events", flat(got()), []int{0, 0, 0, 0, 0, 0, 1})
	})
}

// A random graph has found this: demand that came between serving the buffer
// and calling the pull callback was met by the callback, before the buffer.
func TestDemandThatComesLateFindsTheBufferFirst(t *testing.T) {
	g := NewGraph()
	calls := 0
	src, emit := Hybrid("hybrid", func(_ context.Context, _ int, out *Output[int]) error {
		calls++
		return nil
	})
	sink, _ := collector[int]("sink")
	Connect(g, src, sink, Demand(2, 1))
	if err := g.admitAll(); err != nil {
		t.Fatal(err)
	}
	g.executors()
	g.links[0].adopt()
	emit.Push(1, 2, 3)
	src.serve()
	src.out.edges[0].head.Store(1) // what the consumer does after its first chunk
	src.out.edges[0].ask(1)
	if !src.produce(t.Context(), 0) || calls != 0 {
		t.Errorf("the callback was called %d times while an event was buffered", calls)
	}
	src.serve()
	if n := src.Buffered(); n != 0 {
		t.Errorf("%d events buffered, want them sent", n)
	}
}

func TestBufferOptionsAreChecked(t *testing.T) {
	sink := func(o ...Option) *Sink[int] {
		return NewSink("sink", func(context.Context, []int) error { return nil }, o...)
	}
	src := func(o ...Option) *Source[int] { s, _ := Push[int]("push", o...); return s }
	for name, c := range map[string]struct {
		src   *Source[int]
		sink  *Sink[int]
		field string
	}{
		"negative capacity":   {src(Buffer(-1, KeepLast)), sink(), "Buffer"},
		"unknown policy":      {src(Buffer(1, 7)), sink(), "Buffer"},
		"buffer of a sink":    {src(), sink(Buffer(1, KeepLast)), "Buffer"},
		"OnDiscard of a sink": {src(), sink(OnDiscard(func(int) {})), "OnDiscard"},
		"negative drain":      {src(Drain(-1)), sink(), "Drain"},
		"drain of a sink":     {src(), sink(Drain(1)), "Drain"},
	} {
		g := NewGraph()
		Connect(g, c.src, c.sink)
		var field *penstock.FieldError
		if err := g.Start(t.Context()); !errors.As(err, &field) || field.Field != c.field {
			t.Errorf("%s: %v, want an error that names %s", name, err, c.field)
		}
	}
}

// Events of size 0 take no memory, so nothing but a counter bounds them.
func TestBufferCountsAsFarAsAnIntGoes(t *testing.T) {
	dropped := 0
	src, emit := Push[struct{}]("push", Buffer(Unbounded, KeepFirst), OnDiscard(func(n int) { dropped += n }))
	half := make([]struct{}, math.MaxInt/2+5)
	for range 2 {
		if err := emit.Push(half...); err != nil {
			t.Fatal(err)
		}
	}
	if n := src.in.buf.len(); n != math.MaxInt || dropped != 9 {
		t.Errorf("%d events kept and %d dropped, want %d and 9", n, dropped, math.MaxInt)
	}
	src.in.take(nil, math.MaxInt-1)
	emit.Push(half...)
	if n := src.in.buf.len(); n != math.MaxInt/2+6 {
		t.Errorf("%d events kept, want %d", n, math.MaxInt/2+6)
	}
}
