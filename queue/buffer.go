package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// Buffer turns single events into requests for a topic. An event that Add has
// taken is not accepted by the topic yet: only [Pending.Wait], Flush and Close
// tell what became of it, and an end of the process before that loses it. Use
// one where single requests cost too much, and Topic.Produce elsewhere. All
// methods are safe for concurrent use. Whoever makes a buffer closes it.
//
// Invariants: the batch that fills holds at most most events, and so does the
// one that flies; batches fly one at a time, in order. One that is full or due
// flies at once, unless another does.
type Buffer[T any] struct {
	topic    *Topic[T]
	most     int
	delay    time.Duration
	flights  context.Context // of the requests
	ground   context.CancelCauseFunc
	waitsFor askNote // what the one that flies waits in line for

	mu      sync.Mutex
	filling *bufferBatch[T] // nil when it would be empty
	flying  *bufferBatch[T] // nil when none flies
	spare   []T
	timer   *time.Timer // nil before the first event
	lost    int         // events that were refused and not told by Flush
	err     error       // of the first of them
	closed  bool
}

type bufferBatch[T any] struct {
	outcome
	events []T
	begun  time.Time // when the first event came
	due    bool      // it flies as soon as the one before has landed
}

// outcome is what became of a batch; read after done is closed.
type outcome struct {
	done     chan struct{}
	inside   func(context.Context) (<-chan struct{}, func()) // see Buffer.inside, in buffer_inside.go
	accepted int                                             // events [0, accepted) are in the topic
	err      error
}

// Pending stands for an event that a [Buffer] has taken. It may be dropped: what
// fails is told by Flush and Close too.
type Pending struct {
	of    *outcome
	index int
}

var (
	errNotTaken = errors.New("no buffer has taken the event")

	// errBufferedForItself does not refuse the events: they stay in the buffer.
	errBufferedForItself = fmt.Errorf("the buffer's request waits for room: %w: %w", penstock.ErrFull, ErrWaitsForItself)
)

// Wait blocks until the event is accepted at the topic's durability, and returns
// nil then, or the error of its request; it returns an error that matches
// ctx.Err() and its cause when ctx ends first, and the event stays where it is.
// It may be called again, and from several goroutines. In a handler that consumes
// the topic, with the handler's context, it returns [ErrWaitsForItself] when only
// the handler's return can make room for the request, and so do Add and Flush.
func (p Pending) Wait(ctx context.Context) error {
	if p.of == nil {
		return errNotTaken
	}
	stuck, end := p.of.inside(ctx)
	defer end()
	select {
	case <-p.of.done:
	case <-stuck:
		return errBufferedForItself
	case <-ctx.Done():
		return penstock.ContextError(ctx)
	}
	if p.index < p.of.accepted {
		return nil
	}
	return p.of.err
}

// maxBuffer bounds a buffer's batch, in events.
const maxBuffer = 1 << 20

// Buffered returns a buffer that produces what it was given when it has most
// events, 1 to 1,048,576, or when the first of them has waited for delay, which
// is positive. It runs no goroutine but while a request is under way, or a timer.
// The error matches [penstock.ErrInvalid] and names the argument.
func (t *Topic[T]) Buffered(most int, delay time.Duration) (*Buffer[T], error) {
	switch {
	case most < 1 || most > maxBuffer:
		return nil, &penstock.FieldError{Field: "most", Reason: fmt.Sprintf("%d is outside [1, %d]", most, maxBuffer)}
	case delay <= 0:
		return nil, &penstock.FieldError{Field: "delay", Reason: delay.String() + " is not positive"}
	}
	b := &Buffer[T]{topic: t, most: most, delay: delay}
	b.flights, b.ground = context.WithCancelCause(context.WithValue(context.Background(), askKey{}, &b.waitsFor))
	return b, nil
}

// Add takes an event. It blocks while a full batch waits for the request before
// it, and takes nothing when it returns an error: one that matches ctx.Err() and
// its cause when ctx ends first, [penstock.ErrClosed] after Close of buffer or
// topic. The context does not count for the request.
func (b *Buffer[T]) Add(ctx context.Context, v T) (Pending, error) {
	for {
		if err := b.topic.open(ctx); err != nil {
			return Pending{}, err
		}
		p, wait, err := b.add(v)
		if wait == nil {
			return p, err
		}
		if err := b.await(ctx, wait); err != nil {
			return Pending{}, err
		}
	}
}

// await waits for the request under way, on behalf of Add.
func (b *Buffer[T]) await(ctx context.Context, wait <-chan struct{}) error {
	stuck, end := b.inside(ctx)
	defer end()
	select {
	case <-wait:
		return nil
	case <-stuck:
		return errBufferedForItself
	case <-b.flights.Done(): // Close has waited for long enough
		return penstock.ErrClosed
	case <-ctx.Done():
		return penstock.ContextError(ctx)
	}
}

// add takes v, or returns what there is to wait for.
func (b *Buffer[T]) add(v T) (Pending, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return Pending{}, nil, penstock.ErrClosed
	}
	f := b.filling
	switch {
	case f == nil:
		f = &bufferBatch[T]{outcome: outcome{done: make(chan struct{}), inside: b.inside}, events: b.spare, begun: time.Now()}
		b.filling, b.spare = f, nil
		if b.timer == nil {
			b.timer = time.AfterFunc(b.delay, b.late)
		} else {
			b.timer.Reset(b.delay)
		}
	case len(f.events) == b.most:
		return Pending{}, b.flying.done, nil
	}
	p := Pending{&f.outcome, len(f.events)}
	if f.events = append(f.events, v); len(f.events) == b.most {
		f.due = true
		b.takeOff()
	}
	return p, nil, nil
}

// late is called when the first event of a batch may have waited for delay.
func (b *Buffer[T]) late() {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.filling
	if f == nil {
		return
	}
	if left := b.delay - time.Since(f.begun); left > 0 { // the timer was set for an earlier batch
		b.timer.Reset(left)
		return
	}
	f.due = true
	b.takeOff()
}

// takeOff lets a batch that is due fly, unless one does. The caller holds mu.
func (b *Buffer[T]) takeOff() {
	f := b.filling
	if f == nil || !f.due || b.flying != nil {
		return
	}
	b.filling, b.flying = nil, f
	// One request. It ends with it, at the latest when Close gives up;
	// Close and Flush wait for its outcome.
	go b.fly(f)
}

// fly produces a batch. User code may end the goroutine.
func (b *Buffer[T]) fly(f *bufferBatch[T]) {
	var err error = &penstock.PanicError{Where: "buffer of topic " + b.topic.config.Name}
	defer func() { b.land(f, err) }()
	err = b.topic.Produce(b.flights, f.events...)
}

// land notes what became of a batch, and lets the next one fly.
func (b *Buffer[T]) land(f *bufferBatch[T], err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decide(f, err)
	clear(f.events)
	b.flying, b.spare, f.events = nil, f.events[:0], nil
	b.takeOff()
}

func (b *Buffer[T]) decide(f *bufferBatch[T], err error) {
	f.err = err
	if partial, ok := errors.AsType[*penstock.PartialError](err); ok {
		f.accepted = partial.Accepted
	} else if err == nil {
		f.accepted = len(f.events)
	}
	if n := len(f.events) - f.accepted; n > 0 {
		if b.lost == 0 {
			b.err = err
		}
		b.lost += n
	}
	close(f.done)
}

// Flush produces what the buffer holds and blocks until that is decided, not
// for what Add takes meanwhile. It returns nil when no event was refused since
// the last Flush, otherwise an error that says how many are not and matches the error
// of the first of them; each is told once. When ctx ends first it returns an
// error that matches ctx.Err() and its cause, and the requests go on.
func (b *Buffer[T]) Flush(ctx context.Context) error {
	if wait := b.urge(); wait != nil {
		stuck, end := b.inside(ctx)
		defer end()
		select {
		case <-wait:
		case <-stuck:
			return errBufferedForItself
		case <-ctx.Done():
			return penstock.ContextError(ctx)
		}
	}
	return b.tell()
}

// urge makes what fills due, and returns what there is to wait for: the last
// batch that has events now. What comes later is not waited for.
func (b *Buffer[T]) urge() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.filling; f != nil {
		f.due = true
		b.takeOff()
		return f.done
	}
	if b.flying != nil {
		return b.flying.done
	}
	return nil
}

// tell returns what was lost since the last call.
func (b *Buffer[T]) tell() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.told()
}

// told is tell for a caller that holds mu.
func (b *Buffer[T]) told() error {
	n, err := b.lost, b.err
	if b.lost, b.err = 0, nil; n == 0 {
		return nil
	}
	return fmt.Errorf("topic %q: %d buffered events were not accepted: %w", b.topic.config.Name, n, err)
}

// Close is Flush after which the buffer takes nothing. When ctx ends first, or
// Flush returns [ErrWaitsForItself], what the buffer still holds is refused with
// [penstock.ErrClosed], the request under way is cancelled, and Close returns
// without waiting for it an error that matches that of Flush, counts what was
// refused, and says how many events are in that request; [Pending.Wait] tells
// what becomes of them. A second call has nothing to do but to wait and to tell.
func (b *Buffer[T]) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	err := b.Flush(ctx)
	b.mu.Lock()
	if b.timer != nil {
		b.timer.Stop()
	}
	unknown := 0
	if f := b.filling; f != nil {
		b.filling = nil
		b.decide(f, penstock.ErrClosed)
	}
	if b.flying != nil {
		unknown = len(b.flying.events)
	}
	refused := b.told() // before the request that is cancelled can land: it would be counted twice
	b.mu.Unlock()
	b.ground(penstock.ErrClosed)
	if unknown > 0 {
		err = fmt.Errorf("%d events are in a request that was cancelled: %w", unknown, err)
	}
	return errors.Join(err, refused)
}
