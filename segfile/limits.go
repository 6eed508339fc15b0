package segfile

import (
	"errors"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// Limits say what of a partition is worth keeping. A zero field is no limit.
// An event is beyond them when it is beyond one of them.
type Limits struct {
	Age    time.Duration  // it was appended longer ago
	Bytes  penstock.Bytes // so many bytes follow the segment that it lies in
	Events int            // so many events follow that segment
}

// Beyond returns the offset below which every event is beyond the limits and
// lies in a sealed segment: where the oldest one begins that is to be kept. A
// segment whose age is not known ([Partition.LearnAges]) is not beyond the
// limit of age. It does no I/O.
func (p *Partition) Beyond(l Limits) penstock.Offset {
	now := p.log.seams.now().UnixNano()
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := max(0, p.sealedBelowLocked(math.MaxUint64))
	bytes, events := int64(0), penstock.Offset(0)
	count := func(s *segment) {
		bytes += s.limit.Load()
		events += penstock.Offset(s.end.Load()) - s.hdr.base
	}
	for _, s := range p.segs[kept:] {
		count(s)
	}
	for kept > 0 {
		s := p.segs[kept-1]
		newest := s.newest.Load()
		if l.Bytes > 0 && bytes >= int64(l.Bytes) || l.Events > 0 && events >= penstock.Offset(l.Events) ||
			l.Age > 0 && newest != 0 && now-newest > int64(l.Age) {
			break
		}
		count(s)
		kept--
	}
	switch {
	case kept < len(p.segs):
		return p.segs[kept].hdr.base
	case kept > 0:
		return penstock.Offset(p.segs[kept-1].end.Load())
	}
	return p.Earliest()
}

// LearnAges reads from the seals of segments of earlier sessions when they were
// sealed, which [Partition.Beyond] needs for a limit of age: a small read per
// segment, once. What cannot be read counts as sealed when the segment behind
// it was begun. The error is the last one of the file system; it is tried
// again by the next call.
func (p *Partition) LearnAges() error {
	p.mu.Lock()
	sealed := p.segs[:max(0, p.sealedBelowLocked(math.MaxUint64))]
	all := p.segs
	p.mu.Unlock()
	var last error
	for i, s := range sealed {
		if s.newest.Load() != 0 {
			continue
		}
		at, err := s.sealTime()
		switch {
		case err != nil && !errors.Is(err, penstock.ErrClosed): // trimmed since, then
			last = err
			continue
		case at == 0 && i+1 < len(all):
			at = all[i+1].hdr.created
		case at == 0:
			at = p.log.seams.now().UnixNano()
		}
		s.newest.CompareAndSwap(0, at)
	}
	return last
}

// sealTime returns the time of the seal frame, 0 when there is none that can be
// read.
func (s *segment) sealTime() (at int64, err error) {
	f, err := s.acquire()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.release()) }()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	sum, _ := readSeal(s.seed, f, size)
	return sum.time, nil
}

// SealOld seals the active segment when all of its events were appended longer
// than age ago, so that a limit of age can reach them in a partition that is
// idle. It blocks for a sync when it does. Once in a session it may read the
// active segment, to find when the last event of the session before came.
func (p *Partition) SealOld(age time.Duration) error {
	p.mu.Lock()
	m := p.written
	active := p.fault == nil && p.broken == nil && m.seg != nil && !m.sealed && m.end > m.seg.hdr.base
	p.mu.Unlock()
	deadline := p.log.seams.now().Add(-age).UnixNano()
	if !active || m.seg.hdr.created >= deadline {
		return nil
	}
	if m.seg.newest.Load() == 0 {
		at, err := p.appendTime(m.end - 1)
		if err != nil {
			return err
		}
		m.seg.newest.CompareAndSwap(0, at)
	}
	if m.seg.newest.Load() >= deadline {
		return nil
	}
	return p.do(func() error {
		if p.written != m || p.Fault() != nil { // something was appended meanwhile
			return nil
		}
		err := p.open()
		if err == nil {
			err = p.begin()
		}
		if err == nil {
			err = p.seal()
		}
		return err
	}, false)
}

// appendTime returns when an event was appended.
func (p *Partition) appendTime(at penstock.Offset) (unixNano int64, err error) {
	r, err := p.NewReader(at)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	rec, err := r.Next(1)
	return rec.Time, err
}

// OnSealed sets what is called after a segment was sealed, on the goroutine
// that wrote. It must not block and must not call into p. Setting it again
// replaces it.
func (p *Partition) OnSealed(fn func()) { p.sealed.Store(&fn) }

// Passed is what [Cursor.Pass] did.
type Passed struct {
	Era    uint64          // that begins with it
	From   penstock.Offset // the position before
	To     penstock.Offset // and after, or where it was to be; From when it was further already
	Events uint64          // of [From, To) that were not completed

	completed []uint64
}

// Completed reports whether an offset of [From, To) was completed.
func (p Passed) Completed(o penstock.Offset) bool {
	n := uint64(o - p.From)
	return n/64 < uint64(len(p.completed)) && p.completed[n/64]>>(n%64)&1 == 1
}

// Pass moves the position forward to an offset without the group, which may be
// at work: what that stores later, in an earlier era, changes nothing. What is
// completed behind the offset stays so. Otherwise it is as [Cursor.Store]; after
// an error the era has turned, and the position on disk is as it was or as it
// was to be.
func (c *Cursor) Pass(to penstock.Offset, sync bool) (Passed, error) {
	to = min(to, c.p.Readable())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.era++
	from := c.want.committed
	done := Passed{Era: c.era, From: from, To: max(from, to)}
	n := uint64(done.To - from)
	done.Events = n - countBelow(c.want.completed, n)
	done.completed = slices.Clone(c.want.completed)
	if err := c.usableLocked(); err != nil {
		return done, err
	}
	if n > 0 {
		c.setLocked(to, shiftWords(c.want.completed, n))
	}
	return done, c.flushLocked(c.wanted, sync)
}

// countBelow counts the bits of words below bit n.
func countBelow(words []uint64, n uint64) (count uint64) {
	for i, w := range words {
		if first := uint64(i) * 64; n <= first {
			break
		} else if n-first < 64 {
			w &= 1<<(n-first) - 1
		}
		count += uint64(bits.OnesCount64(w))
	}
	return count
}

// shiftWords returns the words from bit n on.
func shiftWords(words []uint64, n uint64) []uint64 {
	if n/64 >= uint64(len(words)) {
		return nil
	}
	out := append([]uint64(nil), words[n/64:]...)
	if by := n % 64; by > 0 {
		for i := range out {
			out[i] >>= by
			if i+1 < len(out) {
				out[i] |= out[i+1] << (64 - by)
			}
		}
	}
	return trimWords(out)
}
