package segfile

import (
	"fmt"
	"io"
	"testing"

	"github.com/penstock/penstock/internal/vfs"
)

// restlessFS is a file system whose directories have another number at each look.
type restlessFS struct{ vfs.FS }

type restlessLock struct{ io.Closer }

func (restlessLock) InPlace() error { return vfs.ErrMoved }

func (f restlessFS) Lock(name, note string) (io.Closer, error) {
	l, err := f.FS.Lock(name, note)
	return restlessLock{l}, err
}

// TestTopicIsUsedWhereADirectoryIsNeverTheSame: where it cannot be told whether a
// directory is in its place, nothing was taken from such a topic at all.
func TestTopicIsUsedWhereADirectoryIsNeverTheSame(t *testing.T) {
	c := small(restlessFS{vfs.NewMem()}, "data")
	c.SegmentEvents = 4
	l := openLog(t, c)
	for i := range 10 {
		mustAppend(t, l.Partition(0), fmt.Sprint(i))
	}
	must(t, l.Partition(0).Trim(8))
	wantRecords(t, l.Partition(0), 8, "8", "9")
	must(t, l.Close())
}
