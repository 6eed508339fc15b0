package demand

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// cacheLine keeps fields that different goroutines write apart: two lines of
// 64 bytes, because processors fetch neighbours, and one line of those that
// have 128.
const cacheLine = 128

// maxEvents is the largest capacity that fits the state word beside its flag.
const maxEvents = 1<<62 - 1

// BudgetConfig says how much a [Budget] admits.
type BudgetConfig struct {
	// Events is the capacity in events. 0 is unlimited.
	Events int
	// Bytes is the capacity in bytes. 0 is unlimited; bytes are then ignored
	// in every call, and a budget in events alone is the fast one.
	Bytes penstock.Bytes
	// Refill, if set, is asked for capacity that has become free since the
	// last call, whenever what the budget has is not enough. It returns
	// amounts that were acquired before and not yet given back. It is called
	// with the budget's mutex held: calls never overlap, and it must not
	// block nor call the budget. Whoever frees capacity makes that visible to
	// Refill, then calls [Budget.Poke] if [Budget.Waiting] is not 0; a
	// consumer that frees capacity so writes nothing that producers read.
	Refill func() (events int, bytes penstock.Bytes)
}

func (c *BudgetConfig) validate() error {
	switch {
	case c.Events < 0:
		return &penstock.FieldError{Field: "Events", Reason: fmt.Sprintf("%d is negative", c.Events)}
	case int64(c.Events) > maxEvents:
		return &penstock.FieldError{Field: "Events", Reason: fmt.Sprintf("%d is above %d", c.Events, int64(maxEvents))}
	case c.Bytes < 0:
		return &penstock.FieldError{Field: "Bytes", Reason: fmt.Sprintf("%d is negative", int64(c.Bytes))}
	}
	return nil
}

// Budget admits requests for capacity in events and bytes, whole and first
// come, first served: a request that waits is never overtaken, not even by one
// that would fit. A request of no events and no bytes is always
// admitted at once. It is safe for concurrent use.
//
// Invariants: acquired - released <= capacity, in events and in bytes. While
// anyone waits, the first in line does not fit what is free. A request that
// returned an error or false holds nothing.
type Budget struct {
	config    BudgetConfig // immutable
	unlimited bool         // neither events nor bytes are limited

	_ [cacheLine]byte
	// state is the free events shifted left by one, and the flag slow in bit
	// 0. Both live in one word so that the one compare-and-swap of the fast
	// path fails when a request has begun to wait in between. Free events
	// are taken without the mutex only while slow is not set.
	state atomic.Int64

	_ [cacheLine]byte
	// waiting is written under mu and read without it, on a line of its own
	// so that consumers who read it do not disturb producers.
	waiting atomic.Int64

	_         [cacheLine]byte
	mu        sync.Mutex
	freeBytes penstock.Bytes
	head      *waiter // first in line; nil when nobody waits
	tail      *waiter
	closed    bool
}

// slow sends every request through the mutex: someone waits, the budget is
// closed, or bytes are limited.
const slow = 1

// NewBudget returns a budget with all of its capacity free. The error matches
// [penstock.ErrInvalid] and names the field when a capacity is negative.
func NewBudget(c BudgetConfig) (*Budget, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	b := &Budget{config: c, unlimited: c.Events == 0 && c.Bytes == 0, freeBytes: c.Bytes}
	b.state.Store(int64(c.Events) << 1)
	b.setSlow()
	return b, nil
}

// TryAcquire takes the capacity and returns true, or returns false at once:
// when it is not free, when others wait for some, when the budget is closed,
// and when the request is larger than the capacity. It panics when a number
// is negative.
func (b *Budget) TryAcquire(events int, bytes penstock.Bytes) bool {
	if b.takeFast(events) {
		return true
	}
	return b.tryAcquireSlow(events, bytes)
}

// Acquire takes the capacity, waiting in line until it is free. It returns an
// error and takes nothing: one that matches ctx.Err() and its cause when ctx
// ends first, [penstock.ErrClosed] when the budget is closed, before or while
// it waits, and [penstock.ErrTooLarge] at once when the request is larger than
// the capacity. A grant that meets the end of ctx is given back.
// It panics when a number is negative.
func (b *Budget) Acquire(ctx context.Context, events int, bytes penstock.Bytes) error {
	if err := penstock.ContextError(ctx); err != nil {
		return err
	}
	if b.takeFast(events) {
		return nil
	}
	w, err := b.enter(events, bytes)
	if w == nil || err != nil {
		return err
	}
	select {
	case <-w.ready:
		if w.refused {
			return penstock.ErrClosed
		}
		return nil
	case <-ctx.Done():
		b.withdraw(w)
		return penstock.ContextError(ctx)
	}
}

// Release gives capacity back and admits those in line that now fit. It panics
// when that is more than was acquired. It does not block, and is allowed after
// [Budget.Close].
func (b *Budget) Release(events int, bytes penstock.Bytes) {
	mustNotBeNegative(events, bytes)
	if b.config.Bytes == 0 {
		if b.giveEvents(events)&slow == 0 {
			return
		}
		events = 0 // given; what is left is to serve the line
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.give(events, bytes)
	b.serve()
}

// Waiting returns how many requests are in line. It is one atomic load.
func (b *Budget) Waiting() int { return int(b.waiting.Load()) }

// Poke asks Refill for free capacity and admits those in line that now fit.
// Without waiting requests, or without a Refill, it has nothing to do.
func (b *Budget) Poke() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serve()
}

// Available returns what is free now, after asking Refill. A number whose
// capacity is unlimited is 0. Capacity that is free may still be refused to a
// newcomer while others wait.
func (b *Budget) Available() (events int, bytes penstock.Bytes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill()
	b.serve()
	return int(b.state.Load() >> 1), b.freeBytes
}

// Close wakes every waiting request with [penstock.ErrClosed] and refuses all
// later ones. A second call changes nothing.
func (b *Budget) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.setSlow()
	for w := b.head; w != nil; w = b.head {
		b.remove(w)
		w.refused = true
		close(w.ready)
	}
}

// takeFast takes events without the mutex, and returns false when that is not
// allowed or not enough is free.
func (b *Budget) takeFast(events int) bool {
	for {
		s := b.state.Load()
		switch {
		case s&slow != 0:
			return false
		case b.unlimited:
			return events >= 0
		case uint64(events) > uint64(s>>1): // a negative number becomes a large one
			return false
		case b.state.CompareAndSwap(s, s-int64(events)<<1):
			return true
		}
	}
}

func (b *Budget) tryAcquireSlow(events int, bytes penstock.Bytes) bool {
	mustNotBeNegative(events, bytes)
	bytes = b.counted(bytes)
	if events == 0 && bytes == 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.admit(events, bytes)
}

// enter admits a request or puts it in line; it returns the waiter that it put
// there, nil when the request was admitted or refused.
func (b *Budget) enter(events int, bytes penstock.Bytes) (*waiter, error) {
	mustNotBeNegative(events, bytes)
	bytes = b.counted(bytes)
	if events == 0 && bytes == 0 {
		return nil, nil
	}
	if err := b.tooLarge(events, bytes); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, penstock.ErrClosed
	}
	if b.admit(events, bytes) {
		return nil, nil
	}
	w := &waiter{events: events, bytes: bytes, ready: make(chan struct{})}
	b.join(w)
	// Capacity may have become free between the look above and joining the
	// line, by someone who saw nobody wait. Whoever frees after this look
	// sees the line: both sides store first and look second.
	b.serve()
	if !w.waits {
		return nil, nil
	}
	return w, nil
}

// admit takes the capacity for a request that is not in line, if nobody is in
// line and it fits. The mutex is held, here and in everything below.
func (b *Budget) admit(events int, bytes penstock.Bytes) bool {
	if b.closed || b.tooLarge(events, bytes) != nil {
		return false
	}
	if b.head != nil {
		b.serve()
	}
	if b.head != nil {
		return false
	}
	if b.take(events, bytes) {
		return true
	}
	return b.refill() && b.take(events, bytes)
}

// take takes capacity if both parts are free.
func (b *Budget) take(events int, bytes penstock.Bytes) bool {
	if bytes > b.freeBytes {
		return false
	}
	if b.config.Events > 0 {
		for {
			s := b.state.Load()
			if int64(events) > s>>1 {
				return false
			}
			if b.state.CompareAndSwap(s, s-int64(events)<<1) {
				break
			}
		}
	}
	b.freeBytes -= bytes
	return true
}

// give returns capacity.
func (b *Budget) give(events int, bytes penstock.Bytes) {
	bytes = b.counted(bytes)
	if bytes > b.config.Bytes-b.freeBytes {
		panic("demand: Budget: more bytes released than were acquired")
	}
	b.giveEvents(events)
	b.freeBytes += bytes
}

// giveEvents returns events and the new state. It needs no mutex.
func (b *Budget) giveEvents(events int) int64 {
	if b.config.Events == 0 {
		return b.state.Load()
	}
	if events <= b.config.Events { // so that the sum below cannot wrap
		s := b.state.Add(int64(events) << 1)
		if s >= 0 && s>>1 <= int64(b.config.Events) {
			return s
		}
		b.state.Add(-(int64(events) << 1))
	}
	panic("demand: Budget: more events released than were acquired")
}

// refill asks for capacity that became free, and returns whether there was
// any.
func (b *Budget) refill() bool {
	if b.config.Refill == nil {
		return false
	}
	events, bytes := b.config.Refill()
	mustNotBeNegative(events, bytes)
	b.give(events, bytes)
	return events > 0 || bytes > 0
}

// setSlow sets or clears the flag after one of its reasons changed.
func (b *Budget) setSlow() {
	if b.head != nil || b.closed || b.config.Bytes > 0 {
		b.state.Or(slow)
	} else {
		b.state.And(^slow)
	}
}

// counted returns the bytes that count: none when they are unlimited.
func (b *Budget) counted(bytes penstock.Bytes) penstock.Bytes {
	if b.config.Bytes == 0 {
		return 0
	}
	return bytes
}

// tooLarge returns an error when a request can never be admitted.
func (b *Budget) tooLarge(events int, bytes penstock.Bytes) error {
	if b.config.Events > 0 && events > b.config.Events {
		return fmt.Errorf("%d events of a capacity of %d: %w", events, b.config.Events, penstock.ErrTooLarge)
	}
	if b.config.Bytes > 0 && bytes > b.config.Bytes {
		return fmt.Errorf("%v of a capacity of %v: %w", bytes, b.config.Bytes, penstock.ErrTooLarge)
	}
	return nil
}

func mustNotBeNegative(events int, bytes penstock.Bytes) {
	if events < 0 || bytes < 0 {
		panic("demand: Budget: negative amount")
	}
}
