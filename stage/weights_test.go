package stage

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

func itself(v *int) int { return *v }

func TestBufferIsBoundedByWeight(t *testing.T) {
	for name, c := range map[string]struct {
		policy     Policy
		push, want []int
	}{
		"keep last":             {KeepLast, []int{3, 3, 3, 2, 5}, []int{3, 2, 5}},
		"keep first":            {KeepFirst, []int{3, 3, 3, 2, 5}, []int{3, 3, 3}},
		"a lighter one fits":    {KeepFirst, []int{6, 5, 4}, []int{6, 4}},
		"a heavy one alone":     {KeepLast, []int{1, 2, 30}, []int{30}},
		"a heavy one keeps all": {KeepFirst, []int{30, 1, 2}, []int{30}},
		"nothing behind it":     {KeepLast, []int{30, 1, 2}, []int{1, 2}},
		"no weight":             {KeepFirst, []int{10, 0, -5, 1}, []int{10, 0, -5}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				dropped := 0
				src, emit := Push[int]("source", Buffer(100, c.policy), OnDiscard(func(n int) { dropped += n }))
				src.BufferWeight(10, itself)
				sink, got := collector[int]("sink")
				emit.Push(c.push...)
				Connect(g, src, sink)
				start(t, g)
				synctest.Wait()
				equal(t, "kept", slices.Concat(got()...), c.want)
				equal(t, "dropped", dropped, len(c.push)-len(c.want))
			})
		})
	}
}

// What is asked for has no weight.
func TestWeightOfWhatIsAskedForDoesNotCount(t *testing.T) {
	in := intake[int]{capacity: 100, heavy: &weights[int]{limit: 10}}
	in.setOpen(2)
	for range 2 {
		in.store([]int{9, 9}, []int{9, 9}) // two are asked for
	}
	equal(t, "held", in.buf.len(), 3) // one alone beyond them
	equal(t, "surplus", in.heavy.surplus, 9)
	in.setOpen(0)
	equal(t, "surplus when demand has gone", in.heavy.surplus, 27)
	in.setOpen(3)
	equal(t, "surplus when it has come", in.heavy.surplus, 0)
	equal(t, "taken", in.take(nil, 3), []int{9, 9, 9})
}

// TestWeighedBufferModel compares the buffer with a plain list, for any order of
// pushes, demand and takes, and however events are grouped.
func TestWeighedBufferModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit, capacity := rapid.IntRange(1, 12).Draw(t, "limit"), rapid.IntRange(0, 8).Draw(t, "capacity")
		policy := rapid.SampledFrom([]Policy{KeepLast, KeepFirst}).Draw(t, "policy")
		in := intake[int]{capacity: capacity, policy: policy, wantLost: true, heavy: &weights[int]{limit: limit}}
		var model, lost []int
		open := 0
		weight := func() (w int) {
			for _, v := range model[min(open, len(model)):] {
				w += v
			}
			return w
		}
		fits := func(v int) bool {
			n := len(model)
			return n < open || n < open+capacity && (n == open || weight()+v <= limit)
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				open = rapid.IntRange(0, 6).Draw(t, "open")
				in.setOpen(open)
			case 1:
				got := in.take(nil, open)
				n := min(open, len(model))
				if !slices.Equal(got, model[:n]) {
					t.Fatalf("took %v of %v", got, model)
				}
				model, open = model[n:], open-n
			case 2:
				vs := rapid.SliceOfN(rapid.IntRange(0, 15), 0, 5).Draw(t, "try")
				want := 0
				for want < len(vs) && fits(vs[want]) {
					model = append(model, vs[want])
					want++
				}
				if n, _ := in.tryStore(vs, vs); n != want {
					t.Fatalf("%d taken of %v, want %d", n, vs, want)
				}
			default:
				vs := rapid.SliceOfN(rapid.IntRange(0, 15), 0, 5).Draw(t, "push")
				lost = nil
				for _, v := range vs {
					for policy == KeepLast && !fits(v) && len(model) > 0 {
						lost = append(lost, model[0])
						model = model[1:]
					}
					if fits(v) {
						model = append(model, v)
					} else {
						lost = append(lost, v)
					}
				}
				if n, got, _ := in.store(vs, vs); n != len(lost) || !slices.Equal(got, lost) {
					t.Fatalf("lost %v, want %v", got, lost)
				}
			}
			if in.heavy.surplus != weight() || in.buf.len() != len(model) || in.heavy.of.len() != len(model) || int(in.size.Load()) != len(model) {
				t.Fatalf("surplus %d of %d events, want %d of %d", in.heavy.surplus, in.buf.len(), weight(), len(model))
			}
		}
	})
}

// PushWait waits for weight, also for that of a single heavy event, in order.
func TestPushWaitWaitsForWeight(t *testing.T) {
	bubble(t, func(t *testing.T, g *Graph) {
		src, emit := Push[int]("source")
		src.BufferWeight(10, itself)
		sink := newLockstep[int]("sink")
		Connect(g, src, sink, Demand(1, 0))
		start(t, g)
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- emit.PushWait(context.Background(), 4, 5, 5, 30, 1) }() // ends when all are in
		synctest.Wait()
		equal(t, "in hands and buffered", src.Buffered(), 2)
		n, err := emit.TryPush(1)
		equal(t, "behind it", []any{n, err}, []any{0, nil})
		var got []int
		for range 5 {
			synctest.Wait()
			got = append(got, slices.Concat(sink.all()...)...)
			sink.step()
		}
		equal(t, "error", <-done, nil)
		equal(t, "order", got, []int{4, 5, 5, 30, 1})
	})
}

func TestWeighThatPanicsFailsTheSource(t *testing.T) {
	for how, crash := range map[string]func(){"panic": func() { panic("boom") }, "exit": runtime.Goexit} {
		for name, of := range map[string]func(weigh func(*int) int) *Source[int]{
			"push": func(weigh func(*int) int) *Source[int] {
				src, emit := Push[int]("source")
				src.BufferWeight(10, weigh)
				done := make(chan struct{})
				go func() { defer close(done); emit.Push(1, 2) }() // Goexit ends it
				<-done
				return src
			},
			"pull": func(weigh func(*int) int) *Source[int] {
				return Pull("source", func(_ context.Context, want int, out *Output[int]) error {
					out.EmitAll(make([]int, want+3)...)
					return nil
				}).BufferWeight(10, weigh)
			},
			"func": func(weigh func(*int) int) *Source[int] {
				return Func("source", func(_ context.Context, yield func(int) bool) error {
					for yield(1) {
					}
					return nil
				}).BufferWeight(10, weigh)
			},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				bubble(t, func(t *testing.T, g *Graph) {
					src := of(func(*int) int { crash(); return 1 })
					sink, _ := collector[int]("sink")
					Connect(g, src, sink)
					var p *penstock.PanicError
					if err := g.Run(context.Background()); !errors.As(err, &p) {
						t.Errorf("error: %v", err)
					}
					checkConservation(t, g)
				})
			})
		}
	}
}

func TestBufferWeightIsChecked(t *testing.T) {
	for name, src := range map[string]*Source[int]{
		"limit":    Never[int]("source").BufferWeight(0, itself),
		"function": Never[int]("source").BufferWeight(1, nil),
	} {
		g := NewGraph()
		sink, _ := collector[int]("sink")
		Connect(g, src, sink)
		if err := g.Start(context.Background()); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
