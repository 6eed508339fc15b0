// Package stage runs work through steps, and the slowest step sets the pace.
//
// # Words
//
// A source produces events, a gate turns what comes in into any number of
// events that go out, a sink takes them. Events leave a stage by its outlet and
// come in by an inlet; [Connect] makes a subscription of an inlet to an outlet.
// Events flow forward, demand flows backward: the consumer says how many more
// events it accepts, and the producer never sends more than that.
//
// Open demand is what a consumer has asked for and not yet processed. A
// subscription begins by asking for max events. What arrives goes to the
// callback in batches of max - min; such a batch is called a chunk where it has
// to be told from batches that an operator makes of events. After each, when
// open demand has fallen to min or below, the consumer asks for as many as bring
// it back to max. With the defaults, 1000 and 750, that is 1000 once and then
// 250 after each batch of 250: producer and consumer work at the same time, and
// no more than 1000 events are ever on their way. Use a small max, down to 1,
// when an event is expensive to process, and a large one when events are cheap.
//
// A source may emit more than it was asked for: its buffer keeps the surplus
// (10,000 events), later demand is met from there first, and when the buffer is
// full the overflow policy drops the oldest events (KeepLast, the default) or
// the newcomers (KeepFirst), which is logged or handed to a hook. A gate asks
// and processes only while somebody asks it, or while it holds no output.
//
// # Using it
//
//	n := 0
//	counter := stage.Pull("counter", func(_ context.Context, want int, out *stage.Output[int]) error {
//	    for range want {
//	        out.Emit(n)
//	        n++
//	    }
//	    return nil
//	})
//	double := stage.Map(func(v int) int { return v * 2 })
//	printer := stage.NewSink("printer", func(_ context.Context, in []int) error { fmt.Println(in); return nil })
//	g := stage.NewGraph()
//	stage.Connect(g, counter, double)
//	stage.Connect(g, double, printer, stage.Demand(10, 5)) // max, min
//	err := g.Run(ctx)
//
// Callbacks get and emit batches, and run one call at a time per stage: their
// state needs no lock. The input slice is borrowed until the callback returns.
// A callback returns [Done] to end its stage normally.
//
// # Endings
//
// A stage that ends first serves what it holds, for a limited time; the stages
// after it see the end behind the last event, and then end as the [Mode] of
// their subscription says. The end of Run's context drains the whole graph. An
// event leaves a stage in one of four ways: it is delivered, a callback takes
// it and emits something else or nothing, it is discarded, or it is counted as
// undelivered because its consumer left; [Graph.Stats] has the counts, and they
// add up. An operator that holds events emits them first, in its own time and
// as they are asked for; only then its limited time begins.
//
// # Invariants
//
// Per subscription: 0 <= delivered <= asked, and 0 <= open demand <= max. The
// events of one subscription arrive in the order they were emitted, each once.
// Per gate: the output of at most one chunk waits for demand, and at most the
// sum of its subscriptions' max waits for processing. Per source: at most its
// buffer's capacity waits beyond what was asked for. In steady state no event
// and no batch costs an allocation.
//
// # Goroutines
//
// One per source, gate and sink; a pure helper ([Map], [MapPtr], [FlatMap],
// [Filter]) runs in that of the stage after it, if there is one only and the
// subscription sets no demand of its own. One watches the context. Run returns
// after all callbacks have. Everything parks on channels, and time is package
// time, so a graph runs inside a testing/synctest bubble.
package stage
