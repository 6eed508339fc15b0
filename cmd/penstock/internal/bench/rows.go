package bench

import "slices"

// Sizes that rows share.
const (
	queueEvents = 8192 // per iteration, and the channels' capacity
	partitions  = 4
	stageEvents = 200_000
	fewEvents   = 5_000 // where every event costs a hand-over of goroutines
	wideBytes   = 64
)

// rows are all rows that exist. What each compares stands in its text, which is
// part of the result.
var rows = slices.Concat(
	queueRows(), sharedRows(), manyRows(), routingRows(), idleRows(), seedRows(), latencyRows(), stageRows, logRows,
)

// stageRows: source, gate, sink; numbered events; one call of the source per
// 200,000 events (5,000 for demand1) from start to end of a graph; demand 1000
// and 750, so batches of 250; the gate changes each event. The sink looks at
// the first and last event of each batch. Inside the clock: Run of the graph,
// the goroutines' start and end included, as for the baseline.
var stageRows = []row{
	{
		name: "stage/linear/batch", baseline: "chan of recycled batches", events: stageEvents, open: linearBatch(narrow),
		text: "Source, gate, sink on int64 with batch callbacks, demand 1000/750; the gate changes its input in place and forwards it; both edges asynchronous, so three goroutines. Baseline: three goroutines and channels of recycled batches of 250. In the clock: the run of the graph from start to end.",
	},
	{
		name: "stage/linear/batch64B", baseline: "chan of recycled batches", events: stageEvents, open: linearBatch(wide),
		text: "As stage/linear/batch, with structs of 64 bytes.",
	},
	{
		name: "stage/linear/event", baseline: "chan per event", events: stageEvents, open: linearEvent,
		text: "int64; one call of Emit per event in the source, a Map helper with a function call per event on asynchronous edges, a loop in the sink that adds each event up. Baseline: three goroutines, two channels of capacity 1000, one operation per event and hop.",
	},
	{
		name: "stage/fused/event", baseline: "chan per event", events: stageEvents, open: fusedEvent,
		text: "As stage/linear/event, with Map and Filter fused with the sink; the filter passes all. Baseline: four goroutines, three channels.",
	},
	{
		name: "stage/demand1", baseline: "unbuffered chans of asks and events", events: fewEvents, open: demandOne,
		text: "Demand 1 and 0 on both edges. Baseline: three goroutines, two hops of an unbuffered channel of asks and one of events each.",
	},
}

// logRows: one partition, records that begin with their number, defaults of the
// log but for the level; the log is kept over iterations. Every append is
// waited for, to the level in the row's name. Our side writes with pwrite; the
// log has no other write path yet. The baseline's frames have about the same
// size and a checksum of the same kind, and go to a file that has its blocks
// already. After the clock, in every row, what was appended is read back; in
// the untimed pass every record is compared.
var logRows = []row{
	{
		name: "log/append/written/100B/single", baseline: "pwrite (ours: pwrite)", events: 500, open: appendRow(writtenLevel, 100, 1),
		text: "In the clock, 500 times: make a frame of one record of 100 B, append it, wait until it is written. Baseline: copy, checksum, pwrite.",
	},
	{
		name: "log/append/written/1KB/b100", baseline: "pwrite (ours: pwrite)", events: 5_000, open: appendRow(writtenLevel, 1024, 100),
		text: "Frames of 100 records of 1 KiB, 50 of them; each is waited for. Baseline: copy, checksum, pwrite.",
	},
	{
		name: "log/append/synced/100B/b100", baseline: "pwrite and fdatasync (ours: pwrite)", events: 2_000, open: appendRow(syncedLevel, 100, 100),
		text: "Frames of 100 records of 100 B, 20 of them; each is waited for until it is synced. Baseline: copy, checksum, pwrite, fdatasync (a full sync where there is none).",
	},
	{
		name: "log/append/synced/100B/w64", baseline: "the same log, one writer", events: 512, open: appendWriters(64),
		text: "64 goroutines append 8 frames of one record each, and wait for each. Baseline: the same log, one goroutine, 16 frames.",
	},
	{
		name: "log/read/100B", baseline: "scan with checksums", events: 100_000, open: readRow,
		text: "100,000 records in frames of 100, written before the clock; in it one Reader reads them all, checksums included. Baseline: the same frames read in pieces of 256 KiB, each frame's checksum compared.",
	},
	{
		name: "log/reopen/clean", baseline: "scan of 64 MiB with checksums", events: 1 << 20, open: reopenRow,
		text: "1 GiB in 1,048,576 records of 1 KiB, in frames of 100, written and closed before the clock. An event is one opening; in the clock: Open, and a reader at the start. Baseline: 64 MiB of the same frames scanned like those of log/read.",
	},
}
