package segfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// The version of the format. A reader refuses another major number and reads
// an unknown minor one.
const (
	formatMajor = 1
	formatMinor = 0
)

const (
	headerSize  = 4096 // the block at the start of a segment; frames follow
	headerUsed  = 128
	segmentExt  = ".seg"
	spareName   = "next.tmp"
	nameDigits  = 20
	segmentMark = "PSTKSEG\n"
)

type uuid [16]byte

func (u uuid) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// segmentHeader is the first block of a segment file.
//
//	 0  mark "PSTKSEG\n"       8  u16 major  10 u16 minor  12  u32 flags (unknown: refuse)
//	16  topic uuid            32  u32 partition            36  u32 writer epoch
//	40  u64 base offset       48  i64 created, unix ns     56  u64 nonce
//	64  u64 nonce of the previous segment (0: none)        72  u64 its end offset
//	80  u64 segment size      88  u64 hash of the codec id 96  zero up to 124
//
// 124  u32 crc32c of bytes [0, 124)
type segmentHeader struct {
	minor     uint16
	topic     uuid
	partition uint32
	epoch     uint32
	base      penstock.Offset
	created   int64
	nonce     uint64
	prevNonce uint64
	prevEnd   penstock.Offset
	size      int64
	codec     uint64
}

func (h *segmentHeader) encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, headerSize)
	copy(b, segmentMark)
	le.PutUint16(b[8:], formatMajor)
	le.PutUint16(b[10:], h.minor)
	copy(b[16:], h.topic[:])
	le.PutUint32(b[32:], h.partition)
	le.PutUint32(b[36:], h.epoch)
	le.PutUint64(b[40:], uint64(h.base))
	le.PutUint64(b[48:], uint64(h.created))
	le.PutUint64(b[56:], h.nonce)
	le.PutUint64(b[64:], h.prevNonce)
	le.PutUint64(b[72:], uint64(h.prevEnd))
	le.PutUint64(b[80:], uint64(h.size))
	le.PutUint64(b[88:], h.codec)
	le.PutUint32(b[headerUsed-4:], crc32.Checksum(b[:headerUsed-4], castagnoli))
	return b
}

var errHeader = errors.New("segment header is damaged")

// decodeSegmentHeader checks a header. The error matches ErrUnsupported for a
// format that this version cannot read.
func decodeSegmentHeader(b []byte) (segmentHeader, error) {
	le := binary.LittleEndian
	if len(b) < headerUsed || string(b[:8]) != segmentMark {
		return segmentHeader{}, errHeader
	}
	if le.Uint32(b[headerUsed-4:]) != crc32.Checksum(b[:headerUsed-4], castagnoli) {
		return segmentHeader{}, fmt.Errorf("%w: checksum does not match", errHeader)
	}
	if major, flags := le.Uint16(b[8:]), le.Uint32(b[12:]); major != formatMajor || flags != 0 {
		return segmentHeader{}, fmt.Errorf("segment format %d.%d, flags %#x; this version reads format %d: %w",
			major, le.Uint16(b[10:]), flags, formatMajor, penstock.ErrUnsupported)
	}
	h := segmentHeader{
		minor:     le.Uint16(b[10:]),
		partition: le.Uint32(b[32:]),
		epoch:     le.Uint32(b[36:]),
		base:      penstock.Offset(le.Uint64(b[40:])),
		created:   int64(le.Uint64(b[48:])),
		nonce:     le.Uint64(b[56:]),
		prevNonce: le.Uint64(b[64:]),
		prevEnd:   penstock.Offset(le.Uint64(b[72:])),
		size:      int64(le.Uint64(b[80:])),
		codec:     le.Uint64(b[88:]),
	}
	copy(h.topic[:], b[16:32])
	return h, nil
}

// belongs checks that the header is that of the segment with this base in the
// partition.
func (h *segmentHeader) belongs(o owner, base penstock.Offset, codec string) error {
	switch {
	case h.topic != o.topic || h.partition != o.partition:
		return errForeign
	case h.base != base:
		return fmt.Errorf("%w: it is the segment of offset %d", errForeign, h.base)
	case h.codec != penstock.HashKey(codec):
		return fmt.Errorf("%w: another codec", errForeign)
	case h.size < headerSize || h.size > int64(maxSegmentBytes):
		return fmt.Errorf("%w: size %d", errHeader, h.size)
	}
	return nil
}

func segmentName(base penstock.Offset) string {
	return fmt.Sprintf("%0*d%s", nameDigits, uint64(base), segmentExt)
}

// parseSegmentName returns the base offset in a segment's name. Only the
// canonical form is a segment.
func parseSegmentName(name string) (penstock.Offset, bool) {
	digits, ok := strings.CutSuffix(name, segmentExt)
	if !ok || len(digits) != nameDigits {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return penstock.Offset(n), err == nil && segmentName(penstock.Offset(n)) == name
}

// segment is one segment file.
//
// Invariants: hdr and path never change. end is the offset behind the last
// record and limit the position behind the last frame that readers may see;
// both only grow, limit is stored before end is published, and both are final
// once the segment is sealed. The file is open while refs > 0, unless it is gone.
type segment struct {
	fs    vfs.FS
	path  string
	hdr   segmentHeader
	seed  uint32
	found int64 // bytes of the file when the log was opened
	disk  int64 // what is counted of it; of the baton's holder
	end   atomic.Uint64
	limit atomic.Int64
	// newest is when the last event was appended, or the segment sealed, in Unix
	// nanoseconds; 0 while it is not known.
	newest atomic.Int64

	mu   sync.Mutex
	file vfs.File
	refs int
	gone bool // deleted, or the log is closed: it is not opened any more
}

func newSegment(fs vfs.FS, dir string, hdr segmentHeader) *segment {
	s := &segment{fs: fs, path: filepath.Join(dir, segmentName(hdr.base)), hdr: hdr, seed: seedOf(hdr.nonce)}
	s.end.Store(uint64(hdr.base))
	s.limit.Store(headerSize)
	return s
}

// acquire opens the file, or shares it when it is open, until release.
func (s *segment) acquire() (vfs.File, error) {
	s.mu.Lock()
	if s.gone {
		s.mu.Unlock()
		return nil, penstock.ErrClosed
	}
	if s.refs > 0 {
		defer s.mu.Unlock()
		s.refs++
		return s.file, nil
	}
	s.mu.Unlock()
	f, err := s.fs.Open(s.path, false) // outside the lock; a second opener may be faster
	if err != nil {
		return nil, err
	}
	if f = s.share(f); f == nil {
		return nil, penstock.ErrClosed
	}
	return f, nil
}

// share makes f the segment's open file, or closes it when there is one, and
// counts one reference. It closes f and returns nil when the segment is gone.
func (s *segment) share(f vfs.File) vfs.File {
	s.mu.Lock()
	spare := f
	switch {
	case s.gone:
		f = nil
	case s.refs == 0:
		s.file, spare = f, nil
		s.refs = 1
	default:
		s.refs++
		f = s.file
	}
	s.mu.Unlock()
	if spare != nil {
		_ = spare.Close() // opened for reading, nothing to lose
	}
	return f
}

// release gives one reference back; the last one closes the file.
func (s *segment) release() error {
	s.mu.Lock()
	s.refs--
	var f vfs.File
	if s.refs == 0 {
		f, s.file = s.file, nil
	}
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f.Close()
}

// shut closes the file under the readers that still hold it: what they do next
// fails. A topic that is closed keeps no file open.
func (s *segment) shut() error {
	s.mu.Lock()
	f := s.file
	s.file, s.gone = nil, true
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f.Close()
}

// retire reports whether nobody has the file open, and lets nobody open it then.
func (s *segment) retire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = s.gone || s.refs == 0
	return s.gone
}

// readHeader reads and checks the header block of an open segment.
func readHeader(f vfs.File) (segmentHeader, error) {
	b := make([]byte, headerUsed)
	if n, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return segmentHeader{}, err
	} else if n < headerUsed {
		return segmentHeader{}, fmt.Errorf("%w: %d bytes", errHeader, n)
	}
	return decodeSegmentHeader(b)
}
