package stage

// Inlet is the face of a gate or a sink that events come in by. It is a small
// handle; copies name the same face.
type Inlet[T any] struct{ i *inlet[T] }

// In returns i itself, so that a handle can be given to [Connect].
func (i Inlet[T]) In() Inlet[T] { return i }

// Inleter is what events can go to: [*Sink], [*Gate], [Inlet].
type Inleter[T any] interface{ In() Inlet[T] }

// inlet is the consuming half of a stage. All of it belongs to the stage's
// goroutine.
type inlet[T any] struct {
	*base
	edges []*edge[T]
	live  int // edges whose end was not taken yet
	first int // the edge that the next turn begins with
}

func newInlet[T any](b *base) inlet[T] { return inlet[T]{base: b} }

// start makes the first ask on every edge (ST-16).
func (i *inlet[T]) start() {
	i.live = len(i.edges)
	for _, e := range i.edges {
		e.ask(e.window.Start())
	}
}

// turn calls process for at most one chunk of every edge, beginning behind the
// one that was served last, and takes the ends that are due. It stops early when
// the stage begins to end or when ready says so; nil means always ready.
func (i *inlet[T]) turn(ready func() bool, process func(at int, e *edge[T], p *packet[T])) (progress bool) {
	n, first := len(i.edges), i.first
	for k := range n {
		at := (first + k) % n
		e := i.edges[at]
		if e.done {
			continue
		}
		if i.phase != running || ready != nil && !ready() {
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

// takeEnd applies the cancel mode of an edge whose producer has ended (ST-82).
// A graph that drains ends every producer: then a stage goes on until all its
// producers have, whatever the mode, so that nothing on its way is lost.
func (i *inlet[T]) takeEnd(e *edge[T]) {
	e.done = true
	i.live--
	switch {
	case e.endErr != nil && e.mode != Temporary:
		i.finishWith(e.endErr)
	case i.live == 0, e.endErr == nil && e.mode == Permanent && !i.graph().draining.Load():
		i.inputOver = i.phase == running
		i.finishWith(nil)
	}
}

// cancel gives up every edge that has not ended.
func (i *inlet[T]) cancel() {
	for _, e := range i.edges {
		e.cancel()
	}
}

// flushHeld sends the asks that a gate had recorded (ST-69).
func (i *inlet[T]) flushHeld() (progress bool) {
	for _, e := range i.edges {
		if e.held > 0 && !e.done {
			e.ask(e.held)
			e.held = 0
			progress = true
		}
	}
	return progress
}
