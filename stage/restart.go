package stage

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"
)

// A strategy says what is restarted with a stage.
type strategy uint8

const (
	alone      strategy = iota // stages are restarted that ask for it
	oneForOne                  // every stage that fails
	restForOne                 // and those after it
)

// OneForOne has the graph restart every stage that fails, by r, unless the stage
// says otherwise ([OnError]). The stages before and after it go on: their
// subscriptions stay, what was sent to the stage waits for it, and what it has
// emitted goes out. The batch in the hands of the callback that failed is lost,
// and counted as failed; what an operator of this package held is counted as
// dropped.
//
// When a stage's budget of restarts is used up, the graph drains, and Run
// returns a *[RestartError].
func OneForOne(r Restarts) GraphOption { return supervise(oneForOne, r) }

// RestForOne is [OneForOne] that restarts the stages after the failed one too:
// those that its events reach, directly or through others, in the order of the
// flow. All of them begin anew: what the failed stage has emitted and nobody has
// taken, and what the later ones hold or were sent by one of them, is discarded
// or counted as undelivered, so that nothing of before the failure reaches what
// was initialised after it. Events that were pushed into a source from outside
// stay, and with them what the callback of a [Hybrid] has put into the same
// buffer. None of the stages goes on before all have begun anew; one that is in a
// callback keeps the others waiting. Stages of other graphs are not restarted, nor
// are pools and slots, which have a tolerance of their own.
func RestForOne(r Restarts) GraphOption { return supervise(restForOne, r) }

func supervise(s strategy, r Restarts) GraphOption {
	return func(g *Graph) {
		g.supervises, g.restarts = s, r.filled()
		if r.err != nil {
			g.refuse(r.err)
		}
	}
}

// Why the callbacks of a stage wait.
const (
	resting  = 1 << iota // until its backoff is over
	renewing             // until the later stages have begun anew
)

// A comeback is what a stage needs to be restarted. All but what says otherwise
// belongs to the stage's goroutine.
//
// Invariants: paused has resting exactly while alarm runs or its errand is
// posted, and renewing exactly while renewals > 0.
type comeback struct {
	tally    tally
	first    error // the failure that the tally began with
	alarm    *time.Timer
	renewals int // of the stage, that go on
	resets   []func()
}

// schedule returns the restarts that count for the stage.
func (b *base) schedule() Restarts {
	switch {
	case b.restarts != nil:
		return b.restarts.filled()
	case b.graph().supervises != alone:
		return b.graph().restarts
	}
	return Restarts{}.filled()
}

// restartLater has the stage restarted after its backoff, and reports whether it
// goes on: not when its budget is used up, nor while the graph drains.
func (b *base) restartLater(err error) bool {
	g, r := b.graph(), b.schedule()
	if g.draining.Load() || b.ctl.Load()&(ctlStop|ctlQuit) != 0 {
		return false
	}
	if b.paused&resting != 0 { // a second failure of one call
		return true
	}
	t, wait, ok := b.back.tally.next(r, time.Now(), rand.Float64())
	if t.count <= 1 {
		b.back.first = err
	}
	if !ok {
		b.giveUp(&RestartError{Stage: b.name, Restarts: t.count, Window: r.window, First: b.back.first, Last: err})
		return true // it has ended, with that error
	}
	b.back.tally = t
	b.lastFailure.Store(&err)
	b.restartAt.Store(time.Now().Add(wait).UnixNano())
	b.paused |= resting
	b.back.alarm = time.AfterFunc(wait, func() { b.post(b.restart) })
	b.logger().Warn("stage is restarted", withStack(err, slog.String("stage", b.name), slog.Duration("in", wait),
		slog.Int("restarts", t.count), slog.Int("at_most", r.budget), slog.Any("error", err))...)
	return true
}

// giveUp ends the stage for good, and has the graph drain.
func (b *base) giveUp(err *RestartError) {
	b.failForGood(err)
	b.graph().giveUp()
}

// hurry ends the backoff of a stage whose graph drains: it works off what it
// has, and fails for good if it fails again. It reports whether it did.
func (b *base) hurry() bool {
	if b.paused&resting == 0 || b.phase != running || !b.graph().draining.Load() {
		return false
	}
	b.restart()
	return true
}

// restart begins the stage anew, when its backoff is over.
func (b *base) restart() {
	if b.paused&resting == 0 || b.phase != running {
		return
	}
	b.endRest()
	g := b.graph()
	var set map[*base]bool
	if g.supervises == restForOne {
		set = g.after(b)
	}
	if !b.renew(set, true) {
		return
	}
	b.back.tally.last = time.Now()
	if len(set) > 1 {
		b.hold()
		g.renewInOrder(b, set)
	}
}

func (b *base) endRest() {
	b.paused &^= resting
	b.restartAt.Store(0)
	if b.back.alarm != nil {
		b.back.alarm.Stop()
	}
}

// renewable is a stage that can begin anew.
type renewable interface {
	// renew lets go of what the stage's callbacks have made of events. When set
	// is not nil it also lets go of what waits for demand, and of what was sent
	// to it by the stages of the set.
	renew(set map[*base]bool)
}

// renew has the stage begin anew, and reports whether its Init went well. own
// says that the stage itself has failed; else one before it has.
func (b *base) renew(set map[*base]bool, own bool) bool {
	if n, ok := b.self.(renewable); ok {
		if own && len(set) > 1 || !own {
			n.renew(set)
		} else {
			n.renew(nil)
		}
	}
	for _, reset := range b.back.resets {
		if b.guard(reset) {
			return false
		}
	}
	if b.mail != nil {
		b.mail.renew()
	}
	add(&b.stats.restarts, 1)
	if b.init == nil {
		return true
	}
	ctx, cancel := context.WithTimeoutCause(b.ctx, b.graph().startWithin, ErrStartTimeout)
	defer cancel()
	var err error
	panicked := b.shield(func() { err = b.init(ctx) }, true)
	switch {
	case panicked: // the stage has reacted already
	case isInterrupt(b.ctx, err):
		b.finishWith(nil)
	case err != nil:
		b.fail(fmt.Errorf("stage %q: init: %w", b.name, err))
	}
	return !panicked && err == nil
}

// hold keeps the callbacks waiting until a release.
func (b *base) hold() {
	b.back.renewals++
	b.paused |= renewing
}

func (b *base) release() {
	if b.back.renewals--; b.back.renewals == 0 {
		b.paused &^= renewing
	}
}

// renewInOrder has the stages of set begin anew, one after the other, and then
// all of them go on. from has begun anew.
func (g *Graph) renewInOrder(from *base, set map[*base]bool) {
	var order []*base
	for _, n := range g.inFlowOrder() {
		if b := n.common(); set[b] && b != from {
			order = append(order, b)
		}
	}
	held := []*base{from}
	var next func()
	next = func() {
		for len(order) > 0 {
			b := order[0]
			order = order[1:]
			if b.post(func() {
				defer next() // also when its Init calls runtime.Goexit
				b.follow(set, &held)
			}) {
				return
			}
		}
		for _, b := range held {
			b.post(b.release)
		}
	}
	next()
}

// follow begins the stage anew because one before it does.
func (b *base) follow(set map[*base]bool, held *[]*base) {
	if b.phase != running || b.fixed {
		return
	}
	if b.paused&resting != 0 {
		b.endRest()
	}
	b.hold()
	*held = append(*held, b)
	b.renew(set, false)
}

// after returns b and the stages of the graph that its events reach.
func (g *Graph) after(b *base) map[*base]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	edges := make([][2]*base, 0, len(g.links))
	for _, l := range g.links {
		if l.to.graph() == g && !l.feedback {
			edges = append(edges, [2]*base{l.from, l.to})
		}
	}
	return reached(b, edges)
}

// reached returns the nodes that edges lead to from one, and that itself.
func reached[N comparable](from N, edges [][2]N) map[N]bool {
	set := map[N]bool{from: true}
	for todo := []N{from}; len(todo) > 0; {
		n := todo[0]
		todo = todo[1:]
		for _, e := range edges {
			if e[0] == n && !set[e[1]] {
				set[e[1]] = true
				todo = append(todo, e[1])
			}
		}
	}
	return set
}

func (g *Graph) inFlowOrder() []node {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.flowOrder())
}

// giveUp has the graph drain because a stage was given up.
func (g *Graph) giveUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.hopeless {
		g.hopeless = true
		close(g.gaveUp)
	}
}

// anew has f called when the stage begins anew, before its Init.
func (b *base) anew(f func()) { b.back.resets = append(b.back.resets, f) }
