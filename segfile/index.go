package segfile

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sort"

	"github.com/penstock/penstock"
)

// indexEvery is the distance in bytes between entries of the sparse index.
const indexEvery = 64 << 10

// indexEntry says that the frame at pos begins with offset. Entries are hints
// to start a search from; gaps are allowed, wrong entries are not.
type indexEntry struct {
	offset  penstock.Offset
	pos     int64
	maxTime int64 // latest record time up to this frame, unix ns
}

const (
	indexEntrySize = 24
	sealFixed      = 24 // count, end, rolling checksum, entries
	sealTrailer    = 8  // frame length, magic
)

// indexEntries bounds the entries of a segment of the given size.
func indexEntries(segment int64) int { return int(segment/indexEvery) + 1 }

func sealSize(entries int) int {
	return align(frameHeaderSize + sealFixed + entries*indexEntrySize + sealTrailer)
}

// summary is what a seal frame says about its segment.
type summary struct {
	count   uint64 // records
	end     penstock.Offset
	rolling uint32 // crc32c over the checksums of all data frames, in order
	index   []indexEntry
	time    int64 // of the seal, as read
}

// roll adds a frame's checksum to the rolling one.
func roll(rolling uint32, frame []byte) uint32 {
	return crc32.Update(rolling, castagnoli, frame[8:12])
}

// encodeSeal builds the seal frame. Behind the header stand u64 count, u64 end
// offset, u32 rolling checksum, u32 entries, the entries {u64 offset, u64
// position, i64 max time}, zeros, and as the last eight bytes of the segment
// u32 frame length, u32 magic, by which the frame is found from the end.
func encodeSeal(s *summary, st stamp) []byte {
	le := binary.LittleEndian
	b := make([]byte, frameHeaderSize, sealSize(len(s.index)))
	b = le.AppendUint64(b, s.count)
	b = le.AppendUint64(b, uint64(s.end))
	b = le.AppendUint32(b, s.rolling)
	b = le.AppendUint32(b, uint32(len(s.index)))
	for _, e := range s.index {
		b = le.AppendUint64(b, uint64(e.offset))
		b = le.AppendUint64(b, uint64(e.pos))
		b = le.AppendUint64(b, uint64(e.maxTime))
	}
	b = b[:cap(b)]
	le.PutUint32(b[len(b)-8:], uint32(len(b)))
	le.PutUint32(b[len(b)-4:], frameMagic)
	h := header{kind: typeSeal, base: st.base, epoch: st.epoch, time: st.time, maxTime: st.time, durable: st.durable}
	h.put(b, st.seed)
	return b
}

// decodeSeal reads the payload of a seal frame whose checksum was checked.
func decodeSeal(b []byte) (summary, error) {
	le := binary.LittleEndian
	if len(b) < sealSize(0) {
		return summary{}, errTable
	}
	p := b[frameHeaderSize:]
	s := summary{count: le.Uint64(p), end: penstock.Offset(le.Uint64(p[8:])), rolling: le.Uint32(p[16:])}
	n := int64(le.Uint32(p[20:]))
	if sealFixed+n*indexEntrySize+sealTrailer > int64(len(p)) {
		return summary{}, fmt.Errorf("%d index entries in a seal frame of %d bytes: %w", n, len(b), errTable)
	}
	s.index = make([]indexEntry, n)
	for i := range s.index {
		e := p[sealFixed+i*indexEntrySize:]
		s.index[i] = indexEntry{penstock.Offset(le.Uint64(e)), int64(le.Uint64(e[8:])), int64(le.Uint64(e[16:]))}
	}
	return s, nil
}

// lookup returns where a search for offset begins.
func lookup(index []indexEntry, base, offset penstock.Offset) indexEntry {
	i := sort.Search(len(index), func(i int) bool { return index[i].offset > offset })
	if i == 0 {
		return indexEntry{offset: base, pos: headerSize}
	}
	return index[i-1]
}

// readIndex reads the index from the seal frame at the end of a sealed
// segment; nil when there is none that can be trusted, and the search then
// begins at the segment's start.
func readIndex(s *segment, f sizedReader) []indexEntry {
	size, err := f.Size()
	if err != nil {
		return nil
	}
	sum, ok := readSeal(s.seed, f, size)
	if !ok {
		return nil
	}
	return sum.index
}

// sizedReader is what is read of a segment file.
type sizedReader interface {
	ReadAt([]byte, int64) (int, error)
	Size() (int64, error)
}

// readSeal reads the seal frame that ends at a position, and reports whether
// there is one.
func readSeal(seed uint32, f sizedReader, end int64) (summary, bool) {
	if end < headerSize+int64(sealSize(0)) {
		return summary{}, false
	}
	var tail [sealTrailer]byte
	if _, err := f.ReadAt(tail[:], end-sealTrailer); err != nil {
		return summary{}, false
	}
	n := int64(binary.LittleEndian.Uint32(tail[:]))
	if binary.LittleEndian.Uint32(tail[4:]) != frameMagic || n < int64(sealSize(0)) || n > end-headerSize ||
		n > int64(sealSize(indexEntries(end))) {
		return summary{}, false
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, end-n); err != nil {
		return summary{}, false
	}
	h, err := parseFrame(b, seed)
	if err != nil || h.kind != typeSeal {
		return summary{}, false
	}
	sum, err := decodeSeal(b)
	sum.time = h.time
	return sum, err == nil
}
