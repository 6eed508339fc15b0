package queue

import "github.com/penstock/penstock/internal/vfs"

// WithFS puts a file system of a test under a topic on disk.
func WithFS[T any](c Config[T], fs vfs.FS) Config[T] {
	c.fs = fs
	return c
}
