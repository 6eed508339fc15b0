package segfile

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// benchRecord is the payload of the append rows: 100 bytes.
var benchRecord = make([]byte, 100)

// BenchmarkAppend appends records of 100 bytes: one goroutine with frames of 1
// and 100 records, and 64 goroutines with one record each. The time is per
// frame. The raw rows write the same bytes with nothing around them.
func BenchmarkAppend(b *testing.B) {
	for _, level := range []penstock.Durability{penstock.Written, penstock.Synced} {
		for _, batch := range []int{1, 100} {
			b.Run(fmt.Sprintf("%s/raw/batch=%d", level, batch), func(b *testing.B) { benchRaw(b, level, batch) })
			b.Run(fmt.Sprintf("%s/log/batch=%d", level, batch), func(b *testing.B) { benchLog(b, level, batch, 1) })
		}
		b.Run(level.String()+"/log/writers=64", func(b *testing.B) { benchLog(b, level, 1, 64) })
	}
}

func benchFrame(batch int) *Frame {
	f := NewFrame(batch)
	for range batch {
		f.Add(benchRecord)
	}
	return f
}

// benchRaw writes finished frames into an allocated file.
func benchRaw(b *testing.B, level penstock.Durability, batch int) {
	const size = 64 << 20
	f, err := vfs.OS().Create(filepath.Join(b.TempDir(), "raw"))
	must(b, err)
	defer f.Close()
	must(b, f.Allocate(size))
	frame := benchFrame(batch).appendTo(nil, stamp{seed: 1})
	b.ReportAllocs()
	b.SetBytes(int64(len(frame)))
	pos := int64(0)
	for b.Loop() {
		if pos+int64(len(frame)) > size {
			pos = 0
		}
		_, err := f.WriteAt(frame, pos)
		must(b, err)
		pos += int64(len(frame))
		if level == penstock.Synced {
			must(b, f.Sync())
		}
	}
}

func benchLog(b *testing.B, level penstock.Durability, batch, writers int) {
	c := small(nil, b.TempDir())
	c.SegmentBytes, c.Durability = 64*penstock.MiB, level
	l := openLog(b, c)
	p := l.Partition(0)
	ctx := context.Background()
	appendOne := func() {
		r, err := p.Append(ctx, benchFrame(batch))
		if err == nil {
			_, err = r.Wait(ctx)
		}
		if err != nil {
			b.Error(err)
		}
	}
	appendOne()
	b.ReportAllocs()
	b.SetBytes(int64(batch * (len(benchRecord) + 4)))
	if writers == 1 {
		for b.Loop() {
			appendOne()
		}
	} else {
		b.ResetTimer()
		var left atomic.Int64
		left.Store(int64(b.N))
		var all sync.WaitGroup
		for range writers {
			all.Go(func() { // ends when all appends are done
				for left.Add(-1) >= 0 {
					appendOne()
				}
			})
		}
		all.Wait()
	}
	b.StopTimer()
	must(b, p.Trim(p.Readable())) // the disk is shared
}

// BenchmarkRead reads 1,000,000 records of 100 bytes in frames of 100, and for
// comparison checksums the same bytes from blocks of 256 KiB. The time is per
// record.
func BenchmarkRead(b *testing.B) {
	const frames, batch = 2000, 100
	dir := b.TempDir()
	c := small(nil, dir)
	c.SegmentBytes, c.Durability = 64*penstock.MiB, penstock.Written
	l := openLog(b, c)
	p := l.Partition(0)
	for range frames {
		_, err := p.Append(context.Background(), benchFrame(batch))
		must(b, err)
	}
	b.Run("raw", func(b *testing.B) {
		f, err := os.Open(p.written.seg.path)
		must(b, err)
		defer f.Close()
		size := p.written.pos
		block := make([]byte, maxBlock)
		for n := 0; n < b.N; n += frames * batch {
			for pos := int64(headerSize); pos < size; pos += maxBlock {
				got, _ := f.ReadAt(block[:min(maxBlock, size-pos)], pos)
				if crc32.Checksum(block[:got], castagnoli) == binary.LittleEndian.Uint32(block) {
					b.Fatal("a coincidence")
				}
			}
		}
	})
	b.Run("reader", func(b *testing.B) {
		b.ReportAllocs()
		total := 0
		for n := 0; n < b.N; n += frames * batch {
			r, err := p.NewReader(0)
			must(b, err)
			for {
				rec, err := r.Next(1 << 20)
				must(b, err)
				if rec.N == 0 {
					break
				}
				for i := range rec.N {
					total += len(rec.At(i))
				}
			}
			must(b, r.Close())
		}
		if total == 0 {
			b.Fatal("nothing was read")
		}
	})
}
