package queue

import (
	"log/slog"
	"time"

	"github.com/penstock/penstock"
)

// What a lane does while keys are parked.

// nextBeside is the end of lane.next while keys are parked: what comes behind
// them is parked too instead of being delivered. n events are in the window
// from the position on.
func (l *lane[T]) nextBeside(j *job[T], now time.Time, n int) (bool, error) {
	w := &l.cur.win
	from := l.cur.read
	end := from + penstock.Offset(n)
	for {
		l.park.look(view[T]{first: w.First, values: w.Values, metas: w.Metas, times: w.Times, epoch: w.Epoch, bad: w.bad})
		span, ok := l.machine.Next(now, end, n)
		if ok {
			if l.group.control.bucket != nil {
				l.ticket.paid(&l.group.control, span.Len())
			}
			l.lingerUntil = time.Time{}
			l.cur.seek(span.From)
			l.take(j, span)
		}
		if err := l.recordParked(); err != nil {
			return false, err
		}
		l.park.more = !ok && l.machine.Position() > from // all it was shown was parked
		if ok || !l.park.noRoom(l.machine.NeedsRoom()) {
			return ok, nil
		}
	}
}

// recordParked hands what the machine has parked to the retry log.
func (l *lane[T]) recordParked() error {
	moved, err := l.record()
	if err != nil {
		return err
	}
	l.noteWaiting()
	l.noteBlocked()
	if moved {
		return l.commitSoon()
	}
	return nil
}

// record hands what the machine has decided to the retry log. An event that the
// topic's limits have deleted meanwhile, with the lane moved past it, cannot be
// parked and need not be: the lane begins again at its next turn, with what the
// retry log holds.
func (l *lane[T]) record() (moved bool, err error) {
	if moved, err = l.park.record(); err != nil && l.cur.wasPassed(err) {
		return false, nil
	}
	return moved, err
}

// collectParked looks what the retry log has taken.
func (l *lane[T]) collectParked() error {
	moved, err := l.park.collect()
	if err != nil || !moved {
		return err
	}
	l.noteWaiting()
	l.noteBlocked()
	return l.commitSoon()
}

// deliverParked delivers one parked event, if one is due, and reports whether
// it did.
func (p *pusher[T]) deliverParked(l *lane[T]) (bool, error) {
	if err := l.collectParked(); err != nil || !l.park.busy || p.run.stopping() {
		return false, err
	}
	j, _ := p.free()
	if j == nil || l.held() || !l.allowParked() {
		return false, nil
	}
	ok, err := l.nextParked(j)
	l.parkTaken(ok)
	if err != nil || !ok {
		return false, err
	}
	return true, p.deliver(j)
}

// nextParked makes j the call for a parked event, and reports false when none
// is due.
func (l *lane[T]) nextParked(j *job[T]) (bool, error) {
	ok, err := l.park.next(time.Now(), j)
	if err != nil || !ok {
		return false, err
	}
	if ok, err = l.storeBefore(j.span.From); err != nil || !ok {
		j.reset()
		return false, err
	}
	j.lane = l
	j.bury(j.bad)
	return true, nil
}

// storeBefore stores what is settled before a parked event is delivered. Were
// it stored after that, an end of the process in between would leave the retry
// log saying that the event is done, a stored position that has it as passed,
// and an earlier one of its key, which was settled, to come again behind it. A
// position above the event says that nothing before it comes again but from the
// retry log. It returns false when the lane was moved meanwhile: what it has
// settled may not be stored then, and it begins again at its next turn.
func (l *lane[T]) storeBefore(o penstock.Offset) (bool, error) {
	if l.storeAt.IsZero() || l.cur.committed > o {
		return true, nil
	}
	if err := l.commit(); err != nil {
		return false, err
	}
	return l.cur.sought.Load() == nil, nil
}

// view returns the events of a call for the machine to ask about.
func (j *job[T]) view() view[T] {
	if len(j.tasks) > 0 {
		return view[T]{fan: j.lane.fan}
	}
	return view[T]{first: j.span.From, values: j.values, metas: j.delivery.Metas, times: j.delivery.Times, epoch: j.delivery.Epoch, bad: j.bad}
}

// drop is what becomes of events that DiscardParked gave up in a group without
// DeadLetter. They are counted there.
func (l *lane[T]) drop(events []penstock.Event[T]) error {
	for i := range events {
		o := events[i].Origin
		l.group.topic.logger.Warn("a parked event was dropped", slog.String("group", l.group.name),
			slog.Int("partition", o.Partition), slog.Uint64("offset", uint64(o.Offset)), slog.String("cause", o.Cause))
	}
	return nil
}
