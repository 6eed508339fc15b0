package segfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock/penstock"
)

// RecoveryReport says what opening a partition found and did.
type RecoveryReport struct {
	Partition  int
	Clean      bool            // it had been closed cleanly: nothing was scanned
	Scanned    penstock.Bytes  // read to find the end of the log
	End        penstock.Offset // behind the last event
	Epoch      uint32          // of the writer from now on
	CutBytes   penstock.Bytes  // of a torn tail, from the first bad frame to the last byte that was not zero
	CutFrames  int             // whole frames among them; never acknowledged at level synced
	Quarantine string          // file with a copy of the cut bytes, below the topic's directory; "" when none
	Clamped    []string        // groups whose position was ahead of the log after a power loss at level written
	Damage     error           // *penstock.CorruptError when the partition takes no appends
	Notes      []string        // other findings, in words
}

// quarantineMax bounds the copy of a torn tail.
const quarantineMax = 64 << 20

const (
	stateName     = "state.slot"
	quarantineDir = "quarantine"
)

// recovery opens one partition.
type recovery struct {
	p      *Partition
	report RecoveryReport
	st     state
	lost   bool            // state.slot had no valid slot
	cause  error           // why
	cover  penstock.Offset // producers.slot knows what was appended below it; 0: it knows nothing
	bases  []penstock.Offset
	spare  bool                                   // a segment was being prepared, and is still there
	first  *secured                               // what is done beside the reading; nil when nothing is read
	watch  func(size int64) func(pos int64) error // for fileView.look of a file of that size
}

// openPartition opens a partition of a topic that was completely made. The
// error says that it could not be read or is of a format that this version
// does not know; damage is no error but p.fault.
func openPartition(ctx context.Context, l *Log, id int) (*Partition, RecoveryReport, error) {
	p := newPartition(l, id)
	r := &recovery{p: p, report: RecoveryReport{Partition: id}, watch: l.watch(ctx, id)}
	err := r.run(ctx)
	if err != nil {
		p.abandon()
		return nil, r.report, fmt.Errorf("partition %d: %w", id, err)
	}
	r.report.End, r.report.Epoch = p.Readable(), p.w.epoch
	if p.fault != nil {
		r.report.Damage = p.fault
		r.hold()
	}
	return p, r.report, nil
}

// hold keeps what a repair of a damaged partition needs from being trimmed: the
// segment that state.slot names and those behind it, and numbered appends that
// only the segments tell of. A state.slot that says nothing goes on to do so.
func (r *recovery) hold() {
	if !r.lost {
		r.p.w.told, r.p.held = r.st, min(r.st.segment, r.cover)
	}
}

func newPartition(l *Log, id int) *Partition {
	return &Partition{
		log: l, cfg: &l.cfg, id: id, dir: filepath.Join(l.dir, partitionName(id)),
		cursors: map[string]*Cursor{}, groups: map[string]stored{}, syncs: make(chan struct{}, 1),
	}
}

// abandon closes what an open that failed has opened.
func (p *Partition) abandon() {
	if p.w.state != nil {
		_ = p.w.state.file.Close() // the error of the open says more
	}
	if p.w.producers != nil {
		_ = p.w.producers.file.Close()
	}
	if p.w.file != nil {
		_ = p.written.seg.release()
	}
}

func (r *recovery) run(ctx context.Context) error {
	defer func() { r.first.wait() }()
	if err := r.readState(); err != nil {
		return err
	}
	if err := r.list(); err != nil {
		return err
	}
	if err := r.chain(); err != nil {
		return err
	}
	if err := r.tail(); err != nil {
		return err
	}
	if err := r.cursors(); err != nil {
		return err
	}
	if err := r.producers(ctx); err != nil {
		return err
	}
	if !r.report.Clean && r.p.fault == nil && r.p.broken == nil {
		r.p.w.begun = true
		if err := r.p.saveState(false, true); err != nil {
			return err
		}
	}
	r.first.wait()
	return r.dropSpare()
}

func (r *recovery) note(format string, args ...any) {
	r.report.Notes = append(r.report.Notes, fmt.Sprintf(format, args...))
}

// damage faults the partition from offset first on.
func (r *recovery) damage(file string, pos int64, first, last penstock.Offset, cause error) {
	if r.p.fault == nil {
		r.p.fault = &penstock.CorruptError{
			Topic: r.p.cfg.Topic, Partition: r.p.id, File: file, Position: pos, First: first, Last: max(first, last), Cause: cause,
		}
	}
}

// readState reads state.slot. Without a valid slot everything that it says is
// found again from the segments, except that the log start falls back to the
// first segment.
func (r *recovery) readState() error {
	p := r.p
	path := filepath.Join(p.dir, stateName)
	slot, payload, err := openSlot(p.cfg.FS, path, stateMark, p.owner())
	if err == nil {
		r.st, err = decodeState(payload)
	}
	if err == nil { // what is left may be from before the last session, and say that it ended cleanly
		err = slot.spoiled
	}
	if err != nil && slot == nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil {
		r.lost, r.cause = true, err
		r.note("state.slot: %v; the end of the log is found by a scan", err)
	}
	if slot == nil {
		if _, err := p.cfg.FS.Stat(p.dir); errors.Is(err, fs.ErrNotExist) {
			return p.corrupt(filepath.Base(p.dir), errNoPartition)
		}
		// Without a payload: until the open knows it, the state stays lost.
		slot, err = createSlot(p.cfg.FS, p.dir, stateName, stateMark, p.owner(), nil)
		if err == nil {
			err = p.syncDirectory()
		}
		if err != nil {
			return err
		}
	}
	p.w.state, p.w.epoch, p.w.start = slot, r.st.epoch, r.st.start
	return nil
}

// list removes temporary files and segments below the log start, and finds the
// others, whose names are durable when it returns. That a removal is not matters
// to nobody: what comes back is removed again.
func (r *recovery) list() error {
	p := r.p
	names, err := p.cfg.FS.List(p.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == spareName {
			r.spare = true
		} else if strings.HasSuffix(name, ".tmp") {
			if err := p.cfg.FS.Remove(filepath.Join(p.dir, name)); err != nil {
				if name == stateName+".tmp" {
					return err // the name is needed
				}
				r.note("%v; it is left alone", err)
			}
		} else if base, ok := parseSegmentName(name); ok {
			r.bases = append(r.bases, base)
		} else if strings.HasSuffix(name, segmentExt) {
			r.note("%s is not the name of a segment and is left alone", name)
		}
	}
	slices.Sort(r.bases)
	for r.passed() && !r.misnamed(r.bases[0]) {
		if err := p.cfg.FS.Remove(filepath.Join(p.dir, segmentName(r.bases[0]))); err != nil {
			r.note("%v; tried again by the next trim", err)
			p.garbage = append(p.garbage, segmentName(r.bases[0]))
		}
		r.bases = r.bases[1:]
	}
	if r.named() {
		return nil
	}
	return p.syncDirectory()
}

// passed reports whether everything in the first segment lies below the log start:
// it ends where the next one begins, which may be gone already.
func (r *recovery) passed() bool {
	switch {
	case r.lost || len(r.bases) == 0:
		return false
	case len(r.bases) > 1:
		return r.bases[1] <= r.st.start
	}
	return r.st.position > 0 && r.bases[0] < r.st.segment && r.st.segment <= r.st.start
}

// chain opens the segments in order and checks that each follows the one
// before: the first that does not is where the damage begins.
func (r *recovery) chain() error {
	p := r.p
	if r.lost && len(r.bases) > 0 {
		p.w.start = r.bases[0]
	}
	if r.lost && len(r.bases) == 0 && errors.Is(r.cause, errForeign) { // nothing of this partition tells where it ended
		r.damage(stateName, 0, 0, 0, errExchanged)
	} else if r.lost && len(r.bases) == 0 {
		if err := r.remember(); err != nil {
			return err
		}
	}
	p.earliest.Store(uint64(p.w.start))
	for i, base := range r.bases {
		last := base
		if i+1 < len(r.bases) {
			last = r.bases[i+1] - 1
		} else if r.st.end > base {
			last = r.st.end - 1
		}
		seg, err := r.openSegment(base)
		if errors.Is(err, penstock.ErrUnsupported) || refused(err) {
			return err
		}
		expect := p.w.start
		if n := len(p.segs); err == nil && n > 0 {
			prev := p.segs[n-1]
			expect = prev.hdr.base
			if seg.hdr.prevNonce != prev.hdr.nonce || seg.hdr.prevEnd != base {
				err = errChain
			} else {
				prev.end.Store(uint64(base))
				prev.limit.Store(prev.found)
			}
		} else if err == nil && base > p.w.start {
			err = fmt.Errorf("first segment begins at %d, the log at %d", base, p.w.start)
		}
		if err != nil {
			r.damage(segmentName(base), 0, min(expect, base), last, err)
			return r.serveBefore()
		}
		p.segs = append(p.segs, seg)
	}
	return r.missing()
}

var errChain = errors.New("segment does not follow the one before it: a file is missing or foreign")

// missing notices segments that state.slot knows and the directory does not
// have.
func (r *recovery) missing() error {
	p := r.p
	n := len(p.segs)
	switch {
	case r.lost || n > 0 && p.segs[n-1].hdr.base >= r.st.segment:
		return nil
	case n == 0 && (r.st.position == 0 || r.st.start == r.st.end && r.st.sealed):
		return nil // nothing was written, or everything was trimmed
	}
	last := max(r.st.end, 1) - 1 // after an unclean end the state may not know the end yet
	r.damage(segmentName(r.st.segment), 0, r.st.segment, last, errMissing)
	return r.serveBefore()
}

// serveBefore makes the segments before the damage readable. The last of them
// has no known end but the damage: its frames are counted.
func (r *recovery) serveBefore() error {
	p := r.p
	end := p.w.start
	if n := len(p.segs); n > 0 {
		seg := p.segs[n-1]
		f, err := seg.acquire()
		if err != nil {
			return err
		}
		size, err := f.Size()
		if err == nil {
			var s scanned
			s, err = scan(&fileView{file: f, size: size, look: r.watch(size)}, mark{seg: seg, pos: headerSize, end: seg.hdr.base})
			if errors.Is(err, errRead) {
				err = nil // what can be read is served; the partition has its fault already
			}
			r.report.Scanned += penstock.Bytes(s.bytes)
			seg.end.Store(uint64(s.end))
			seg.limit.Store(s.pos)
			end = s.end
		}
		if cerr := seg.release(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
	p.fault.First = max(end, p.w.start)
	if !r.lost { // nor did the log go as far as a foreign file says
		p.fault.Last = min(p.fault.Last, max(r.st.end, 1)-1)
	}
	p.fault.Last = max(p.fault.First, p.fault.Last)
	p.readable.Store(uint64(end))
	p.durable.Store(uint64(end))
	return nil
}

func (r *recovery) openSegment(base penstock.Offset) (*segment, error) {
	p := r.p
	f, err := p.cfg.FS.Open(filepath.Join(p.dir, segmentName(base)), false)
	if err != nil {
		return nil, err
	}
	hdr, err := readHeader(f)
	size := int64(0)
	if err == nil {
		size, err = f.Size()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = hdr.belongs(p.owner(), base, p.cfg.Codec)
	}
	if err != nil {
		return nil, err
	}
	p.w.epoch = max(p.w.epoch, hdr.epoch)
	seg := newSegment(p.cfg.FS, p.dir, hdr)
	seg.found = size
	return seg, nil
}
