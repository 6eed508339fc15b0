// Command bench compares package queue with other queues for Go that live in
// one process, package stage with pipeline libraries, package segfile with other
// logs on disk, and the first two with what one writes by hand:
//
//	go -C bench run .            a table
//	go -C bench run . -json      the same as JSON, a row per workload and peer
//	go -C bench run . -quick     short rounds: every check holds, the figures mean little
//	go -C bench run . flow/b1    some workloads only
//	go -C bench run -tags jetstream .   with an embedded JetStream among the logs
//
// It is a module of its own, so that nobody who imports penstock meets the
// modules of its peers.
//
// # How it is measured
//
// For one workload, all peers run in turn in every round, penstock among them,
// and each round begins with another peer (package measure). A row's ratio is
// the peer's time over penstock's, paired by round, median of seven: above 1
// means that penstock is faster. Events are ints from 0 on; 8192 per iteration.
// Every queue is open before the clock starts, empty, and kept over iterations,
// with room for 8192 events where it takes a bound. Each peer runs as many
// goroutines of ours as penstock does, is set up as its documentation says, and
// is used by its exported API; where it has no batches or groups, workloads.go
// says what stands in for them.
//
// The workloads of pipelines run one from its start to its end per iteration,
// with 16 times as many events; pipelines.go holds them.
//
// Those of logs append to a log on disk, in a directory for temporary files, and
// read from it; logs.go holds them. What was read is deleted after the clock, as
// far as a log can.
//
// # What is checked
//
// Inside the clock every consumer counts its events and looks at each (of a
// batch, at the first and last) and at their order; at the end of an iteration
// nothing is missing, and nothing came twice. In an untimed pass every event of
// every batch is looked at. A peer that loses an event fails the run.
package main
