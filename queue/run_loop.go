package queue

import (
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// pusher delivers the partitions of one consumer. It belongs to the goroutine
// of its loop while a run lasts; only what its comments say is read by others.
//
// Invariant: a span is in hand only while user code runs.
type pusher[T any] struct {
	group    *Group[T]
	consumer *Consumer[T]
	lanes    []*lane[T]
	logger   *slog.Logger
	counts   pushCounts // read by others
	own      ownCounts  // not yet shown to others
	turn     int
	timer    *time.Timer

	run    *run[T]
	job    job[T] // the one that is made next, or whose user code runs
	noise  noise
	failed []settle.Outcome // scratch
}

func newPusher[T any](g *Group[T], c *Consumer[T]) *pusher[T] {
	p := &pusher[T]{group: g, consumer: c, logger: g.topic.logger.With("group", g.name)}
	for i, cur := range c.cursors {
		p.lanes = append(p.lanes, &lane[T]{group: g, consumer: c, cur: cur, index: i, park: g.parking.lane(cur.part.index)})
	}
	return p
}

// begin prepares for a run: what an earlier one left unsettled comes again.
func (p *pusher[T]) begin() error {
	p.job.reset()
	for _, l := range p.lanes {
		if err := l.begin(); err != nil {
			return err
		}
	}
	return nil
}

// loop is the goroutine of one consumer. User code that calls runtime.Goexit
// ends a goroutine; the loop then goes on in another one.
func (p *pusher[T]) loop() {
	ended := false
	defer func() {
		if ended {
			return
		}
		if p.job.exited() {
			go p.loop() // takes the place of this goroutine, which ends here
			return
		}
		p.end(&penstock.PanicError{Where: p.run.where(), Value: recover(), Stack: debug.Stack()})
	}()
	err := p.deliverAll()
	ended = true
	p.end(err)
}

// end commits what is settled and leaves the run.
func (p *pusher[T]) end(err error) {
	p.showIdle()
	if p.group.closed.Load() {
		for _, l := range p.lanes {
			l.cur.loan.end()
		}
		err = errors.Join(err, penstock.ErrClosed)
	} else {
		for _, l := range p.lanes {
			err = errors.Join(err, l.finish())
		}
	}
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	r := p.run
	if err != nil {
		r.fail(err)
	}
	r.leave()
}

// deliverAll delivers batch after batch until the run is over.
func (p *pusher[T]) deliverAll() error {
	if p.job.exited() { // and with it the goroutine before this one
		if err := p.settle(&p.job); err != nil {
			return err
		}
	}
	for !p.run.over() {
		busy, err := p.round()
		if err != nil || p.group.closed.Load() {
			return err
		}
		if busy {
			continue
		}
		if p.run.stopping() && !p.hasWork() {
			return nil
		}
		if err := p.sleep(); err != nil {
			return err
		}
	}
	return nil
}

// round gives each partition its turn, and reports whether any had a batch.
func (p *pusher[T]) round() (busy bool, err error) {
	p.consumer.collect()
	for range p.lanes {
		l := p.lanes[p.turn]
		if p.turn++; p.turn == len(p.lanes) {
			p.turn = 0
		}
		if p.group.closed.Load() || p.run.over() {
			return false, nil
		}
		if l.cur.sought.Load() != nil {
			if err := l.adopt(); err != nil {
				return busy, err
			}
		}
		if l.park != nil && l.park.busy {
			delivered, err := p.deliverParked(l)
			if err != nil {
				return busy, err
			}
			busy = busy || delivered
		}
		ok, err := l.next(&p.job, p.run.stopping())
		if err != nil {
			return busy, err
		}
		if ok {
			busy = true
			if err := p.deliver(&p.job); err != nil {
				return busy, err
			}
		}
		if l.park != nil && l.park.more {
			busy, l.park.more = true, false
		}
		if err := l.commitDue(); err != nil {
			return busy, err
		}
	}
	return busy, nil
}

// deliver runs a job and settles it.
func (p *pusher[T]) deliver(j *job[T]) error {
	l := j.lane
	if l.troubled {
		l.noteWaiting()
	}
	if !j.span.DeadLetter {
		p.own.delivered += uint64(len(j.values))
		p.own.flushed[j.delivery.Reason]++
	}
	p.showBusy(l.cur.part.index, j.span.From, len(j.values))
	if p.group.config.AutoCommit && !j.span.DeadLetter {
		if err := l.commitNow(j.span); err != nil {
			return err
		}
	}
	j.call(p.run)
	return p.settle(j)
}

// settle ends a job.
func (p *pusher[T]) settle(j *job[T]) error {
	l, span, err := j.lane, j.span, j.result(p.run)
	if !span.DeadLetter {
		p.own.busyNanos += max(0, p.group.topic.clock.UnixNano()-p.own.stamp)
	}
	marked := j.delivery.Settle()
	if l.park != nil && (err != nil || len(marked) > 0) {
		l.park.look(j.view())
	}
	j.reset()
	if l.cur.sought.Load() != nil {
		return l.adopt()
	}
	switch {
	case p.group.config.AutoCommit && !span.DeadLetter:
		p.noteFailures(l, span, marked, err)
		return l.afterAutoCommit()
	case err == nil && len(marked) == 0:
		if span.DeadLetter {
			p.counts.deadLettered.Add(uint64(span.Len()))
		}
		return l.settle(time.Time{}, span, nil)
	}
	p.noteFailures(l, span, marked, err)
	p.failed = outcomes(p.failed[:0], span, marked, err)
	defer clear(p.failed)
	return l.settle(time.Now(), span, p.failed)
}

// outcomes are the verdicts on a span some of whose events failed: those
// marked, or all when there is an error.
func outcomes(out []settle.Outcome, span settle.Span, marked []penstock.Failure, err error) []settle.Outcome {
	if err != nil {
		return append(out, settle.Outcome{From: span.From, To: span.To, Verdict: settle.Retry, Cause: err})
	}
	for _, f := range marked {
		at := span.From + penstock.Offset(f.Index)
		out = append(out, settle.Outcome{From: at, To: at + 1, Verdict: settle.Retry, Cause: f.Err})
	}
	return out
}

// hasWork reports whether something that was taken can still be finished
// before the drain ends.
func (p *pusher[T]) hasWork() bool {
	until := time.Unix(0, p.run.drainUntil.Load())
	for _, l := range p.lanes {
		if due, ok := l.machine.Due(); ok && !due.After(until) && !l.held() {
			return true
		}
	}
	return false
}

// sleep waits for new events, for the next thing that is due, or for the next
// step of the run's end.
func (p *pusher[T]) sleep() error {
	p.showIdle()
	if err := p.commitUnderPressure(); err != nil {
		return err
	}
	ctx := p.run.intake
	if p.run.stopping() {
		ctx = p.run.handlers
	}
	err := p.consumer.waker.Wait(ctx, p.alarm())
	if err != nil && ctx.Err() != nil {
		return nil // the caller looks which step it was
	}
	return err
}

func (p *pusher[T]) commitUnderPressure() error {
	if !p.group.topic.pressed() {
		return nil
	}
	for _, l := range p.lanes {
		if err := l.commit(); err != nil {
			return err
		}
	}
	return nil
}

// alarm returns a channel that fires when the earliest thing is due, nil when
// nothing is.
func (p *pusher[T]) alarm() <-chan time.Time {
	var first time.Time
	for _, l := range p.lanes {
		if due, ok := l.due(p.run.stopping()); ok && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	if first.IsZero() {
		return nil
	}
	wait := time.Until(first)
	if p.timer == nil {
		p.timer = time.NewTimer(wait)
	} else {
		p.timer.Reset(wait)
	}
	return p.timer.C
}
