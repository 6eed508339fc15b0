// Package bench runs the rows of the command "penstock bench".
//
// # Words
//
// A row compares two sides that do the same work: ours, in its default
// configuration and by exported API only, and a baseline that needs no
// dependency; some rows have more baselines. Package measure runs them: all
// sides in turn in every round, the first of them another one each time. A
// row's figure is the median over rounds, its ratio the median of the rounds'
// own ratios, baseline time over ours: above 1 means faster than the baseline.
// Only the ratio carries over to another machine.
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
// rows.go and rows_queue.go list them. Each row's text, which is part of the
// result, states producers, consumers, partitions, capacity and groups, and
// what is inside the clock. A row of the queue without a suffix is about events
// of 8 bytes, 4 partitions and one group; /64B, /p1 and /g4 say what differs.
// What a ratio must reach, and what is aimed at, stands in the row without a
// suffix.
//
// # Result
//
// A JSON array with an object per row; measure.Row documents the fields, which
// are not renamed or removed.
package bench
