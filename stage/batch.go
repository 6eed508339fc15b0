package stage

import (
	"context"
	"math"
	"time"
)

// maxBatchHint bounds what a batch is given room for before its events are
// there.
const maxBatchHint = 1024

// BatchN returns a gate that gathers events to batches of n. The last batch,
// when the input has ended, may be shorter; none is empty. A batch belongs to
// the stage that gets it. n < 1 is an error at Start.
func BatchN[T any](n int, opts ...Option) *Gate[T, []T] {
	return newBatcher(batcher[T]{count: n, limit: math.MaxInt}, opts)
}

// BatchWithin is [BatchN] that waits no longer than d from a batch's first
// event on: then the batch goes out with what is there. While nobody asks for a
// batch, a due one waits, and nothing is added to it. n < 1 and d <= 0 are
// errors at Start.
func BatchWithin[T any](n int, d time.Duration, opts ...Option) *Gate[T, []T] {
	g := newBatcher(batcher[T]{count: n, limit: math.MaxInt, within: d}, opts)
	if d <= 0 {
		g.in.invalid("BatchWithin", "%v is not positive", d)
	}
	return g
}

// BatchWeighted returns a gate that gathers events to batches whose weights
// add up to at most limit: an event that would exceed it begins the next batch.
// An event that is heavier than limit makes a batch of its own. With d > 0 a
// batch waits no longer than that from its first event on, as with
// [BatchWithin]. weigh returns the weight of an event, in any unit, for example
// its bytes; a negative weight counts as 0. A batch has never more than 1<<20
// events, whatever they weigh. limit < 1 and a negative d are errors at Start.
func BatchWeighted[T any](limit int, d time.Duration, weigh func(*T) int, opts ...Option) *Gate[T, []T] {
	g := newBatcher(batcher[T]{count: maxWeighted, limit: limit, weigh: weigh, within: d}, opts)
	g.in.callback(weigh != nil)
	if limit < 1 {
		g.in.invalid("BatchWeighted", "a limit of %d is not positive", limit)
	}
	if d < 0 {
		g.in.invalid("BatchWeighted", "%v is negative", d)
	}
	return g
}

// maxWeighted bounds a batch of events that weigh nothing.
const maxWeighted = 1 << 20

// A batcher gathers events. It drives its gate for the sake of time, and of the
// last batch.
//
// Invariants: len(batch) < count and weight < limit between calls, but for a
// batch that is due; the timer runs exactly while a batch that is not due has
// begun and within is set.
type batcher[T any] struct {
	count  int
	limit  int
	weigh  func(*T) int // nil: only the count matters
	within time.Duration

	batch   []T
	weight  int
	weights []int // scratch: of a chunk
	over    bool  // no input follows
	timer   alarm
}

func newBatcher[T any](b batcher[T], opts []Option) *Gate[T, []T] {
	d := &b
	g := driven[T, []T]("batch", true, d, d.take, opts)
	if b.count < 1 {
		g.in.invalid("batch", "a size of %d is not positive", b.count)
	}
	g.in.helper = b.within == 0 // without a timer it only answers its input
	d.timer.wake = func() { g.in.wake(ctlWake) }
	return g
}

// take adds the events of one chunk and emits the batches that they fill.
func (b *batcher[T]) take(_ context.Context, in []T, out *Output[[]T]) error {
	if b.weigh != nil {
		b.weights = b.weights[:0]
		for i := range in { // user code first: it may panic
			b.weights = append(b.weights, max(0, b.weigh(&in[i])))
		}
		for i, w := range b.weights {
			if len(b.batch) > 0 && w > b.limit-b.weight {
				b.emit(out)
			}
			b.add(in[i : i+1])
			if b.weight += min(w, b.limit-b.weight); b.weight >= b.limit || len(b.batch) == b.count {
				b.emit(out)
			}
		}
	} else {
		for len(in) > 0 {
			n := min(len(in), b.count-len(b.batch))
			b.add(in[:n])
			if in = in[n:]; len(b.batch) == b.count {
				b.emit(out)
			}
		}
	}
	if len(b.batch) > 0 && b.within > 0 && !b.timer.set() {
		b.timer.in(b.within)
	}
	return nil
}

func (b *batcher[T]) add(in []T) {
	if b.batch == nil {
		b.batch = make([]T, 0, min(b.count, maxBatchHint))
	}
	b.batch = append(b.batch, in...)
}

// emit sends the batch out. Its time ends with it.
func (b *batcher[T]) emit(out *Output[[]T]) {
	out.Emit(b.batch)
	b.batch, b.weight = nil, 0
	b.timer.stop()
}

func (b *batcher[T]) due(woken bool, _ int) bool { return woken || b.over && len(b.batch) > 0 }

func (b *batcher[T]) poll(_ context.Context, _ int, out *Output[[]T]) error {
	if len(b.batch) > 0 && (b.over || b.timer.rang()) {
		b.emit(out)
	}
	return nil
}

func (b *batcher[T]) full() bool { return false }
func (b *batcher[T]) inputOver() { b.over = true }
func (b *batcher[T]) held() int  { return len(b.batch) }

func (b *batcher[T]) renew() { b.close() }

func (b *batcher[T]) close() {
	b.timer.stop()
	b.batch, b.weight = nil, 0
}
