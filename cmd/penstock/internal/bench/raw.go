package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/penstock/penstock/internal/measure"
)

// A rawFile is the least that one can do with the same frames: build one in a
// buffer, add a checksum, and write it behind the last into a file that has its
// blocks already. A frame is
//
//	length of the records  u32
//	CRC-32C of the records u32
//	zeros, so that it is as long as one of the log's
//	records
//
// The file is as long as a segment of the log; a full one is replaced by a new
// one before the clock starts.
type rawFile struct {
	dir  string
	sync bool
	f    *os.File
	at   int64

	buf   []byte // the frame being built
	block []byte // what was read
}

const (
	frameOverhead = 64 // bytes besides the records, about those of the log
	rawFileBytes  = 64 << 20
	scanBlock     = 256 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// room makes sure that n bytes more can be written.
func (r *rawFile) room(n int) error {
	size := max(rawFileBytes, int64(n))
	if r.f != nil && r.at+int64(n) <= size {
		return nil
	}
	if err := r.close(); err != nil {
		return err
	}
	f, err := os.OpenFile(rawName(r.dir), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	r.f, r.at = f, 0
	if err := preallocate(f, size); err != nil {
		return err
	}
	return f.Sync()
}

func (r *rawFile) append(rec []byte, from, to int) error {
	buf := append(r.buf[:0], make([]byte, frameOverhead)...)
	for n := from; n < to; n++ {
		putRecord(rec, n)
		buf = append(buf, rec...)
	}
	r.buf = buf
	binary.LittleEndian.PutUint32(buf, uint32(len(buf)-frameOverhead))
	binary.LittleEndian.PutUint32(buf[4:], crc32.Checksum(buf[frameOverhead:], castagnoli))
	if _, err := r.f.WriteAt(buf, r.at); err != nil {
		return err
	}
	r.at += int64(len(buf))
	if r.sync {
		return datasync(r.f)
	}
	return nil
}

// scan reads the frames in [from, to), compares their checksums and counts
// their records of the given size.
func (r *rawFile) scan(from, to int64, size int, k *measure.Tally) error {
	if r.block == nil {
		r.block = make([]byte, 2*scanBlock) // room for a part of a frame and a piece
	}
	have := r.block[:0]
	for {
		for len(have) >= frameOverhead {
			n := int(binary.LittleEndian.Uint32(have))
			if len(have) < frameOverhead+n {
				break
			}
			records := have[frameOverhead : frameOverhead+n]
			if crc32.Checksum(records, castagnoli) != binary.LittleEndian.Uint32(have[4:]) {
				return errors.New("raw file: checksum does not match")
			}
			k.Batch(0, n/size, func(i int) int { return numberOf(records[i*size:]) })
			have = have[frameOverhead+n:]
		}
		if from == to {
			if len(have) > 0 {
				return fmt.Errorf("raw file: %d bytes behind the last frame", len(have))
			}
			return nil
		}
		part := copy(r.block, have)
		n, err := r.f.ReadAt(r.block[part:part+int(min(scanBlock, to-from))], from)
		if n == 0 {
			return errors.Join(err, io.ErrUnexpectedEOF)
		}
		have, from = r.block[:part+n], from+int64(n)
	}
}

func (r *rawFile) close() error {
	if r.f == nil {
		return nil
	}
	err := errors.Join(r.f.Close(), os.Remove(r.f.Name()))
	r.f = nil
	return err
}
