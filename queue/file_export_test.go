package queue

import (
	"github.com/penstock/penstock/demand"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/segfile"
	"github.com/penstock/penstock/settle"
)

// WithFS puts a file system of a test under a topic on disk.
func WithFS[T any](c Config[T], fs vfs.FS) Config[T] {
	c.fs = fs
	return c
}

// DiskPartition returns a partition of a topic on disk.
func DiskPartition[T any](t *Topic[T], i int) *segfile.Partition { return t.parts[i].file.log }

// LimitParked makes the retry log of a group that has not run hold fewer
// events.
func LimitParked[T any](g *Group[T], events int) {
	b, err := demand.NewBudget(demand.BudgetConfig{Events: events, Bytes: settle.ParkedBytesMax})
	if err != nil {
		panic(err)
	}
	g.parking.budget = b
}
