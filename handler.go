package penstock

import "context"

// Handler takes a batch of events. Returning nil settles every event of the
// batch that was not marked with [Batch.Fail]; returning an error fails all of
// them. What becomes of a failed event is the carrier's policy: retry after a
// backoff, then dead letter.
//
// A handler runs on the owner of the queue, one call at a time per consumer.
// Delivery is at least once: after a failure or a crash the same event can
// come again, so a handler with durable side effects must be idempotent, with
// the event's ID or its position as the key. ctx ends when a drain deadline
// has passed, not when a drain begins (ADR 0010). The batch, its values and
// its metadata belong to the carrier and are valid until the handler returns.
type Handler[T any] func(ctx context.Context, b Batch[T]) error
