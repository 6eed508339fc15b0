// Package measure compares pieces of code that do the same work, and checks
// that they did it. It is what "penstock bench" and the comparison with other
// queues (module bench) stand on; no product code imports it.
//
// # Words
//
// A [Side] does one iteration of some work and runs the [Clock] for the part
// that counts. A round runs every side in turn, each until its clocks have run
// for a while; a side's figure of a round is the median over its iterations.
// [Run] returns a [Series] per side, one figure per round. Only the ratio of
// two figures of one round carries over to another machine: [Ratio] pairs them
// round by round and gives median, smallest and largest. A [Goal] judges the
// median of at least seven rounds.
//
// Where several goroutines work together, [Clock.AtOnce] lets all of them stand at
// a line before the clock starts, those of every side alike.
//
// A [Tally] and a [Crowd] check numbered events: nothing lost, repeated or out
// of order. A side whose check fails returns an error, and there is no figure.
//
// # The least that one can do
//
// [Stack] and [Swap] are what people write by hand in place of a queue, a slice
// behind a mutex; [Recycled] is a channel of batches that go round. With a
// plain channel they are the lines that every queue is compared with.
package measure
