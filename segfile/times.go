package segfile

import (
	"slices"
	"sort"
	"time"

	"github.com/penstock/penstock"
)

const (
	// timesMax bounds what a partition remembers of append times: 64 KiB.
	timesMax = 4096
	// timesStep is how far apart the times that it remembers are at least.
	timesStep = int64(time.Millisecond)
)

// timeEntry says that the events from offset on were appended at unixNano or
// later.
type timeEntry struct {
	offset   penstock.Offset
	unixNano int64
}

// timeTable remembers when the events of this session were appended. It grows
// with use, to timesMax entries; then what is no longer kept is forgotten, and
// when that is not enough, times get coarser all over. It is guarded by the
// partition's mu.
//
// Invariant: entries are at least step apart in time, but where the clock was
// set back.
type timeTable struct {
	entries []timeEntry
	step    int64
}

// note says that events from offset on are appended now. earliest is the first
// event that is kept.
func (t *timeTable) note(offset penstock.Offset, unixNano int64, earliest penstock.Offset) {
	if t.near(t.entries, unixNano) {
		return
	}
	if len(t.entries) == timesMax {
		t.thin(earliest)
	}
	t.entries = append(t.entries, timeEntry{offset, unixNano})
}

// near reports whether a time is told well enough by the last entry.
func (t *timeTable) near(entries []timeEntry, unixNano int64) bool {
	if len(entries) == 0 {
		return false
	}
	since := unixNano - entries[len(entries)-1].unixNano
	return since >= 0 && since < max(t.step, timesStep)
}

// thin makes room.
func (t *timeTable) thin(earliest penstock.Offset) {
	if i := t.search(earliest); i > 0 {
		t.entries = slices.Delete(t.entries, 0, i)
	}
	switch {
	case len(t.entries) < timesMax/4:
		t.step = timesStep // the backlog is short again
		return
	case len(t.entries) <= timesMax*3/4:
		return
	}
	span := t.entries[len(t.entries)-1].unixNano - t.entries[0].unixNano
	t.step = max(timesStep, span/(timesMax/2))
	kept := t.entries[:1]
	for _, e := range t.entries[1:] {
		if !t.near(kept, e.unixNano) {
			kept = append(kept, e)
		}
	}
	if len(kept) > timesMax*3/4 { // the clock was set back again and again
		for i := range len(kept) / 2 {
			kept[i] = kept[2*i]
		}
		kept = kept[:len(kept)/2]
	}
	t.entries = kept
}

// search returns the entry that covers an offset, -1 when it is older than all.
func (t *timeTable) search(at penstock.Offset) int {
	return sort.Search(len(t.entries), func(i int) bool { return t.entries[i].offset > at }) - 1
}

// TimesAt sets times[i] to when the event at offsets[i] was appended, in Unix
// nanoseconds, or to 0 when that event is not kept or not readable. times is as
// long as offsets. It does no I/O: what is told is never later than the append, and
// earlier in this session by at most 2 ms or, with a long backlog, by about a
// 1,000th of the time that the backlog spans; for an event of an earlier session it
// is when its segment file was begun.
func (p *Partition) TimesAt(offsets []penstock.Offset, times []int64) {
	end, earliest := p.Readable(), p.Earliest()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, at := range offsets {
		times[i] = 0
		if at < earliest || at >= end {
			continue
		}
		if j := p.times.search(at); j >= 0 {
			times[i] = p.times.entries[j].unixNano
		} else if j := sort.Search(len(p.segs), func(i int) bool { return p.segs[i].hdr.base > at }); j > 0 {
			times[i] = p.segs[j-1].hdr.created
		}
	}
}
