package queue

import (
	"math"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// fan is what a lane has besides when several workers handle its events at a
// time (GroupConfig.Workers). The machine hands events out beside those that
// wait; the schedule keeps the order of keys.
//
// Invariants: ahead rises and has no gap; it holds every event of [committed,
// next) of the machine, and with AutoCommit those in hands. At most
// settle.WindowMax events are handed out and not settled.
type fan[T any] struct {
	schedule schedule
	ahead    []stretch[T]
	first    int // ahead[first:] is used
	spans    uint64
	back     []settle.Span
	spare    [][]penstock.TimeRun // of stretches that were let go
}

// nextForWorker is next for one of several workers: idle are free.
func (l *lane[T]) nextForWorker(j *job[T], idle int, stopping bool) (bool, error) {
	f, c := l.fan, &l.group.config
	max := min(c.BatchMax, settle.WindowMax)
	now := time.Now()
	l.lingerUntil = time.Time{}
	if err := l.takeRetries(now); err != nil {
		return false, err
	}
	if !stopping {
		if err := l.takeNew(now, min(max*idle, settle.WindowMax)); err != nil {
			return false, err
		}
	}
	s := &f.schedule
	retries := len(s.again) > 0
	if !retries && (stopping || s.ready == 0) {
		if s.events == 0 && l.machine.Unsettled() == 0 && (!c.AutoCommit || idle == c.Workers) {
			l.idle()
		}
		return false, nil
	}
	n := max
	if !retries && c.Linger > 0 && s.ready < min(max, c.BatchMin) && (c.BatchBytes == 0 || s.readyBytes < c.BatchBytes) {
		if until := time.Unix(0, s.fresh[0].first().taken).Add(c.Linger); now.Before(until) {
			l.lingerUntil = until
			return false, nil
		}
	} else if c.Linger == 0 { // nobody asked for full batches, so all workers get a share
		n = min(max, (s.ready+idle-1)/idle)
		if retries {
			n = max
		}
	}
	if n = l.allowNow(n, retries); n == 0 {
		return false, nil
	}
	var bySize bool
	j.tasks, bySize = s.pick(n, c.BatchBytes, stopping, j.tasks[:0])
	l.fill(j)
	if l.group.control.bucket != nil {
		l.ticket.paid(&l.group.control, len(j.values))
	}
	switch {
	case retries:
		j.delivery.Reason = penstock.FlushRetry
	case bySize:
		j.delivery.Reason = penstock.FlushBytes
	case len(j.values) == max:
		j.delivery.Reason = penstock.FlushCount
	default:
		j.delivery.Reason = penstock.FlushLinger
	}
	return true, nil
}

// allowNow returns how many of the next n events the rate allows now.
func (l *lane[T]) allowNow(n int, retries bool) int {
	if l.group.control.bucket == nil {
		return n
	}
	there := l.fan.schedule.ready
	if retries {
		there = l.fan.schedule.retries
	}
	return l.ticket.allow(&l.group.control, max(1, min(n, there)))
}

// takeRetries takes what is due again.
func (l *lane[T]) takeRetries(now time.Time) error {
	if l.park != nil && !l.park.waits.Load() {
		l.machine.MadeRoom()
	}
	for {
		due, ok := l.machine.Due()
		if !ok || now.Before(due) {
			return nil
		}
		span, ok, err := l.handOut(now, settle.WindowMax)
		if err != nil || !ok {
			return err
		}
		l.schedule(span, now)
	}
}

// takeNew takes new events until want of them may start, as far as there are
// events and the window has room.
func (l *lane[T]) takeNew(now time.Time, want int) error {
	f := l.fan
	for f.schedule.ready < want && l.mayRead() {
		at := l.machine.Delivered()
		if at >= f.end(l.machine) {
			if any, err := l.lookAhead(at, want); err != nil || !any {
				return err
			}
		}
		span, ok, err := l.handOut(now, want)
		if err != nil {
			return err
		}
		if ok {
			l.schedule(span, now)
		} else if l.machine.Delivered() == at {
			return nil
		}
	}
	return nil
}

// handOut asks the machine for a span of at most max events. While keys are
// parked, it parks what follows them.
func (l *lane[T]) handOut(now time.Time, max int) (settle.Span, bool, error) {
	end := l.fan.end(l.machine)
	if l.park == nil || !l.park.busy {
		span, ok := l.machine.Next(now, end, max)
		return span, ok, nil
	}
	for {
		l.park.look(view[T]{fan: l.fan})
		span, ok := l.machine.Next(now, end, max)
		l.letParkedGo()
		if err := l.recordParked(); err != nil {
			return span, false, err
		}
		if ok || !l.park.noRoom(l.machine.NeedsRoom()) {
			return span, ok, nil
		}
	}
}

// letParkedGo takes what follows a parked event of its key out of the schedule.
func (l *lane[T]) letParkedGo() {
	f := l.fan
	if f.schedule.failing == 0 || l.machine.Parked().Events == 0 {
		return
	}
	f.back = f.schedule.recheck(l.machine.IsParked, f.back[:0])
	if len(f.back) > 0 {
		_ = l.machine.Release(f.back...) // never late: they were in hand, and had not started
	}
	clear(f.back)
}

// schedule takes a span of the machine's in.
func (l *lane[T]) schedule(span settle.Span, now time.Time) {
	f := l.fan
	f.spans++
	t := task{batch: f.spans, taken: now.UnixNano()}
	sized := l.group.config.BatchBytes > 0
	s, i := f.at(span.From)
	for o := span.From; o < span.To; {
		if s.end() <= o {
			s, i = f.at(o)
		}
		t.epoch, t.bad = s.Epoch, s.bad != nil
		end := min(span.To, s.end())
		key, to := "", end
		if s.bad != nil {
			key = s.bad.Meta.Key
		} else if l.group.topic.config.Key != nil || s.Metas != nil {
			key = l.keyIn(s, i)
			for to = o + 1; to < end && l.keyIn(s, i+int(to-o)) == key; {
				to++
			}
		}
		if sized && s.bad == nil {
			to = o + 1
			t.size = l.group.topic.sizeHeld(s.Values[i])
		}
		t.span = span.Part(o, to)
		f.schedule.add(key, t)
		i += int(to - o)
		o = to
	}
}

// keyIn returns the key of event i of a stretch.
func (l *lane[T]) keyIn(s *stretch[T], i int) string {
	var m *penstock.Meta
	if s.Metas != nil {
		m = &s.Metas[i]
	}
	return l.group.topic.keyOf(s.Values[i], m)
}

// settleTasks is settle for a job of several workers.
func (l *lane[T]) settleTasks(now time.Time, j *job[T], failed []settle.Outcome) error {
	f := l.fan
	if !j.auto {
		if err := l.machine.SettleParts(now, j.parts(), failed...); err != nil {
			return err
		}
	}
	t := 0
	for _, o := range failed {
		for at := o.From; at < o.To; at++ {
			for j.tasks[t].span.To <= at {
				t++
			}
			f.schedule.fail(&j.tasks[t], at)
		}
	}
	f.schedule.finish(j.tasks)
	l.letParkedGo()
	return l.settled(len(failed) > 0)
}

// commitStarted commits what a job is about to handle, with AutoCommit: as bits
// beside the commit where earlier events have not started.
func (l *lane[T]) commitStarted(j *job[T]) error {
	if err := l.machine.SettleParts(time.Time{}, j.parts()); err != nil {
		return err
	}
	before := l.cur.completed
	l.cur.completed = l.machine.AppendCompleted(l.bits[:0])
	to := l.machine.Committed()
	if l.cur.saved || to > l.cur.committed {
		if err := l.cur.commit(to); err != nil {
			l.cur.completed = before // these were not handled
			return err
		}
	}
	l.bits = before
	j.auto = true
	return nil
}

// low returns the lowest offset that may be looked at: of the commit and, with
// AutoCommit, of what is in hands.
func (p *pusher[T]) low(l *lane[T]) penstock.Offset {
	low := penstock.Offset(math.MaxUint64)
	for _, j := range p.crew.jobs {
		if j.flying && j.lane == l && len(j.tasks) > 0 {
			low = min(low, j.tasks[0].span.From)
		}
	}
	return min(low, l.cur.committed)
}
