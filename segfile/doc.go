// Package segfile is a log on disk: one directory per topic, one run of
// segment files per partition, bytes only. Package queue puts types on top.
//
// # Words
//
// A record is one event's bytes. A [Frame] is the records of one append: the
// unit of writing, of checksums and of atomicity. Frames fill a segment, a
// preallocated file; a full one is sealed and never changes again. Appends
// that meet share one write and, at level synced, one sync: a group commit. A
// [Cursor] is the stored position of a consumer group. Quarantine is where the
// bytes of a torn tail go before they are cut.
//
// # Using it
//
//	log, err := segfile.Open(segfile.Config{Dir: "data", Topic: "orders", Codec: "raw/1"})
//	p := log.Partition(0)
//	f := segfile.NewFrame(1)
//	f.Add([]byte("hello"))
//	receipt, err := p.Append(ctx, f)
//	first, err := receipt.Wait(ctx)        // durable now
//	r, err := p.NewReader(first)
//	records, err := r.Next(100)            // records.At(i), valid until the next call
//	err = log.Close()
//
// # What is promised
//
// At level synced an acknowledged record survives power loss, if the disk
// honours a flush; at level written it survives the death of the process, and
// a power loss takes at most what was appended since the last background sync,
// from the end, never from the middle. At every level: no record is torn,
// reordered or invented; the records of a frame are there together or not at
// all; a cursor is never ahead of the log (ADR 0004, ADR 0005).
//
// Damage is not a torn tail. A torn tail is what was being written when the
// power went; it is cut, copied to quarantine and reported. Bytes that are bad
// although a later frame, a slot or a barrier proves that they had been synced
// are damage: nothing is modified, what lies before is served, reads at it and
// appends to the partition fail with [penstock.ErrCorrupt] (ADR 0006).
//
// # How it stays true
//
// A frame's checksum is seeded with the nonce of its segment and covers its
// offset and the writer's epoch, so that no frame is taken at another place or
// from an earlier life of a file. Each frame says how much of its file was
// known to be safe when it was written, which is how recovery tells a torn
// tail from damage. Before anything is appended after a crash, the torn tail
// is made zero, durably. A sync that failed is never repeated: the partition
// stops until it is opened again, and that open writes the end of the log anew as
// far as it is not known to be durable. docs/format.md fixes every byte.
//
// # Bounds
//
// What waits for a partition's committer is bounded by Config.MaxPending (16
// MiB); 4 MiB more may be under way. Open files: two per topic for its lock,
// and per partition one for state.slot, one for the active segment and one for
// the spare, once it was written to, one per open cursor and at most one per
// reader. After [Log.Close] none is open.
//
// A full disk fails appends with [penstock.ErrDiskFull] and nothing else. Cursors
// and reads need no room. When what fills the disk is consumed and trimmed, the
// active segment included, appends go on without a restart.
//
// # Looking at it
//
// [Check], [Inspect] and [Topics] read the files of a topic without its lock
// and change nothing: beside the process that has it open, or when nobody can
// open it. [CutTail] and [Salvage] repair what is damaged, when they are told to.
//
// # Goroutines
//
// A partition has no goroutine while it is idle. The committer runs while
// frames wait, one background sync and the preparation of one spare segment
// may run beside it, and one timer fires for the background sync, the idle
// barrier and the cursors. [Log.Close] waits for all of them.
package segfile
