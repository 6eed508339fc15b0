package stage

import (
	"errors"
	"fmt"
	"reflect"
)

// Owned hands a sink the batches it is given for good: its callback may keep the
// slice, change it and hand it to somebody else, as a sink does that queues
// batches elsewhere. The arrays are not used again, so every batch costs an
// allocation, and behind a broadcast a copy. On other stages it is an error at
// Start.
func Owned() Option { return func(s *settings) { s.owns = true } }

// ErrBatchChanged: a callback has written to a batch after it had returned. See
// [Poison].
var ErrBatchChanged = errors.New("batch changed after its callback had returned")

// Poison has a graph look for callbacks that go on using a batch after they have
// returned. It is for tests. The events of a batch are set to zero as soon as the
// callback has returned, behind a broadcast those of all its consumers, and no
// array is used for a second batch: so whoever
// reads a batch that was kept finds zeros, and the race detector sees it where
// that is another goroutine. Whoever writes to one ends the graph as
// [Graph.Abort] does, with an error that matches [ErrBatchChanged] and names the
// producer and its consumers: some batches later, or in what Run returns at the
// latest. Batches that a sink has [Owned] are left alone.
//
// Nothing else changes: wants, batches and order stay. It costs an allocation
// per batch and a look at every event.
func Poison() GraphOption { return func(g *Graph) { g.once = true } }

// retiredMost bounds the slabs of one outlet that are watched for writes.
const retiredMost = 64

// users are the names of the consumers that a slab went to, for an error.
type users struct{ names string }

func (u *users) add(name string) {
	if name = fmt.Sprintf("%q", name); u.names != "" && u.names != name {
		name = u.names + " or " + name
	}
	u.names = name
}

// retire clears a slab for good and watches it for a while.
func (o *outlet[T]) retire(s *slab[T]) {
	clear(s.buf)
	o.retired = append(o.retired, s)
	if len(o.retired) > retiredMost {
		oldest := o.retired[0]
		o.retired[0] = nil
		o.retired = o.retired[1:]
		if err := o.written(oldest); err != nil {
			o.graph().Abort(err)
		}
	}
}

// written returns an error if somebody has written to a slab since it was
// cleared.
func (o *outlet[T]) written(s *slab[T]) error {
	v := reflect.ValueOf(s.buf)
	for i := range v.Len() {
		if !v.Index(i).IsZero() {
			return fmt.Errorf("stage %q, consumed by %s: %w", o.name, s.users.names, ErrBatchChanged)
		}
	}
	return nil
}

// lookForWrites looks at every slab that is left, when the outlet's stage and
// its consumers have ended.
func (o *outlet[T]) lookForWrites() (errs []error) {
	for _, e := range o.edges {
		o.reclaim(e)
	}
	for _, s := range o.retired {
		if err := o.written(s); err != nil {
			errs = append(errs, err)
		}
	}
	o.retired = nil
	return errs
}

func (s *Source[T]) lookForWrites() []error     { return s.out.lookForWrites() }
func (g *Gate[In, Out]) lookForWrites() []error { return g.out.lookForWrites() }

// lookForWrites notes what the stages find in their slabs.
func (g *Graph) lookForWrites() {
	if !g.once {
		return
	}
	g.mu.Lock()
	nodes := g.nodes
	g.mu.Unlock()
	for _, n := range nodes {
		p, ok := n.(interface{ lookForWrites() []error })
		if !ok {
			continue
		}
		if errs := p.lookForWrites(); len(errs) > 0 {
			g.failed(errs[0])
		}
	}
}
