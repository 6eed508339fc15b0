package stage

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// A zoo is a random graph of every kind of source, operator, dispatcher and sink.
// Unless it is calm its user code fails now and then, stages begin anew, end
// early or are cut off, and its subscriptions come and go.
//
// A stage that ends early may leave a partition, a broadcast or a turn behind
// that nobody takes from: such a producer waits, as documented, for a consumer
// to come. So only a calm zoo must come to its end by itself.
type zoo struct {
	*Graph
	calm  bool
	emit  []func() // what pushes from outside
	cages []cage
	ways  []way
	n     int
}

// A cage is a stage and what its counters must say.
type cage struct {
	stage Stage
	exact bool          // a gate that emits one event for one
	crew  bool          // a sink with children
	done  *atomic.Int64 // events that the code of a sink has done
}

// A way is a subscription, and how to make it again.
type way struct {
	*Subscription
	again func() (*Subscription, error)
}

func (z *zoo) name(what string) string {
	z.n++
	return fmt.Sprint(what, " ", z.n)
}

// fails draws the event at which user code fails; none of a calm zoo's does.
func (z *zoo) fails(t *rapid.T) int {
	if n := rapid.IntRange(0, 300).Draw(t, "fails at"); !z.calm {
		return n
	}
	return -9 // and the two after it are no events either
}

func drawZoo(t *rapid.T) *zoo {
	z := &zoo{calm: rapid.IntRange(0, 2).Draw(t, "calm") == 0}
	opts := []GraphOption{Fuse(rapid.Bool().Draw(t, "fuse")), Logger(slog.New(slog.DiscardHandler)), DrainWithin(time.Minute)}
	again := Backoff(time.Millisecond, 20*time.Millisecond, 0.5).AtMost(4, time.Minute)
	switch rapid.IntRange(0, 3).Draw(t, "supervision") {
	case 0:
		opts = append(opts, OneForOne(again))
	case 1:
		opts = append(opts, RestForOne(again))
	}
	if rapid.Bool().Draw(t, "poison") {
		opts = append(opts, withPoison())
	} else if rapid.Bool().Draw(t, "once") {
		opts = append(opts, Poison())
	}
	z.Graph = NewGraph(opts...)
	var faces []Outlet[int]
	for range rapid.IntRange(1, 3).Draw(t, "sources") {
		s := z.source(t)
		d, out := z.dispatcher(t)
		s.Dispatch(d)
		faces = append(faces, out(s.Out())...)
	}
	for range rapid.IntRange(0, 2).Draw(t, "layers") {
		var next []Outlet[int]
		for len(faces) > 0 {
			g, taken := z.gate(t, faces)
			faces = faces[taken:]
			d, out := z.dispatcher(t)
			g.Dispatch(d)
			next = append(next, out(g.Out())...)
		}
		faces = next
	}
	for _, f := range faces {
		z.sink(t, f)
	}
	return z
}

func (z *zoo) source(t *rapid.T) *Source[int] {
	name, n, fails := z.name("source"), rapid.IntRange(0, 150).Draw(t, "events"), z.fails(t)
	switch rapid.IntRange(0, 4).Draw(t, "source") {
	case 0:
		return FromSlice(name, ints(0, n))
	case 1:
		at := 0
		return Func(name, func(_ context.Context, yield func(int) bool) error {
			for at < n {
				if at++; at == fails {
					return errBoom
				}
				if !yield(at) {
					return nil
				}
			}
			return nil
		}, Buffer(n%7, KeepLast))
	case 2: // more than was asked for, and less room than that
		at := 0
		return Pull(name, func(_ context.Context, want int, out *Output[int]) error {
			for range want + n%9 {
				switch at++; {
				case at > n:
					return Done
				case at == fails:
					panic("boom")
				}
				out.Emit(at)
			}
			return nil
		}, Buffer(n%5, KeepFirst), OnDiscard(func(int) {}))
	}
	src, emit := Push[int](name, Buffer(n%23, []Policy{KeepLast, KeepFirst}[n%2]), OnDiscard(func(int) {}))
	if n%3 == 0 {
		src.BufferWeight(n+1, func(v *int) int { return *v })
	}
	wait := rapid.Bool().Draw(t, "waits")
	z.emit = append(z.emit, func() {
		for v := range n {
			if v == fails {
				emit.Fail(errBoom)
				return
			}
			if wait {
				emit.PushWait(context.Background(), v)
			} else {
				emit.Push(v, v)
			}
			if v%10 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		emit.Finish()
	})
	return src
}

// pick is a chooser that takes the consumer with the least open demand that has
// some.
type pick struct{}

func (pick) Choose(_ *int, consumers []Candidate) int {
	least := -1
	for i, c := range consumers {
		if c.Open > 0 && (least < 0 || c.Open < consumers[least].Open) {
			least = i
		}
	}
	return least
}

func (z *zoo) dispatcher(t *rapid.T) (Dispatcher[int], func(Outlet[int]) []Outlet[int]) {
	n := rapid.IntRange(1, 2).Draw(t, "consumers")
	same := func(o Outlet[int]) (outs []Outlet[int]) {
		for range n {
			outs = append(outs, o)
		}
		return outs
	}
	parts := func(o Outlet[int]) (outs []Outlet[int]) {
		for i := range n {
			outs = append(outs, o.Partition(i))
		}
		return outs
	}
	last := 8
	if z.calm {
		last = 7
	}
	switch rapid.IntRange(0, last).Draw(t, "dispatcher") {
	case 0:
		return Broadcast[int](), func(o Outlet[int]) []Outlet[int] {
			return append(same(o)[1:], o.Where(func(v int) bool { return v%2 == 0 }))
		}
	case 1:
		return Broadcast[int](), same
	case 2:
		return Partition(n, func(v int) int { return v }), parts
	case 3:
		return PartitionTo(n, func(v *int) (int, bool) { return *v % n, *v%5 > 0 }), parts
	case 4:
		return RoundRobin[int](), same
	case 5:
		return ConsistentHash(func(v *int) uint64 { return uint64(*v) }), same
	case 6:
		return Choose(func() Chooser[int] { return pick{} }), same
	case 7:
		return GreatestShuffled[int](), same
	}
	return Broadcast[int](Slowest(3)), same
}

// gate makes a gate of the first faces and says how many it has taken.
func (z *zoo) gate(t *rapid.T, faces []Outlet[int]) (g *Gate[int, int], taken int) {
	several := 1 // faces at the front that one consumer may take from
	for several < len(faces) && !slices.ContainsFunc(faces[:several], func(o Outlet[int]) bool {
		return o.o == faces[several].o && o.partition == faces[several].partition
	}) {
		several++
	}
	if several > 1 && rapid.IntRange(0, 3).Draw(t, "merge") == 0 {
		taken = rapid.IntRange(2, several).Draw(t, "producers")
		g = z.merge(t, faces[:taken])
		z.cages = append(z.cages, cage{stage: g, exact: true})
		return g, taken
	}
	g, exact := z.operator(t)
	z.cages = append(z.cages, cage{stage: g, exact: exact})
	z.connect(t, faces[0], g)
	return g, 1
}

// merge makes a gate of several producers. One that takes them in strict turn may
// wait for ever for one that depends on the others.
func (z *zoo) merge(t *rapid.T, faces []Outlet[int]) *Gate[int, int] {
	kind := rapid.IntRange(0, 3).Draw(t, "merge")
	if z.calm {
		kind %= 2
	}
	g := Pass[int](z.name("merge"))
	switch kind {
	case 2:
		g = newInterleaver[int](z.name("merge"), 3)
	case 3:
		g = newInterleaver[int](z.name("merge"), 1<<30)
	}
	for i, f := range faces {
		if kind == 1 {
			z.connect(t, f, g, Priority(i))
		} else {
			z.connect(t, f, g)
		}
	}
	return g
}

func (z *zoo) operator(t *rapid.T) (g *Gate[int, int], exact bool) {
	fails := z.fails(t)
	ms := time.Millisecond
	last := 15
	if z.calm {
		last = 14
	}
	react := OnError([]Reaction{Stop, Resume, Restart}[rapid.IntRange(0, 2).Draw(t, "reaction")])
	act := func(_ context.Context, v int) (int, error) {
		switch time.Sleep(time.Duration(v%3) * ms); {
		case v == fails:
			panic("boom")
		case v == fails+1:
			return 0, errBoom
		case v == fails+2:
			return 0, fmt.Errorf("%w", ErrGivenUp)
		}
		return v, nil
	}
	switch kind := rapid.IntRange(0, last).Draw(t, "operator"); kind {
	case 0:
		return NewGate(z.name("gate"), func(_ context.Context, in []int, out *Output[int]) error {
			for _, v := range in {
				if v == fails {
					return errBoom
				}
				out.EmitAll(make([]int, v%3)...)
			}
			return nil
		}, react), false
	case 1:
		return Filter(func(v *int) bool { return *v%3 > 0 }), true
	case 2:
		return Map(func(v int) int {
			if v == fails {
				panic("boom")
			}
			return v
		}, react), true
	case 3:
		return MapConcurrent(3, act, react), true
	case 4:
		return MapConcurrentUnordered(2, act, react), true
	case 5:
		return MapPartitioned(2, func(v *int) int { return *v }, act, react), true
	case 6:
		return BufferGate[int](1+rapid.IntRange(0, 9).Draw(t, "room"), []Policy{KeepLast, KeepFirst, DropAll, Wait}[rapid.IntRange(0, 3).Draw(t, "policy")], OnDiscard(func(int) {})), true
	case 7:
		return Delay[int](ms, 1+rapid.IntRange(0, 9).Draw(t, "limit")), true
	case 8:
		return Debounce[int](2 * ms), true
	case 9:
		return Sample[int](2 * ms), true
	case 10:
		l, _ := NewLimiter(LimiterConfig{Events: 1000, Burst: 3})
		return ThrottleCost(l, func(v *int) int {
			if *v == fails {
				panic("boom")
			}
			return *v % 3
		}, react), true
	case 11:
		return Watchdog[int](WatchdogConfig{Idle: 1000 * time.Hour}), true
	case 12:
		return DedupeWithin(3*ms, 9, func(v *int) int { return *v % 7 }), true
	case 13:
		return Conflate(func(v int) int { return v }, func(to *int, v int) { *to += v }), false
	case 14:
		r, _ := NewRetrier(RetryConfig{Attempts: 2, Min: ms, Max: ms})
		return MapConcurrent(2, WithRetry(r, act, nil), react), true
	}
	return Take[int](max(fails, 0)), true
}

func (z *zoo) connect(t *rapid.T, from Outlet[int], to Inleter[int], opts ...SubOption) {
	mode := Transient
	if !z.calm {
		mode = rapid.SampledFrom([]Mode{Permanent, Transient, Temporary}).Draw(t, "mode")
	}
	opts = append(opts, CancelMode(mode))
	if _, pool := to.(*Pool[int]); !pool {
		opts = append(opts, drawDemand(t)...)
	}
	if rapid.IntRange(0, 5).Draw(t, "hasty") == 0 {
		opts = append(opts, FailFast())
	}
	z.ways = append(z.ways, way{Connect(z.Graph, from, to, opts...), func() (*Subscription, error) {
		return Subscribe(context.Background(), from, to, opts...)
	}})
}

func (z *zoo) sink(t *rapid.T, from Outlet[int]) {
	fails, done := z.fails(t), &atomic.Int64{}
	slow := time.Duration(rapid.IntRange(0, 2).Draw(t, "ms")) * time.Millisecond
	child := func(_ context.Context, v int) error {
		time.Sleep(slow)
		switch {
		case fails < 0 || v%(fails%60+1) > 0:
			done.Add(1)
			return nil
		case v%3 == 0:
			panic("boom")
		case v%3 == 1:
			runtime.Goexit()
		}
		return errBoom
	}
	c := cage{done: done, crew: true}
	switch rapid.IntRange(0, 3).Draw(t, "sink") {
	case 0:
		s := NewPool(z.name("pool"), 1+rapid.IntRange(0, 3).Draw(t, "workers"), child).OnFailed(func(int, error) {})
		z.connect(t, from, s)
		c.stage = s
	case 1:
		s := NewSlots(z.name("slots"), Task(child), ChildRestart(Transient), ChildTolerance(max(fails, 0)%9, time.Second)).OnFailed(func(int, error) {})
		z.connect(t, from, s)
		c.stage = s
	default:
		opts := []Option{OnError([]Reaction{Stop, Resume, Restart}[rapid.IntRange(0, 2).Draw(t, "reaction")])}
		if rapid.Bool().Draw(t, "owned") {
			opts = append(opts, Owned())
		}
		s := NewSink(z.name("sink"), func(_ context.Context, in []int) error {
			time.Sleep(slow)
			if slices.Contains(in, fails) {
				return errBoom
			}
			done.Add(int64(len(in)))
			return nil
		}, opts...)
		z.connect(t, from, s)
		c.stage, c.crew = s, false
	}
	z.cages = append(z.cages, c)
}

// TestCountersOfEveryGraphAddUp runs random graphs of everything there is to
// random ends: what every stage took in, it gave out, holds or has counted in one
// other place, at the end and at every quiet moment before; so has every
// subscription, and the graph as a whole. A graph in which nothing has failed
// ends by itself, and every other one when it is drained or aborted.
func TestCountersOfEveryGraphAddUp(t *testing.T) {
	var now atomic.Pointer[zoo]
	over := make(chan struct{})
	defer close(over)
	go watchZoos(&now, over) // ends with the test, which need not wait for it
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(inBubble{t}, func(rt *rapid.T) {
			z := drawZoo(rt)
			now.Store(z)
			z.live(rt)
		})
	})
}

// watchZoos ends the process, and says of which graph, when one does not come to
// its end: in one that never rests the bubble's time stands still. It runs outside
// of the bubble, where the graph's channels may not be touched.
func watchZoos(now *atomic.Pointer[zoo], over <-chan struct{}) {
	for before := (*zoo)(nil); ; before = now.Load() {
		select {
		case <-over:
			return
		case <-time.After(time.Minute):
		}
		if z := now.Load(); z != nil && z == before {
			text := "a graph never comes to rest:"
			z.mu.Lock()
			for _, n := range z.nodes {
				text += fmt.Sprintf("\n%+v", n.snapshot())
			}
			panic(text)
		}
	}
}

func (z *zoo) live(t *rapid.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := z.Start(ctx); err != nil {
		t.Fatal(err)
	}
	var pushing sync.WaitGroup
	for _, f := range z.emit {
		pushing.Go(f) // ends when all is pushed, or its source has ended
	}
	defer func() { // also when a check has failed
		z.Abort(nil)
		z.Wait()
		pushing.Wait()
	}()
	for range rapid.IntRange(0, 6).Draw(t, "moments") {
		time.Sleep(time.Duration(rapid.IntRange(0, 4).Draw(t, "pause")) * time.Millisecond)
		synctest.Wait()
		z.check(t)
		if !z.calm && rapid.IntRange(0, 2).Draw(t, "churn") == 0 {
			z.churn(rapid.IntRange(0, len(z.ways)-1).Draw(t, "way"))
		}
	}
	how := rapid.SampledFrom([]string{"end", "end", "end", "abort", "drain", "stop a sink"}).Draw(t, "how")
	switch how {
	case "abort":
		z.Abort(errEnding)
	case "drain":
		cancel()
	case "stop a sink":
		z.cages[len(z.cages)-1].stage.Stop()
	}
	if !z.ends(20 * time.Second) {
		if z.calm && how == "end" || how == "abort" {
			t.Fatalf("by %s it does not end: %+v", how, z.Status())
		}
		z.check(t)
		cancel()
		if !z.ends(2 * time.Minute) { // the drain's minute, and the end of children
			t.Fatalf("it does not end when it is drained: %+v", z.Status())
		}
	}
	z.check(t)
	checkConservation(t, z.Graph)
	for _, s := range z.Stats() {
		if s.Held != 0 || s.Slots != 0 || s.Buffered != 0 || s.Abandoned != 0 {
			t.Fatalf("%s holds something at its end: %+v", s.Name, s)
		}
	}
}

// ends waits for the end of the graph, but no longer than d. The time is short
// because rapid stops early when all runs together take too long, in the time of
// the bubble.
func (z *zoo) ends(d time.Duration) bool {
	for begin := time.Now(); !isOver(z.done); time.Sleep(100 * time.Millisecond) {
		if time.Since(begin) > d {
			return false
		}
	}
	return true
}

// churn cancels a subscription, or makes it again if it is over.
func (z *zoo) churn(i int) {
	w := &z.ways[i]
	if !isOver(w.Done()) {
		w.Cancel()
		return
	}
	if s, err := w.again(); err == nil { // else one of its stages has ended, or its place is taken
		w.Subscription = s
	}
}

// check compares the counters while nothing moves.
func (z *zoo) check(t *rapid.T) {
	of := map[string]Stats{}
	flying, children, busy := int64(0), int64(0), false
	for _, s := range z.Stats() {
		of[s.Name] = s
		if s.Kind != KindSink && s.Emitted+s.Pushed != s.Dispatched+s.FilteredOut+s.Buffered+s.Discarded {
			t.Fatalf("%s: what it emitted has not gone one way each: %+v", s.Name, s)
		}
		flying += s.Sent - s.In - s.Undelivered
		if s.Kind == KindSink {
			children += s.Held
		} else if s.InCallback {
			busy = true // it may wait for its workers at its end, before it counts what its consumers left
		}
	}
	for _, c := range z.cages {
		s := of[c.stage.Name()]
		switch {
		case c.exact && s.In != s.Emitted+s.Filtered+s.Dropped+s.Failed+s.Held:
			t.Fatalf("%s: what came in has not gone one way each: %+v", s.Name, s)
		case c.crew && s.In != c.done.Load()+s.Failed+s.Dropped+s.Held:
			t.Fatalf("%s: %d done: %+v", s.Name, c.done.Load(), s)
		case c.done != nil && !c.crew && s.In != c.done.Load()+s.Failed:
			t.Fatalf("%s: %d done: %+v", s.Name, c.done.Load(), s)
		}
	}
	status := z.Status()
	for _, e := range status.Edges {
		if e.Processed < 0 || e.Processed > e.Sent || e.Sent > e.Asked || e.Open < 0 || !e.Manual && (e.Open > int64(e.Max) || e.InFlight > int64(e.Max)) {
			t.Fatalf("%s to %s: %+v", e.From, e.To, e)
		}
		flying -= e.InFlight
	}
	if !busy && (flying > 0 || flying < -children) { // the event of a child is in, and still in flight
		t.Fatalf("%d events are nowhere: %+v", flying, status)
	}
}
