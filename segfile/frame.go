package segfile

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/penstock/penstock"
)

// A frame is the unit of writing, of checksums and of atomicity: one append.
//
//	 0  u32 magic            4  u32 length: header, table, payloads, padding to 8
//	 8  u32 crc32c of the segment's nonce (8 bytes) and bytes [12, length)
//	12  u8 type             13  u8 flags          14  u16 header length (64)
//	16  u64 base offset     24  u32 record count  28  u32 writer epoch
//	32  i64 append time     40  i64 max record time         (unix nanoseconds)
//	48  u64 durable position: bytes of this file known safe when this was written
//	56  u64 producer tag
//	64  u32 end[count]: where each record ends behind the table; then the records
//
// All numbers are little-endian. docs/format.md has the same drawing.
const (
	frameMagic      = 0x4d524650 // "PFRM"
	frameHeaderSize = 64
	frameAlign      = 8
)

// Frame types.
const (
	typeData    = 1
	typeSeal    = 2
	typeBarrier = 3
)

// Frame flags.
const (
	flagEnveloped = 1 << 0 // every record is an envelope
	knownFlags    = flagEnveloped
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seedOf returns the checksum state with which the frames of a segment begin.
func seedOf(nonce uint64) uint32 {
	return crc32.Checksum(binary.LittleEndian.AppendUint64(nil, nonce), castagnoli)
}

func checksum(seed uint32, frame []byte) uint32 {
	return crc32.Update(seed, castagnoli, frame[12:])
}

func align(n int) int { return (n + frameAlign - 1) &^ (frameAlign - 1) }

// Frame collects the records of one append: they become readable and durable
// together or not at all. Take one with [NewFrame]; [Partition.Append] and
// [Frame.Release] give it back. A Frame must not be used by two goroutines at
// once, nor after it was given back.
//
// Invariants: buf[:head] has room for the header and reserved table entries;
// the records follow without gaps; ends holds where each ends, counted from
// head.
type Frame struct {
	buf       []byte
	head      int // frameHeaderSize + 4*reserved entries
	ends      []uint32
	enveloped bool
	tag       penstock.ProducerTag
	unchecked bool // its tag is not compared with others
	maxTime   int64
	failed    func(error)
	appended  func()

	roomIn *Partition // where it has room reserved; nil when nowhere
	room   int64      // how much
}

// pooledFrame bounds the buffers that the pool keeps.
const pooledFrame = 1 << 20

var frames = sync.Pool{New: func() any { return new(Frame) }}

// NewFrame returns an empty frame. records is how many are expected; any other
// number is legal and costs a copy.
func NewFrame(records int) *Frame {
	f := frames.Get().(*Frame)
	f.head = frameHeaderSize + 4*max(records, 0)
	f.buf = slices.Grow(f.buf[:0], f.head)[:f.head]
	return f
}

// Release gives the frame back without an append, and the room that was
// reserved for it.
func (f *Frame) Release() {
	f.leaveRoom()
	if cap(f.buf) > pooledFrame {
		f.buf = nil
	}
	*f = Frame{buf: f.buf[:0], ends: f.ends[:0]}
	frames.Put(f)
}

// Add appends a copy of record. A record may be empty.
func (f *Frame) Add(record []byte) { f.End(append(f.Buffer(), record...)) }

// Buffer returns the frame's bytes so far; append exactly one record to them
// and hand the result to [Frame.End].
func (f *Frame) Buffer() []byte { return f.buf }

// End takes the buffer with one more record at its end.
func (f *Frame) End(buf []byte) {
	f.buf = buf
	f.ends = append(f.ends, uint32(len(buf)-f.head)) // Check refuses frames of 4 GiB and more
}

// Abort drops what was appended to the buffer and not ended. It is a no-op
// otherwise; it exists to state the intent after a failed encode.
func (f *Frame) Abort() {
	end := f.head
	if n := len(f.ends); n > 0 {
		end += int(f.ends[n-1])
	}
	f.buf = f.buf[:end]
}

// SetEnveloped says whether all records of the frame are envelopes.
func (f *Frame) SetEnveloped(yes bool) { f.enveloped = yes }

// SetTag sets the producer's number and sequence for the frame. With a producer
// that is not 0, an append whose sequence is that of the producer's last append
// is not appended again: its receipt tells where it is ([Receipt.Repeats]). A
// lower one is refused with a *[SequenceError], the same with another number of
// records with [penstock.ErrInvalid]; a higher one may leave a gap. One append
// of a producer is under way in a partition at a time, others wait for it. A
// partition remembers the last [ProducersMax] producers, over restarts and
// crashes.
func (f *Frame) SetTag(tag penstock.ProducerTag) { f.tag = tag }

// SetMaxTime sets the latest time of the records in unix nanoseconds; the time
// of the append stands in for it otherwise.
func (f *Frame) SetMaxTime(unixNano int64) { f.maxTime = unixNano }

// OnFailure sets what is called, on the goroutine that writes, when an append
// that [Partition.Append] took over fails afterwards, with the error that
// [Receipt.Wait] returns. It must not block. Nobody needs to wait for the
// receipt then.
func (f *Frame) OnFailure(fn func(error)) { f.failed = fn }

// OnAppended sets what is called, on the goroutine that writes, when the append
// has reached its level, before readers see the records. Frames of a partition
// are told in the order of their offsets. It must not block.
func (f *Frame) OnAppended(fn func()) { f.appended = fn }

// Len returns the number of records.
func (f *Frame) Len() int { return len(f.ends) }

// Size returns how many bytes the frame takes on disk.
func (f *Frame) Size() int {
	return align(frameHeaderSize + 4*len(f.ends) + len(f.buf) - f.head)
}

// stamp is what the committer knows about a frame.
type stamp struct {
	seed    uint32 // of the segment
	base    penstock.Offset
	epoch   uint32
	time    int64
	durable int64
}

// appendTo appends the finished frame to dst.
func (f *Frame) appendTo(dst []byte, s stamp) []byte {
	from, size := len(dst), f.Size()
	dst = slices.Grow(dst, size)
	dst = dst[:from+frameHeaderSize]
	for _, e := range f.ends {
		dst = binary.LittleEndian.AppendUint32(dst, e)
	}
	dst = append(dst, f.buf[f.head:]...)
	dst = append(dst, make([]byte, from+size-len(dst))...)
	f.seal(dst[from:], s)
	return dst
}

// inPlace returns the finished frame in its own buffer, without a copy when
// the number of records was foretold.
func (f *Frame) inPlace(s stamp) []byte {
	if f.head != frameHeaderSize+4*len(f.ends) {
		return f.appendTo(nil, s)
	}
	size := f.Size()
	for i, e := range f.ends {
		binary.LittleEndian.PutUint32(f.buf[frameHeaderSize+4*i:], e)
	}
	f.buf = append(f.buf, make([]byte, size-len(f.buf))...)
	f.seal(f.buf, s)
	return f.buf
}

func (f *Frame) seal(b []byte, s stamp) {
	h := &header{
		kind: typeData, base: s.base, count: uint32(len(f.ends)), epoch: s.epoch,
		time: s.time, maxTime: f.maxTime, durable: s.durable, tag: f.tag,
	}
	if f.enveloped {
		h.flags = flagEnveloped
	}
	if h.maxTime == 0 {
		h.maxTime = s.time
	}
	h.put(b, s.seed)
}
