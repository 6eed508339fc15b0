package segfile

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/penstock/penstock"
)

// header is the first 64 bytes of a frame.
type header struct {
	length  int // whole frame, in bytes
	kind    uint8
	flags   uint8
	base    penstock.Offset
	count   uint32
	epoch   uint32
	time    int64
	maxTime int64
	durable int64
	tag     penstock.ProducerTag
}

// put writes the header in front of the finished frame b and seals it with
// the checksum.
func (h *header) put(b []byte, seed uint32) {
	le := binary.LittleEndian
	le.PutUint32(b[0:], frameMagic)
	le.PutUint32(b[4:], uint32(len(b)))
	b[12], b[13] = h.kind, h.flags
	le.PutUint16(b[14:], frameHeaderSize)
	le.PutUint64(b[16:], uint64(h.base))
	le.PutUint32(b[24:], h.count)
	le.PutUint32(b[28:], h.epoch)
	le.PutUint64(b[32:], uint64(h.time))
	le.PutUint64(b[40:], uint64(h.maxTime))
	le.PutUint64(b[48:], uint64(h.durable))
	le.PutUint64(b[56:], uint64(h.tag))
	le.PutUint32(b[8:], checksum(seed, b))
}

// Why bytes are not a frame.
var (
	errNoFrame    = errors.New("no frame begins here")
	errLength     = errors.New("frame length is out of range")
	errChecksum   = errors.New("frame checksum does not match")
	errBaseOffset = errors.New("frame has another base offset than expected")
	errTable      = errors.New("frame's table of records is inconsistent")
)

// parseLength reads the frame's length from its first bytes. room is how many
// bytes the file has from here on; it bounds what a reader allocates.
func parseLength(b []byte, room int64) (int, error) {
	if len(b) < 8 || binary.LittleEndian.Uint32(b) != frameMagic {
		return 0, errNoFrame
	}
	n := int64(binary.LittleEndian.Uint32(b[4:]))
	if n < frameHeaderSize || n%frameAlign != 0 || n > room || n > int64(maxFrameBytes) {
		return 0, errLength
	}
	return int(n), nil
}

// parseFrame checks a whole frame and returns its header. Nothing of b is
// believed before its checksum matched.
func parseFrame(b []byte, seed uint32) (header, error) {
	le := binary.LittleEndian
	if len(b) < frameHeaderSize || le.Uint32(b) != frameMagic {
		return header{}, errNoFrame
	}
	if int64(le.Uint32(b[4:])) != int64(len(b)) {
		return header{}, errLength
	}
	if le.Uint32(b[8:]) != checksum(seed, b) {
		return header{}, errChecksum
	}
	h := header{
		length: len(b), kind: b[12], flags: b[13],
		base: penstock.Offset(le.Uint64(b[16:])), count: le.Uint32(b[24:]), epoch: le.Uint32(b[28:]),
		time: int64(le.Uint64(b[32:])), maxTime: int64(le.Uint64(b[40:])), durable: int64(le.Uint64(b[48:])),
		tag: penstock.ProducerTag(le.Uint64(b[56:])),
	}
	if n := le.Uint16(b[14:]); n != frameHeaderSize || h.kind < typeData || h.kind > typeBarrier || h.flags&^knownFlags != 0 {
		return header{}, fmt.Errorf("frame type %d, flags %#x, header of %d bytes: %w", h.kind, h.flags, n, penstock.ErrUnsupported)
	}
	return h, h.checkTable(b)
}

// checkTable makes sure that every record lies inside the frame.
func (h *header) checkTable(b []byte) error {
	table := b[frameHeaderSize:]
	if int64(h.count)*4 > int64(len(table)) || (h.kind == typeData) == (h.count == 0) {
		return errTable
	}
	room, last := len(table)-4*int(h.count), uint32(0)
	for ends := table[:4*int(h.count)]; len(ends) >= 4; ends = ends[4:] { // no bounds to check: half the time
		end := binary.LittleEndian.Uint32(ends)
		if end < last {
			return errTable
		}
		last = end
	}
	if int64(last) > int64(room) { // the largest
		return errTable
	}
	if h.kind == typeData && room-int(last) >= frameAlign {
		return errTable
	}
	return nil
}

// end is the offset behind the frame's last record.
func (h *header) end() penstock.Offset { return h.base + penstock.Offset(h.count) }

// Records are consecutive records of one frame. They are valid until the next
// Next, Seek or Close of the reader that returned them.
type Records struct {
	First penstock.Offset // of record 0
	N     int             // records; 0 = nothing to read now
	Epoch uint32          // the writer's epoch: with Offset, the identity of a record
	Time  int64           // of the append, in unix nanoseconds

	flags   uint8
	tag     penstock.ProducerTag
	maxTime int64 // of a dump only
	frame   []byte
	from    int // index of record 0 in the frame
	count   int // records of the frame
}

// At returns record i, in [0, N). The slice belongs to the reader.
func (r Records) At(i int) []byte {
	if uint(i) >= uint(r.N) {
		panic("segfile: Records.At: index out of range")
	}
	i += r.from
	table := r.frame[frameHeaderSize:]
	begin := uint32(0)
	if i > 0 {
		begin = binary.LittleEndian.Uint32(table[4*(i-1):])
	}
	end := binary.LittleEndian.Uint32(table[4*i:])
	body := table[4*r.count:]
	return body[begin:end:end]
}

// Enveloped reports whether the records are envelopes rather than bare
// payloads.
func (r Records) Enveloped() bool { return r.flags&flagEnveloped != 0 }

// Tag returns the producer's tag of the frame; 0 when it had none.
func (r Records) Tag() penstock.ProducerTag { return r.tag }
