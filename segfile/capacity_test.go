package segfile

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// segmentFiles adds up the sizes of the segments and of the prepared ones.
func segmentFiles(t *testing.T, c Config) (sum penstock.Bytes) {
	t.Helper()
	for i := range max(c.Partitions, 1) {
		dir := filepath.Join(c.Dir, c.Topic, partitionName(i))
		names, err := c.FS.List(dir)
		must(t, err)
		for _, name := range names {
			if !strings.HasSuffix(name, segmentExt) && name != spareName {
				continue
			}
			info, err := c.FS.Stat(filepath.Join(dir, name))
			if err == nil { // it may be deleted, or get its name, meanwhile
				sum += penstock.Bytes(info.Size)
			}
		}
	}
	return sum
}

// fillLog appends one record after the other until there is no room, and returns
// how many there were.
func fillLog(t *testing.T, c Config, l *Log, partition int) (n int) {
	t.Helper()
	for ; ; n++ {
		_, err := tryAppend(l.Partition(partition), strings.Repeat("d", 900))
		if err != nil {
			wantErr(t, err, penstock.ErrFull)
			return n
		}
		if used, files := l.DiskBytes(), segmentFiles(t, c); files > c.CapacityDisk || used > c.CapacityDisk {
			t.Fatalf("%v of files, %v are counted, and %v are allowed", files, used, c.CapacityDisk)
		}
		if n > 1000 {
			t.Fatal("it never got full")
		}
	}
}

func TestCapacityOfDiskRefusesUntilSegmentsAreTrimmed(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		c.CapacityDisk = 5 * c.SegmentBytes
		l := openLog(t, c)
		p := l.Partition(0)
		n := penstock.Offset(fillLog(t, c, l, 0))
		if n < 12 || p.Readable() != n {
			t.Fatalf("%d records fit five segments, and %d are readable", n, p.Readable())
		}
		freed := l.Freed()
		must(t, p.Trim(p.FirstEnd()-1))
		select {
		case <-freed:
			t.Fatal("room came back, and no segment was trimmed")
		default:
		}
		must(t, p.Trim(p.FirstEnd()))
		select {
		case <-freed:
		default:
			t.Fatal("a segment was trimmed, and nobody was told")
		}
		if more := fillLog(t, c, l, 0); more == 0 || more > 8 {
			t.Fatalf("%d records took the place of a segment", more)
		}
		for range 3 { // everything is consumed, the active segment too
			must(t, p.Trim(p.Readable()))
			if fillLog(t, c, l, 0) < 10 {
				t.Fatalf("full again at once: %+v", p.Stats())
			}
		}
		must(t, l.Close())
		files := segmentFiles(t, c)
		l = openLog(t, c)
		if got := l.DiskBytes(); got < files || got > c.CapacityDisk {
			t.Errorf("%v are counted after an open, the files have %v", got, files)
		}
		must(t, l.Partition(0).Trim(l.Partition(0).Readable()))
		fillLog(t, c, l, 0)
	})
}

// TestCapacityOfDiskIsKeptWithManyWriters: whatever they race for.
func TestCapacityOfDiskIsKeptWithManyWriters(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		c.Partitions, c.CapacityDisk = 2, 5*c.SegmentBytes
		l := openLog(t, c)
		var all sync.WaitGroup
		for w := range 6 {
			all.Go(func() { // ends with its appends; waited for below
				p := l.Partition(w % 2)
				for i := range 60 {
					_, err := tryAppend(p, strings.Repeat("w", 100+(w*i*37)%3000))
					if errors.Is(err, penstock.ErrFull) {
						l.MakeRoom()
						err = p.Trim(p.Readable())
					}
					if err != nil {
						t.Errorf("writer %d: %v", w, err)
						return
					}
					if used := l.DiskBytes(); used > c.CapacityDisk {
						t.Errorf("%v are counted, and %v are allowed", used, c.CapacityDisk)
						return
					}
				}
			})
		}
		all.Wait()
		if files := segmentFiles(t, c); files > c.CapacityDisk {
			t.Errorf("the files have %v, and %v are allowed", files, c.CapacityDisk)
		}
		for _, p := range l.parts {
			if err := p.Fault(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestWhatHasRoomIsNeverRefused: what was reserved is appended, though others
// take what is left meanwhile.
func TestWhatHasRoomIsNeverRefused(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		c.Partitions, c.CapacityDisk = 2, 4*c.SegmentBytes
		l := openLog(t, c)
		mustAppend(t, l.Partition(0), strings.Repeat("a", 3500)) // leaves no room for the next
		f := NewFrame(1)
		f.Add([]byte(strings.Repeat("r", 3500)))
		must(t, l.Partition(0).Reserve(context.Background(), f))
		fillLog(t, c, l, 1)
		l.MakeRoom()
		r, err := l.Partition(0).Append(context.Background(), f)
		must(t, err)
		_, err = r.Wait(context.Background())
		must(t, err)
		if used := l.DiskBytes(); used > c.CapacityDisk {
			t.Errorf("%v are counted, and %v are allowed", used, c.CapacityDisk)
		}
	})
}

// TestLargerLogIsOpenedAndTakesNothingUntilItIsSmaller: the limit, or the
// segments, were larger before.
func TestLargerLogIsOpenedAndTakesNothingUntilItIsSmaller(t *testing.T) {
	each(t, func(t *testing.T, c Config) {
		c.Partitions, c.SegmentBytes = 2, 64*penstock.KiB
		l := openLog(t, c)
		for i := range 100 {
			mustAppend(t, l.Partition(0), fmt.Sprint(i, strings.Repeat("o", 1000)))
		}
		must(t, l.Close())
		c.SegmentBytes, c.CapacityDisk = 8*penstock.KiB, 32*penstock.KiB
		l = openLog(t, c)
		if used := l.DiskBytes(); used <= c.CapacityDisk {
			t.Fatalf("%v are counted", used)
		}
		for i := range 2 {
			_, err := tryAppend(l.Partition(i), "no")
			wantErr(t, err, penstock.ErrFull)
		}
		l.MakeRoom()
		must(t, l.Partition(0).Trim(100)) // the active segment of the other session among it
		for i := range 2 {
			if fillLog(t, c, l, i) == 0 && i == 0 {
				t.Error("nothing fits, and everything was consumed")
			}
		}
	})
}

func TestCapacityOfDiskIsChecked(t *testing.T) {
	for name, c := range map[string]Config{
		"negative":    {CapacityDisk: -1},
		"one segment": {CapacityDisk: 128*penstock.MiB - 1},
		"partitions":  {CapacityDisk: 128 * penstock.MiB, Partitions: 2},
		"by events":   {CapacityDisk: penstock.GiB, SegmentEvents: 5},
	} {
		c.Dir, c.Topic, c.FS = "data", "orders", vfs.NewMem()
		var field *penstock.FieldError
		if _, err := Open(c); !errors.As(err, &field) || field.Field != "CapacityDisk" {
			t.Errorf("%s: %v, want a FieldError of CapacityDisk", name, err)
		}
	}
}
