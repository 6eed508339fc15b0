package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// measureLag fills in how far the groups are behind, in events and in time.
// The commits stand already: the ends that they are compared with are not
// older.
func (t *Topic[T]) measureLag(now time.Time, groups []*GroupStats) {
	order := make([]int, len(groups))
	offsets := make([]penstock.Offset, len(groups))
	times := make([]int64, len(groups))
	for i, p := range t.parts {
		end := p.end()
		for j := range order {
			order[j] = j
		}
		slices.SortFunc(order, func(a, b int) int {
			return cmp.Compare(groups[a].Partitions[i].Committed, groups[b].Partitions[i].Committed)
		})
		for j, g := range order {
			offsets[j] = groups[g].Partitions[i].Committed
		}
		p.timesAt(offsets, times)
		for j, g := range order {
			groups[g].note(i, end, now, times[j])
		}
	}
}

// note fills in the lag in a partition. appended is when the event at the
// commit was, in Unix nanoseconds; 0 when there is none.
func (s *GroupStats) note(partition int, end penstock.Offset, now time.Time, appended int64) {
	p := &s.Partitions[partition]
	p.End = max(end, p.Committed)
	p.Lag = uint64(p.End - p.Committed)
	s.Lag += p.Lag
	if p.Lag > 0 && appended != 0 {
		p.LagTime = max(0, time.Duration(now.UnixNano()-appended))
		s.LagTime = max(s.LagTime, p.LagTime)
	}
}

// timesAt tells when events were appended; see [seglog.Log.TimesAt].
func (p *partition[T]) timesAt(offsets []penstock.Offset, times []int64) {
	if p.log != nil {
		p.log.TimesAt(offsets, times)
		return
	}
	p.file.log.TimesAt(offsets, times)
}
