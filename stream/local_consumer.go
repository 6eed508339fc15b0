package stream

import (
	"bytes"
	"context"
	"errors"
	"runtime/debug"
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
	hooks    hooks

	mu       sync.Mutex
	start    Position // the next answer to a handshake
	answered uint64   // request that start was the answer to; 0 for none
	has      Position // PositionResume behind the last delivery settled as a whole; else PositionNone
}

// successor returns the consumer that takes the place of c, which may be nil.
// Unless at asks for something, what c was still to ask for goes over to it.
func (c *localConsumer) successor(provider string, deliver deliverFunc, o *subscribeOptions) *localConsumer {
	next := &localConsumer{provider: provider, deliver: deliver, hooks: o.hooks, start: o.at}
	if c != nil && o.at.Kind == PositionNone {
		c.mu.Lock()
		next.start, next.answered, next.has = c.start, c.answered, c.has
		c.mu.Unlock()
	}
	return next
}

// Handshake answers with the place asked for. A token, or the earliest place,
// is answered until a delivery or a later question shows that the agent has taken
// it; "latest" once, because its meaning moves. Otherwise it answers with what it
// has, so that a run which begins at the checkpoint repeats nothing.
func (c *localConsumer) Handshake(_ context.Context, h Handshake) (Position, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answered != 0 && h.Placed >= c.answered && c.start.Kind != PositionNone {
		c.start, c.has = Position{}, c.start.passed()
	}
	at := c.start
	if at.Kind == PositionNone {
		return c.has, nil
	}
	c.answered = h.Request
	if at.Kind == PositionLatest {
		c.start = Position{}
	}
	return at, nil
}

func (*localConsumer) takesContainers() {}

// Deliver runs the handler.
func (c *localConsumer) Deliver(ctx context.Context, d *Delivery) (Answer, error) {
	c.mu.Lock()
	if c.answered != 0 && d.Request >= c.answered { // the agent has taken it
		c.start = Position{}
	}
	c.mu.Unlock()
	a, err := c.hooks.deliver(ctx, d, c.provider, c.deliver)
	failuresOfHandler(d.Subscription.Name, a.Failed)
	err = ofHandler(err)
	if err == nil && len(a.Failed) == 0 {
		c.mu.Lock()
		c.has = Position{Kind: PositionResume, Token: through(d.last())}
		c.mu.Unlock()
	}
	return a, err
}

// Notify tells the subscription's hook.
func (c *localConsumer) Notify(ctx context.Context, n Notice) { c.hooks.notify(ctx, n) }

// deliverTo decodes events and calls a handler with them as one batch. One that
// cannot be decoded, or on which the codec panics, fails alone (OR-103).
func deliverTo[T any](codec penstock.Codec[T], handle penstock.Handler[T]) deliverFunc {
	whole, single := decodeContainer[T], decodeRun[T]
	if any(codec) == any(penstock.Raw()) {
		whole = any(decodeRawContainer).(func(penstock.Codec[T], *Container, []T) error)
		single = any(decodeRaw).(func(penstock.Codec[T], []Item, []T) (int, error))
	}
	return func(ctx context.Context, provider string, d *Delivery) (Answer, error) {
		m := d.room
		if m == nil {
			m = new(room)
		}
		if d.whole != nil {
			values := slots[T](m, d.events)
			if err := decodeAll(whole, codec, d.whole, values); err == nil {
				return callHandler(ctx, handle, m, values, m.describeWhole(provider, d), nil, nil)
			}
			clear(values) // nothing of it shines through the next one
			d.Items, d.whole = itemsOf(nil, d.whole, 1), nil
		}
		values := slots[T](m, len(d.Items))
		m.index = m.index[:0]
		var undecoded []ItemFailure
		for i := 0; i < len(d.Items); i++ {
			n, err := single(codec, d.Items[i:], values[len(m.index):])
			for range n {
				m.index = append(m.index, i)
				i++
			}
			if err != nil {
				var zero T
				values[len(m.index)] = zero
				undecoded = append(undecoded, ItemFailure{Index: i, Err: err})
			}
		}
		if len(m.index) == 0 {
			return Answer{Failed: undecoded}, nil
		}
		return callHandler(ctx, handle, m, values[:len(m.index)], m.describe(provider, d), m.index, undecoded)
	}
}

// callHandler calls a handler with values that have been decoded; the others
// fail beside those that it fails.
func callHandler[T any](ctx context.Context, handle penstock.Handler[T], m *room, values []T, about *penstock.Delivery, index []int, undecoded []ItemFailure) (answer Answer, err error) {
	err = handle(ctx, penstock.NewBatch(values, about))
	failures := about.Settle()
	if err == nil {
		answer.Failed = mergeFailures(undecoded, failures, index)
	}
	leave(m, values)
	return answer, err
}

// decodeAll decodes the events of containers.
func decodeAll[T any](decode func(penstock.Codec[T], *Container, []T) error, codec penstock.Codec[T], cs []Container, slots []T) error {
	for i := range cs {
		n := cs[i].Events.Len()
		if err := decode(codec, &cs[i], slots[:n:n]); err != nil {
			return err
		}
		slots = slots[n:]
	}
	return nil
}

// decodeContainer decodes the events of one container until one fails, by an
// error or a panic of the codec.
func decodeContainer[T any](codec penstock.Codec[T], c *Container, slots []T) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errUndecoded
		}
	}()
	for i := range slots {
		if err := codec.Decode(c.Events.Value(i), &slots[i]); err != nil {
			return err
		}
	}
	return nil
}

// errUndecoded says that an event could not be decoded with those beside it;
// each is decoded anew by itself.
var errUndecoded = errors.New("not decoded")

// decodeRawContainer is decodeContainer for the raw codec, which cannot fail:
// the values of a container lie in one piece of memory.
func decodeRawContainer(_ penstock.Codec[[]byte], c *Container, slots [][]byte) error {
	e := &c.Events
	if e.largest() > rawTogether {
		_, err := decodeRaw(nil, itemsOf(nil, []Container{*c}, 0), slots)
		return err
	}
	buf := append(make([]byte, 0, len(e.payload)), e.payload...)
	from, last := 0, len(slots)-1
	for i, to := range e.starts[1:] {
		slots[i] = buf[from:to:to]
		from = to
	}
	slots[last] = buf[from:len(buf):len(buf)]
	return nil
}

// decodeRun decodes items until one fails, by an error or a panic of the codec,
// and returns the number of those before it.
func decodeRun[T any](codec penstock.Codec[T], items []Item, slots []T) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &penstock.PanicError{Where: "codec " + codec.ID(), Value: v, Stack: debug.Stack()}
		}
	}()
	for n < len(items) {
		if err := codec.Decode(items[n].Value(), &slots[n]); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// rawTogether is the size of a value up to which it shares its memory with
// others of its batch: one that a handler keeps keeps them all.
const rawTogether = 1 << 10

// decodeRaw is decodeRun for the raw codec, which cannot fail: the values of a
// batch lie in one piece of memory.
func decodeRaw(_ penstock.Codec[[]byte], items []Item, slots [][]byte) (int, error) {
	size := 0
	for i := range items {
		if n := len(items[i].Value()); n <= rawTogether {
			size += n
		}
	}
	buf := make([]byte, 0, size)
	for i := range items {
		v := items[i].Value()
		if len(v) > rawTogether {
			slots[i] = bytes.Clone(v)
			continue
		}
		from := len(buf)
		buf = append(buf, v...)
		slots[i] = buf[from:len(buf):len(buf)]
	}
	return len(items), nil
}

// mergeFailures joins two lists in the order of their index. index says which
// item each event of the batch is; nil means the one with its own number.
func mergeFailures(undecoded []ItemFailure, failures []penstock.Failure, index []int) []ItemFailure {
	if len(failures) == 0 {
		return undecoded
	}
	out := make([]ItemFailure, 0, len(undecoded)+len(failures))
	for _, f := range failures {
		i := f.Index
		if index != nil {
			i = index[i]
		}
		for len(undecoded) > 0 && undecoded[0].Index < i {
			out = append(out, undecoded[0])
			undecoded = undecoded[1:]
		}
		out = append(out, ItemFailure{Index: i, Err: f.Err})
	}
	return append(out, undecoded...)
}
