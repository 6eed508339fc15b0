package bench

// Sizes that rows share.
const (
	queueEvents = 8192 // per iteration, and the channels' capacity
	partitions  = 4
	stageEvents = 200_000
	fewEvents   = 5_000 // where every event costs a hand-over of goroutines
	wideBytes   = 64
)

// rows are all rows that exist.
//
// Queue rows: events are ints (8 bytes), numbered; one producer, one consumer,
// 4 partitions, round robin, one group with automatic commit, capacity
// unbounded unless said; the baseline is one channel of ints of capacity 8192,
// with one int per operation and as many goroutines. The consumer looks at the
// first and the last event of each batch, in every row of the list. Where a
// topic is fresh, its first segments and the goroutine of the producer are the
// allocations that show.
//
//   - queue/produce/single: inside the clock, 8192 calls of Produce with one
//     event. The topic is kept over iterations: before the clock starts the
//     group has committed everything. After the clock, the group drains.
//   - queue/produce/batch: the same with one call of Produce for all 8192.
//   - queue/consume/bN: a fresh topic per iteration, filled before the clock.
//     Inside it: TryPull of at most N until all 8192 came.
//   - queue/flow/bN: a fresh topic of capacity 8192 per iteration. Inside the
//     clock: a producer goroutine calls Produce with N events until 8192 are
//     in, a consumer goroutine calls Pull with BatchMax N until all came out.
//
// Stage rows: source, gate, sink; numbered events; one source call of 200,000
// events per iteration (5,000 for demand1) from start to end of a graph; demand
// 1000 and 750, so batches of 250; the gate changes each event. The sink looks
// at the first and last event of each batch. Inside the clock: Run of the graph,
// the goroutines' start and end included, as for the baseline.
//
//   - stage/linear/batch: int64, batch callbacks; the gate changes its input in
//     place and forwards it. Both edges asynchronous: three goroutines. Baseline:
//     three goroutines and channels of recycled batches of 250.
//   - stage/linear/batch64B: the same with structs of 64 bytes.
//   - stage/linear/event: int64, one call of Emit per event in the source, a Map
//     helper with a function call per event on asynchronous edges, a loop in the
//     sink that adds each event up. Baseline: three goroutines, two channels of
//     capacity 1000, one operation per event and hop.
//   - stage/fused/event: the same with Map and Filter fused with the sink; the
//     filter passes all. Baseline: four goroutines, three channels.
//   - stage/demand1: demand 1 and 0 on both edges. Baseline: three goroutines,
//     two hops of an unbuffered channel of asks and one of events each.
//
// Log rows: one partition, records of 100 B or 1 KB that begin with their
// number, defaults of the log but for the level; the log is kept over
// iterations. Every append is waited for, to the level in the row's name.
// Our side writes with pwrite; the log has no other write path yet. The
// baseline's frames have about the same size and a checksum of the same kind,
// and go to a file that has its blocks already. After the clock, in every row,
// what was appended is read back; in the untimed pass every record is compared.
//
//   - log/append/written/100B/single: inside the clock, 500 times: make a frame of
//     one record, append, wait. Baseline: copy, checksum, pwrite.
//   - log/append/written/1KB/b100: frames of 100 records, 50 of them.
//   - log/append/synced/100B/b100: frames of 100 records, 20 of them. Baseline:
//     copy, checksum, pwrite, fdatasync (a full sync where there is none).
//   - log/append/synced/100B/w64: 64 goroutines append 8 frames of one record
//     each, and wait for each. Baseline: the same log, one goroutine, 16 frames.
//   - log/read/100B: 100,000 records in frames of 100, written before the clock.
//     Inside it: one Reader reads them all, checksums included. Baseline: the
//     same frames read in pieces of 256 KiB, each frame's checksum compared.
//   - log/reopen/clean: 1 GiB in 1,048,576 records of 1 KiB, in frames of 100,
//     written and closed before the clock. An event is one opening; inside the
//     clock: Open, and a reader at the start. Baseline: 64 MiB of the same frames
//     scanned like the read row's.
//
// latency/queue/parked: a topic with the queue rows' defaults and a group that is
// Run with a handler; one event per millisecond, 250 per iteration; a sample is
// the time from before Produce to the handler's first line. Baseline: the same
// through a channel to a goroutine that is parked on it. The first quarter of
// each iteration is dropped. Percentiles are over all rounds.
var rows = []row{
	{"queue/produce/single", "chan", queueEvents, produceSingle},
	{"queue/produce/batch", "chan", queueEvents, produceBatch},
	{"queue/consume/b1", "chan", queueEvents, consume(1)},
	{"queue/consume/b10", "chan", queueEvents, consume(10)},
	{"queue/consume/b100", "chan", queueEvents, consume(100)},
	{"queue/consume/b1000", "chan", queueEvents, consume(1000)},
	{"queue/flow/b1", "chan", queueEvents, flow(1)},
	{"queue/flow/b100", "chan", queueEvents, flow(100)},
	{"queue/flow/b1000", "chan", queueEvents, flow(1000)},
	{"stage/linear/batch", "chan of recycled batches", stageEvents, linearBatch(narrow)},
	{"stage/linear/batch64B", "chan of recycled batches", stageEvents, linearBatch(wide)},
	{"stage/linear/event", "chan per event", stageEvents, linearEvent},
	{"stage/fused/event", "chan per event", stageEvents, fusedEvent},
	{"stage/demand1", "unbuffered chans of asks and events", fewEvents, demandOne},
	{"log/append/written/100B/single", "pwrite (ours: pwrite)", 500, appendRow(writtenLevel, 100, 1)},
	{"log/append/written/1KB/b100", "pwrite (ours: pwrite)", 5_000, appendRow(writtenLevel, 1024, 100)},
	{"log/append/synced/100B/b100", "pwrite and fdatasync (ours: pwrite)", 2_000, appendRow(syncedLevel, 100, 100)},
	{"log/append/synced/100B/w64", "the same log, one writer", 512, appendWriters(64)},
	{"log/read/100B", "scan with checksums", 100_000, readRow},
	{"log/reopen/clean", "scan of 64 MiB with checksums", 1 << 20, reopenRow},
	{"latency/queue/parked", "parked chan", 250, latencyParked},
}
