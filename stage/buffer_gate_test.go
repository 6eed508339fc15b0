package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

// held connects push -> gate -> lockstep (1/0): one event is in the sink's
// hands, and all that follows is surplus.
func held[Out any](t *testing.T, g *Graph, gate *Gate[int, Out]) (*Emitter[int], *lockstep[Out]) {
	t.Helper()
	src, emit := Push[int]("source")
	sink := newLockstep[Out]("sink")
	Connect(g, src, gate, Demand(4, 0))
	Connect(g, gate, sink, Demand(1, 0))
	start(t, g)
	emit.Push(0)
	synctest.Wait()
	return emit, sink
}

func TestBufferGateByPolicy(t *testing.T) {
	for _, c := range []struct {
		policy  Policy
		want    []int
		dropped int64
	}{
		{KeepLast, []int{0, 8, 9, 10}, 7},
		{KeepFirst, []int{0, 1, 2, 3}, 7},
		{DropAll, []int{0, 10}, 9},
	} {
		t.Run(c.policy.String(), func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				emit, sink := held(t, g, BufferGate[int](3, c.policy))
				for i := range 10 {
					emit.Push(i + 1)
				}
				synctest.Wait()
				s := stat(t, g, 1)
				equal(t, "dropped", s.Dropped, c.dropped)
				equal(t, "in", s.In, s.Emitted+s.Dropped+s.Held)
				for range len(c.want) - 1 {
					sink.step()
				}
				equal(t, "out", slices.Concat(sink.all()...), c.want)
				sink.step()
			})
		})
	}
}

func TestBufferGateThatFailsWhenFull(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		emit, sink := held(t, g, BufferGate[int](3, Fail))
		emit.Push(1, 2, 3)
		synctest.Wait()
		emit.Push(4)
		synctest.Wait()
		sink.go1 <- struct{}{}
		if err := g.Wait(); !errors.Is(err, penstock.ErrFull) {
			t.Errorf("Wait returned %v", err)
		}
		s := stat(t, g, 1)
		equal(t, "in", s.In, s.Emitted+s.Failed+s.Dropped)
		checkConservation(t, g)
	})
}

func TestBufferGateThatWaits(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var w wants
		sink := newLockstep[int]("sink")
		gate := BufferGate[int](5, Wait)
		Connect(g, counter(&w, 1), gate, Demand(4, 2))
		Connect(g, gate, sink, Demand(1, 0))
		start(t, g)
		synctest.Wait()
		// One is in the sink's hands; 5 and less than a chunk of 2 are held.
		s := stat(t, g, 1)
		equal(t, "in", s.In, int64(6))
		equal(t, "held", s.Held, int64(5))
		w.all()
		sink.step()
		sink.step()
		equal(t, "out", slices.Concat(sink.all()...), ints(0, 3))
		if len(w.all()) == 0 {
			t.Error("it asks for nothing although there is room")
		}
	})
}

// A burst passes through a buffer as far as it has room, while a plain gate
// makes its producer wait after one chunk.
func TestBufferGateTakesABurst(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		emit, sink := held(t, g, BufferGate[int](100, Wait))
		emit.Push(ints(1, 60)...)
		synctest.Wait()
		equal(t, "held", stat(t, g, 1).Held, int64(59))
		for range 59 {
			sink.step()
		}
		equal(t, "out", slices.Concat(sink.all()...), ints(0, 60))
		emit.Finish()
		sink.go1 <- struct{}{}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		checkConservation(t, g)
	})
}

func TestBufferGateLogsWhatItDrops(t *testing.T) {
	log, lines := logTo()
	bubble(t, func(t *testing.T, g *Graph) {
		emit, sink := held(t, g, BufferGate[int](2, KeepLast))
		emit.Push(1, 2, 3, 4, 5)
		synctest.Wait()
		sink.step()
	}, Logger(log))
	sum := 0
	for line := range strings.Lines(lines()) {
		if n := 0; strings.Contains(line, "reason=buffer_full policy=keep_last") {
			fmt.Sscanf(line[strings.Index(line, "events="):], "events=%d", &n)
			sum += n
		}
	}
	equal(t, "logged", sum, 3)
}

func TestBufferGateTellsItsHook(t *testing.T) {
	log, lines := logTo()
	bubble(t, func(t *testing.T, g *Graph) {
		var told atomic.Int64
		emit, sink := held(t, g, BufferGate[int](2, KeepFirst, OnDiscard(func(n int) { told.Add(int64(n)) })))
		emit.Push(1, 2, 3, 4, 5)
		synctest.Wait()
		equal(t, "told", told.Load(), int64(3))
		sink.step()
	}, Logger(log))
	if out := lines(); strings.Contains(out, "buffer_full") {
		t.Errorf("log: %s", out)
	}
}

// How events were grouped makes no difference to what a buffer keeps.
func TestBufferGateIsIndependentOfGrouping(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 6).Draw(t, "capacity")
		policy := rapid.SampledFrom([]Policy{KeepLast, KeepFirst, DropAll}).Draw(t, "policy")
		want := rapid.IntRange(0, 5).Draw(t, "want")
		run := func(chunks [][]int) (kept []int, lost losses) {
			b := &bufferGate[int]{capacity: n, policy: policy}
			b.dropped = func(int) {}
			left := want
			b.want = func() int { return left }
			for _, c := range chunks {
				var out Output[int]
				if err := b.take(context.Background(), c, &out); err != nil {
					t.Fatal(err)
				}
				kept = append(kept, out.buf...)
				left -= len(out.buf)
				lost.dropped += out.lost.dropped
				if b.held() > n {
					t.Fatalf("%d events are held", b.held())
				}
			}
			kept = b.events.popFront(kept, b.held())
			b.close()
			return kept, lost
		}
		all := ints(0, rapid.IntRange(0, 30).Draw(t, "events"))
		var one [][]int
		for i := range all {
			one = append(one, all[i:i+1])
		}
		var some [][]int
		for rest := all; len(rest) > 0; {
			k := rapid.IntRange(1, len(rest)).Draw(t, "chunk")
			some = append(some, rest[:k])
			rest = rest[k:]
		}
		kept1, lost1 := run(one)
		kept2, lost2 := run(some)
		if !slices.Equal(kept1, kept2) || lost1 != lost2 {
			t.Fatalf("one by one %v %v, in groups %v %v", kept1, lost1, kept2, lost2)
		}
		if len(kept1)+lost1.dropped != len(all) {
			t.Fatalf("%d kept and %d dropped of %d", len(kept1), lost1.dropped, len(all))
		}
	})
}

func TestConflateJoinsWhileNobodyAsks(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		gate := Conflate(func(v int) []int { return []int{v} }, func(to *[]int, v int) { *to = append(*to, v) })
		emit, sink := held(t, g, gate)
		for i := range 9 {
			emit.Push(i + 1)
		}
		synctest.Wait()
		equal(t, "held", stat(t, g, 1).Held, int64(9))
		sink.step()
		emit.Push(10)
		emit.Finish()
		synctest.Wait()
		sink.step()
		sink.go1 <- struct{}{}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		equal(t, "out", slices.Concat(sink.all()...), [][]int{{0}, ints(1, 10), {10}})
		checkConservation(t, g)
	})
}

// With demand for every event, nothing is joined.
func TestConflateIsTransparentWithDemand(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		gate := Conflate(func(v int) int { return v }, func(to *int, v int) { *to += 1000 })
		equal(t, "out", through(t, g, ints(0, 40), gate, Demand(100, 0)), ints(0, 40))
	})
}

func TestWireTapNeverSlowsTheMainFlow(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		side, to := Push[int]("side", Buffer(3, KeepLast))
		lost := 0
		side.OnDiscardEvents(func(vs []int) { lost += len(vs) })
		slow := newLockstep[int]("slow")
		sink, got := collector[int]("sink")
		src, emit := Push[int]("source")
		tap := WireTap(to)
		Connect(g, side, slow, Demand(1, 0))
		Connect(g, src, tap)
		Connect(g, tap, sink)
		start(t, g)
		for i := range 10 {
			emit.Push(i)
			synctest.Wait()
		}
		equal(t, "main", slices.Concat(got()...), ints(0, 10))
		emit.Finish()
		synctest.Wait()
		for range 4 {
			slow.step()
		}
		if err := g.Wait(); err != nil { // the side has ended with the tap
			t.Error(err)
		}
		equal(t, "side", slices.Concat(slow.all()...), []int{0, 7, 8, 9})
		equal(t, "lost", lost, 6)
		checkConservation(t, g)
	})
}

func TestWireTapOfAnEndedSideGoesOn(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		_, to := Push[int]("side")
		to.Finish()
		equal(t, "main", through(t, g, ints(0, 10), WireTap(to)), ints(0, 10))
	})
}

func TestWireTapPassesItsErrorOn(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		side, to := Push[int]("side")
		tap := WireTap(to)
		var ended error
		aside, sink := NewGraph(), NewSink("aside", func(context.Context, []int) error { return nil })
		Connect(aside, side, sink)
		main, _ := collector[int]("main")
		Connect(g, FailedWith[int]("source", errBoom), tap)
		Connect(g, tap, main)
		if err := g.Run(context.Background()); !errors.Is(err, errBoom) {
			t.Errorf("Run returned %v", err)
		}
		if ended = aside.Run(context.Background()); !errors.Is(ended, errBoom) {
			t.Errorf("the side ended with %v", ended)
		}
	})
}

// Demand may rise between two looks, while something is held: what is asked for
// is not dropped. It used to count as what nobody had asked for.
func TestBufferGateDropsNothingThatIsAskedFor(t *testing.T) {
	for _, policy := range []Policy{KeepLast, KeepFirst, DropAll, Fail} {
		want := 0
		g := BufferGate[int](2, policy)
		b := g.drv.(*bufferGate[int])
		b.want, b.dropped = func() int { return want }, func(n int) { t.Errorf("%v: %d events are dropped", policy, n) }
		var out Output[int]
		must(t, b.take(t.Context(), []int{1}, &out))
		want = 3
		must(t, b.take(t.Context(), []int{2, 3, 4, 5}, &out))
		equal(t, policy.String(), out.buf, []int{1, 2, 3})
		equal(t, "held", b.held(), 2)
	}
}
