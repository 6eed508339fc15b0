package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

// An ev is an event of a random graph: which source made it, and its number
// there. Pad tells a cleared slab from event 0 of source 0.
type ev struct {
	source, n int
	pad       *int
}

var padding = new(int)

// A sketch is a random graph: sources, then layers of gates, then sinks; every
// stage is connected to some stages of the layer before.
type sketch struct {
	sources []sourcePlan
	gates   [][]gatePlan
	sinks   []stagePlan
	fuse    bool
	poison  bool
	fails   int // the sink that fails, -1 for none
	failAt  int // after so many events
}

type sourcePlan struct {
	events, factor, push int // push: events that come by the emitter
	late                 bool
}

type stagePlan struct {
	from  []int // indices in the layer before
	max   []int
	min   []int
	yield int // lets others run before every n-th batch
}

type gatePlan struct {
	stagePlan
	kind int // 0 copy, 1 forward, 2 Map, 3 Filter, 4 forward a part and emit the rest
	quit int // 0, or ends after so many calls, in a call that forwards and panics
}

func drawStage(t *rapid.T, before int, mandatory int) stagePlan {
	p := stagePlan{yield: rapid.IntRange(0, 3).Draw(t, "yield")}
	for i := range before {
		if i == mandatory || rapid.IntRange(0, 2).Draw(t, "connected") == 0 {
			p.from = append(p.from, i)
			m := rapid.IntRange(0, 12).Draw(t, "max")
			if m == 0 {
				p.max, p.min = append(p.max, 0), append(p.min, 0)
				continue // defaults
			}
			p.max = append(p.max, m)
			p.min = append(p.min, rapid.IntRange(0, m-1).Draw(t, "min"))
		}
	}
	return p
}

// consumeAll connects what nobody in the next layer has connected to: a stage
// without a consumer would keep events.
func consumeAll(before, width int, at func(i int) *stagePlan) {
	for i := range before {
		used := false
		for k := range width {
			used = used || slices.Contains(at(k).from, i)
		}
		if !used {
			p := at(i % width)
			p.from, p.max, p.min = append(p.from, i), append(p.max, 5), append(p.min, 1)
		}
	}
}

func drawSketch(t *rapid.T) sketch {
	s := sketch{fuse: rapid.Bool().Draw(t, "fuse"), poison: rapid.Bool().Draw(t, "poison"), fails: -1}
	for range rapid.IntRange(1, 3).Draw(t, "sources") {
		s.sources = append(s.sources, sourcePlan{
			events: rapid.IntRange(0, 200).Draw(t, "events"),
			factor: rapid.IntRange(1, 3).Draw(t, "factor"),
			push:   rapid.IntRange(0, 50).Draw(t, "push"),
			late:   rapid.Bool().Draw(t, "late"),
		})
	}
	before := len(s.sources)
	for range rapid.IntRange(0, 3).Draw(t, "layers") {
		var layer []gatePlan
		width := rapid.IntRange(1, 3).Draw(t, "width")
		for i := range width {
			layer = append(layer, gatePlan{drawStage(t, before, i%before), rapid.IntRange(0, 4).Draw(t, "kind"), max(0, rapid.IntRange(-60, 20).Draw(t, "quit"))})
		}
		consumeAll(before, width, func(i int) *stagePlan { return &layer[i].stagePlan })
		s.gates = append(s.gates, layer)
		before = width
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "sinks") {
		s.sinks = append(s.sinks, drawStage(t, before, i%before))
	}
	consumeAll(before, len(s.sinks), func(i int) *stagePlan { return &s.sinks[i] })
	if rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
		s.fails = rapid.IntRange(0, len(s.sinks)-1).Draw(t, "failing sink")
		s.failAt = rapid.IntRange(0, 100).Draw(t, "fail at")
	}
	return s
}

// A built graph with what is observed of it.
type built struct {
	*Graph
	t    *rapid.T
	got  [][]ev // per sink
	bad  atomic.Pointer[string]
	kept atomic.Int64 // events that filters dropped
}

func (b *built) fault(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	b.bad.CompareAndSwap(nil, &s)
}

func (s sketch) build(t *rapid.T) *built {
	opts := []GraphOption{Fuse(s.fuse), Logger(slog.New(slog.DiscardHandler))}
	if s.poison {
		opts = append(opts, withPoison())
	}
	b := &built{Graph: NewGraph(opts...), t: t, got: make([][]ev, len(s.sinks))}
	var outs []Outleter[ev]
	for i, p := range s.sources {
		outs = append(outs, b.source(i, p))
	}
	for l, layer := range s.gates {
		var next []Outleter[ev]
		for i, p := range layer {
			g := b.gate(fmt.Sprintf("gate %d.%d", l, i), p)
			b.connect(outs, g, p.stagePlan)
			next = append(next, g)
		}
		outs = next
	}
	for i, p := range s.sinks {
		b.connect(outs, b.sink(i, p, s), p)
	}
	return b
}

func (b *built) connect(outs []Outleter[ev], to Inleter[ev], p stagePlan) {
	for k, i := range p.from {
		opts := []SubOption{CancelMode(Transient)}
		if p.max[k] > 0 {
			opts = append(opts, Demand(p.max[k], p.min[k]))
		}
		Connect(b.Graph, outs[i], to, opts...)
	}
}

func (b *built) source(i int, p sourcePlan) *Source[ev] {
	n := p.push
	src, emit := Hybrid(fmt.Sprintf("source %d", i), func(_ context.Context, want int, out *Output[ev]) error {
		if want <= 0 {
			b.fault("source %d was asked for %d", i, want)
		}
		for range want * p.factor {
			if n >= p.push+p.events {
				break
			}
			out.Emit(ev{i, n, padding})
			n++
		}
		if n >= p.push+p.events && (!p.late || out.Len() == 0) {
			return Done
		}
		return nil
	}, Buffer(Unbounded, KeepLast))
	for k := range p.push {
		if err := emit.Push(ev{i, k, padding}); err != nil {
			b.fault("push: %v", err)
		}
	}
	return src
}

func (b *built) gate(name string, p gatePlan) middle {
	switch p.kind {
	case 2:
		return Map(func(v ev) ev { return v })
	case 3:
		return Filter(func(v *ev) bool {
			if v.n%3 != 0 {
				return true
			}
			b.kept.Add(1)
			return false
		})
	}
	var g *Gate[ev, ev]
	calls := 0
	g = NewGate(name, func(_ context.Context, in []ev, out *Output[ev]) error {
		b.observe(g.in.edges, p.stagePlan)
		if calls++; calls == p.quit {
			out.Forward(in)
			panic("quit")
		}
		switch p.kind {
		case 0:
			out.EmitAll(in...)
		case 1:
			out.Forward(in)
		case 4:
			half := len(in) / 2
			out.Forward(in[:half])
			for _, v := range in[half:] {
				out.Emit(v)
			}
		}
		return nil
	})
	return g
}

// middle is a gate of the random graph, whatever made it.
type middle interface {
	Inleter[ev]
	Outleter[ev]
}

var errProp = fmt.Errorf("the sink that fails")

func (b *built) sink(i int, p stagePlan, s sketch) *Sink[ev] {
	var k *Sink[ev]
	k = NewSink(fmt.Sprintf("sink %d", i), func(_ context.Context, in []ev) error {
		b.observe(k.in.edges, p)
		for _, v := range in {
			if v.pad != padding {
				b.fault("sink %d: a slab was cleared under it: %v", i, in)
			}
		}
		b.got[i] = append(b.got[i], in...)
		if s.fails == i && len(b.got[i]) >= s.failAt {
			return errProp
		}
		return nil
	})
	return k
}

// observe checks P-4 and P-5 on the consumer's side, at every callback.
func (b *built) observe(edges []*edge[ev], p stagePlan) {
	for _, e := range edges {
		sent, asked := e.sent.Load(), e.asked.Load() // in this order: asked only grows
		if sent > asked {
			b.fault("delivered %d of %d asked", sent, asked)
		}
		if o := e.window.Open(); o < 0 || o > e.window.Max() {
			b.fault("open demand %d of at most %d", o, e.window.Max())
		}
	}
	for range p.yield {
		runtime.Gosched()
	}
}

// TestRandomGraphsLoseNothing holds P-1 to P-5 for linear graphs, fan-in and
// fan-out with every way of emitting.
func TestRandomGraphsLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSketch(t)
		b := s.build(t)
		err := b.Run(context.Background())
		if bad := b.bad.Load(); bad != nil {
			t.Fatal(*bad)
		}
		checkConservation(t, b.Graph)
		seen := map[[2]int]int{}
		for _, got := range b.got {
			for _, v := range got {
				seen[[2]int{v.source, v.n}]++
			}
		}
		for id, n := range seen {
			if n > 1 {
				t.Fatalf("event %v arrived %d times (P-2)", id, n)
			}
		}
		if err != nil { // a stage that was told to has failed: the rest is counted as undelivered
			var p *penstock.PanicError
			if !errors.Is(err, errProp) && !(errors.As(err, &p) && p.Value == "quit") {
				t.Fatal(err)
			}
			return
		}
		want := 0
		for _, p := range s.sources {
			want += p.events + p.push
		}
		if got := len(seen) + int(b.kept.Load()); got != want {
			t.Fatalf("%d events arrived or were filtered, want %d (P-2)", got, want)
		}
		if s.linear() {
			for _, got := range b.got {
				last := map[int]int{}
				for _, v := range got {
					if before, ok := last[v.source]; ok && v.n <= before {
						t.Fatalf("source %d: event %d after %d (P-3)", v.source, v.n, before)
					}
					last[v.source] = v.n
				}
			}
		}
	})
}

// linear reports whether every event has one way through the graph, so that
// order is kept per producer.
func (s sketch) linear() bool {
	for _, l := range s.gates {
		if len(l) > 1 {
			return false
		}
	}
	return true
}
