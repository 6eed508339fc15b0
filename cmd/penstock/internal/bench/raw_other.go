//go:build !linux

package bench

import "os"

// preallocate gives f its length; blocks come as they are written.
func preallocate(f *os.File, size int64) error { return f.Truncate(size) }

// datasync flushes f: there is no lesser sync to call portably.
func datasync(f *os.File) error { return f.Sync() }
