// Package bench runs the rows of the command "penstock bench".
//
// # Words
//
// A row compares two sides that do the same work: ours, in its default
// configuration and by exported API only, and a baseline that needs no
// dependency. One call of a side is an iteration; inside it the clock runs for
// the part that the row is about. A round runs iterations of the baseline and
// then of ours, each until its clocks have run for a while; a round's figure is
// the median over its iterations. A row's figure is the median over rounds, its
// ratio the median of the rounds' own ratios, baseline time over ours: above 1
// means faster than the baseline. Only the ratio carries over to another
// machine.
//
// # What is checked
//
// Inside the clock: the number of events, and the first and last event of each
// batch. In one untimed pass of the same row before the first round: every
// event, once and in its order. A row in which an event was lost, repeated or
// out of order fails. Another untimed pass counts allocations, those of every
// goroutine.
//
// # Rows
//
// rows.go states for each row its producers, consumers, partitions, capacity
// and groups, what is inside the clock, and what the consumer touches.
package bench
