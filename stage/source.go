package stage

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// Source is a stage with an outlet only. It keeps events that nobody has asked
// for in its buffer (10,000 by default) and serves later demand from there
// before it produces anything new. Make one with [Pull], [Push] or [Hybrid], or
// of what there is already, with [Func], [FromSlice], [FromSeq] or [FromChan].
type Source[T any] struct {
	out  outlet[T]
	in   intake[T]
	pull func(ctx context.Context, want int, out *Output[T]) error // nil: push only
	push bool                                                      // it has an emitter, or a feed
	feed func(ctx context.Context, yield func(T) bool) error       // runs beside the source
	fed  bool

	release func() // ends what the pull callback has open

	onDiscardEvents func([]T)
	onDemand        func(open int)
	demandTold      int
	overflow        overflowLog

	o         Output[T]
	holding   atomic.Bool // demand is accumulated
	knownOpen int         // intake.open, as last set
	dry       bool        // the last call of pull emitted nothing
	dryWant   int         // the least want seen since then
	again     *time.Timer // of a pull callback that has failed and emitted nothing
}

// Pull returns a source that is asked. f is called with want > 0, the number of
// events that its subscribers have asked for and that it has not given; it
// emits events to out and returns. It may emit fewer: then it is called again
// as long as it makes progress. When it emits nothing, it is called again after
// a call of [Source.Wake] or when want has risen; with [Resume] also a tenth of a
// second after a failure. It may emit more: the
// rest goes to the buffer. f never has to remember demand.
//
// f runs one call at a time. It may block until there is something, but must
// return when ctx ends; ctx is as for [NewSink].
//
// Returning [Done] ends the source normally, any other error abnormally; what
// the source holds goes out first either way, what this call emitted included.
// A panic, runtime.Goexit too, becomes a
// *[penstock.PanicError], and what the call had emitted is dropped.
func Pull[T any](name string, f func(ctx context.Context, want int, out *Output[T]) error, opts ...Option) *Source[T] {
	return newSource(name, f, false, opts)
}

// Push returns a source and the emitter that feeds it, from any goroutine.
func Push[T any](name string, opts ...Option) (*Source[T], *Emitter[T]) {
	s := newSource[T](name, nil, true, opts)
	return s, &Emitter[T]{s}
}

// Hybrid returns a source that is both: events given to the emitter go out
// first, and f is called for the demand that they leave. A push also
// wakes f when it had nothing to emit.
func Hybrid[T any](name string, f func(ctx context.Context, want int, out *Output[T]) error, opts ...Option) (*Source[T], *Emitter[T]) {
	s := newSource(name, f, true, opts)
	s.out.callback(f != nil)
	return s, &Emitter[T]{s}
}

func newSource[T any](
	name string, f func(context.Context, int, *Output[T]) error, push bool, opts []Option,
) *Source[T] {
	b := newBase(name, KindSource, opts)
	b.callback(f != nil || push)
	s := &Source[T]{out: newOutlet[T](b), pull: f, push: push}
	s.in.capacity, s.in.policy = b.capacity, b.policy
	s.in.buf.clears = s.out.clears
	s.overflow.write = func(dropped int) { s.warn(dropped, "buffer_full") }
	s.holding.Store(b.holds)
	b.self = s
	return s
}

// OnDiscardEvents sets what the source does instead of logging a warning when
// it drops events: f is called with the events themselves, oldest first, by the
// goroutine that caused it and before that call returns. The slice
// belongs to f. f must not block. It returns s. Call it before the first push.
func (s *Source[T]) OnDiscardEvents(f func(events []T)) *Source[T] {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	s.in.wantLost = true
	s.onDiscardEvents = f
	return s
}

// Out returns the source's outlet.
func (s *Source[T]) Out() Outlet[T] { return Outlet[T]{o: &s.out} }

// Wake has a pull callback called again that emitted nothing last time. Safe
// for concurrent use; it never blocks.
func (s *Source[T]) Wake() { s.out.wake(ctlWake) }

// Buffered returns the number of events in the buffer now. Safe for concurrent
// use.
func (s *Source[T]) Buffered() int { return int(s.in.size.Load()) }

func (s *Source[T]) common() *base { return s.out.base }
func (s *Source[T]) begin()        { s.out.begin() }

func (s *Source[T]) snapshot() Stats {
	st := s.out.snapshot()
	st.Pushed = s.in.pushed.Load()
	st.Buffered += s.in.size.Load()
	return st
}

func (s *Source[T]) turn(ctx context.Context) (progress bool) {
	b := s.out.base
	ctl := b.ctl.Load()
	if ctl&ctlQuit != 0 {
		b.finishWith(nil)
		s.close()
		return true
	}
	if s.feed != nil && !s.fed && b.phase == running && ctl&ctlStop == 0 && b.paused == 0 {
		s.startFeed(ctx)
	}
	progress = s.out.prune()
	if b.paused&renewing != 0 && b.phase == running && ctl&ctlStop == 0 {
		return progress
	}
	shut := s.in.shut.Load() // before serve: what came before the close is served
	if s.holding.Load() && b.phase == running && ctl&ctlStop == 0 {
		if s.onDemand != nil {
			s.tellDemand()
		}
		return progress
	}
	progress = s.serve() || progress
	if b.phase == running {
		switch {
		case shut:
			s.takeReason()
		case ctl&ctlStop != 0:
			b.finishWith(nil)
		case b.paused == 0:
			progress = s.produce(ctx, ctl) || progress
		}
	}
	if b.phase != ending {
		if s.onDemand != nil {
			s.tellDemand()
		}
		return progress
	}
	b.closeMail()
	s.out.overtake()
	if s.feeding() && ctl&ctlExpired == 0 && len(s.out.edges) > 0 {
		s.in.halt() // what it holds is still to come
		b.expireAfterDrain()
		return progress
	}
	if err := s.in.reason(); err != nil && !b.own { // of a feed that was told to stop
		b.failForGood(err)
	}
	s.in.close(nil)
	if s.delivered() || ctl&ctlExpired != 0 {
		if b.lastMail() {
			b.wake(ctlMail)
			return true
		}
		s.close()
		return true
	}
	b.expireAfterDrain()
	return progress
}

// delivered reports whether nothing is left that could be delivered.
func (s *Source[T]) delivered() bool {
	if len(s.out.edges) == 0 {
		return true
	}
	return s.in.size.Load() == 0 && (s.out.empty() || s.out.stuck())
}

// takeReason ends the source as its emitter, or a discard hook that panicked,
// said.
func (s *Source[T]) takeReason() {
	if err := s.in.reason(); err != nil {
		s.out.failForGood(err)
	} else {
		s.out.finishWith(nil)
	}
}

// serve meets demand from what the source holds.
func (s *Source[T]) serve() (progress bool) {
	progress = s.out.flush()
	if !s.out.ready() {
		return progress
	}
	open := s.out.want()
	size := s.in.size.Load()
	if size == 0 && (!s.push || open == s.knownOpen) {
		return progress
	}
	if size == 0 || open == 0 {
		s.noteOpen(open)
		return progress
	}
	slab := s.out.take()
	slab.buf = s.in.take(slab.buf[:0], open)
	slab.refs = 1
	s.knownOpen = open - len(slab.buf)
	s.out.push(piece[T]{slab: slab, to: len(slab.buf)})
	s.out.flush()
	return true
}

// noteOpen tells the intake how much demand pushed events may count on.
func (s *Source[T]) noteOpen(open int) {
	if open != s.knownOpen {
		s.in.setOpen(open)
		s.knownOpen = open
	}
}

func (s *Source[T]) produce(ctx context.Context, ctl uint32) (progress bool) {
	if s.pull == nil {
		return false
	}
	want := s.out.want()
	if ctl&ctlWake != 0 {
		s.out.ctl.And(^uint32(ctlWake))
		s.dry = false
	}
	if s.dry && want <= s.dryWant { // not risen; it may rise again from what it has fallen to
		s.dryWant = want
		return false
	}
	if want == 0 || !s.out.ready() {
		return false
	}
	if s.in.size.Load() > 0 { // demand, or a push, came after serve has looked: the buffer first (ST-46)
		return true
	}
	s.noteOpen(0) // the demand is promised to the callback now
	slab := s.out.take()
	s.o = Output[T]{buf: slab.buf[:0]}
	panicked, err := s.called(func() error { return s.pull(ctx, want, &s.o) })
	emitted := s.collect(slab, want, panicked)
	s.out.returned(ctx, panicked, err)
	s.dry, s.dryWant = emitted == 0, want
	if s.dry && (panicked || err != nil) && s.out.phase == running && s.out.paused == 0 {
		s.callAgain()
	}
	return emitted > 0
}

// callAgain has a source that has failed and goes on called again, but not at
// once: it may fail for ever.
func (s *Source[T]) callAgain() {
	if s.again == nil {
		s.again = time.AfterFunc(DefaultRestartMin, func() { s.out.wake(ctlWake) })
	} else {
		s.again.Reset(DefaultRestartMin)
	}
}

// collect sends what was asked for and buffers the rest.
func (s *Source[T]) collect(slab *slab[T], want int, drop bool) (emitted int) {
	buf := s.o.buf
	s.o = Output[T]{}
	slab.refs = 1
	slab.buf = buf
	if drop || len(buf) == 0 {
		slab.dirty = s.out.clears
		s.out.release(slab)
		return 0
	}
	add(&s.out.stats.emitted, len(buf))
	n := min(want, len(buf))
	if n > 0 {
		s.out.push(piece[T]{slab: slab, to: n})
	}
	if n < len(buf) {
		slab.dirty = s.out.clears // no consumer sees, and clears, the rest
		ws, err := s.weighAll(buf[n:], func(err error) {
			s.out.stats.discarded.Add(int64(len(buf) - n))
			s.out.failForGood(err)
		})
		if err == nil {
			dropped, lost := s.in.keepOwn(buf[n:], ws)
			s.discard(dropped, lost, s.out.failForGood)
		}
	}
	if n == 0 {
		s.out.release(slab)
	}
	s.out.flush()
	return len(buf)
}

// failFrom fails the source from a goroutine that is not its own.
func (s *Source[T]) failFrom(err error) {
	s.in.close(err)
	s.out.wake(0)
}

// discard reports dropped events: to the hooks, or else in the log. A hook that
// panics fails the source, by fail; the error is returned too, but after
// runtime.Goexit nobody is left to take it. No lock is held.
func (s *Source[T]) discard(dropped int, lost []T, fail func(error)) (err error) {
	if dropped == 0 {
		return nil
	}
	s.out.stats.discarded.Add(int64(dropped))
	if s.out.onDiscard == nil && s.onDiscardEvents == nil {
		s.overflow.add(dropped)
		return nil
	}
	done := false
	defer func() {
		if !done {
			err = &penstock.PanicError{Where: fmt.Sprintf("stage %q", s.out.name), Value: recover(), Stack: debug.Stack()}
			fail(err)
		}
	}()
	if s.out.onDiscard != nil {
		s.out.onDiscard(dropped)
	}
	if s.onDiscardEvents != nil {
		s.onDiscardEvents(lost)
	}
	done = true
	return nil
}

func (s *Source[T]) warn(dropped int, reason string) {
	s.out.logger().Warn("events discarded", slog.String("stage", s.out.name), slog.Int("events", dropped),
		slog.String("reason", reason), slog.String("policy", s.in.policy.String()))
}

// close ends the source for good. What it still holds is discarded, and
// reported like any other discarded event, before anybody sees the end: a hook
// that panics is a part of it. When a hook calls runtime.Goexit, close runs
// again, with nothing left.
func (s *Source[T]) close() {
	s.in.close(nil)
	if s.again != nil {
		s.again.Stop()
	}
	s.overflow.flush()
	if release := s.release; release != nil {
		s.release = nil
		s.out.guard(release)
	}
	lost := append(s.out.unsent(), s.in.empty()...)
	s.out.letGo()
	s.out.left += len(lost)
	if s.out.onDiscard != nil || s.onDiscardEvents != nil {
		s.discard(len(lost), lost, s.out.failForGood)
	} else if len(lost) > 0 {
		s.out.discardedAtEnd(len(lost))
	}
	s.out.end(s.out.cause)
	s.out.finish()
}

// called runs user code that may return an error.
func (s *Source[T]) called(f func() error) (panicked bool, err error) {
	panicked = true
	s.out.enter()
	defer func() {
		s.out.exit()
		if panicked {
			err = s.out.panicked(recover())
		}
	}()
	err = f()
	panicked = false
	return false, err
}
