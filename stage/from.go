package stage

import (
	"context"
	"iter"
	"time"

	"github.com/penstock/penstock"
)

// handOver bounds how long one call gathers from an iterator that is slow.
const handOver = time.Millisecond

// FromSlice returns a source of the events of vs, in order, which then ends
// normally. vs is read, never changed, and must not be changed meanwhile.
func FromSlice[T any](name string, vs []T, opts ...Option) *Source[T] {
	if len(vs) == 0 {
		return Empty[T](name, opts...)
	}
	return Pull(name, func(_ context.Context, want int, out *Output[T]) error {
		n := min(want, len(vs))
		out.EmitAll(vs[:n]...)
		if vs = vs[n:]; len(vs) == 0 {
			return Done
		}
		return nil
	}, opts...)
}

// FromSeq returns a source of what events yields, which ends normally with it.
// The iterator is stepped only as far as somebody has asked, in the source's
// goroutine. It starts with the first demand; when the source ends before it,
// its yield returns false, so that it can clean up.
//
// An iterator that is slow hands over what it has yielded about every
// millisecond. One that waits, for a connection or a channel, keeps that until
// it goes on, and keeps the source from ending: use [Func] for those.
func FromSeq[T any](name string, events iter.Seq[T], opts ...Option) *Source[T] {
	s := FromSeq2(name, func(yield func(T, error) bool) {
		for v := range events {
			if !yield(v, nil) {
				return
			}
		}
	}, opts...)
	s.out.callback(events != nil)
	return s
}

// FromSeq2 is [FromSeq] for an iterator that may fail: the first error that
// is not nil ends it, and the source with that error, after the events before
// it are out. The value beside an error is not looked at. [Done] ends the
// source normally.
func FromSeq2[T any](name string, events iter.Seq2[T, error], opts ...Option) *Source[T] {
	w := &walk[T]{events: events}
	s := Pull(name, w.pull, opts...)
	s.out.callback(events != nil)
	s.release = w.stop
	s.out.anew(func() {
		w.stop()
		w.next, w.leave, w.err = nil, nil, nil
	})
	return s
}

// Concat returns a source of what each of parts yields, one after the other. It
// is [FromSeq] of them all.
func Concat[T any](name string, parts ...iter.Seq[T]) *Source[T] {
	return FromSeq(name, func(yield func(T) bool) {
		for _, p := range parts {
			for v := range p {
				if !yield(v) {
					return
				}
			}
		}
	})
}

// A walk drives an iterator by demand: a coroutine runs the loop over it, which
// is left once per call, not once per event.
type walk[T any] struct {
	events iter.Seq2[T, error]
	next   func() (struct{}, bool)
	leave  func()

	out   *Output[T] // of the call that goes on
	want  int
	began time.Time
	n     int // events of this call
	check int // the n at which to look at the clock
	err   error
}

func (w *walk[T]) pull(_ context.Context, want int, out *Output[T]) error {
	w.out, w.want, w.began, w.n, w.check = out, want, time.Now(), 0, 1
	if w.next == nil {
		w.next, w.leave = iter.Pull(w.steps)
	}
	_, more := w.next()
	w.out = nil
	if more {
		return nil
	}
	if w.err != nil {
		return w.err
	}
	return Done
}

// steps runs in the coroutine.
func (w *walk[T]) steps(yield func(struct{}) bool) {
	for v, err := range w.events {
		if err != nil {
			w.err = err
			return
		}
		w.out.Emit(v)
		w.n++
		if (w.n == w.want || w.n == w.check && w.slow()) && !yield(struct{}{}) {
			return
		}
	}
}

// slow reports whether the call has lasted long enough. The slower the
// iterator, the more often the clock is looked at.
func (w *walk[T]) slow() bool {
	spent := time.Since(w.began)
	if spent >= handOver {
		return true
	}
	w.check += w.n
	if spent > 0 {
		rest := int64(handOver-spent) * int64(w.n) / int64(spent) // events that come in the time that is left
		w.check = w.n + int(max(1, min(int64(w.n), rest/2)))
	}
	return false
}

// stop has the iterator's yield return false, and runs what it does then.
func (w *walk[T]) stop() {
	if w.leave != nil {
		w.leave()
	}
}

// FromChan returns a source of what comes from events, which ends normally when
// that is closed. It receives only what somebody has asked for, and ends at once
// when it is told to: an event that it had received by then is delivered.
func FromChan[T any](name string, events <-chan T, opts ...Option) *Source[T] {
	return Func(name, func(ctx context.Context, yield func(T) bool) error {
		for {
			var v T
			var open bool
			select {
			case v, open = <-events:
			default:
				select {
				case v, open = <-events:
				case <-ctx.Done():
					return nil
				}
			}
			if !open || !yield(v) {
				return nil
			}
		}
	}, opts...)
}

// Tick returns a source of the time, every d, beginning d after the first
// demand. Ticks that nobody has asked for are not made, as with a
// [time.Ticker]. d <= 0 is an error at Start.
func Tick(name string, d time.Duration, opts ...Option) *Source[time.Time] {
	s := Func(name, func(ctx context.Context, yield func(time.Time) bool) error {
		t := time.NewTicker(d)
		defer t.Stop()
		for {
			select {
			case now := <-t.C:
				if !yield(now) {
					return nil
				}
			case <-ctx.Done():
				return nil
			}
		}
	}, opts...)
	if d <= 0 {
		s.out.invalid("Tick", "%v is not positive", d)
	}
	return s
}

// Empty returns a source that ends normally at once, whether somebody asks or
// not.
func Empty[T any](name string, opts ...Option) *Source[T] {
	s, emit := Push[T](name, opts...)
	emit.Finish()
	return s
}

// Never returns a source that has no event, and ends only when it is told to.
func Never[T any](name string, opts ...Option) *Source[T] {
	s, _ := Push[T](name, opts...)
	return s
}

// FailedWith returns a source that fails with err at once, whether somebody asks or
// not.
func FailedWith[T any](name string, err error, opts ...Option) *Source[T] {
	s, emit := Push[T](name, opts...)
	if err == nil {
		s.out.err = &penstock.FieldError{Field: "err", Reason: "is nil"}
	}
	emit.Fail(err)
	return s
}
