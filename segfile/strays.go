package segfile

import (
	"errors"
	"path/filepath"

	"github.com/penstock/penstock"
)

// errStray says of a file what makes it a stray.
var errStray = errors.New("has the name of a segment and no place in the log")

// rename finds segments under another name than their own, and takes them for
// what they are: when no other file claims to be the same segment, and the name
// is free, or that of a file which gets its own name back, too.
func (in *Inspection) rename(f *found) {
	claims, at := map[penstock.Offset]int{}, map[penstock.Offset]int{}
	for i := range f.segs {
		s := &f.segs[i]
		at[s.base] = i
		switch {
		case s.hdr != nil:
			claims[s.hdr.base]++
		case s.err == nil:
			claims[s.base]++
		}
	}
	moves := make([]bool, len(f.segs))
	for i := range f.segs {
		s := &f.segs[i]
		moves[i] = s.hdr != nil && claims[s.hdr.base] == 1 && (f.lost != nil || s.hdr.base >= f.state.start)
	}
	for again := true; again; {
		again = false
		for i, ok := range moves {
			if !ok {
				continue
			}
			if j, there := at[f.segs[i].hdr.base]; there && !moves[j] {
				moves[i], again = false, true
			}
		}
	}
	for i, ok := range moves {
		if s := &f.segs[i]; ok {
			s.file, s.base, s.err = segmentName(s.base), s.hdr.base, nil
			s.seg = newSegment(in.fs, f.dir, *s.hdr)
			s.seg.path = filepath.Join(f.dir, s.file)
		}
	}
}

// setAside moves the files out of segs that have the name of a segment and no
// place in the log, so that nobody counts events between them and the others:
//
//   - between two segments of which the later names the earlier as the one
//     before it;
//   - behind the last one that state.slot knows, unless they follow it: a segment
//     is in state.slot before the first event of it is acknowledged.
//
// A file that could not be read stays, and what the next open removes.
func (in *Inspection) setAside(f *found) {
	stray := make([]bool, len(f.segs))
	in.between(f, stray)
	if f.lost == nil {
		in.behind(f, stray)
	} else if z := in.active(f); z >= 0 {
		for i := z + 1; i < len(f.segs); i++ {
			stray[i] = true
		}
	}
	low := 0 // the next open removes those before it, whatever they are
	for f.lost == nil && low+1 < len(f.segs) && f.segs[low+1].base <= f.state.start {
		low++
	}
	all := f.segs
	f.segs = nil
	for i, s := range all {
		switch {
		case i < low || !stray[i] || !s.judged():
			f.segs = append(f.segs, s)
			continue
		case s.err == nil:
			s.err = errChain
		}
		f.strays = append(f.strays, s)
	}
}

// judged reports whether the header of a file was read: it is good, or bad.
func (s *foundSegment) judged() bool {
	return s.err == nil || errors.Is(s.err, errHeader) || errors.Is(s.err, errForeign)
}

// names reports whether a segment names another one as the one before it.
func (s *foundSegment) names(prev *foundSegment) bool {
	return s.err == nil && prev.err == nil && s.seg.hdr.prevNonce == prev.seg.hdr.nonce && s.seg.hdr.prevEnd == s.base
}

// between marks what stands between two segments that follow each other.
func (in *Inspection) between(f *found, stray []bool) {
	at, next := map[uint64]int{}, map[int]int{}
	for i := range f.segs {
		s := &f.segs[i]
		if s.err != nil {
			continue
		}
		if prev, ok := at[s.seg.hdr.prevNonce]; ok && s.names(&f.segs[prev]) {
			if _, twice := next[prev]; !twice || in.joins(f, prev, i) {
				next[prev] = i
			}
		}
		at[s.seg.hdr.nonce] = i
	}
	for prev, i := range next {
		for j := prev + 1; j < i && in.joins(f, prev, i); j++ {
			stray[j] = true
		}
	}
}

// joins reports whether a segment names another one as the one before it, and
// that one ends where it begins, as far as its seal tells.
func (in *Inspection) joins(f *found, prev, i int) bool {
	if !f.segs[i].names(&f.segs[prev]) {
		return false
	}
	sum := in.sealAt(&f.segs[prev])
	return sum == nil || sum.end == f.segs[i].base
}

// sealAt reads the seal at the end of a segment; nil when there is none.
func (in *Inspection) sealAt(s *foundSegment) *summary {
	file, err := in.fs.Open(s.seg.path, false)
	if err != nil {
		return nil
	}
	defer file.Close()
	return sealOf(s, file)
}

// behind marks what stands behind the segments that state.slot knows.
func (in *Inspection) behind(f *found, stray []bool) {
	none := f.state.position == 0 || f.state.start == f.state.end && f.state.sealed // state.slot knows none
	last := -1
	for i := range f.segs {
		if s := &f.segs[i]; !none && s.base == f.state.segment && s.err == nil {
			last = i
		}
	}
	for i := last + 1; i < len(f.segs); i++ {
		s := &f.segs[i]
		switch {
		case last >= 0 && in.joins(f, last, i), last < 0 && none && s.err == nil && s.base == f.state.end:
			last = i
		case last >= 0, none, s.base > f.state.end:
			stray[i] = true
		}
	}
}

// active returns the last good segment when it takes appends, which its file
// tells: it has its full size and no seal at its end. Else it returns -1.
func (in *Inspection) active(f *found) int {
	z := len(f.segs) - 1
	for z >= 0 && f.segs[z].err != nil {
		z--
	}
	if z < 0 || z == len(f.segs)-1 || f.segs[z].size < f.segs[z].seg.hdr.size {
		return -1
	}
	if in.sealAt(&f.segs[z]) != nil {
		return -1
	}
	return z
}

// first returns the first event that is kept.
func (f *found) first() penstock.Offset {
	if f.lost != nil && len(f.segs) > 0 {
		return f.segs[0].base
	}
	return f.state.start
}

// bound returns the offset behind the events that segment i can have had, as far
// as its neighbour and state.slot tell; the base when they tell nothing.
func (f *found) bound(i int) penstock.Offset {
	switch s := &f.segs[i]; {
	case i+1 < len(f.segs):
		return f.segs[i+1].base
	case f.lost == nil:
		return max(s.base, f.state.end)
	default:
		return s.base
	}
}

// uncounted reports whether the last segment may have had events that nobody
// can count: its header is bad, and the log was not closed.
func (f *found) uncounted(i int) bool {
	return i == len(f.segs)-1 && (f.lost != nil || !f.state.clean)
}

var errUncounted = errors.New("how many events it had is not known, because the log was not closed")

// broken returns why an open takes the segments for damaged that follow, and the
// first one; -1 when it does not.
func (f *found) broken() (int, error) {
	for i := range f.segs {
		s := &f.segs[i]
		switch {
		case s.err != nil:
			return i, s.err
		case i > 0 && !f.follows(i), i == 0 && s.base > f.first():
			return i, errChain
		}
	}
	return -1, nil
}
