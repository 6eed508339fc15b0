package queue

import (
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// What several workers have in view, and how a batch is made of it.

// stretch is a window that lasts until the commit has passed it.
type stretch[T any] struct {
	window[T]
	times []penstock.TimeRun // backs Times
}

// end returns one past the last event that is in view; m is at its first before
// anything was looked at.
func (f *fan[T]) end(m *settle.Machine) penstock.Offset {
	if f.first == len(f.ahead) {
		return m.Committed()
	}
	return f.ahead[len(f.ahead)-1].end()
}

// at returns the stretch of the event at an offset, and its index there, -1
// when it is not in view.
func (f *fan[T]) at(o penstock.Offset) (*stretch[T], int) {
	k, _ := slices.BinarySearchFunc(f.ahead[f.first:], o, func(s stretch[T], o penstock.Offset) int {
		if s.end() <= o {
			return -1
		}
		return 1
	})
	if f.first+k == len(f.ahead) || o < f.ahead[f.first+k].First {
		return nil, -1
	}
	s := &f.ahead[f.first+k]
	return s, int(o - s.First)
}

// lookAhead brings more events into view, from an offset on, and reports
// whether there were any.
func (l *lane[T]) lookAhead(at penstock.Offset, want int) (bool, error) {
	f, cur := l.fan, l.cur
	if !l.consumer.isPending(l.index) {
		return false, nil
	}
	end := cur.source.end()
	cur.seek(at)
	if err := cur.refill(end, want, true); err != nil {
		if err := l.unreadable(at, err); err != nil || cur.limit == at {
			return false, err
		}
	} else if l.trouble.Load() != nil {
		l.trouble.Store(nil)
	}
	cur.read = cur.limit
	if cur.limit >= end && !cur.endsInDamage() {
		l.consumer.unmark(l.index)
	}
	if len(cur.win.Values) == 0 {
		return false, nil
	}
	if f.first > len(f.ahead)/2 && f.first > 32 { // used places make room for what comes
		n := copy(f.ahead, f.ahead[f.first:])
		f.ahead, f.first = f.ahead[:n], 0
	}
	f.ahead = append(f.ahead, stretch[T]{})
	s := &f.ahead[len(f.ahead)-1]
	if k := len(f.spare); k > 0 {
		s.times, f.spare = f.spare[k-1], f.spare[:k-1]
	}
	s.times = append(s.times[:0], cur.win.Times...)
	s.window, s.Times = cur.win, s.times
	return true, nil
}

// drop lets the view of what lies below an offset go.
func (f *fan[T]) drop(low penstock.Offset) {
	for f.first < len(f.ahead) && f.ahead[f.first].end() <= low {
		f.spare = append(f.spare, f.ahead[f.first].times)
		f.ahead[f.first] = stretch[T]{}
		f.first++
	}
	if f.first == len(f.ahead) {
		f.ahead, f.first = f.ahead[:0], 0
	}
}

// fill makes j the call for its tasks: a view where their events lie next to
// each other, else a copy with an offset for each.
func (l *lane[T]) fill(j *job[T]) {
	first, last := j.tasks[0].span, j.tasks[len(j.tasks)-1].span
	n := 0
	for i := range j.tasks {
		n += j.tasks[i].span.Len()
	}
	d := &j.own
	j.lane, j.span, j.delivery = l, first, d
	d.Topic, d.Partition, d.First, d.Attempt, d.Epoch = l.group.topic.config.Name, l.cur.part.index, first.From, first.Attempt, j.tasks[0].epoch
	d.Tokens, d.Metas, d.Carrier = nil, nil, nil
	j.runs = j.runs[:0]
	if s, i := l.fan.at(first.From); first.From+penstock.Offset(n) == last.To && last.To <= s.end() {
		j.values = s.Values[i : i+n : i+n]
		if s.Metas != nil {
			d.Metas = s.Metas[i : i+n : i+n]
		}
		var at timeAt
		j.runs = at.append(j.runs, s.Times, i, n)
	} else {
		l.gather(j)
	}
	d.Times = j.runs
	s, _ := l.fan.at(first.From)
	j.bury(s.bad)
}

// gather copies the events of j's tasks together.
func (l *lane[T]) gather(j *job[T]) {
	j.copied, j.metas, j.tokens = j.copied[:0], j.metas[:0], j.tokens[:0]
	var s *stretch[T]
	var at timeAt
	for t := range j.tasks {
		for o, to := j.tasks[t].span.From, j.tasks[t].span.To; o < to; {
			if s == nil || s.end() <= o {
				s, _ = l.fan.at(o)
				at = timeAt{}
			}
			i, n := int(o-s.First), int(min(to, s.end())-o)
			j.copied = append(j.copied, s.Values[i:i+n]...)
			if s.Metas != nil {
				j.metas = append(slices.Grow(j.metas, n), make([]penstock.Meta, len(j.copied)-n-len(j.metas))...)
				j.metas = append(j.metas, s.Metas[i:i+n]...)
			}
			j.runs = at.append(j.runs, s.Times, i, n)
			for range n {
				j.tokens = append(j.tokens, penstock.Token{Lo: uint64(o)})
				o++
			}
		}
	}
	j.values, j.own.Tokens = j.copied, j.tokens
	if len(j.metas) > 0 {
		j.metas = append(j.metas, make([]penstock.Meta, len(j.copied)-len(j.metas))...)
		j.own.Metas = j.metas
	}
}

// timeAt walks over the append times of a stretch, forward only.
type timeAt struct {
	run   int
	first int // index of the first event of run
}

// append appends the times of n events from index i on.
func (at *timeAt) append(dst []penstock.TimeRun, times []penstock.TimeRun, i, n int) []penstock.TimeRun {
	for at.run < len(times) && n > 0 {
		r := times[at.run]
		if i >= at.first+r.N {
			at.first += r.N
			at.run++
			continue
		}
		here := min(n, at.first+r.N-i)
		if k := len(dst) - 1; k >= 0 && dst[k].UnixNano == r.UnixNano {
			dst[k].N += here
		} else {
			dst = append(dst, penstock.TimeRun{N: here, UnixNano: r.UnixNano})
		}
		i, n = i+here, n-here
	}
	return dst
}
