package stage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/penstock/penstock"
)

// Func returns a source that f feeds from a goroutine of its own, so that f may
// block, on a connection or a broker. yield gives one event to the
// source and returns when the next is asked for; it returns false when the
// source takes no more: then f returns. f is called with the first
// demand, once. ctx carries the values of the graph's context and ends when the
// source does, or is told to: what blocks in f has to return then, since
// Run waits for f.
//
// When f returns nil or [Done] the source ends normally, with any other error
// abnormally; what was yielded goes out first either way. A panic,
// runtime.Goexit too, becomes a *[penstock.PanicError].
//
// With [Buffer] the source reads ahead: yield returns as long as the buffer has
// room. Nothing is dropped; the policy has no meaning here. Without it, the
// capacity is 0.
func Func[T any](name string, f func(ctx context.Context, yield func(T) bool) error, opts ...Option) *Source[T] {
	s := newSource[T](name, nil, true, opts)
	s.out.callback(f != nil)
	s.feed = f
	if !s.out.buffered {
		s.in.capacity = 0
	}
	return s
}

// Lines returns a source of the lines of r, without their ends, which ends
// normally with r. A line of more than 64 KiB fails it with
// [bufio.ErrTooLong]. Lines does not close r; a Read that goes on when the
// source ends is waited for.
func Lines(name string, r io.Reader, opts ...Option) *Source[string] {
	s := Func(name, func(_ context.Context, yield func(string) bool) error {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			if !yield(lines.Text()) {
				return nil
			}
		}
		return lines.Err()
	}, opts...)
	s.out.callback(r != nil)
	return s
}

// feeding reports whether the feed has not returned yet.
func (s *Source[T]) feeding() bool { return s.fed && !s.in.shut.Load() }

// startFeed starts the feed, in the first turn.
func (s *Source[T]) startFeed(ctx context.Context) {
	s.fed = true
	ctx, cancel := context.WithCancel(ctx)
	s.in.onHalt(cancel)
	// The feed: ends when the intake is halted, as its context does then; the
	// graph waits for it.
	s.out.graph().wg.Go(func() {
		defer cancel()
		s.runFeed(ctx)
	})
}

func (s *Source[T]) runFeed(ctx context.Context) {
	returned := false
	var err error
	defer func() {
		if !returned {
			value := recover()
			err = &penstock.PanicError{Where: fmt.Sprintf("stage %q", s.out.name), Value: value, Stack: debug.Stack()}
			if value != nil && s.out.reaction(err) == Repanic {
				panic(err)
			}
		} else if err != nil {
			err = fmt.Errorf("stage %q: %w", s.out.name, err)
		}
		if err != nil && s.out.reaction(err) != Stop && s.out.post(func() { s.feedFailed(err) }) {
			return
		}
		s.in.close(err)
		s.out.wake(0)
	}()
	emit := Emitter[T]{s}
	if s.in.await(ctx) == nil {
		err = s.feed(ctx, func(v T) bool {
			ws, _ := s.weighAll([]T{v}, s.failFrom) // a failure closes the intake
			goOn, err := s.in.put(v, ws)
			if err != nil { // the source could not wait for it
				s.discard(1, []T{v}, s.failFrom)
				return false
			}
			emit.added()
			return goOn || s.in.await(ctx) == nil
		})
	}
	if errors.Is(err, Done) || isInterrupt(ctx, err) {
		err = nil
	}
	returned = true
}

// feedFailed has the feed started again, in its time.
func (s *Source[T]) feedFailed(err error) {
	s.fed = false
	if s.out.phase != running || !s.out.restartLater(err) {
		s.out.failForGood(err)
	}
}
