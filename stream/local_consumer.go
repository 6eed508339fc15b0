package stream

import (
	"context"
	"sync"

	"github.com/penstock/penstock"
)

// deliverFunc hands one delivery to a typed handler.
type deliverFunc func(ctx context.Context, provider string, d *Delivery) (Answer, error)

// localConsumer is the consumer in this process: a handler and where it wants
// to start. Each Subscribe makes one. It is safe for concurrent use.
type localConsumer struct {
	provider string
	deliver  deliverFunc

	mu       sync.Mutex
	start    Position // the next answer to a handshake
	answered bool     // start was answered at least once
	has      Position // PositionResume behind the last delivery settled as a whole; else PositionNone
}

// successor returns the consumer that takes the place of c, which may be nil.
// Unless at asks for something, what c was still to ask for goes over to it.
func (c *localConsumer) successor(provider string, deliver deliverFunc, at Position) *localConsumer {
	next := &localConsumer{provider: provider, deliver: deliver, start: at}
	if c != nil && at.Kind == PositionNone {
		c.mu.Lock()
		next.start, next.answered, next.has = c.start, c.answered, c.has
		c.mu.Unlock()
	}
	return next
}

// Handshake answers with the place asked for. A token, or the earliest place,
// is answered until a delivery shows that the agent has taken it; "latest"
// once, because its meaning moves. Otherwise it answers with what it has, so
// that a run which begins at the checkpoint repeats nothing.
func (c *localConsumer) Handshake(context.Context, Handshake) (Position, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.start
	if at.Kind == PositionNone {
		return c.has, nil
	}
	c.answered = true
	if at.Kind == PositionLatest {
		c.start = Position{}
	}
	return at, nil
}

// Deliver runs the handler.
func (c *localConsumer) Deliver(ctx context.Context, d *Delivery) (Answer, error) {
	c.mu.Lock()
	if c.answered { // the agent has taken it
		c.start = Position{}
	}
	c.mu.Unlock()
	a, err := c.deliver(ctx, c.provider, d)
	if err == nil && len(a.Failed) == 0 {
		c.mu.Lock()
		c.has = Position{Kind: PositionResume, Token: d.Items[len(d.Items)-1].Token}
		c.mu.Unlock()
	}
	return a, err
}

// deliverTo decodes items and calls a handler with them as one batch. An item
// that cannot be decoded fails alone (OR-103).
func deliverTo[T any](codec penstock.Codec[T], handle penstock.Handler[T]) deliverFunc {
	return func(ctx context.Context, provider string, d *Delivery) (Answer, error) {
		n := len(d.Items)
		var answer Answer
		values := make([]T, n)
		about := penstock.Delivery{
			Topic:     provider,
			Partition: d.Queue.Number,
			Stream:    d.Subscription.Stream.StreamID,
			Tokens:    make([]penstock.Token, n),
			Metas:     make([]penstock.Meta, n),
			Attempts:  make([]int, n),
		}
		index := make([]int, n) // in d.Items, of each decoded event
		k := 0
		for i := range d.Items {
			it := &d.Items[i]
			if err := codec.Decode(it.Event.Value, &values[k]); err != nil {
				var zero T
				values[k] = zero
				answer.Failed = append(answer.Failed, ItemFailure{Index: i, Err: err})
				continue
			}
			about.Tokens[k], about.Metas[k], about.Attempts[k], index[k] = it.Token, it.meta(), it.Attempt, i
			k++
		}
		if k == 0 {
			return answer, nil
		}
		about.First = penstock.Offset(about.Tokens[0].Lo)
		undecoded := answer.Failed
		err := handle(ctx, penstock.NewBatch(values[:k], &about))
		failures := about.Settle()
		if err != nil {
			return Answer{}, err
		}
		answer.Failed = mergeFailures(undecoded, failures, index)
		return answer, nil
	}
}

// mergeFailures joins two lists in the order of their index.
func mergeFailures(undecoded []ItemFailure, failures []penstock.Failure, index []int) []ItemFailure {
	if len(failures) == 0 {
		return undecoded
	}
	out := make([]ItemFailure, 0, len(undecoded)+len(failures))
	for _, f := range failures {
		i := index[f.Index]
		for len(undecoded) > 0 && undecoded[0].Index < i {
			out = append(out, undecoded[0])
			undecoded = undecoded[1:]
		}
		out = append(out, ItemFailure{Index: i, Err: f.Err})
	}
	return append(out, undecoded...)
}
