package queue

import (
	"context"

	"github.com/penstock/penstock"
)

// PullInto is Pull of at most len(dst) events whose values are copied to dst:
// they stay valid, and belong to the caller, whatever becomes of the batch. It
// returns the batch of the values in dst; what is known of them besides, such
// as [penstock.Batch.ID], stays valid as with Pull, and it is committed in the
// same way. The error matches [penstock.ErrInvalid] when dst has no room.
func (c *Consumer[T]) PullInto(ctx context.Context, dst []T) (Batch[T], error) {
	if len(dst) == 0 {
		return Batch[T]{}, &penstock.FieldError{Field: "dst", Reason: "has no room for an event"}
	}
	b, err := c.pullAtMost(ctx, len(dst))
	if err != nil {
		return Batch[T]{}, err
	}
	d, ticket := b.Ticket()
	n := copy(dst, b.Values())
	return Batch[T]{penstock.NewPulled(dst[:n:n], d, ticket)}, nil
}
