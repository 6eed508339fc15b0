// Package stream delivers millions of named streams over a few durable queues.
//
// # Words
//
// A stream is a namespace and a key; making a handle on one creates nothing. A
// [Provider] joins streams to a durable queue through an adapter that its
// [Factory] makes. A queue, here, is one partition of that durable queue; a
// [Mapper] says to which one a stream belongs. What is published together is a
// [Container]: events that share one token, their position in the queue.
//
// Per owned queue a node runs one agent. It reads containers through a
// [Receiver] into a [Cache], learns from the [Registry] who subscribes to each
// stream, asks each [Consumer] in a handshake where it wants to start, and
// delivers. A subscription's position is a [Cursor] in the cache: each moves at
// its own pace, with one delivery under way, so a slow one does not hold a fast
// one. While a stream's first subscriptions are found and asked, a pin keeps
// its containers in the cache. Progress, the minimum over all subscriptions of
// what they have settled, feeds the cache, the receiver and the checkpoint.
//
// # Using it
//
//	topic, err := stream.OpenTopic(queue.Config[stream.Container]{Name: "shop"})
//	p, err := stream.Open(stream.Config{Name: "shop", Factory: topic})
//	orders := stream.Of[Order](p, "orders", customer)
//	sub, err := orders.Subscribe(ctx, "billing", handle, stream.From(stream.Earliest))
//	err = orders.Publish(ctx, o)
//	err = p.Run(ctx) // until ctx ends, then it drains
//
// # What delivery means
//
// Delivery is at least once, in the order of tokens per subscription and
// stream, apart from repetitions and rewinds: when a handler fails some events
// of a batch, the others are settled and the failed ones come again before
// anything else. Two streams of one queue have no order between them. The cache's
// capacity is not durability: the queue stays the durable boundary. What you
// get depends on when the queue acknowledges, on whether it delivers again
// after a receiver or a node has failed, on the checkpoint, on the adapter's
// tokens, and on the consumer. A handler with durable side effects must be
// idempotent: keep the event's ID, its producer tag or its token with the
// effect, in the same transaction, and skip what is there already.
//
// Defaults (one container per delivery, a poll each 100 ms, 4,096 containers
// in a cache) are behaviour, not a recommendation.
//
// # Invariants
//
// An agent's state is touched by one goroutine at a time, the one that has its
// turn. Results of blocking work carry the attachment, the request and the
// generation they were started under; stale ones change nothing. A container
// leaves the cache only when no cursor, pin or delivery needs it. The checkpoint
// never passes an event that a subscription has neither settled nor, by a
// verdict, passed over. Nothing begins after a drain has begun.
package stream
