package stage

import "context"

// Sink is a stage with an inlet only. Make one with [NewSink].
type Sink[T any] struct {
	in inlet[T]
	f  func(ctx context.Context, in []T) error

	unseen int // of the batch that f was given: at its end, not taken
}

// NewSink returns a sink. f gets the events of one subscription in order, in
// batches of at most max - min; one call at a time. The slice is borrowed, and
// read only: it is valid until f returns, and other consumers may read the same
// batch meanwhile ([Broadcast]); f copies what it wants to sort or change
// (slices.Clone). Elements may be kept. f may block: that is what sets the pace. ctx carries the values of the graph's context; it ends when
// the graph is aborted or a drain deadline has passed, not when a drain begins.
//
// Returning nil settles the batch. [Done] ends the sink normally; any other
// error ends it abnormally; either way the rest that was sent to it is counted
// as undelivered. A panic, runtime.Goexit too, becomes a
// *[penstock.PanicError].
func NewSink[T any](name string, f func(ctx context.Context, in []T) error, opts ...Option) *Sink[T] {
	b := newBase(name, KindSink, opts)
	b.callback(f != nil)
	s := &Sink[T]{in: newInlet[T](b), f: f}
	s.in.keeps, s.in.changes = b.owns, b.owns
	b.self = s
	return s
}

// In returns the sink's inlet.
func (s *Sink[T]) In() Inlet[T] { return Inlet[T]{i: &s.in} }

func (s *Sink[T]) common() *base   { return s.in.base }
func (s *Sink[T]) snapshot() Stats { return s.in.snapshot() }
func (s *Sink[T]) begin()          { s.in.begin() }

func (s *Sink[T]) turn(ctx context.Context) (progress bool) {
	b := s.in.base
	if b.ctl.Load()&(ctlQuit|ctlStop) != 0 {
		b.finishWith(nil)
	}
	progress = b.hurry()
	progress = s.in.overtaken() || progress
	s.in.rest()
	if b.phase == running && b.paused == 0 {
		progress = s.in.turn(nil, func(_ int, e *edge[T], p *packet[T]) { s.process(ctx, e, p) }) || progress
	}
	if b.phase == ending {
		s.in.leave()
		if b.lastMail() {
			b.wake(ctlMail)
			return true
		}
		b.finish()
		return true
	}
	return progress
}

func (s *Sink[T]) process(ctx context.Context, e *edge[T], p *packet[T]) {
	in := e.chunk(p)
	s.in.cameBy(e.sub)
	panicked, err := s.called(func() error { return s.f(ctx, in) })
	interrupted := s.in.returned(ctx, panicked, err)
	s.in.settled(len(in)-s.unseen, err, interrupted)
	if s.unseen > 0 {
		s.in.lost(s.unseen)
		s.unseen = 0
	}
	if ask := s.in.passed(e, p, len(in), panicked); ask > 0 {
		s.in.ask(e, ask)
	}
}

func (s *Sink[T]) called(f func() error) (panicked bool, err error) {
	panicked = true
	s.in.enter()
	defer func() {
		s.in.exit()
		if panicked {
			err = s.in.panicked(recover())
		}
	}()
	err = f()
	panicked = false
	return false, err
}

// renew begins anew with what the stages of set have sent.
func (s *Sink[T]) renew(set map[*base]bool) { s.in.sweep(set) }
