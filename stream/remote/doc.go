// Package remote puts a connection between an agent and a consumer.
//
// # Words
//
// The [Owner] is in the process that owns the queues. It is a [stream.Consumer]
// like one in that process, and is attached by [stream.Provider.Attach]. The
// [Subscriber] is in another process; it connects, has consumers of its own,
// which [stream.NewConsumer] makes of handlers, and answers. Between them go
// lines of JSON, one frame each, over any connection that carries bytes both
// ways in order: a net.Conn, a net.Pipe, or two HTTP requests ([Handler],
// [DialHTTP]).
//
//	// where the queues are
//	owner, err := remote.NewOwner(remote.OwnerConfig{})
//	_, err = provider.Attach(ctx, stream, "billing", owner)
//	err = owner.Serve(ctx, conn) // for each connection
//
//	// elsewhere
//	sub, err := remote.NewSubscriber(remote.SubscriberConfig{Dial: dial, Consumer: newConsumer})
//	err = sub.Run(ctx) // connects, and again when the connection is lost
//
// # Demand
//
// A subscriber says how many events it accepts over a connection, as a total
// that rises, and for how long that holds. The owner never sends more, and
// nothing once it has expired; the subscriber renews it. What was not sent is no
// failed attempt: it waits with the agent (stream.ErrAway).
//
// # Lost answers
//
// A subscriber that has settled something whose answer was lost gets it again.
// It remembers, for each subscription, what it has settled of the last
// delivery, and settles that without calling the handler. A delivery that is
// still with its handler when the connection is lost stays there; its repetition
// waits for it. What the consumer asks for anew, by a handshake or a rewind, is
// handed to it again. The memory is bounded, and ends with the process of
// either end: a handler with durable side effects must still be idempotent.
//
// # Invariants
//
// Events sent never exceed the demand told. One delivery of a subscription is
// with its handler at a time. Whatever is sent is answered, or its connection is
// lost and it is repeated by the agent. Every goroutine ends with its
// connection, its handler, or Run.
package remote
