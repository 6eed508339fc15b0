package segfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/penstock/penstock"
)

const (
	scanBlock = 256 << 10 // fits the cache that is next to a processor
	// searchBudget bounds the bytes that are checksummed in the search for
	// valid frames behind a bad one. Payloads can be made to look like frames;
	// when the budget is used up, the bad frame counts as damage and nothing
	// is modified.
	searchBudget = 1 << 30
)

// fileView reads a file in blocks, forwards.
type fileView struct {
	file interface {
		ReadAt([]byte, int64) (int, error)
	}
	size  int64                 // bytes behind it are not looked at
	look  func(pos int64) error // before each block, unless it is nil; its error ends the reading
	buf   []byte
	at    int64    // position of buf[0]
	n     int      // valid bytes of buf
	data  []extent // with known: outside of these there are only zeros
	known bool
	blind bool           // what cannot be read counts as zeros
	ahead int64          // unless it is 0: nothing is read ahead behind it
	help  chan<- *helper // unless it is nil: takes a helper when the one before has ended
}

// extent is the part [from, to) of a file.
type extent struct{ from, to int64 }

// skip returns the first position at or behind pos, which like pos is a
// multiple of the alignment of frames, that has something else than zeros
// behind it, and where that ends, at the latest.
func (v *fileView) skip(pos int64) (from, to int64) {
	if !v.known {
		return pos, v.size
	}
	for _, d := range v.data {
		if pos < d.to {
			return max(pos, d.from&^(frameAlign-1)), min(d.to, v.size)
		}
	}
	return v.size, v.size
}

// bytes returns n bytes at pos, fewer at the end of the file. They are valid
// until the next call.
func (v *fileView) bytes(pos int64, n int) ([]byte, error) {
	if pos >= v.size {
		return nil, nil
	}
	n = int(min(int64(n), v.size-pos))
	if pos >= v.at && pos+int64(n) <= v.at+int64(v.n) {
		return v.buf[pos-v.at:][:n], nil
	}
	block := min(scanBlock, v.size-pos)
	if v.ahead > 0 {
		block = min(block, max(v.ahead-pos, 0))
	}
	want, was := max(n, int(block)), v.buf[:v.n]
	if cap(v.buf) < want {
		v.buf = make([]byte, want)
	}
	if v.look != nil {
		if err := v.look(pos); err != nil {
			return nil, stopped{err}
		}
	}
	have := 0 // bytes that are at hand already
	if pos >= v.at && pos < v.at+int64(v.n) {
		have = copy(v.buf[:want], was[pos-v.at:])
	}
	v.at, v.n = pos, have // also when the read fails
	got, err := v.file.ReadAt(v.buf[have:want], pos+int64(have))
	if bad(err) && have+got < n {
		if got, err = v.around(have, n, want); err != nil {
			return nil, err
		}
	}
	v.n += got
	return v.buf[:min(n, v.n)], nil
}

// bad reports whether an error of ReadAt is one.
func bad(err error) bool { return err != nil && err != io.EOF }

// pageBytes is the unit in which a disk that has a bad sector is read: a sector,
// or several.
const pageBytes = 4 << 10

// around reads buf[have:] of a block that the disk refused to read whole: the n
// bytes that are needed and, when what is refused counts as zeros, all of it,
// page by page.
func (v *fileView) around(have, n, want int) (int, error) {
	if !v.blind {
		got, err := v.file.ReadAt(v.buf[have:n], v.at+int64(have))
		if bad(err) {
			return 0, err
		}
		return got, nil
	}
	at := have
	for at < want {
		next := min(at+pageBytes-int((v.at+int64(at))%pageBytes), want)
		got, err := v.file.ReadAt(v.buf[at:next], v.at+int64(at))
		if bad(err) {
			clear(v.buf[at+got : next])
			got = next - at
		}
		if at += got; err == io.EOF {
			break
		}
	}
	return at - have, nil
}

// searchBlind is search that takes what the disk refuses to read for zeros. What
// is at hand is read again.
func (v *fileView) searchBlind(seed uint32, pos int64, end penstock.Offset) (behind, error) {
	v.blind, v.n = true, 0
	defer func() { v.blind, v.n = false, 0 }()
	return search(v, seed, pos, end)
}

// frame returns the frame at pos with its header. It is valid until the next
// call. Errors of the file are wrapped in errRead; any other error says why
// the bytes are no frame.
func (v *fileView) frame(pos int64, seed uint32) ([]byte, header, error) {
	b, err := v.bytes(pos, frameHeaderSize)
	if err != nil {
		return nil, header{}, readFailed(err)
	}
	n, err := parseLength(b, v.size-pos)
	if err != nil {
		return nil, header{}, err
	}
	if b, err = v.bytes(pos, n); err != nil {
		return nil, header{}, readFailed(err)
	}
	if len(b) < n {
		return nil, header{}, errLength
	}
	h, err := parseFrame(b, seed)
	return b, h, err
}

var errRead = errors.New("read failed")

// stopped is the wish of somebody who looks on to read no further.
type stopped struct{ error }

func (s stopped) Unwrap() error { return s.error }

// isRead reports whether an error is that of a read that the file system refused.
func isRead(err error) bool { return errors.Is(err, errRead) }

// unread reports whether an error says nothing of the bytes: they were not read.
func unread(err error) bool {
	_, stop := errors.AsType[stopped](err)
	return stop || isRead(err)
}

// readFailed wraps why a block could not be read.
func readFailed(err error) error {
	if s, ok := err.(stopped); ok { // as it comes from fileView.bytes, never wrapped
		return s
	}
	return fmt.Errorf("%w: %w", errRead, err)
}

// scanned is the valid run of frames that a scan found.
type scanned struct {
	mark           // where the run ends
	epoch   uint32 // highest
	durable int64  // highest durable position that a frame proves
	index   []indexEntry
	maxTime int64
	bytes   int64 // looked at
	cause   error // why the run ended: what stands at mark.pos is not a frame
	indexed int64 // position of the last entry of the index, or of what stands for one
	apart   bool  // the frames in front are not known: sums stands for rolling
	sums    []byte
	first   mark // with apart: the first frame
}

// scan follows the frames of the last segment from a known place to the first
// position where no valid frame begins.
func scan(v *fileView, from mark) (scanned, error) {
	s := scanned{mark: from, indexed: headerSize}
	err := s.helped(v)
	s.bytes = s.pos - from.pos
	return s, err
}

// follow is scan that shows each frame to a function, unless it is nil. The
// bytes are valid until it returns; an error of it ends the scan. So does a whole
// frame that this version does not know, which is not the end of a run: the error
// matches penstock.ErrUnsupported.
func follow(v *fileView, from mark, each func(pos int64, b []byte, h header) error) (scanned, error) {
	s := scanned{mark: from, indexed: headerSize}
	err := s.run(v, math.MaxInt64, each)
	s.bytes = s.pos - from.pos
	return s, err
}

// run goes on with the frames that begin before a position, or up to what ends
// the run: a seal or a cause.
func (s *scanned) run(v *fileView, to int64, each func(pos int64, b []byte, h header) error) error {
	for !s.over() && s.pos < to {
		b, h, err := v.frame(s.pos, s.seg.seed)
		if err == nil && h.base != s.end {
			err = errBaseOffset
		}
		if err != nil {
			if unread(err) || errors.Is(err, penstock.ErrUnsupported) {
				return err
			}
			s.cause = err
			break
		}
		if each != nil {
			if err := each(s.pos, b, h); err != nil {
				return err
			}
		}
		if h.kind == typeData {
			if s.apart {
				s.sums = append(s.sums, b[8:12]...)
			} else {
				s.rolling = roll(s.rolling, b)
			}
			s.maxTime = max(s.maxTime, h.maxTime)
			if s.pos-s.indexed >= indexEvery {
				s.index = append(s.index, indexEntry{s.end, s.pos, s.maxTime})
				s.indexed = s.pos
			}
		}
		s.epoch, s.durable = max(s.epoch, h.epoch), max(s.durable, h.durable)
		s.pos, s.end, s.sealed = s.pos+int64(len(b)), h.end(), h.kind == typeSeal
	}
	return nil
}

// over reports whether the end of the run was found.
func (s *scanned) over() bool { return s.sealed || s.cause != nil }

// behind is what stands behind a bad frame.
type behind struct {
	frames   int             // valid ones
	first    penstock.Offset // base offset of the first
	position int64           // of the first
	end      penstock.Offset // behind the records of the last
	after    int64           // position behind the last
	durable  int64           // highest durable position that one of them proves
	last     int64           // position behind the last byte that is not zero; where the search began when all are
	beyond   bool            // the search ended at its budget
}

// search looks for valid frames behind the bad one at pos: at each multiple of
// eight bytes, with a base offset of at least end. A frame can stand in the
// payload of a bad one only if someone copied it there from this very segment.
func search(v *fileView, seed uint32, pos int64, end penstock.Offset) (behind, error) {
	out := behind{last: pos}
	budget := int64(searchBudget)
	for at := pos; at < v.size; {
		var to int64
		if at, to = v.skip(at); at >= v.size {
			break
		}
		b, err := v.bytes(at, int(min(to-at, scanBlock)))
		if err != nil {
			return out, readFailed(err)
		}
		if len(b) == 0 {
			break
		}
		next := at + int64(len(b))
		i := lastNonZero(b)
		if i < 0 {
			at = next
			continue
		}
		out.last = max(out.last, at+int64(i)+1)
		jump, err := searchBlock(v, seed, at, len(b), end, &out, &budget)
		if err != nil {
			return out, err
		}
		at = max(next, jump)
		if budget <= 0 {
			out.beyond = true
			break
		}
	}
	return out, nil
}

// magicBytes is how the first bytes of a frame stand in the file.
var magicBytes = binary.LittleEndian.AppendUint32(nil, frameMagic)

// candidate returns the first position in [off, to), a multiple of eight bytes
// behind off, where the first bytes of a frame stand; to when there is none.
func candidate(v *fileView, off, to int64) (int64, error) {
	for off < to {
		b, err := v.bytes(off, int(to-off))
		if err != nil {
			return 0, readFailed(err)
		}
		i := bytes.Index(b, magicBytes)
		if i < 0 {
			return to, nil
		}
		if i%frameAlign == 0 {
			return off + int64(i), nil
		}
		off += int64(i - i%frameAlign + frameAlign)
	}
	return to, nil
}

// searchBlock searches [at, at+n) and returns the position behind the last
// valid frame found.
func searchBlock(v *fileView, seed uint32, at int64, n int, end penstock.Offset, out *behind, budget *int64) (int64, error) {
	next := at
	for off := at; *budget > 0; off += frameAlign {
		var err error
		if off, err = candidate(v, off, at+int64(n)); err != nil {
			return 0, err
		}
		if off >= at+int64(n) {
			break
		}
		b, err := v.bytes(off, frameHeaderSize)
		if err != nil {
			return 0, readFailed(err)
		}
		if len(b) < frameHeaderSize {
			continue
		}
		if penstock.Offset(binary.LittleEndian.Uint64(b[16:])) < end {
			continue
		}
		f, h, err := v.frame(off, seed)
		*budget -= int64(max(len(f), frameHeaderSize))
		if err != nil {
			if unread(err) || errors.Is(err, penstock.ErrUnsupported) {
				return 0, err
			}
			continue
		}
		if out.frames == 0 {
			out.first, out.position = h.base, off
		}
		out.frames++
		out.durable = max(out.durable, h.durable)
		next = off + int64(len(f))
		out.last, out.after, out.end = max(out.last, next), max(out.after, next), max(out.end, h.end())
		off = next - frameAlign
	}
	return next, nil
}

// zeros is compared with pieces of files that were allocated and not written.
var zeros [1 << 10]byte

func lastNonZero(b []byte) int {
	for len(b) > 0 {
		rest := len(b) - min(len(b), len(zeros))
		if piece := b[rest:]; !bytes.Equal(piece, zeros[:len(piece)]) {
			i := len(piece) - 1
			for piece[i] == 0 {
				i--
			}
			return rest + i
		}
		b = b[:rest]
	}
	return -1
}
