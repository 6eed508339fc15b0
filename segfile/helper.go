package segfile

import (
	"hash/crc32"
	"math"
	"sync"
)

const (
	// partBytes is what a helper checks at a time: the scan waits for one part at
	// the most.
	partBytes = 512 << 10
	// partsMost bounds what of a helper's findings is kept until the scan comes
	// there: 32 MiB of the file at a time, and of them 4 bytes per frame.
	partsMost = 64
	// partsLeast is how many parts a helper is worth.
	partsLeast = 3
)

// helper checks the end of a log from behind, part by part, while a scan comes
// from the front; they meet where both have been fast.
//
// Nothing of what it finds is believed because it is there: a part begins at the
// first valid frame that stands in it, and counts when the scan comes to that very
// place with the offset that the frame has. Then it is what the scan would have
// found. Otherwise, for a frame may be a copy in the payload of another, the scan
// reads the part itself.
//
// Invariants: low <= high; the scan has claimed the parts [0, low), from the start
// the first one, the helper those from high on; parts[i] is the helper's from its claim until done is closed.
type helper struct {
	view  *fileView
	seg   *segment
	from  int64 // where part 0 begins
	parts []scanned
	done  chan struct{}

	mu    sync.Mutex
	low   int
	high  int
	begun bool // done will be closed
}

// helped runs to the end of the run, with a helper where that is worth it.
func (s *scanned) helped(v *fileView) error {
	for !s.over() {
		h := newHelper(v, s.mark)
		if h == nil {
			return s.run(v, math.MaxInt64, nil)
		}
		if err := s.meet(v, h); err != nil {
			return err
		}
	}
	return nil
}

// newHelper hands on a helper for what was written behind a place; nil when there
// is too little, or nobody to help.
func newHelper(v *fileView, from mark) *helper {
	n := min((v.ahead-from.pos+partBytes-1)/partBytes, partsMost)
	if n < partsLeast || v.help == nil {
		return nil
	}
	h := &helper{
		view: &fileView{file: v.file, size: v.size, ahead: v.ahead}, seg: from.seg, from: from.pos,
		parts: make([]scanned, n), done: make(chan struct{}), low: 1, high: int(n),
	}
	select {
	case v.help <- h:
		return h
	default: // whoever would help has not even come to the one before
		return nil
	}
}

// part returns where a part ends; the next one begins there.
func (h *helper) part(i int) int64 { return min(h.from+int64(i+1)*partBytes, h.view.ahead) }

// run checks parts until the scan has claimed the rest.
func (h *helper) run() {
	defer close(h.done)
	for {
		h.mu.Lock()
		h.begun = true
		i := h.high - 1
		if i < h.low {
			h.mu.Unlock()
			return
		}
		h.high = i
		h.mu.Unlock()
		h.parts[i] = checkPart(h.view, h.seg, h.part(i-1), h.part(i))
	}
}

// checkPart follows the frames that begin in [at, to); seg is nil in what it
// returns when there are none that the scan can use.
func checkPart(v *fileView, seg *segment, at, to int64) scanned {
	first, ok := v.next(at, to, seg)
	if !ok {
		return scanned{}
	}
	s := scanned{mark: first, apart: true, indexed: first.pos, first: first}
	if s.run(v, to, nil) != nil {
		return scanned{} // the scan will meet it
	}
	return s
}

// next returns the first place in [at, to), which is a multiple of the alignment
// of frames, where a valid frame stands, and whether there is one. That frame may
// be a copy of one in the payload of another. It gives up on frames that are none
// after as many bytes as it may look at.
func (v *fileView) next(at, to int64, seg *segment) (mark, bool) {
	for budget := to - at; at < to && budget > 0; {
		stop := min(to, at+scanBlock)
		pos, err := candidate(v, at, stop)
		if err != nil {
			return mark{}, false
		}
		if at = pos; at == stop {
			continue
		}
		b, h, err := v.frame(at, seg.seed)
		if err == nil {
			return mark{seg: seg, pos: at, end: h.base}, true
		}
		budget -= int64(max(len(b), frameHeaderSize))
		at += frameAlign
	}
	return mark{}, false
}

// claim reports whether a part is left for the scan, which then has it.
func (h *helper) claim(i int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i >= h.high {
		return false
	}
	h.low = max(h.low, i+1)
	return true
}

// end takes what is left from the helper, and waits for it if it has begun.
func (h *helper) end() {
	h.mu.Lock()
	h.low = h.high
	begun := h.begun
	h.mu.Unlock()
	if begun {
		<-h.done
	}
}

// meet runs through the parts of a helper.
func (s *scanned) meet(v *fileView, h *helper) error {
	defer h.end()
	i := 0
	for ; i < len(h.parts) && h.claim(i); i++ {
		if err := s.run(v, h.part(i), nil); err != nil || s.over() {
			return err
		}
	}
	h.end()
	for ; i < len(h.parts); i++ {
		s.join(&h.parts[i])
		if err := s.run(v, h.part(i), nil); err != nil || s.over() {
			return err
		}
	}
	return nil
}

// join takes a part over that begins where s ends; it does nothing with another.
func (s *scanned) join(p *scanned) {
	if p.seg == nil || p.first.pos != s.pos || p.first.end != s.end {
		return
	}
	for _, e := range p.index {
		e.maxTime = max(e.maxTime, s.maxTime)
		s.index = append(s.index, e)
		s.indexed = e.pos
	}
	s.rolling = crc32.Update(s.rolling, castagnoli, p.sums)
	s.epoch, s.durable, s.maxTime = max(s.epoch, p.epoch), max(s.durable, p.durable), max(s.maxTime, p.maxTime)
	s.pos, s.end, s.sealed, s.cause = p.pos, p.end, p.sealed, p.cause
}
