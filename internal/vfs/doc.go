// Package vfs is the seam between the log on disk and the file system.
//
// [FS] and [File] hold exactly the operations that the log uses. There are two
// implementations: [OS], the real one, and [Mem], which keeps everything in
// memory, records every operation, fails an operation on command, and builds
// the images that a power loss could leave behind.
//
//	m := vfs.NewMem()
//	run(m)                                  // the workload
//	for img := range m.Images(vfs.Crashes{Seed: 1}) {
//		reopen(img.FS)                  // must find everything acknowledged by img.After
//	}
//
// # What power loss does in Mem
//
// A write, truncation or allocation that no later [File.Sync] of the same file
// covers may be kept, lost, or (a write) torn at a 512-byte sector boundary,
// each independently of the others. An entry of a directory (create, rename,
// remove, mkdir) that no later [FS.SyncDir] covers may be lost; what survives
// of one directory is a prefix of its operations. Syncing a file does not make
// its directory entry durable. A Sync that fails leaves the writes it should
// have covered in doubt for ever: a later Sync that succeeds does not make
// them durable, which is what Linux does after a failed write-back.
//
// A store through a [Mapping] is lost, kept or torn like a write. Where nothing
// was written before it faults, as a mapping of a hole does on a full disk.
//
// # Invariants
//
// Both implementations agree on results and errors; one test runs over both.
// Only regular files are opened: a symbolic link, a device, a pipe or a
// directory under a file's name is refused. Files are created 0600,
// directories 0700. Errors match the errors of package io/fs, and
// [ErrNoSpace] when the disk is full.
package vfs
