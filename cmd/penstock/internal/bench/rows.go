package bench

import (
	"slices"

	"github.com/penstock/penstock/internal/measure"
)

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
	queueRows(), sharedRows(), manyRows(), routingRows(), idleRows(), seedRows(), latencyRows(), stageRows, streamRows(), logRows,
)

// logRows: one partition, records that begin with their number, defaults of the
// log but for the level; the log is kept over iterations. Every append is
// waited for, to the level in the row's name. The
// baseline's name tells how our side wrote, which the log chooses by the name of
// the file system and the size of the frames. The baseline's frames have about the same
// size and a checksum of the same kind, and go to a file that has its blocks
// already. After the clock, in every row, what was appended is read back; in
// the untimed pass every record is compared.
var logRows = []row{
	{
		name: "log/append/written/100B/single", baseline: "pwrite", events: 500, open: appendRow(writtenLevel, 100, 1), goal: measure.Goal{Goal: 12},
		text: "In the clock, 500 times: make a frame of one record of 100 B, append it, wait until it is written. Baseline: copy, checksum, pwrite.",
	},
	{
		name: "log/append/written/1KB/b100", baseline: "pwrite", events: 5_000, open: appendRow(writtenLevel, 1024, 100), goal: measure.Goal{Goal: 0.9},
		text: "Frames of 100 records of 1 KiB, 50 of them; each is waited for. Baseline: copy, checksum, pwrite.",
	},
	{
		name: "log/append/synced/100B/b100", baseline: "pwrite and fdatasync", events: 2_000, open: appendRow(syncedLevel, 100, 100), goal: measure.Goal{Must: 0.8, Goal: 0.85},
		text: "Frames of 100 records of 100 B, 20 of them; each is waited for until it is synced. Baseline: copy, checksum, pwrite, fdatasync (a full sync where there is none).",
	},
	{
		name: "log/append/synced/100B/w64", baseline: "the same log, one writer", events: 512, open: appendWriters(64), goal: measure.Goal{Goal: 10},
		text: "64 goroutines append 8 frames of one record each, and wait for each. Baseline: the same log, one goroutine, 16 frames.",
	},
	{
		name: "log/read/100B", baseline: "scan with checksums", events: 100_000, open: readRow, goal: measure.Goal{Must: 0.75, Goal: 0.8},
		text: "100,000 records in frames of 100, written before the clock; in it one Reader reads them all, checksums included. Baseline: the same frames read in pieces of 256 KiB, each frame's checksum compared.",
	},
	{
		name: "log/reopen/clean", baseline: "scan of 64 MiB with checksums", events: 1 << 20, open: reopenRow,
		text: "1 GiB in 1,048,576 records of 1 KiB, in frames of 100, written and closed before the clock. An event is one opening; in the clock: Open, and a reader at the start. Baseline: 64 MiB of the same frames scanned like those of log/read.",
	},
	{
		name: "log/reopen/killed", baseline: "scan of what it reads, with checksums", events: 49_100, open: killedRow, goal: measure.Goal{Goal: 0.5},
		text: "49,100 records of 1 KiB in frames of 100, synced; the files as a killed process leaves them at the worst moment: state.slot is 8,100 records, some 8 MiB, behind and not synced, and the next segment is prepared; everything else the syncs of the appends have made durable. An event is one opening; in the clock: Open, which finds the end and makes it durable, and a reader at the start. Baseline: 8,100 such records scanned like those of log/read.",
	},
	{
		name: "log/fsck/deep", baseline: "scan with checksums", events: 1 << 18, open: fsckRow, goal: measure.Goal{Goal: 1 / 1.5},
		text: "262,144 records of 1 KiB in frames of 100, 256 MiB; in the clock: a deep check, what `penstock fsck --deep` does. Baseline: the same frames scanned like those of log/read.",
	},
}
