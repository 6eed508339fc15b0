// Package penstock holds the words that every other package of the module
// speaks: the event and its envelope, the batch and the handler that takes it,
// offsets and tokens, durability levels, codecs, and the shared errors.
//
// # Words
//
// An event is one value with what is known about it ([Meta]). A [Batch] is a
// run of events handed over in one call, all from one partition of a topic or
// from one stream. An [Offset] is the number of an event inside its partition,
// counted from zero; it counts events, never bytes. A [Token] is a position in
// a foreign queue, ordered by the adapter that made it. A [Handler] takes a
// batch; the same handler runs on a topic in memory, a topic on disk and a
// stream subscription.
//
// # Using it
//
//	handle := func(ctx context.Context, b penstock.Batch[Order]) error {
//	    for i, order := range b.Values() {
//	        if err := store(ctx, order); err != nil {
//	            b.Fail(i, err) // this event is not settled, the others are
//	        }
//	    }
//	    return nil
//	}
//
// The package starts no goroutine, opens no file and keeps no state.
package penstock
