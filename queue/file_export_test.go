package queue

import (
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/segfile"
)

// WithFS puts a file system of a test under a topic on disk.
func WithFS[T any](c Config[T], fs vfs.FS) Config[T] {
	c.fs = fs
	return c
}

// DiskPartition returns a partition of a topic on disk.
func DiskPartition[T any](t *Topic[T], i int) *segfile.Partition { return t.parts[i].file.log }
