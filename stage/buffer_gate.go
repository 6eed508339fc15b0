package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/penstock/penstock"
)

// Policies of a [BufferGate] besides KeepLast and KeepFirst. A source does not
// have them: Buffer refuses them at Start.
const (
	// Wait takes no more while the buffer is full: its producers wait.
	Wait Policy = KeepFirst + 1 + iota
	// DropAll drops everything that is in the buffer to make room.
	DropAll
	// Fail fails the gate with an error that matches [penstock.ErrFull].
	Fail
)

// BufferGate returns a gate that keeps up to n events nobody has asked for, so
// that what comes in bursts does not wait for what goes out evenly, and does by
// its policy when there are more. With Wait it takes chunks as long as it has
// fewer than n, so it holds less than n and one chunk. With the other policies
// it never makes its producers wait; KeepLast drops the oldest events,
// KeepFirst the newcomers. Dropped events are counted, and logged
// like those of a source's buffer unless [OnDiscard] is given. A negative n is an error at Start, and so is
// 0 with Wait.
func BufferGate[T any](n int, p Policy, opts ...Option) *Gate[T, T] {
	b := &bufferGate[T]{capacity: n, policy: p}
	b.events.clears = holdsPointers[T]()
	g := driven[T, T]("buffer", true, b, b.take, opts)
	b.want = g.out.want
	b.overflow.write = func(dropped int) {
		g.in.logger().Warn("events discarded", slog.String("stage", g.in.name), slog.Int("events", dropped),
			slog.String("reason", "buffer_full"), slog.String("policy", p.String()))
	}
	if f := (*penstock.FieldError)(nil); errors.As(g.in.err, &f) && f.Field == "OnDiscard" {
		g.in.err = nil // it is for gates of this kind too
	}
	b.dropped = b.overflow.add
	if hook := g.in.onDiscard; hook != nil {
		b.dropped = func(n int) { g.in.hook(func() { hook(n) }) }
	}
	switch {
	case n < 0:
		g.in.invalid("BufferGate", "capacity %d is negative", n)
	case p > Fail:
		g.in.invalid("BufferGate", "policy %d is unknown", p)
	case n == 0 && p == Wait:
		g.in.invalid("BufferGate", "with capacity 0 it would wait for ever")
	}
	return g
}

// A bufferGate keeps events until they are asked for.
//
// Invariant: with a policy other than Wait at most capacity events are held
// after take and poll.
type bufferGate[T any] struct {
	capacity int
	policy   Policy
	want     func() int // the demand that can be met now
	events   deque[T]
	overflow overflowLog
	dropped  func(n int) // logs, or tells the hook
}

// take first meets demand and then stores the rest of one chunk. Grouping
// changes nothing: [a,b] and then [c] has the result of [a,b,c].
func (b *bufferGate[T]) take(_ context.Context, in []T, out *Output[T]) error {
	want := b.want()
	if held := min(want, b.events.len()); held > 0 { // demand came after poll has looked
		b.serve(held, out)
		want -= held
	}
	if b.events.len() == 0 {
		n := min(want, len(in))
		out.Forward(in[:n:cap(in)])
		in = in[n:]
	}
	if all := b.events.len() + len(in); all > b.capacity && b.policy != Wait {
		if b.policy == Fail {
			out.lost.failed = len(in)
			return fmt.Errorf("%w: %d events do not fit into a buffer of %d", penstock.ErrFull, len(in), b.capacity)
		}
		in = b.drop(in)
		dropped := all - b.events.len() - len(in)
		out.lost.dropped = dropped
		b.dropped(dropped)
	}
	b.events.pushBack(in)
	return nil
}

// drop makes room by the policy, and returns what is left of in to store.
func (b *bufferGate[T]) drop(in []T) []T {
	held := b.events.len()
	keep := b.capacity
	switch {
	case b.policy == KeepFirst:
		return in[:b.capacity-held]
	case b.policy == DropAll && keep > 0: // it has been emptied at every overflow on the way
		keep = (held+len(in)-1)%keep + 1
	}
	drop := held + len(in) - keep
	oldest := min(drop, held)
	b.events.dropFront(oldest)
	return in[drop-oldest:]
}

func (b *bufferGate[T]) due(_ bool, want int) bool { return want > 0 && b.events.len() > 0 }

func (b *bufferGate[T]) poll(_ context.Context, want int, out *Output[T]) error {
	b.serve(want, out)
	return nil
}

func (b *bufferGate[T]) serve(want int, out *Output[T]) {
	out.buf = b.events.popFront(out.buf, min(want, b.events.len()))
}

func (b *bufferGate[T]) full() bool { return b.policy == Wait && b.events.len() >= b.capacity }
func (b *bufferGate[T]) inputOver() {}
func (b *bufferGate[T]) held() int  { return b.events.len() }

func (b *bufferGate[T]) renew() { b.close() }

func (b *bufferGate[T]) close() {
	b.overflow.flush()
	b.events.dropFront(b.events.len())
}
