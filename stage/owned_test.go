package stage

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
)

// An owner keeps its batches as they came, whatever goes on after it.
func TestOwnedBatchesStayAsTheyAre(t *testing.T) {
	for name, build := range map[string]func(g *Graph, sink *Sink[*int]){
		"source": func(g *Graph, sink *Sink[*int]) { Connect(g, pointing(400), sink, Demand(7, 2)) },
		"helper": func(g *Graph, sink *Sink[*int]) { // which passes the source's array on
			keep := Filter(func(**int) bool { return true })
			Connect(g, pointing(400), keep, Demand(7, 2))
			Connect(g, keep, sink)
		},
		"beside one that is none": func(g *Graph, sink *Sink[*int]) {
			src := pointing(400).Dispatch(RoundRobin[*int]())
			Connect(g, src, sink, Demand(7, 2))
			Connect(g, src, Discard[*int](), Demand(5, 1))
		},
		"broadcast": func(g *Graph, sink *Sink[*int]) {
			src := pointing(400).Broadcast()
			Connect(g, src, sink, Demand(7, 2))
			n := 0
			Connect(g, src, NewSink("reader", func(_ context.Context, in []*int) error {
				for _, v := range in {
					if v == nil || *v != n {
						t.Errorf("event %d is %v", n, v)
					}
					n++
				}
				return nil
			}), Demand(5, 1))
		},
		"partition": func(g *Graph, sink *Sink[*int]) {
			src := pointing(400).Dispatch(Partition(2, func(v *int) int { return *v }))
			Connect(g, src.Out().Partition(0), sink, Demand(7, 2))
			Connect(g, src.Out().Partition(1), Discard[*int](), Demand(5, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, g *Graph) {
				var kept, copies [][]*int
				sink := NewSink("owner", func(_ context.Context, in []*int) error {
					kept, copies = append(kept, in), append(copies, slices.Clone(in))
					return nil
				}, Owned())
				build(g, sink)
				if err := g.Run(t.Context()); err != nil {
					t.Fatal(err)
				}
				if len(copies) == 0 {
					t.Fatal("no batches")
				}
				for i, b := range kept {
					if !slices.Equal(b, copies[i]) {
						t.Fatalf("batch %d is another now", i)
					}
					clear(b) // it is the owner's
				}
				checkConservation(t, g)
			})
		})
	}
}

// pointing emits pointers to n numbers from 0.
func pointing(n int) *Source[*int] {
	at := 0
	return Pull("source", func(_ context.Context, want int, out *Output[*int]) error {
		for range want {
			if at == n {
				return Done
			}
			v := at
			out.Emit(&v)
			at++
		}
		return nil
	})
}

func TestOwnedIsForSinks(t *testing.T) {
	for name, connect := range map[string]func(g *Graph){
		"source": func(g *Graph) { Connect(g, Empty[int]("empty", Owned()), Discard[int]()) },
		"gate": func(g *Graph) {
			p := Pass[int]("pass", Owned())
			Connect(g, Empty[int]("empty"), p)
			Connect(g, p, Discard[int]())
		},
		"pool": func(g *Graph) {
			Connect(g, Empty[int]("empty"), NewPool("pool", 1, func(context.Context, int) error { return nil }, Owned()))
		},
	} {
		g := NewGraph()
		connect(g)
		if err := g.Run(t.Context()); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "Owned") {
			t.Errorf("%s: %v, want an error that names Owned", name, err)
		}
	}
}

// A batch that was kept reads as zeros from the next call on (C.5.6).
func TestPoisonedBatchesReadAsZeros(t *testing.T) {
	for _, broadcast := range []bool{false, true} {
		bubble(t, func(t *testing.T, g *Graph) {
			src := FromSlice("source", ints(1, 200))
			if broadcast {
				src.Broadcast()
			}
			var kept [][]int
			wrong := 0
			sink := NewSink("keeps", func(_ context.Context, in []int) error {
				for _, b := range kept {
					if slices.ContainsFunc(b, func(v int) bool { return v != 0 }) {
						wrong++
					}
				}
				if kept = append(kept, in); len(kept) > 1 && broadcast { // cleared when its producer takes it back
					kept = kept[len(kept)-1:]
				}
				return nil
			})
			Connect(g, src, sink, Demand(3, 1))
			if err := g.Run(t.Context()); err != nil {
				t.Error(err)
			}
			if !broadcast {
				equal(t, "batches of before that were not zero", wrong, 0)
				equal(t, "batches", len(kept) > 60, true)
			}
		}, Poison())
	}
}

// A callback that writes to a batch of before ends the graph, soon or at its end.
func TestWritingToAPoisonedBatchEndsTheGraph(t *testing.T) {
	for name, c := range map[string]struct{ batches, at int }{"soon": {1 << 20, 3}, "at the end": {5, 3}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				n := 0
				src := Pull("source", func(_ context.Context, want int, out *Output[int]) error {
					if n++; n > c.batches {
						return Done
					}
					out.Emit(n)
					return nil
				})
				var first []int
				calls := 0
				sink := NewSink("writes", func(_ context.Context, in []int) error {
					if calls++; calls == 1 {
						first = in
					}
					if calls == c.at { // the source waits for demand, and took the first batch back before
						first[0] = -1
					}
					return nil
				})
				Connect(g, src, sink, Demand(1, 0))
				err := g.Run(t.Context())
				if !errors.Is(err, ErrBatchChanged) || !strings.Contains(err.Error(), `"source"`) || !strings.Contains(err.Error(), `"writes"`) {
					t.Errorf("Run: %v, want ErrBatchChanged and both names", err)
				}
				if calls > 5+2*retiredMost {
					t.Errorf("after %d batches only", calls)
				}
			}, Poison())
		})
	}
}

// Nobody who keeps to the rules is told anything.
func TestPoisonFindsNothingInOperators(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		g.once = true
		src := FromSlice("source", ints(0, 5000)).Broadcast()
		keep, tap := Filter(func(v *int) bool { return *v%3 > 0 }), Tap(func(v *int) { *v++ })
		batch, flat := BatchN[int](7), Unbatch[int]()
		owner := NewSink("owner", func(_ context.Context, in []int) error {
			clear(in)
			return nil
		}, Owned())
		Connect(g, src, keep, Demand(13, 4))
		Connect(g, keep, tap)
		Connect(g, tap, batch)
		Connect(g, batch, flat)
		Connect(g, flat, owner, Demand(9, 5))
		Connect(g, src, Discard[int](), Demand(5, 1))
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		checkConservation(t, g)
	})
}

func TestWriteToWritesABatchAtATime(t *testing.T) {
	bothWays(t, func(t *testing.T, g *Graph) {
		var got bytes.Buffer
		calls := 0
		w := writerFunc(func(p []byte) (int, error) { calls++; return got.Write(p) })
		up := Map(strings.ToUpper)
		Connect(g, Lines("lines", strings.NewReader("a\nb\nc\nd\ne\n")), up)
		Connect(g, up, WriteTo[string](w, "\n"), Demand(4, 2))
		if err := g.Run(t.Context()); err != nil {
			t.Error(err)
		}
		equal(t, "written", got.String(), "A\nB\nC\nD\nE\n")
		if calls > 5 {
			t.Errorf("%d calls of Write", calls)
		}
	})
	for name, w := range map[string]struct {
		io.Writer
		want error
	}{
		"fails": {writerFunc(func([]byte) (int, error) { return 0, errBoom }), errBoom},
		"short": {writerFunc(func(p []byte) (int, error) { return len(p) - 1, nil }), io.ErrShortWrite},
		"nil":   {nil, penstock.ErrInvalid},
	} {
		bubble(t, func(t *testing.T, g *Graph) {
			sink := WriteTo[[]byte](w.Writer, "")
			Connect(g, FromSlice("source", [][]byte{[]byte("ab"), []byte("c")}), sink)
			if err := g.Run(t.Context()); !errors.Is(err, w.want) {
				t.Errorf("%s: %v, want %v", name, err, w.want)
			}
			if s := g.Stats()[1]; name != "nil" && s.Failed != s.In {
				t.Errorf("%s: %+v", name, s)
			}
		})
	}
}
