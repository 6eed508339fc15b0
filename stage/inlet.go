package stage

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock/demand"
)

// Inlet is the face of a gate or a sink that events come in by. It is a small
// handle; copies name the same face.
type Inlet[T any] struct {
	i    *inlet[T]
	name *Name[T] // in place of i, when not nil
}

// In returns i itself, so that a handle can be given to [Connect].
func (i Inlet[T]) In() Inlet[T] { return i }

// Inleter is what events can go to: [*Sink], [*Gate], [Inlet], [*Name].
type Inleter[T any] interface{ In() Inlet[T] }

// inlet is the consuming half of a stage. All of it belongs to the stage's
// goroutine.
//
// Invariant: live is the number of edges, but for feedback, whose end was not
// taken yet.
type inlet[T any] struct {
	*base
	edges     []*edge[T]
	live      int
	first     int           // the edge that the next turn begins with
	gone      bool          // some of edges are done
	hasty     int           // subscriptions with FailFast, ever
	ranked    bool          // edges are of different priorities, the highest first
	owned     bool          // the stage asks by rules of its own, not by the window
	ownWindow demand.Window // of its subscriptions, when Max is not 0; else they say

	changes bool // the callback may change what it gets
	keeps   bool // and keep it, see Owned

	swap         func(*slab[T]) *slab[T] // of the gate whose input it is; see edge
	onSubscribed func(*Subscription)
	onCancelled  func(*Subscription, error) error
}

func newInlet[T any](b *base) inlet[T] { return inlet[T]{base: b} }

// adopt takes in a subscription: the first ask follows (ST-16).
func (i *inlet[T]) adopt(e *edge[T]) {
	i.place(e)
	if !e.sub.feedback {
		i.live++
	}
	if e.sub.hasty {
		i.hasty++
	}
	if i.owned {
		e.ask(e.window.Max())
	} else if !e.manual {
		e.ask(e.window.Start())
	}
}

// rule says whether the stage's own rules of asking allow what a subscription
// asks for, and gives it its demand if they say which (ST-35).
func (i *inlet[T]) rule(s *subscription) error {
	if !i.owned {
		return nil
	}
	fixed := i.ownWindow.Max() > 0
	if s.manual || s.demand && fixed {
		return ErrUnsupportedDemandMode
	}
	if fixed {
		s.window = i.ownWindow
	}
	return nil
}

// greet tells the hook of a subscription that was adopted.
func (i *inlet[T]) greet(e *edge[T]) {
	if i.onSubscribed != nil {
		i.guard(func() { i.onSubscribed(e.sub) })
	}
}

// join is adopt and greet while the stage runs, or the refusal.
func (i *inlet[T]) join(e *edge[T]) {
	if i.phase != running {
		i.drop(e, ErrConsumerNotAlive)
		return
	}
	i.adopt(e)
	i.greet(e)
}

// begin greets the declared subscriptions.
func (i *inlet[T]) begin() {
	if i.onSubscribed == nil {
		return
	}
	for _, e := range i.edges[:len(i.edges):len(i.edges)] {
		i.greet(e)
	}
}

// turn calls process for at most one chunk of every edge, beginning behind the
// one that was served last, and takes the ends that are due. It stops early when
// the stage begins to end or when ready says so; nil means always ready.
func (i *inlet[T]) turn(ready func() bool, process func(at int, e *edge[T], p *packet[T])) (progress bool) {
	if i.gone {
		i.compact()
	}
	if i.ranked {
		return i.turnRanked(ready, process)
	}
	n, first := len(i.edges), i.first
	for k := range n {
		at := (first + k) % n
		e := i.edges[at]
		if e.done {
			continue
		}
		if i.phase != running || i.paused != 0 || ready != nil && !ready() {
			return progress
		}
		p, over := e.next()
		switch {
		case p != nil:
			i.first = (at + 1) % n
			process(at, e, p)
			progress = true
		case over:
			i.takeEnd(e)
			progress = true
		}
	}
	return progress
}

// rest ends a stage that waits for a subscription when the graph drains.
func (i *inlet[T]) rest() {
	if i.live == 0 && i.phase == running && i.paused == 0 && i.graph().draining.Load() {
		i.endInput()
	}
}

// compact forgets the edges that are done.
func (i *inlet[T]) compact() {
	i.gone = false
	i.edges = slices.DeleteFunc(i.edges, func(e *edge[T]) bool { return e.done })
}

// takeEnd applies the cancel mode of an edge that is over (ST-82), or asks the
// hook. A graph that drains ends every producer: then a stage goes on until all
// its producers have, whatever the mode, so that nothing on its way is lost.
func (i *inlet[T]) takeEnd(e *edge[T]) {
	reason, cancelled := e.reason(), e.cancelled()
	i.drop(e, reason)
	if e.sub.feedback { // the end of a circle is no reason for its beginning
		return
	}
	i.live--
	switch {
	case i.onCancelled != nil:
		i.asked(e.sub, reason)
	case reason != nil && e.mode != Temporary && !errors.Is(reason, ErrTooSlow):
		i.inputOver = i.phase == running
		i.finishWith(reason)
	case reason == nil && e.mode == Permanent && !i.graph().draining.Load():
		i.endInput()
	}
	if i.live > 0 || i.phase != running {
		return
	}
	if cancelled || i.added.Load() || i.onCancelled != nil {
		i.rest() // it waits for another
		return
	}
	i.endInput()
}

// endInput ends the stage normally because nothing more can come in.
func (i *inlet[T]) endInput() {
	if i.phase == running {
		i.inputOver = true
		i.finishWith(nil)
	}
}

// asked has the hook decide about the stage.
func (i *inlet[T]) asked(s *Subscription, reason error) {
	var err error
	if i.guard(func() { err = i.onCancelled(s, reason) }) || err == nil {
		return
	}
	switch {
	case errors.Is(err, Done):
		i.endInput()
	case reason != nil && matches(err, reason): // passed on, not a failure of its own
		i.finishWith(err)
	default:
		i.failForGood(fmt.Errorf("stage %q: %w", i.name, err))
	}
}

// drop ends an edge for the consumer.
func (i *inlet[T]) drop(e *edge[T], reason error) {
	i.gone = true
	if n := e.leave(); n > 0 {
		i.lost(n)
	}
	e.sub.over(reason)
}

// leave gives up every edge that has not ended.
func (i *inlet[T]) leave() {
	for _, e := range i.edges {
		if !e.done {
			if !e.sub.feedback {
				i.live--
			}
			i.drop(e, i.cause)
		}
	}
}

// passed records that n events of the packet at the head were given to a call,
// and returns what to ask for now.
func (i *inlet[T]) passed(e *edge[T], p *packet[T], n int, panicked bool) (ask int) {
	switch {
	case panicked && i.phase != running:
		e.spoil(n)
		return 0
	case panicked, i.keeps:
		ask = e.skip(p, n)
	default:
		ask = e.took(p, n)
	}
	if i.phase != running {
		return 0
	}
	return ask
}

// sweep drops what the stages of the set have sent and nobody has processed, and
// asks for as much again.
func (i *inlet[T]) sweep(set map[*base]bool) {
	for _, e := range i.edges {
		if e.done || !set[e.sub.from] {
			continue
		}
		n, ask := e.sweep()
		add(&i.stats.undelivered, n)
		switch {
		case ask == 0:
		case e.sub.manual:
			e.askMore(ask)
		default:
			i.ask(e, ask)
		}
	}
}

// flushHeld sends the asks that a gate had recorded (ST-69).
func (i *inlet[T]) flushHeld() (progress bool) {
	for _, e := range i.edges {
		if e.held > 0 && !e.done {
			i.ask(e, e.held)
			e.held = 0
			progress = true
		}
	}
	return progress
}

// ask asks for n more, unless the subscription was cancelled (ST-26).
func (i *inlet[T]) ask(e *edge[T], n int) {
	if !e.cancelled() {
		e.ask(n)
	}
}
