package stage

import (
	"context"
	"fmt"

	"github.com/penstock/penstock"
)

// Emitter puts events into a source from outside. All methods are safe for
// concurrent use, before the graph starts too; the events of one goroutine
// keep their order. Events are copied: the slices given stay the caller's.
type Emitter[T any] struct{ s *Source[T] }

// Push emits events and never blocks. What nobody has asked for is buffered;
// when the buffer is full, the source's policy drops events, which is reported
// before Push returns. The error matches [penstock.ErrClosed]
// when the source has ended or was told to: then nothing was taken. It is a
// *[penstock.PanicError] when a discard hook panicked, which fails the source.
func (e *Emitter[T]) Push(events ...T) error {
	ws, err := e.s.weighAll(events, e.s.failFrom)
	if err != nil {
		return err
	}
	dropped, lost, err := e.s.in.store(events, ws)
	if err != nil {
		return err
	}
	e.added()
	if dropped == 0 {
		return nil
	}
	return e.s.discard(dropped, lost, e.s.failFrom)
}

// TryPush emits as many of events, from the front, as fit without dropping any,
// and returns their number. It takes none while a PushWait waits. It never
// blocks. The error matches [penstock.ErrClosed] as for Push.
func (e *Emitter[T]) TryPush(events ...T) (taken int, err error) {
	ws, err := e.s.weighAll(events, e.s.failFrom)
	if err != nil {
		return 0, err
	}
	taken, err = e.s.in.tryStore(events, ws)
	if taken > 0 {
		e.added()
	}
	return taken, err
}

// PushWait emits events and waits, first come first served, while the buffer
// is full, as often as necessary: nothing is dropped on its way in.
// When ctx ends, also before the call, it returns an error that matches
// ctx.Err() and the cause; when the source ends, one that matches [penstock.ErrClosed]. Where some events
// were taken before that, the error is a *[penstock.PartialError] that says
// how many. A callback that the source's own events come to must not call it:
// while the callback waits, nothing makes room.
func (e *Emitter[T]) PushWait(ctx context.Context, events ...T) error {
	if err := penstock.ContextError(ctx); err != nil {
		return err
	}
	ws, err := e.s.weighAll(events, e.s.failFrom)
	if err != nil {
		return err
	}
	taken, err := e.s.in.storeWait(ctx, events, ws, e.added)
	if err != nil && taken > 0 {
		return &penstock.PartialError{Accepted: taken, Err: err}
	}
	return err
}

// Finish ends the source normally, after what it holds was delivered. Later
// pushes return [penstock.ErrClosed]. A second call, or one after Fail, changes
// nothing.
func (e *Emitter[T]) Finish() { e.end(nil) }

// Fail ends the source with err, after what it holds was delivered; nil counts
// as Finish. A second call, or one after Finish, changes nothing.
func (e *Emitter[T]) Fail(err error) { e.end(err) }

func (e *Emitter[T]) end(err error) {
	if err != nil {
		err = fmt.Errorf("stage %q: %w", e.s.out.name, err)
	}
	e.s.in.close(err)
	e.s.out.wake(0)
}

// added wakes the source, and its pull callback if it has one.
func (e *Emitter[T]) added() {
	if e.s.pull != nil {
		e.s.out.wake(ctlWake)
	} else {
		e.s.out.wake(0)
	}
}
