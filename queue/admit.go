package queue

import (
	"context"
	"fmt"
	"math"

	"github.com/penstock/penstock"
)

// Single round-robin events hold the turn anyway, so they take capacity from the
// budget in advance, a few events at a time, and spend it under that lock: the
// credit. It never makes the topic look fuller than it is: whoever does not
// get what it asks for calls in the credit first, and while it asks, singles
// take none in advance (strict). It overtakes nobody: it is not used while
// requests are in line (ADR 0027).

// creditMax bounds the credit, and so what is called in at once.
const creditMax = 64

// creditSize returns how much a topic takes in advance: nothing when it is
// small.
func creditSize(capacity int) int { return max(1, min(creditMax, capacity/creditMax)) }

// spend takes capacity for one event from the budget, and some in advance; the
// caller holds the turn. It returns false when that needs the slow way. Without a
// capacity it makes the endless credit whole again, which an int of 32 bits
// needs after 2^31 events.
func (t *Topic[T]) spend() bool {
	if t.budget == nil {
		t.credit = math.MaxInt - 1
		return true
	}
	if t.strict == 0 && t.credit == 0 && t.budget.TryAcquire(t.creditSize, 0) {
		t.credit = t.creditSize - 1
		return true
	}
	return t.budget.TryAcquire(1, 0)
}

// callIn gives the credit back to the budget and keeps it from being taken
// again until a matching letIn. It gives it back under the turn: another request
// that comes here in between would find it neither there nor here, and be
// refused for want of what nobody uses.
func (t *Topic[T]) callIn() {
	t.turn.Lock()
	defer t.turn.Unlock()
	t.strict++
	if n := t.credit; n > 0 {
		t.credit = 0
		t.budget.Release(n, 0)
	}
}

func (t *Topic[T]) letIn() {
	t.turn.Lock()
	t.strict--
	t.turn.Unlock()
}

// admit takes the slow way to capacity for n events, which was not free.
func (t *Topic[T]) admit(ctx context.Context, n int, bytes penstock.Bytes) error {
	t.callIn()
	defer t.letIn()
	if t.budget.TryAcquire(n, bytes) {
		return nil
	}
	if t.closed.Load() {
		return penstock.ErrClosed
	}
	switch t.config.WhenFull {
	case Fail:
		return t.refuse(n)
	case DropOldest:
		return t.dropOldest(ctx, n, bytes)
	}
	t.warnNoGroup()
	err := t.acquire(ctx, n, bytes)
	if err != nil && !t.hasGroup() && ctx.Err() != nil {
		return fmt.Errorf("topic %q is full and has no consumer group to make room: %w", t.config.Name, err)
	}
	return err
}

// warnNoGroup says once that producers wait for a group that does not exist
// (BQ-49).
func (t *Topic[T]) warnNoGroup() {
	if !t.hasGroup() && !t.noTold.Swap(true) {
		t.logger.Warn("topic is full and has no consumer group; producers wait", "capacity", t.config.Capacity)
	}
}
