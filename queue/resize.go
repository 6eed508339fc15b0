package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// resizes is what a group knows of its calls of Resize.
type resizes struct {
	one     chan struct{} // holds a value while one is at work
	waits   atomic.Int32  // the number of consumers that one waits for; 0 when none does
	changed atomic.Uint64 // how often the number has changed
}

// Resize changes the number of consumers of a group, at least 1 and at most the
// number of partitions, while it is pulled, run, or neither. The partitions are
// shared out anew as [Topic.Group] does it. Nothing is lost, the order of a
// partition is kept, and where the group is in a partition stays: commits,
// pauses, the rate, what was sought, what failed and waits, and what is parked.
//
// Pull consumers: Resize does not wait for them. The ones that stay keep what
// they have of their new share, batches in hand included, and get the rest at
// their next pull. A partition that moves to another consumer goes on at its
// commit: a batch of it that is in hand comes again there, its values stay
// valid until the next call of its consumer, and its commit changes nothing and
// returns [ErrReassigned]; with AutoCommit it does not come again. A consumer
// whose number is not below consumers gets [ErrReassigned] from its pulls, also
// from one that waits, for good: [Group.Consumer] has another one when the
// group grows again. Call its Pull once more, or let it become garbage: until
// then the memory of its last batch is not used again.
//
// Run: the calls of the handler that run are waited for, and meanwhile no
// further one begins in the group; then it goes on with the new consumers. Run
// does not return, nothing is drained, and no retry is counted. When ctx ends
// first, Resize returns its error, and the group goes on as before. The handler
// must not call it, as it would wait for itself: with the context of the
// handler the error matches [penstock.ErrInvalid].
//
// While a Run ends, Resize waits for the end, and changes the number of
// consumers of the next one. Several calls work one after the other. The error
// matches [penstock.ErrInvalid] when the number is out of range,
// [penstock.ErrExists] when the group is used by readers, [penstock.ErrClosed]
// after Close or Stop, and that of ctx when it has ended first; nothing has
// changed then. The number is not stored: [Topic.Group] opens a group with that
// of its configuration.
func (g *Group[T]) Resize(ctx context.Context, consumers int) error {
	if err := g.checkResize(ctx, consumers); err != nil {
		return g.named(err)
	}
	select {
	case g.resizes.one <- struct{}{}:
	case <-ctx.Done():
		return g.named(penstock.ContextError(ctx))
	}
	g.resizes.waits.Store(int32(consumers))
	defer func() {
		g.resizes.waits.Store(0)
		<-g.resizes.one
	}()
	return g.named(g.resize(ctx, consumers))
}

func (g *Group[T]) checkResize(ctx context.Context, consumers int) error {
	if err := penstock.ContextError(ctx); err != nil {
		return err
	}
	if consumers < 1 || consumers > len(g.topic.parts) {
		return &penstock.FieldError{Field: "consumers", Reason: fmt.Sprintf("%d is outside [1, %d]", consumers, len(g.topic.parts))}
	}
	if in, _ := ctx.Value(insideKey{}).(*inside[T]); in != nil && in.pusher.group == g {
		return &penstock.FieldError{Field: "ctx", Reason: "is that of a handler of this group, for whose return Resize would wait"}
	}
	return nil
}

// resize is Resize, one call at a time.
func (g *Group[T]) resize(ctx context.Context, consumers int) error {
	for {
		r, err := g.resizeNow(consumers)
		if r == nil {
			return err
		}
		q := &resizing{ctx: ctx, consumers: consumers, done: make(chan error, 1)}
		select {
		case r.resize <- q:
			if err := <-q.done; !errors.Is(err, errRunEnds) {
				return err
			}
		case <-r.done:
		case <-ctx.Done():
			return penstock.ContextError(ctx)
		}
		select { // a run that ends takes no further requests
		case <-r.done:
		case <-ctx.Done():
			return penstock.ContextError(ctx)
		}
	}
}

// resizeNow changes the number of consumers, unless a run is under way, which
// has to do it.
func (g *Group[T]) resizeNow(consumers int) (*run[T], error) {
	s := &g.push
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped && g.use.Load() != pulled:
		return nil, errStopped
	case s.running && len(g.shares.Load().consumers) != consumers:
		return s.run, nil
	}
	return nil, g.divide(consumers)
}

// divide shares the partitions out anew. The caller holds push.mu, and no loop
// of a run is at work.
func (g *Group[T]) divide(consumers int) error {
	t := g.topic
	t.groupsMu.Lock()
	defer t.groupsMu.Unlock()
	g.left.mu.Lock() // a group that nobody uses is used by nobody until the end
	defer g.left.mu.Unlock()
	use := g.use.Load()
	switch {
	case t.groups[g.name] != g:
		return penstock.ErrClosed
	case use == readAhead:
		return fmt.Errorf("the group is used by readers: %w", penstock.ErrExists)
	case len(g.shares.Load().consumers) == consumers:
		return nil
	}
	g.redistribute(consumers, use == pulled)
	if use == pushed {
		g.regroup()
	}
	g.resizes.changed.Add(1)
	return nil
}

// redistribute gives consumers their new shares. With owners set, somebody may
// be at work in each of them, and a partition that moves gets a cursor of its
// own: its owner first gets a share without it, then its hold is replaced, so
// that every commit either counts or says that it does not, and only then
// another one gets it. The caller holds groupsMu.
func (g *Group[T]) redistribute(consumers int, owners bool) {
	old := g.shares.Load()
	next := &shares[T]{cursors: slices.Clone(old.cursors)}
	parts := len(next.cursors)
	share := func(i int) (from, to int) {
		if i >= consumers {
			return 0, 0
		}
		return assignment(parts, consumers, i)
	}
	for i, c := range old.consumers {
		now := c.share.Load()
		from, to := share(i)
		from, to = max(from, now.from), min(to, now.to) // what it keeps
		if to <= from || i >= consumers {
			from, to = now.from, now.from
		}
		if to-from == now.to-now.from {
			continue
		}
		kept := g.newShare(next.cursors, from, to)
		kept.gone = i >= consumers
		var lost []*cursor[T]
		if owners {
			lost = slices.Concat(now.cursors[:from-now.from], now.cursors[to-now.from:])
		}
		for _, x := range lost {
			x.moved.Store(&moved{})
		}
		c.hand(kept, lost...)
		for _, x := range lost {
			next.cursors[x.part.index] = g.succeed(x)
		}
	}
	for i := range consumers {
		from, to := share(i)
		if i >= len(old.consumers) {
			next.consumers = append(next.consumers, newConsumer(g, g.newShare(next.cursors, from, to)))
			continue
		}
		c := old.consumers[i]
		if now := c.share.Load(); now.from != from || now.to != to {
			c.hand(g.newShare(next.cursors, from, to))
		}
		next.consumers = append(next.consumers, c)
	}
	g.shares.Store(next)
	g.feeds.resized()
	if owners {
		return
	}
	// Nobody looks at a share, so all are taken now: a consumer would believe to
	// have what it never used, and another one uses.
	for _, c := range slices.Concat(old.consumers, next.consumers) {
		c.takeShare()
	}
}

// moved says that a cursor gives way to another one. It is there before the
// owner gets a share without the cursor.
type moved struct {
	at atomic.Uint64 // on disk, where the other one begins: what was stored up to there counts
}

// storedBeforeMove reports whether a commit to an offset, which found its hold
// replaced, had been stored before that.
func (c *cursor[T]) storedBeforeMove(to penstock.Offset) bool {
	m := c.moved.Load()
	return m != nil && uint64(to) <= m.at.Load()
}

// succeed makes the cursor that takes the place of x, whose owner may be at
// work. What the owner looks at stays as it is until its next call.
func (g *Group[T]) succeed(x *cursor[T]) *cursor[T] {
	p, at := x.part, penstock.Offset(0)
	var s source[T]
	if f, ok := x.source.(*fileSource[T]); ok {
		next := &fileSource[T]{engine: f.engine, part: f.part, cursor: f.cursor}
		next.era, at = f.cursor.Turn()
		x.moved.Load().at.Store(uint64(at))
		s = next
	} else {
		s = newMemory(p.log)
	}
	x.loan.lend()
	c := newCursor(g, p, p.marks.Replace(x.shown(), at), s)
	c.skipped.Store(x.skipped.Swap(nil))
	if c.saved && c.committed > at { // of a commit that came too late to be stored, and is not told so
		if err := s.store(c.committed, nil); err != nil {
			g.noteError(KindCommit, p.index, c.committed, err)
		}
	}
	return c
}
