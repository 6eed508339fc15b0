package stage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A mark is an event of a web: which event of which source it stems from, and
// which number it has among those that the last stage has emitted.
type mark struct {
	source, n int
	seq       int
	pad       *int // tells a cleared slab from a mark
}

// A web is a random graph with every dispatcher, manual and automatic demand
// and, when it churns, subscriptions that come and go.
type web struct {
	fuse, poison bool
	sources      []webSource
	layers       [][]webGate
	sinks        []webStage
	churn        int   // how often a subscription is cancelled and made anew
	seed         int64 // of the choice which
}

type webSource struct {
	events, surplus int
	disp            int
}

// How a producer dispatches.
const (
	toGreatest = iota
	toAll
	byKey
	byTurn
	byHash
)

type webStage struct {
	subs  []webSub
	yield int
}

type webSub struct {
	from     int  // in the layer before
	max, min int  // 0: defaults
	manual   int  // 0, or how many events it asks for at a time
	even     bool // a selector, where there is one
}

type webGate struct {
	webStage
	kind, disp int
}

// What a gate does.
const (
	copies = iota
	forwards
	mapping
	filters
	doubles
)

func drawWebStage(t *rapid.T, before, mandatory int) webStage {
	s := webStage{yield: rapid.IntRange(0, 2).Draw(t, "yield")}
	for i := range before {
		if i != mandatory && rapid.IntRange(0, 2).Draw(t, "connected") > 0 {
			continue
		}
		s.subs = append(s.subs, drawWebSub(t, i))
	}
	return s
}

func drawWebSub(t *rapid.T, from int) webSub {
	sub := webSub{from: from, even: rapid.Bool().Draw(t, "even")}
	if sub.max = rapid.IntRange(0, 12).Draw(t, "max"); sub.max > 0 {
		sub.min = rapid.IntRange(0, sub.max-1).Draw(t, "min")
	}
	if rapid.IntRange(0, 3).Draw(t, "is manual") == 0 {
		sub.manual = rapid.IntRange(1, 20).Draw(t, "manual")
	}
	return sub
}

func drawWeb(t *rapid.T, dispatchers ...int) web {
	w := web{fuse: rapid.Bool().Draw(t, "fuse"), poison: rapid.Bool().Draw(t, "poison"), seed: rapid.Int64().Draw(t, "seed")}
	disp := rapid.SampledFrom(dispatchers)
	for range rapid.IntRange(1, 2).Draw(t, "sources") {
		w.sources = append(w.sources, webSource{
			events: rapid.IntRange(0, 200).Draw(t, "events"), surplus: rapid.IntRange(0, 5).Draw(t, "surplus"), disp: disp.Draw(t, "dispatcher"),
		})
	}
	before := len(w.sources)
	for range rapid.IntRange(0, 2).Draw(t, "layers") {
		var layer []webGate
		for i := range rapid.IntRange(1, 3).Draw(t, "width") {
			layer = append(layer, webGate{drawWebStage(t, before, i%before), rapid.IntRange(0, 4).Draw(t, "kind"), disp.Draw(t, "dispatcher")})
		}
		w.layers = append(w.layers, layer)
		before = len(layer)
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "sinks") {
		w.sinks = append(w.sinks, drawWebStage(t, before, i%before))
	}
	w.consumeAll(t)
	for _, l := range w.layers {
		for _, g := range l {
			for k := range g.subs {
				if g.kind == mapping || g.kind == filters { // a helper cannot ask
					g.subs[k].manual = 0
				}
			}
		}
	}
	return w
}

// consumeAll gives every producer a consumer.
func (w *web) consumeAll(t *rapid.T) {
	before := len(w.sources)
	for l := 0; l <= len(w.layers); l++ {
		var stages []*webStage
		if l < len(w.layers) {
			for i := range w.layers[l] {
				stages = append(stages, &w.layers[l][i].webStage)
			}
		} else {
			for i := range w.sinks {
				stages = append(stages, &w.sinks[i])
			}
		}
		for i := range before {
			if !slices.ContainsFunc(stages, func(s *webStage) bool {
				return slices.ContainsFunc(s.subs, func(u webSub) bool { return u.from == i })
			}) {
				s := stages[i%len(stages)]
				s.subs = append(s.subs, drawWebSub(t, i))
			}
		}
		before = len(stages)
	}
}

// A woven web is one that was built, and what was seen of it.
type woven struct {
	*Graph
	web web
	got [][]mark // per sink
	bad atomic.Pointer[string]

	subs      []wovenSub
	producers []producing
}

// wovenSub is a subscription and how to make it anew.
type wovenSub struct {
	*Subscription
	again func() (*Subscription, error)
}

func (w *woven) fault(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	w.bad.CompareAndSwap(nil, &s)
}

// producing is a producer and how it dispatches.
type producing struct {
	spinner
	disp int
}

// A spinner is a producer of a web.
type spinner interface {
	Outleter[mark]
	Stage
}

func (w web) weave() *woven {
	opts := []GraphOption{Fuse(w.fuse), Logger(slog.New(slog.DiscardHandler))}
	if w.poison {
		opts = append(opts, withPoison())
	}
	b := &woven{Graph: NewGraph(opts...), web: w, got: make([][]mark, len(w.sinks))}
	var outs []spinner
	var disps []int
	for i, p := range w.sources {
		outs, disps = append(outs, b.source(i, p)), append(disps, p.disp)
	}
	for l, layer := range w.layers {
		var next []spinner
		var nextDisps []int
		var stages []webStage
		for i, p := range layer {
			next, nextDisps = append(next, b.gate(fmt.Sprintf("gate %d.%d", l, i), p)), append(nextDisps, p.disp)
			stages = append(stages, p.webStage)
		}
		b.join(outs, disps, stages, func(i int) Inleter[mark] { return next[i].(Inleter[mark]) })
		outs, disps = next, nextDisps
	}
	var sinks []*Sink[mark]
	for i, p := range w.sinks {
		sinks = append(sinks, b.sink(i, p))
	}
	b.join(outs, disps, w.sinks, func(i int) Inleter[mark] { return sinks[i] })
	return b
}

// join connects a layer to the one before: consumer k of a producer by key gets
// its partition k.
func (w *woven) join(outs []spinner, disps []int, stages []webStage, in func(i int) Inleter[mark]) {
	for from, out := range outs {
		w.producers = append(w.producers, producing{out, disps[from]})
		n := consumersOf(stages, from)
		switch s := out.(type) {
		case *Source[mark]:
			s.Dispatch(dispatcherOf(disps[from], n))
		case *Gate[mark, mark]:
			s.Dispatch(dispatcherOf(disps[from], n))
		}
		k := 0
		for i, st := range stages {
			for _, sub := range st.subs {
				if sub.from == from {
					w.connect(handleOf(out.Out(), disps[from], k, sub), in(i), sub)
					k++
				}
			}
		}
	}
}

func consumersOf(stages []webStage, from int) (n int) {
	for _, st := range stages {
		for _, sub := range st.subs {
			if sub.from == from {
				n++
			}
		}
	}
	return n
}

func dispatcherOf(disp, n int) Dispatcher[mark] {
	switch disp {
	case toAll:
		return Broadcast[mark]()
	case byKey:
		return Partition(n, func(v mark) int { return -v.n })
	case byTurn:
		return RoundRobin[mark]()
	case byHash:
		return ConsistentHash(hashed)
	}
	return Greatest[mark]()
}

func hashed(v *mark) uint64 { return uint64(v.n % 7) }

func handleOf(o Outlet[mark], disp, k int, sub webSub) Outlet[mark] {
	switch {
	case disp == byKey:
		return o.Partition(k)
	case disp == toAll && sub.even:
		return o.Where(func(v mark) bool { return v.n%2 == 0 })
	}
	return o
}

func (w *woven) connect(from Outlet[mark], to Inleter[mark], sub webSub) {
	opts := []SubOption{CancelMode(Transient)}
	if sub.max > 0 {
		opts = append(opts, Demand(sub.max, sub.min))
	}
	if sub.manual > 0 {
		opts = append(opts, Manual())
	}
	ask := func(s *Subscription, err error) (*Subscription, error) {
		if err == nil && sub.manual > 0 {
			err = s.Ask(sub.manual)
		}
		return s, err
	}
	s, err := ask(Connect(w.Graph, from, to, opts...), nil)
	if err != nil {
		w.fault("Ask: %v", err)
	}
	w.subs = append(w.subs, wovenSub{s, func() (*Subscription, error) {
		return ask(Subscribe(context.Background(), from, to, opts...))
	}})
}

func (w *woven) source(i int, p webSource) *Source[mark] {
	n := 0
	return Pull(fmt.Sprintf("source %d", i), func(_ context.Context, want int, out *Output[mark]) error {
		for range want + p.surplus {
			if n == p.events {
				return Done
			}
			out.Emit(mark{i, n, n, padding})
			n++
		}
		return nil
	}, Buffer(Unbounded, KeepLast))
}

func (w *woven) gate(name string, p webGate) *Gate[mark, mark] {
	seq := 0
	next := func(v mark) mark { // the gate's own number
		v.seq = seq
		seq++
		return v
	}
	var g *Gate[mark, mark]
	look := w.watcher(name, func() *inlet[mark] { return &g.in })
	switch p.kind {
	case mapping:
		g = Map(next)
		return g
	case filters:
		g = Filter(func(v *mark) bool {
			if v.n%3 == 0 {
				return false
			}
			*v = next(*v)
			return true
		})
		return g
	}
	g = NewGate(name, func(ctx context.Context, in []mark, out *Output[mark]) error {
		look(ctx, in, p.webStage)
		switch p.kind {
		case forwards:
			for i := range in {
				in[i] = next(in[i])
			}
			out.Forward(in)
		case copies:
			for _, v := range in {
				out.Emit(next(v))
			}
		case doubles:
			for _, v := range in {
				out.EmitAll(next(v), next(v))
			}
		}
		return nil
	})
	return g
}

func (w *woven) sink(i int, p webStage) *Sink[mark] {
	var k *Sink[mark]
	name := fmt.Sprintf("sink %d", i)
	look := w.watcher(name, func() *inlet[mark] { return &k.in })
	k = NewSink(name, func(ctx context.Context, in []mark) error {
		look(ctx, in, p)
		w.got[i] = append(w.got[i], in...)
		return nil
	})
	return k
}

// watcher checks what a consumer sees: its own levels (P-4, P-5), the order of
// each producer (P-3), and slabs that were given back too early. It asks on
// manual subscriptions for as many as came.
func (w *woven) watcher(name string, in func() *inlet[mark]) func(ctx context.Context, batch []mark, p webStage) {
	type line struct {
		from string
		key  int
	}
	last := map[line]int{}
	return func(ctx context.Context, batch []mark, p webStage) {
		for _, e := range in().edges {
			sent, asked := e.sent.Load(), e.asked.Load() // in this order: asked only grows
			if sent > asked {
				w.fault("%s: %d delivered of %d asked", name, sent, asked)
			}
			if o := e.window.Open(); o < 0 || o > e.window.Max() {
				w.fault("%s: open demand %d of at most %d", name, o, e.window.Max())
			}
		}
		sub := Origin(ctx)
		from := sub.Producer()
		for _, v := range batch {
			if v.pad != padding {
				w.fault("%s: a slab was cleared under it: %v", name, batch)
			}
			key, ordered := w.lineOf(from, v)
			if before, ok := last[line{from, key}]; ok && ordered && v.seq <= before {
				w.fault("%s: event %d of %s came after %d", name, v.seq, from, before)
			}
			last[line{from, key}] = v.seq
		}
		if sub.manual {
			sub.Ask(len(batch))
		}
		for range p.yield {
			runtime.Gosched()
		}
	}
}

// lineOf returns which of a producer's events v stays in order with: with all, or
// with those of its key. Events that go in turn, and whose consumer is cancelled
// as it is given them, come late.
func (w *woven) lineOf(producer string, v mark) (key int, ordered bool) {
	for _, p := range w.producers {
		if p.common().name != producer {
			continue
		}
		switch p.disp {
		case byTurn:
			return 0, false
		case byHash:
			return int(hashed(&v)), true
		}
	}
	return 0, true
}

// expected returns what each sink gets of a web without toGreatest, in any
// order.
func (w web) expected() [][]mark {
	var outs [][]mark
	var disps []int
	for i, p := range w.sources {
		var vs []mark
		for n := range p.events {
			vs = append(vs, mark{source: i, n: n})
		}
		outs, disps = append(outs, vs), append(disps, p.disp)
	}
	for _, layer := range w.layers {
		var stages []webStage
		for _, g := range layer {
			stages = append(stages, g.webStage)
		}
		ins := arrive(outs, disps, stages)
		outs, disps = nil, nil
		for i, g := range layer {
			var vs []mark
			for _, v := range ins[i] {
				switch {
				case g.kind == filters && v.n%3 == 0:
				case g.kind == doubles:
					vs = append(vs, v, v)
				default:
					vs = append(vs, v)
				}
			}
			outs, disps = append(outs, vs), append(disps, g.disp)
		}
	}
	return arrive(outs, disps, w.sinks)
}

func arrive(outs [][]mark, disps []int, stages []webStage) [][]mark {
	ins := make([][]mark, len(stages))
	for from, vs := range outs {
		n, k := consumersOf(stages, from), 0
		for i, st := range stages {
			for _, sub := range st.subs {
				if sub.from != from {
					continue
				}
				for _, v := range vs {
					key := (n - v.n%n) % n
					if disps[from] == byKey && key == k || disps[from] == toAll && (!sub.even || v.n%2 == 0) {
						ins[i] = append(ins[i], v)
					}
				}
				k++
			}
		}
	}
	return ins
}

// run runs the web. A guard ends one that hangs.
func (w *woven) run(t *rapid.T) error {
	guard := time.AfterFunc(10*time.Second, func() { w.Abort(fmt.Errorf("the web hangs: %+v", w.Stats())) })
	defer guard.Stop()
	if err := w.Start(context.Background()); err != nil {
		return err
	}
	var churning sync.WaitGroup
	churning.Go(w.churn)
	churning.Wait()
	var err error
	if w.web.churn == 0 {
		err = w.Wait()
	} else { // stages that subscribe anew wait for the drain
		w.waitSources()
		err = w.Stop(context.Background())
	}
	if bad := w.bad.Load(); bad != nil {
		t.Fatal(*bad)
	}
	checkConservation(t, w.Graph)
	return err
}

func byOrigin(a, b mark) int { return cmp.Or(a.source-b.source, a.n-b.n) }

// plain sorts marks and takes away what depends on the course.
func plain(vs []mark) []mark {
	out := make([]mark, 0, len(vs))
	for _, v := range vs {
		out = append(out, mark{source: v.source, n: v.n})
	}
	slices.SortFunc(out, byOrigin)
	return out
}

// TestRandomWebsDeliverWhatTheyShould holds P-1 to P-5 and P-19: webs of
// broadcasts with selectors and of partitions give each sink exactly what a
// simple model says, fused or not.
func TestRandomWebsDeliverWhatTheyShould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWeb(t, toAll, byKey)
		want := w.expected()
		for _, w.fuse = range []bool{true, false} {
			b := w.weave()
			if err := b.run(t); err != nil {
				t.Fatal(err)
			}
			for i := range want {
				if got := plain(b.got[i]); !slices.Equal(got, plain(want[i])) {
					t.Fatalf("sink %d, fused %v: %d events, want %d:\n%v\n%v", i, w.fuse, len(got), len(want[i]), got, plain(want[i]))
				}
			}
		}
	})
}

// TestRandomWebsWithChurnCountEverything cancels and makes subscriptions anew
// while the web runs: every event is accounted for, in order, and none comes
// twice where nobody doubles it.
func TestRandomWebsWithChurnCountEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWeb(t, toGreatest, toAll, byKey, byTurn, byHash)
		w.churn = rapid.IntRange(1, 30).Draw(t, "churn")
		b := w.weave()
		for _, n := range b.nodes {
			if n.common().kind == KindSource {
				continue
			}
			if err := b.Add(n.(Stage)); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.run(t); err != nil {
			t.Fatal(err)
		}
		b.checkTwice(t)
	})
}

func (w *woven) waitSources() {
	for _, n := range w.nodes {
		if s, ok := n.(*Source[mark]); ok {
			s.Wait()
		}
	}
}

// churn cancels random subscriptions and makes them anew.
func (w *woven) churn() {
	rnd := rand.New(rand.NewPCG(uint64(w.web.seed), 1))
	for range w.web.churn {
		i := rnd.IntN(len(w.subs))
		s := &w.subs[i]
		for range rnd.IntN(20) {
			runtime.Gosched()
		}
		s.Cancel()
		select {
		case <-s.Done():
		case <-w.idle: // it was cancelled, and its consumer left, before it began
			return
		}
		again, err := s.again()
		switch {
		case err == nil:
			s.Subscription = again
		case errors.Is(err, ErrProducerNotAlive), errors.Is(err, ErrConsumerNotAlive):
			return // the end has come
		default:
			w.fault("subscribe again: %v", err)
			return
		}
	}
}

// checkTwice checks that no event came twice where it has one way only.
func (w *woven) checkTwice(t *rapid.T) {
	for _, l := range w.web.layers {
		for _, g := range l {
			if g.kind == doubles || g.disp == toAll {
				return
			}
		}
	}
	for _, s := range w.web.sources {
		if s.disp == toAll {
			return
		}
	}
	all := plain(slices.Concat(w.got...))
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			t.Fatalf("event %v came twice (P-2)", all[i])
		}
	}
}
