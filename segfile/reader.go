package segfile

import (
	"errors"
	"fmt"
	"io"
	"sort"
	"sync"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// Sizes of a reader's block: small at first, large once reads come in sequence.
const (
	minBlock = 16 << 10
	maxBlock = 256 << 10
)

// blocks keeps whole blocks between readers: a new one costs more than reading
// a megabyte into it.
var blocks = sync.Pool{New: func() any { return new([maxBlock]byte) }}

// Reader reads a partition's events in order. It is used by one goroutine at
// a time and keeps at most one segment open; Close it.
//
// Invariants: next is the offset that the next call of Next returns first.
// rec.frame, when rec.count > 0, is the frame that holds next, at position
// pos-len(rec.frame) of seg. expect is the base offset of the frame at pos.
// The checksum of a frame is checked once.
type Reader struct {
	p      *Partition
	next   penstock.Offset
	seg    *segment // nil: to be looked up
	file   vfs.File
	pos    int64 // behind the frames consumed
	expect penstock.Offset
	rec    Records
	buf    []byte
	at     int64 // position of buf[0]
	block  int
	pooled *[maxBlock]byte // behind buf; nil while buf is smaller or larger
}

// NewReader returns a reader that begins at from. It fails like
// [Reader.Seek].
func (p *Partition) NewReader(from penstock.Offset) (*Reader, error) {
	r := &Reader{p: p, block: minBlock}
	if err := r.Seek(from); err != nil {
		return nil, err
	}
	return r, nil
}

// Offset returns the offset that Next returns first.
func (r *Reader) Offset() penstock.Offset { return r.next }

// Seek moves the reader. to may be the readable end, where Next waits for the
// next event in the sense that it returns nothing. Seek past damage is the
// explicit act that skips it. The error matches
// [penstock.ErrOffsetOutOfRange] when to is below the first event kept or
// behind the readable end; when damage is why the log ends there, it is that
// *[penstock.CorruptError] instead.
func (r *Reader) Seek(to penstock.Offset) error {
	first, end := r.p.Earliest(), r.p.Readable()
	if to > end {
		if err, damage := r.p.Fault().(*penstock.CorruptError); damage {
			return err
		}
	}
	if to < first || to > end {
		return fmt.Errorf("offset %d, kept [%d, %d): %w", to, first, end, penstock.ErrOffsetOutOfRange)
	}
	if n := penstock.Offset(r.rec.count); n > 0 {
		if base := r.rec.First - penstock.Offset(r.rec.from); to >= base && to < base+n { // in the frame at hand
			r.rec.from, r.rec.First, r.next = int(to-base), to, to
			return nil
		}
	}
	r.rec = Records{}
	r.next = to
	return r.leave()
}

// Close gives the segment back. The reader must not be used afterwards.
func (r *Reader) Close() error {
	r.rec, r.buf = Records{}, nil
	r.takeBuffer(0)
	return r.leave()
}

// leave gives the segment back.
func (r *Reader) leave() error {
	if r.seg == nil {
		return nil
	}
	s := r.seg
	r.seg, r.file = nil, nil
	r.buf = r.buf[:0]
	return s.release()
}

// Next returns up to max records, all of one frame, that follow what was
// returned before; none when nothing more is readable now: it never blocks
// for an event. max must be at least 1. Errors: *[penstock.CorruptError] at
// damage, again on each call until Seek skips it;
// [penstock.ErrOffsetOutOfRange] when the events were trimmed meanwhile;
// [penstock.ErrClosed]; and that of the file system when it refuses to read,
// after which the next call tries again.
func (r *Reader) Next(max int) (Records, error) {
	if max < 1 {
		panic("segfile: Reader.Next: max is below 1")
	}
	if r.rec.count == 0 || r.rec.from == r.rec.count {
		if r.next >= r.p.Readable() {
			return Records{}, r.atEnd()
		}
		if err := r.load(); err != nil {
			return Records{}, err
		}
	}
	out := r.rec
	out.N = min(max, out.count-out.from)
	r.rec.from += out.N
	r.rec.First += penstock.Offset(out.N)
	r.next = r.rec.First
	return out, nil
}

// atEnd says why nothing follows.
func (r *Reader) atEnd() error {
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closing:
		return penstock.ErrClosed
	case p.fault != nil:
		return p.fault
	}
	return nil
}

// load reads the frame that holds next.
func (r *Reader) load() error {
	r.rec = Records{}
	for {
		if r.seg == nil || r.next >= penstock.Offset(r.seg.end.Load()) {
			if err := r.find(); err != nil {
				return err
			}
		}
		b, h, err := r.frame()
		if err != nil {
			if r.passes(err) && r.skip() {
				continue
			}
			return r.damage(err)
		}
		r.pos, r.expect = r.pos+int64(len(b)), h.end()
		if h.kind != typeData || h.end() <= r.next {
			continue
		}
		r.rec = Records{
			First: r.next, Epoch: h.epoch, Time: h.time, flags: h.flags, tag: h.tag,
			frame: b, from: int(r.next - h.base), count: int(h.count),
		}
		return nil
	}
}

// find opens the segment that holds next and goes to a frame at or before it.
func (r *Reader) find() error {
	if err := r.leave(); err != nil {
		return err
	}
	p := r.p
	p.mu.Lock()
	i := sort.Search(len(p.segs), func(i int) bool { return p.segs[i].hdr.base > r.next })
	var seg *segment
	if i > 0 {
		seg = p.segs[i-1]
	}
	p.mu.Unlock()
	if seg == nil || r.next < p.Earliest() {
		return fmt.Errorf("offset %d, first event kept %d: %w", r.next, p.Earliest(), penstock.ErrOffsetOutOfRange)
	}
	f, err := seg.acquire()
	if err != nil {
		if r.next < p.Earliest() { // trimmed since
			err = fmt.Errorf("offset %d, first event kept %d: %w", r.next, p.Earliest(), penstock.ErrOffsetOutOfRange)
		}
		return err
	}
	r.seg, r.file, r.at, r.pos, r.expect = seg, f, 0, headerSize, seg.hdr.base
	if r.next > seg.hdr.base {
		at := lookup(r.index(seg), seg.hdr.base, r.next)
		r.pos, r.expect = at.pos, at.offset
	}
	return nil
}

// index returns the sparse index of a sealed segment; nil for the active one,
// whose frames are followed from its start: reading them goes through the page
// cache at many gigabytes a second.
func (r *Reader) index(seg *segment) []indexEntry {
	r.p.mu.Lock()
	active := r.p.written.seg == seg && !r.p.written.sealed
	r.p.mu.Unlock()
	if active {
		return nil
	}
	return readIndex(seg, r.file)
}

// frame returns the frame at pos, checked.
func (r *Reader) frame() ([]byte, header, error) {
	limit := r.seg.limit.Load()
	b, err := r.bytes(frameHeaderSize, limit)
	if err != nil {
		return nil, header{}, err
	}
	n, err := parseLength(b, limit-r.pos)
	if err != nil {
		return nil, header{}, err
	}
	if b, err = r.bytes(n, limit); err != nil {
		return nil, header{}, err
	}
	h, err := parseFrame(b, r.seg.seed)
	if err == nil && (h.base != r.expect || h.kind == typeSeal) {
		err = errBaseOffset // events are missing
	}
	return b, h, err
}

// bytes returns n bytes at pos. They come from the block at hand, or a block
// is read; what lies behind limit is never taken for data, because it may be
// in the middle of being written.
func (r *Reader) bytes(n int, limit int64) ([]byte, error) {
	if r.pos >= r.at && r.pos+int64(n) <= r.at+int64(len(r.buf)) {
		return r.buf[r.pos-r.at:][:n], nil
	}
	if len(r.buf) > 0 && r.pos >= r.at && r.pos <= r.at+int64(len(r.buf)) {
		r.block = maxBlock // in sequence
	}
	want := int(min(max(int64(n), int64(r.block)), limit-r.pos))
	if want < n {
		return nil, errLength
	}
	if cap(r.buf) < want {
		r.takeBuffer(max(want, r.block))
	}
	r.buf = r.buf[:want]
	got, err := r.file.ReadAt(r.buf, r.pos)
	r.at, r.buf = r.pos, r.buf[:got]
	if got < n {
		if err == nil || err == io.EOF {
			return nil, errLength
		}
		return nil, &readError{err}
	}
	return r.buf[:n], nil
}

// readError is a read that the file system refused: it says nothing of what is
// stored.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// takeBuffer gives the buffer back and takes one for n bytes; none for 0.
func (r *Reader) takeBuffer(n int) {
	if r.pooled != nil {
		blocks.Put(r.pooled)
		r.pooled, r.buf = nil, nil
	}
	switch {
	case n == maxBlock:
		r.pooled = blocks.Get().(*[maxBlock]byte)
		r.buf = r.pooled[:]
	case n > 0:
		r.buf = make([]byte, n)
	}
}

// damage wraps why the frame that should hold next cannot be read.
func (r *Reader) damage(cause error) error {
	p, seg := r.p, r.seg
	if r.next < p.Earliest() { // trimmed under our hands
		return fmt.Errorf("offset %d, first event kept %d: %w", r.next, p.Earliest(), penstock.ErrOffsetOutOfRange)
	}
	if errors.Is(cause, penstock.ErrUnsupported) {
		return cause
	}
	if p.open() != nil { // the file was closed under our hands
		return penstock.ErrClosed
	}
	if _, refused := errors.AsType[*readError](cause); refused {
		return fmt.Errorf("topic %q partition %d file %s position %d: %w", p.cfg.Topic, p.id, segmentName(seg.hdr.base), r.pos, cause)
	}
	e := &penstock.CorruptError{
		Topic: p.cfg.Topic, Partition: p.id, File: segmentName(seg.hdr.base), Position: r.pos,
		First: r.expect, Last: penstock.Offset(seg.end.Load()) - 1, Cause: cause,
	}
	if found, ok := r.nextGood(); ok && found.first > r.expect {
		e.Last = found.first - 1
	}
	return e
}

// passes reports whether what stands at pos may be passed: on the way to an
// offset that a Seek chose, or when bytes are bad, in which there may have been
// no event.
func (r *Reader) passes(err error) bool {
	_, refused := errors.AsType[*readError](err)
	return r.expect < r.next || !refused && !errors.Is(err, penstock.ErrUnsupported)
}

// skip goes to the first valid frame behind the bad one at pos. It reports false
// when the bad one may hold the offset that is next.
func (r *Reader) skip() bool {
	found, ok := r.nextGood()
	if !ok || found.first > r.next {
		return false
	}
	r.pos, r.expect = found.position, found.first
	return true
}

// nextGood finds the first valid frame with records behind pos.
func (r *Reader) nextGood() (behind, bool) {
	v := &fileView{file: r.file, size: r.seg.limit.Load()}
	found, err := search(v, r.seg.seed, r.pos, r.expect)
	return found, err == nil && found.frames > 0
}
