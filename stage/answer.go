package stage

import "context"

// This file has the ways in which the kinds of stage run the handler of a
// message, and what they tell of what they hold (holder).

// answer runs a handler. What it emits goes to those who have asked, if nothing
// is before it, and else behind what is buffered.
func (s *Source[T]) answer(ctx context.Context, f func(out *Output[T]) error) {
	want := 0
	if s.out.ready() && s.in.size.Load() == 0 && !s.holding.Load() {
		if want = s.out.want(); want > 0 {
			s.noteOpen(0) // the demand is promised to the handler now
		}
	}
	slab := s.out.take()
	s.o = Output[T]{buf: slab.buf[:0]}
	panicked, err := s.called(func() error { return f(&s.o) })
	s.collect(slab, want, panicked)
	s.out.returned(ctx, panicked, err)
	s.dry = false // the handler may have made something for the pull callback
}

// renew has the pull callback called again. With a set, what it, or the feed, had
// emitted is discarded; what was pushed from outside stays.
func (s *Source[T]) renew(set map[*base]bool) {
	s.dry = false
	if set == nil || s.push && s.feed == nil {
		return
	}
	lost := append(s.out.unsent(), s.in.empty()...)
	s.out.letGo()
	s.discard(len(lost), lost, s.out.failForGood)
}

func (s *Source[T]) place() int64            { return s.in.place() }
func (s *Source[T]) passed(place int64) bool { return s.in.passed(place) }
func (s *Source[T]) emitted() int64          { return s.out.emitted() }
func (s *Source[T]) gone() int64             { return s.out.gone() }
func (s *Source[T]) crowded() bool           { return false } // the buffer has a bound of its own

// place returns where the buffer ends now.
func (in *intake[T]) place() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.buf.gone + int64(in.buf.len())
}

// passed reports whether the buffer was emptied up to place.
func (in *intake[T]) passed(place int64) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.buf.gone >= place
}

// answer runs a handler. What it emits goes out behind what waits.
func (g *Gate[In, Out]) answer(ctx context.Context, f func(out *Output[Out]) error) {
	slab := g.out.take()
	g.o = Output[Out]{buf: slab.buf[:0]}
	panicked, err := g.call(func() error { return f(&g.o) })
	slab.buf = g.o.buf
	g.o = Output[Out]{}
	slab.refs = 1
	if panicked || len(slab.buf) == 0 {
		slab.dirty = g.out.clears
		g.out.release(slab)
	} else {
		add(&g.in.stats.emitted, len(slab.buf))
		g.out.join(slab)
		g.out.flush()
	}
	g.in.returned(ctx, panicked, err)
}

func (g *Gate[In, Out]) place() int64      { return 0 }
func (g *Gate[In, Out]) passed(int64) bool { return true }
func (g *Gate[In, Out]) emitted() int64    { return g.out.emitted() }
func (g *Gate[In, Out]) gone() int64       { return g.out.gone() }
func (g *Gate[In, Out]) crowded() bool     { return g.out.waiting() >= DefaultBuffer }

// answer runs a handler.
func (s *Sink[T]) answer(ctx context.Context, f func() error) {
	panicked, err := s.called(f)
	s.in.returned(ctx, panicked, err)
}
