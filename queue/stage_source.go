package queue

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stage"
)

// Message is an event of a group on its way through a graph of package stage.
// Whoever finishes with it calls [Message.Done]; until then its group does not
// commit it. It is a small value; copies, and what [With] makes of it, stand for
// the same event.
type Message[T any] struct {
	Value     T
	Partition int
	Offset    penstock.Offset

	from *taken
	i    int
}

// With returns a message with another value that stands for the same event as m:
// settling it settles m.
func With[To, From any](m Message[From], value To) Message[To] {
	return Message[To]{Value: value, Partition: m.Partition, Offset: m.Offset, from: m.from, i: m.i}
}

// Meta returns what was given with the event besides its value. It is valid
// until the message is settled.
func (m Message[T]) Meta() penstock.Meta {
	if m.from == nil {
		return penstock.Meta{}
	}
	return m.from.meta(m.i)
}

// Done says that the event is finished with. When the last event of a batch is,
// the group commits the batch. A second Done of one event changes nothing. The
// error is that of a commit that this call had to make, after the source has
// ended: then the events come again. It is safe for concurrent use.
func (m Message[T]) Done() error {
	if m.from == nil {
		return nil
	}
	return m.from.settle(m.i)
}

// Source returns a source of package stage that pulls from all consumers of the
// group, at the pace of who comes after it. The group commits a batch when
// every message of it was settled by [Message.Done], at the end of a graph by a
// sink made with [Settle] or [ProduceTo]. Each consumer has one batch of at
// most BatchMax events on its way: a stage that gathers more than all of them
// before it passes something on has to do so within a time, as
// [stage.BatchWithin] does. A gate that lets a message go settles it itself.
//
// When the graph drains, the source pulls no more, and the rest is delivered
// and committed as it is settled. What was not settled when a graph ends, for
// whatever reason, is not committed, and comes again to the next one, together
// with those events of its batch that were settled: at least once. In
// a group with AutoCommit the commit comes first, and nothing has to be
// settled: at most once.
//
// It follows [Group.Resize]; what was on its way in a partition that moves comes
// again. The source fails when a pull or a commit does, and with an error that matches
// [penstock.ErrExists] while another source runs the group.
func (g *Group[T]) Source(name string, opts ...stage.Option) *stage.Source[Message[T]] {
	return stage.Func(name, func(ctx context.Context, yield func(Message[T]) bool) error {
		return g.named(g.feed(ctx, yield))
	}, opts...)
}

// feeds is what a group knows of the sources that run it.
//
// Invariant: a batch is committed only by the source of the current turn, or,
// when that has ended, by a late Done of a message of the same turn.
type feeds struct {
	changed atomic.Pointer[chan struct{}] // tells the source that runs, if any, that the consumers are others

	mu   sync.Mutex
	turn int
}

// begin takes the turn, unless a source has it.
func (f *feeds) begin() (turn int, changed chan struct{}, err error) {
	changed = make(chan struct{}, 1)
	if !f.changed.CompareAndSwap(nil, &changed) {
		return 0, nil, penstock.ErrExists
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turn++
	return f.turn, changed, nil
}

func (f *feeds) end() { f.changed.Store(nil) }

// resized tells the source that runs, if one does, that the group has other
// consumers. It takes no lock.
func (f *feeds) resized() {
	if changed := f.changed.Load(); changed != nil {
		select {
		case *changed <- struct{}{}:
		default:
		}
	}
}

// feed pulls from all consumers until ctx ends or something fails.
func (g *Group[T]) feed(ctx context.Context, yield func(Message[T]) bool) error {
	turn, changed, err := g.feeds.begin()
	if err != nil {
		return err
	}
	defer g.feeds.end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type result struct {
		of  *Consumer[T]
		err error
	}
	ends := make(chan result)
	pulled := map[*Consumer[T]]bool{}
	var failure error
	for {
		switch ended := ctx.Err() != nil; {
		case ended && len(pulled) == 0:
			return failure
		case !ended:
			for _, c := range g.shares.Load().consumers {
				if !pulled[c] {
					pulled[c] = true
					// A puller of one consumer: ends when ctx does, as the first
					// failure ends it too, and when the group has taken the consumer
					// away; the loop waits for it.
					go func() { ends <- result{c, g.pullInto(ctx, c, turn, yield)} }()
				}
			}
		}
		select {
		case <-changed:
		case r := <-ends:
			delete(pulled, r.of)
			if r.err != nil && failure == nil {
				failure = r.err
				cancel(r.err)
			}
		}
	}
}

// pullInto hands the batches of one consumer to yield, one at a time.
func (g *Group[T]) pullInto(ctx context.Context, c *Consumer[T], turn int, yield func(Message[T]) bool) error {
	for {
		b, err := c.Pull(ctx)
		if _, skipped := errors.AsType[*SkippedError](err); skipped {
			continue // logged, counted and told to the hook
		}
		switch {
		case err == nil:
		case ctx.Err() != nil, errors.Is(err, ErrReassigned):
			return nil
		default:
			return err
		}
		t := &taken{done: make(chan struct{}), states: make([]atomic.Bool, b.Len()), meta: b.Meta}
		t.left.Store(int64(b.Len()))
		t.commit = func() error { return g.commitTaken(b, turn) }
		for i, v := range b.All() { // also when ctx has ended: what was pulled is delivered
			yield(Message[T]{Value: v, Partition: b.Partition(), Offset: b.Offset(i), from: t, i: i})
		}
		if g.config.AutoCommit {
			continue
		}
		select {
		case <-t.done:
		case <-ctx.Done():
			if !t.leave() {
				return nil // the last Done commits
			}
		}
		if err := committed(b.Commit()); err != nil {
			return err
		}
	}
}

// committed lets a commit pass that came after the partition had been given to
// another consumer: its events come again there.
func committed(err error) error {
	if errors.Is(err, ErrReassigned) {
		return nil
	}
	return err
}

// commitTaken commits a batch whose source has ended, unless another source has
// pulled it again.
func (g *Group[T]) commitTaken(b Batch[T], turn int) error {
	g.feeds.mu.Lock()
	defer g.feeds.mu.Unlock()
	if g.feeds.turn != turn {
		return nil
	}
	return committed(b.Commit())
}

// taken is a batch on its way through a graph.
//
// Invariant: exactly one of the puller and the last Done commits: the puller
// when it has seen done, the last Done when the puller has left before.
type taken struct {
	left   atomic.Int64 // events that are not settled
	states []atomic.Bool
	meta   func(i int) penstock.Meta
	commit func() error
	done   chan struct{} // closed by the last Done

	mu   sync.Mutex
	gone bool // the puller has left
}

func (t *taken) settle(i int) error {
	if t.states[i].Swap(true) || t.left.Add(-1) > 0 {
		return nil
	}
	t.mu.Lock()
	gone := t.gone
	close(t.done)
	t.mu.Unlock()
	if gone {
		return t.commit()
	}
	return nil
}

// leave lets the puller go. It reports whether everything was settled before.
func (t *taken) leave() (settled bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone = true
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}
