package stage

import (
	"context"
	"log/slog"
)

// Gate is a stage with an inlet and an outlet: for every event that comes in,
// any number may go out. It processes and asks only while somebody asks it, or
// while it holds no output, so it never holds more than the
// output of one chunk, and never more than the sum of its subscriptions' max
// waits before it. Make one with [NewGate], [Map], [MapPtr], [FlatMap] or [Filter].
type Gate[In, Out any] struct {
	in    inlet[In]
	out   outlet[Out]
	self  *inlet[Out] // in, when In and Out are one type: then input may be forwarded
	f     func(ctx context.Context, in []In, out *Output[Out]) error
	onEnd func(out *Output[Out]) error
	o     Output[Out]
	told  bool        // drv knows that the input is over
	drv   driver[Out] // nil for a gate that acts on its input only
}

// NewGate returns a gate. f gets the events of one subscription in order, in
// batches of at most max - min, and emits to out; one call at a time. The
// input slice is borrowed: it is valid until f returns; elements may be kept.
// Where In and Out are one type f may change the slice in place, and forward
// it; else it reads only, for other stages may read the same batch ([Broadcast]).
// ctx is as for [NewSink].
//
// Returning [Done] ends the gate normally, any other error abnormally: what
// the call had emitted goes out first. A panic, runtime.Goexit too, becomes a
// *[penstock.PanicError], and what the call had emitted is dropped.
func NewGate[In, Out any](name string, f func(ctx context.Context, in []In, out *Output[Out]) error, opts ...Option) *Gate[In, Out] {
	b := newBase(name, KindGate, opts)
	b.callback(f != nil)
	g := &Gate[In, Out]{in: newInlet[In](b), out: newOutlet[Out](b), f: f}
	if g.self, _ = any(&g.in).(*inlet[Out]); g.self != nil {
		g.self.swap, g.in.changes = g.swap, true
	}
	b.self = g
	return g
}

// OnEnd sets a function that may emit last events when the input has ended
// normally and everything before was processed: an aggregator emits
// what it has gathered. It does not run when the gate fails, ends by itself or
// is aborted. It returns g. Call it before the graph starts.
func (g *Gate[In, Out]) OnEnd(f func(out *Output[Out]) error) *Gate[In, Out] {
	g.onEnd = f
	return g
}

// In returns the gate's inlet.
func (g *Gate[In, Out]) In() Inlet[In] { return Inlet[In]{i: &g.in} }

// Out returns the gate's outlet.
func (g *Gate[In, Out]) Out() Outlet[Out] { return Outlet[Out]{o: &g.out} }

func (g *Gate[In, Out]) common() *base   { return g.in.base }
func (g *Gate[In, Out]) snapshot() Stats { return g.out.snapshot() }

func (g *Gate[In, Out]) begin() {
	g.out.begin()
	g.in.begin()
}

// swap ends the hold on a slab that came in and was forwarded, and returns an
// empty one for its slot.
func (g *Gate[In, Out]) swap(moved *slab[Out]) *slab[Out] {
	spare := g.out.take()
	spare.refs = 1 // the slot's, in the producer's domain
	g.out.release(moved)
	return spare
}

func (g *Gate[In, Out]) turn(ctx context.Context) (progress bool) {
	b := g.in.base
	ctl := b.ctl.Load()
	if ctl&ctlQuit != 0 {
		b.finishWith(nil)
		g.close()
		return true
	}
	progress = g.out.prune()
	progress = g.out.flush() || progress
	if ctl&ctlStop != 0 || g.out.stuck() && b.graph().draining.Load() {
		b.finishWith(nil) // without a consumer it would hold its output, and the drain, for ever
	}
	progress = b.hurry() || progress
	progress = g.in.overtaken() || progress
	g.in.rest()
	if b.phase == running && b.paused == 0 && g.drv != nil && g.out.ready() {
		progress = g.drive(ctx, ctl) || progress
	}
	if b.phase == running && b.paused == 0 && g.ready() {
		progress = g.in.flushHeld() || progress
		progress = g.in.turn(g.ready, func(k int, e *edge[In], p *packet[In]) { g.process(ctx, k, e, p) }) || progress
	}
	if b.phase != ending {
		return progress
	}
	g.in.leave()
	g.out.overtake()
	b.closeMail()
	if b.inputOver && g.out.ready() && g.rest(ctx, ctl) {
		return true
	}
	if b.inputOver && g.drv != nil && g.drv.held() > 0 && ctl&ctlExpired == 0 && !g.out.stuck() {
		return progress // it still works on what came before the end
	}
	if g.out.empty() && !b.inputOver || ctl&ctlExpired != 0 || g.out.stuck() {
		if b.lastMail() {
			b.wake(ctlMail)
			return true
		}
		g.close()
		return true
	}
	b.expireAfterDrain()
	return progress
}

func (g *Gate[In, Out]) close() {
	g.in.leave()
	left := g.out.waiting()
	g.out.letGo()
	if left > 0 {
		g.in.left += left
		g.in.discardedAtEnd(left)
	}
	g.endDriver() // which may wait for workers
	g.out.end(g.in.cause)
	g.in.finish()
}

// rest goes on with the end of a gate whose input is over: first the driver
// emits what it holds, in its own time, then OnEnd runs, unless the input has
// failed. inputOver becomes false when neither has anything left to say.
func (g *Gate[In, Out]) rest(ctx context.Context, ctl uint32) (progress bool) {
	if g.drv != nil {
		if !g.told {
			g.told = true
			g.drv.inputOver()
		}
		if g.drive(ctx, ctl) {
			return true
		}
		if g.drv.held() > 0 {
			return false
		}
	}
	if g.onEnd != nil && g.in.cause == nil {
		g.trail(ctx)
		return true
	}
	g.in.inputOver = false
	return false
}

// trail runs OnEnd, once.
func (g *Gate[In, Out]) trail(ctx context.Context) {
	g.in.inputOver = false
	slab := g.out.take()
	g.o = Output[Out]{buf: slab.buf[:0]}
	panicked, err := g.call(func() error { return g.onEnd(&g.o) })
	g.in.returned(ctx, panicked, err)
	g.collect(slab, 0, panicked)
	g.out.flush()
}

func (g *Gate[In, Out]) process(ctx context.Context, k int, e *edge[In], p *packet[In]) {
	in := e.chunk(p)
	slab := g.out.take()
	g.o = Output[Out]{buf: slab.buf[:0]}
	if g.self != nil && p.whole {
		e := g.self.edges[k]
		g.o.lent = e.chunk(e.slot(e.head.Load()))
	}
	g.in.cameBy(e.sub)
	panicked, err := g.call(func() error { return g.f(ctx, in, &g.o) })
	interrupted := g.in.returned(ctx, panicked, err)
	kept := 0 // of in, by an operator whose call panicked; below 0: it has lost some of before
	if g.drv != nil && !panicked {
		err = nil // an operator counts itself which events have failed
	} else if g.drv != nil {
		kept = g.drv.held() - int(g.in.stats.held.Load())
	}
	g.in.settled(len(in), err, interrupted)
	if kept != 0 {
		add(&g.in.stats.failed, -kept)
	}
	g.collect(slab, k, panicked)
	g.noteHeld()
	ask := g.in.passed(e, p, len(in), panicked)
	g.out.flush()
	switch {
	case ask == 0:
	case g.ready():
		g.in.ask(e, ask)
	default:
		e.held += ask
	}
}

// collect makes pieces of what the callback emitted. k is the edge its input
// came by.
func (g *Gate[In, Out]) collect(slab *slab[Out], k int, drop bool) {
	o := &g.o
	slab.buf = o.buf
	if drop {
		slab.dirty, o.to = g.out.clears, 0
	}
	if o.to > 0 {
		g.out.push(g.forwarded(k))
	}
	slab.refs = 1
	if len(o.buf) > 0 && !drop {
		g.out.push(piece[Out]{slab: slab, to: len(o.buf)})
	} else {
		g.out.release(slab)
	}
	if !drop {
		add(&g.in.stats.emitted, o.Len())
		if o.lost != (losses{}) {
			g.in.lose(o.lost)
		}
	}
	g.o = Output[Out]{}
}

// forwarded makes a piece of the part of the input that was forwarded, and
// takes its slab into the gate's domain: one reference for the piece, one for
// as long as the packet is at the head of its edge.
func (g *Gate[In, Out]) forwarded(k int) piece[Out] {
	e := g.self.edges[k]
	p := e.slot(e.head.Load())
	if !e.moved {
		e.moved = true
		p.slab.refs, p.slab.dirty = 1, g.out.clears
		p.slab.spoilt, p.spoilt = p.spoilt, false // an earlier chunk's call may have panicked
	}
	p.slab.refs++
	at := p.from + e.at
	return piece[Out]{slab: p.slab, from: at + g.o.from, to: at + g.o.to}
}

func (g *Gate[In, Out]) call(f func() error) (panicked bool, err error) {
	panicked = true
	g.in.enter()
	defer func() {
		g.in.exit()
		if panicked {
			err = g.in.panicked(recover())
		}
	}()
	err = f()
	panicked = false
	return false, err
}

// renew drops what the gate's operator holds. With a set it begins anew with
// what its stages have sent, and with its output too.
func (g *Gate[In, Out]) renew(set map[*base]bool) {
	if g.drv != nil {
		g.noteLost() // in a call that was left by runtime.Goexit
		held := g.drv.held()
		g.drv.renew() // which may wait for workers
		g.noteHeld()
		if held > 0 {
			add(&g.in.stats.dropped, held)
			g.in.logger().Warn("events dropped", slog.String("stage", g.in.name), slog.Int("events", held), slog.String("reason", "restart"))
		}
	}
	if set == nil {
		return
	}
	if left := g.out.waiting(); left > 0 {
		g.out.letGo()
		g.in.discarded(left, "restart")
	}
	g.in.sweep(set)
}
