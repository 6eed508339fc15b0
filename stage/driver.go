package stage

import (
	"context"
	"log/slog"
)

// A driver makes a gate act by itself: when a timer is due, a worker has
// finished, or demand has come for what it holds. Only the gate's goroutine
// calls its methods, one at a time, serially with the gate's callback. Timers
// and workers of a driver call the gate's wake, which never blocks.
//
// Invariants: the driver holds no more than its bound while full says so
// truly; every event that the callback was given is emitted, filtered, failed,
// discarded, or among held().
type driver[Out any] interface {
	// due reports whether poll has something to do. It is asked in every turn
	// in which nothing waits in the outlet: woken says that wake was called
	// since the last poll, want is the demand that can be met now.
	due(woken bool, want int) bool
	// poll does what is due. User code may run in it.
	poll(ctx context.Context, want int, out *Output[Out]) error
	// full reports whether no input may be taken now.
	full() bool
	// inputOver says, once, that no input will follow.
	inputOver()
	// held returns the number of input events in hands.
	held() int
	// renew ends timers and workers, waits for them, and lets go of what is
	// held, to begin anew.
	renew()
	// close ends timers and workers, waits for them, and lets go of what is
	// held. It may be called twice.
	close()
}

// passive is the driver that does nothing. Others embed it.
type passive[Out any] struct{}

func (passive[Out]) due(bool, int) bool                            { return false }
func (passive[Out]) poll(context.Context, int, *Output[Out]) error { return nil }
func (passive[Out]) full() bool                                    { return false }
func (passive[Out]) inputOver()                                    {}
func (passive[Out]) held() int                                     { return 0 }
func (passive[Out]) renew()                                        {}
func (passive[Out]) close()                                        {}

// ready reports whether the gate may take input now.
func (g *Gate[In, Out]) ready() bool {
	return g.out.ready() && (g.drv == nil || !g.drv.full())
}

// drive lets the driver do what is due.
func (g *Gate[In, Out]) drive(ctx context.Context, ctl uint32) (progress bool) {
	want := g.out.want()
	if !g.drv.due(ctl&ctlWake != 0, want) {
		return false
	}
	g.in.ctl.And(^uint32(ctlWake))
	slab := g.out.take()
	g.o = Output[Out]{buf: slab.buf[:0]}
	panicked, err := g.call(func() error { return g.drv.poll(ctx, want, &g.o) })
	g.in.returned(ctx, panicked, err)
	g.collect(slab, 0, panicked)
	if panicked {
		g.noteLost()
	}
	g.noteHeld()
	g.out.flush()
	return true
}

func (g *Gate[In, Out]) noteHeld() {
	if g.drv != nil {
		g.in.stats.held.Store(int64(g.drv.held()))
	}
}

// noteLost counts as failed what has left the driver's hands in a call that did
// not return: its output is dropped.
func (g *Gate[In, Out]) noteLost() {
	if lost := int(g.in.stats.held.Load()) - g.drv.held(); lost > 0 {
		add(&g.in.stats.failed, lost)
	}
}

// endDriver ends the driver and counts what it held.
func (g *Gate[In, Out]) endDriver() {
	if g.drv == nil {
		return
	}
	g.noteLost() // in a call that was left by runtime.Goexit
	held := g.drv.held()
	g.drv.close()
	g.in.stats.held.Store(0)
	if held > 0 {
		g.in.left += held
		add(&g.in.stats.dropped, held)
		g.in.logger().Warn("events dropped", slog.String("stage", g.in.name), slog.Int("events", held), slog.String("reason", g.in.endReason()))
	}
}

// driven returns a gate that d drives. f is its callback.
func driven[In, Out any](
	name string, given bool, d driver[Out], f func(context.Context, []In, *Output[Out]) error, opts []Option,
) *Gate[In, Out] {
	g := NewGate(name, f, opts...)
	g.in.callback(given)
	g.in.auto = true
	g.drv = d
	return g
}
