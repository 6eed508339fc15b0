package stage

import (
	"context"
	"log/slog"
	"sync"

	"github.com/penstock/penstock"
)

// Name is the address of a stage in a graph: by it others connect and subscribe
// to a stage that is made elsewhere, later, or anew. It has an outlet of T, an
// inlet of T, or both, depending on the stage that claims it, with
// [Source.As], [Gate.OutAs], [Gate.InAs] or [Sink.As].
//
//	orders := stage.NewName[Order](g, "orders")
//	stage.Connect(g, orders, writer)  // before there is a stage of this name
//	stage.Pull("shop", poll).As(orders)
//
// A name is resolved late: by [Connect] when the graph starts, and by
// [Subscribe] in the call. A stage that has ended gives its name up; another may
// claim it then and be given to [Graph.Add]: what was declared by the name is
// connected to it too, where the other side still runs. Safe for concurrent use.
type Name[T any] struct {
	g    *Graph
	name string

	mu     sync.Mutex
	outlet *outlet[T]
	inlet  *inlet[T]
	links  []func() // make the declared subscriptions again
}

// NewName returns a name of g. No other name and no mailbox of g may be called
// so: that is an error at Start which matches [ErrNameTaken].
func NewName[T any](g *Graph, name string) *Name[T] {
	if err := g.takeName(name); err != nil {
		g.refuseUnstarted(err)
	}
	return &Name[T]{g: g, name: name}
}

// Out returns the outlet of whoever has the name when it is used.
func (n *Name[T]) Out() Outlet[T] { return Outlet[T]{name: n} }

// In returns the inlet of whoever has the name when it is used.
func (n *Name[T]) In() Inlet[T] { return Inlet[T]{name: n} }

// Name returns the name itself.
func (n *Name[T]) Name() string { return n.name }

// As gives the source the name n, for its outlet. A name has one owner at a
// time: a second one is an error at Start, or of [Graph.Add], that matches
// [ErrNameTaken]. It returns s. Call it before the source starts.
func (s *Source[T]) As(n *Name[T]) *Source[T] {
	n.claimOut(&s.out)
	return s
}

// As gives the sink the name n, for its inlet; see [Source.As]. It returns s.
func (s *Sink[T]) As(n *Name[T]) *Sink[T] {
	n.claimIn(&s.in)
	return s
}

// OutAs gives the outlet of the gate the name n; see [Source.As]. It returns g.
func (g *Gate[In, Out]) OutAs(n *Name[Out]) *Gate[In, Out] {
	n.claimOut(&g.out)
	return g
}

// InAs gives the inlet of the gate the name n; see [Source.As]. It returns g.
func (g *Gate[In, Out]) InAs(n *Name[In]) *Gate[In, Out] {
	n.claimIn(&g.in)
	return g
}

func (n *Name[T]) claimOut(o *outlet[T]) {
	n.mu.Lock()
	taken := n.outlet != nil && !n.outlet.over.Load()
	if !taken {
		n.outlet = o
	}
	n.mu.Unlock()
	claim(n, o.base, taken)
}

func (n *Name[T]) claimIn(i *inlet[T]) {
	n.mu.Lock()
	taken := n.inlet != nil && !n.inlet.over.Load()
	if !taken {
		n.inlet = i
	}
	n.mu.Unlock()
	claim(n, i.base, taken)
}

// claim notes with the stage what has become of its claim.
func claim[T any](n *Name[T], b *base, taken bool) {
	b.claims = append(b.claims, n.reconnect)
	if b.named = n.g; !taken {
		return
	}
	err := errTaken("name", n.name)
	if b.err == nil {
		b.err = err
	}
	n.g.refuseUnstarted(err) // the stage may be connected by its name alone
}

// reconnect makes what was declared by the name for a stage that has it now.
func (n *Name[T]) reconnect() {
	n.mu.Lock()
	links := n.links
	n.mu.Unlock()
	for _, again := range links {
		again()
	}
}

// declared notes a subscription that was declared by a name.
func (n *Name[T]) declared(from Outlet[T], to Inlet[T], opts []SubOption) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links = append(n.links, func() {
		s, err := Subscribe(context.Background(), from, to, opts...)
		if err != nil { // the other side has ended, or was subscribed by hand
			n.g.logger().Debug("not connected again", slog.String("name", n.name), slog.Any("error", err))
			return
		}
		n.g.logger().Debug("connected again", slog.String("producer", s.Producer()), slog.String("consumer", s.Consumer()))
	})
}

// resolve returns the outlet that o is a handle of, nil when it is a name that
// no stage has, and panics when it is nothing.
func (o Outlet[T]) resolve(caller string) *outlet[T] {
	if o.name != nil {
		o.name.mu.Lock()
		defer o.name.mu.Unlock()
		return o.name.outlet
	}
	if o.o == nil {
		panic("stage: " + caller + ": a zero Outlet")
	}
	return o.o
}

// resolve is that of Outlet.
func (i Inlet[T]) resolve(caller string) *inlet[T] {
	if i.name != nil {
		i.name.mu.Lock()
		defer i.name.mu.Unlock()
		return i.name.inlet
	}
	if i.i == nil {
		panic("stage: " + caller + ": a zero Inlet")
	}
	return i.i
}

func (o Outlet[T]) called(b *outlet[T]) string {
	if b == nil {
		return o.name.name
	}
	return b.name
}

func (i Inlet[T]) called(b *inlet[T]) string {
	if b == nil {
		return i.name.name
	}
	return b.name
}

// takeName makes name one of the graph's names, or says that it cannot.
func (g *Graph) takeName(name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case name == "":
		return &penstock.FieldError{Field: "name", Reason: "is empty"}
	case g.names[name]:
		return errTaken("name", name)
	}
	if g.names == nil {
		g.names = map[string]bool{}
	}
	g.names[name] = true
	return nil
}

// refuseUnstarted has Start return err. Once the graph runs, whoever uses what
// is wrong is told.
func (g *Graph) refuseUnstarted(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.started {
		g.refuse(err)
	}
}
