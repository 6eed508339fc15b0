package stage

import (
	"context"
	"fmt"
	"time"
)

// Throttle returns a gate that lets events pass no faster than l allows, each
// for one token. It takes the next chunk when the last one has passed, so at
// most one chunk waits in it. When the input has ended, the rest still passes
// at its rate. With an l that enforces, the gate
// fails with [ErrRateExceeded] in place of waiting.
func Throttle[T any](l *Limiter, opts ...Option) *Gate[T, T] {
	return newThrottle[T](l, nil, opts)
}

// ThrottleCost is [Throttle] where an event costs cost(&v) tokens, a negative
// number counting as 0; cost is called for a whole chunk before any of it passes.
// The pointer may not be kept.
func ThrottleCost[T any](l *Limiter, cost func(*T) int, opts ...Option) *Gate[T, T] {
	g := newThrottle(l, cost, opts)
	g.in.callback(cost != nil)
	return g
}

// A throttle holds back what is too fast.
//
// Invariants: held events are in order; while there is one the tokens of the
// first are reserved and the alarm is set for the time at which they are there.
type throttle[T any] struct {
	l        *Limiter
	cost     func(*T) int // nil: one token each
	prices   []int64      // of the last chunk, whose end waits; empty without cost
	waiting  deque[T]
	reserved int64 // what the first one costs
	timer    alarm
}

func newThrottle[T any](l *Limiter, cost func(*T) int, opts []Option) *Gate[T, T] {
	t := &throttle[T]{l: l, cost: cost, waiting: deque[T]{clears: holdsPointers[T]()}}
	g := driven[T, T]("throttle", true, t, t.take, opts)
	if l == nil {
		g.in.invalid("Limiter", "is nil")
	}
	t.timer.wake = func() { g.in.wake(ctlWake) }
	return g
}

// priceAll asks for the prices of a chunk: before anything else, for it is user
// code, which may panic.
func (t *throttle[T]) priceAll(in []T) {
	if t.cost == nil {
		return
	}
	t.prices = t.prices[:0]
	for i := range in {
		t.prices = append(t.prices, int64(max(0, t.cost(&in[i]))))
	}
}

// price returns the price of the event with which left are left of its chunk.
func (t *throttle[T]) price(left int) int64 {
	if t.cost == nil {
		return 1
	}
	return t.prices[len(t.prices)-left]
}

// take passes on what may pass now and keeps the rest.
func (t *throttle[T]) take(_ context.Context, in []T, out *Output[T]) error {
	t.priceAll(in)
	now := time.Now()
	k := 0
	for k < len(in) {
		price := t.price(len(in) - k)
		if t.l.enforce {
			if !t.l.take(now, price) {
				out.lost.failed = len(in) - k
				out.Forward(in[:k:cap(in)])
				return fmt.Errorf("%w: %d tokens at once", ErrRateExceeded, price)
			}
		} else if wait := t.l.reserve(now, price); wait > 0 {
			t.reserved = price
			t.timer.until(now.Add(wait))
			break
		}
		k++
	}
	t.waiting.pushBack(in[k:])
	out.Forward(in[:k:cap(in)])
	return nil
}

func (t *throttle[T]) due(woken bool, _ int) bool { return woken }

// poll passes on those whose time has come.
func (t *throttle[T]) poll(_ context.Context, _ int, out *Output[T]) error {
	if !t.timer.rang() {
		return nil
	}
	now := time.Now()
	for {
		t.reserved = 0
		t.timer.stop()
		out.Emit(t.waiting.pop())
		if t.waiting.len() == 0 {
			return nil
		}
		price := t.price(t.waiting.len())
		wait := t.l.reserve(now, price)
		t.reserved = price
		if wait > 0 {
			t.timer.until(now.Add(wait))
			return nil
		}
	}
}

func (t *throttle[T]) full() bool { return t.waiting.len() > 0 }
func (t *throttle[T]) inputOver() {}
func (t *throttle[T]) held() int  { return t.waiting.len() }

func (t *throttle[T]) renew() { t.close() }

func (t *throttle[T]) close() {
	if t.waiting.len() > 0 {
		t.l.giveBack(t.reserved)
		t.reserved = 0
	}
	t.timer.stop()
	t.waiting.dropFront(t.waiting.len())
}
