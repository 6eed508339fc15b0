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
// With one worker the loop calls the handler itself, and job is the only call;
// with several it hands jobs to its crew and settles them when they come back.
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
	job    job[T] // of the only worker: made next, or its user code runs
	crew   crew[T]
	noise  noise
	failed []settle.Outcome // scratch
}

func newPusher[T any](g *Group[T], c *Consumer[T], lanes []*lane[T]) *pusher[T] {
	for i, l := range lanes {
		l.own(c, i)
	}
	return &pusher[T]{group: g, consumer: c, lanes: lanes, logger: g.topic.logger.With("group", g.name)}
}

func (g *Group[T]) newLanes(cursors []*cursor[T]) (lanes []*lane[T]) {
	for _, cur := range cursors {
		l := &lane[T]{group: g, cur: cur, park: g.parking.lane(cur.part.index)}
		if g.config.Workers > 1 {
			l.fan = &fan[T]{}
		}
		lanes = append(lanes, l)
	}
	return lanes
}

// begin prepares for a run: what an earlier one left unsettled comes again.
func (p *pusher[T]) begin() error {
	p.job.reset()
	p.crew.gather(p.group.config.Workers)
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
		p.crash(&penstock.PanicError{Where: p.run.where(), Value: recover(), Stack: debug.Stack()})
	}()
	last, err := p.deliverAll()
	for err == nil && !last {
		gave := false
		if gave, err = p.yield(); gave {
			ended = true
			return
		}
		if err == nil {
			last, err = p.deliverAll()
		}
	}
	ended = true
	p.end(err)
}

// end waits for the workers, commits what is settled, and leaves the run.
func (p *pusher[T]) end(err error) {
	if p.group.closed.Load() {
		err = errors.Join(err, penstock.ErrClosed)
	}
	r := p.run
	if err != nil {
		r.fail(err) // now, so that the drain begins while the workers are waited for
	}
	err = errors.Join(err, p.disband())
	p.showIdle()
	if p.group.closed.Load() {
		for _, l := range p.lanes {
			l.cur.loan.end()
		}
	} else {
		for _, l := range p.lanes {
			err = errors.Join(err, l.finish())
		}
	}
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	if err != nil {
		r.fail(err)
	}
	r.leave()
}

// crash is end after a panic of the loop itself, or of user code that it has no
// guard around, such as a handler of the log. What was being decided then may be
// decided in part, so nothing of it is committed: the next run begins at the
// commit as it stands, and what is not committed comes again.
func (p *pusher[T]) crash(err error) {
	p.run.fail(err)
	p.dismiss()
	p.showIdle()
	for _, l := range p.lanes {
		if p.group.closed.Load() {
			l.cur.loan.end()
		} else if !l.cur.saved { // elsewhere it is what was stored with the commit
			l.cur.completed = nil
		}
		if l.park != nil {
			l.park.log.drain()
		}
	}
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	p.run.leave()
}

// deliverAll delivers batch after batch. It returns true when these were the
// last ones, and false when the loop is to make room for a Resize, which may be
// called off by now: a second look at the step would not tell the two apart.
func (p *pusher[T]) deliverAll() (last bool, err error) {
	if p.job.exited() { // and with it the goroutine before this one
		if err := p.settle(&p.job); err != nil {
			return true, err
		}
	}
	for {
		switch p.run.step.Load() {
		case yields:
			return p.group.closed.Load(), nil
		case over:
			return true, nil
		}
		landed, err := p.settleLanded()
		if err != nil {
			return true, err
		}
		busy, err := p.round()
		if err != nil || p.group.closed.Load() {
			return true, err
		}
		if busy || landed {
			continue
		}
		if p.run.stopping() && !p.hasWork() {
			return true, nil
		}
		if err := p.sleep(); err != nil {
			return true, err
		}
	}
}

// round gives each partition its turn, and reports whether any had a batch.
func (p *pusher[T]) round() (busy bool, err error) {
	p.consumer.collect()
	for range p.lanes {
		l := p.lanes[p.turn]
		if p.turn++; p.turn == len(p.lanes) {
			p.turn = 0
		}
		if p.group.closed.Load() || p.run.halts() {
			return false, nil
		}
		if l.cur.sought.Load() != nil {
			if p.inHand(l) {
				continue // the last of them adopts it
			}
			if err := p.adopt(l); err != nil {
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
		if j, idle := p.free(); j != nil {
			ok, err := l.next(j, idle, p.run.stopping())
			if err != nil {
				return busy, err
			}
			if ok {
				busy = true
				if err := p.deliver(j); err != nil {
					return busy, err
				}
			}
		}
		if l.park != nil && l.park.more {
			busy, l.park.more = true, false
		}
		if l.trouble.Load() != nil {
			p.lose(l)
		}
		if err := l.commitDue(); err != nil {
			return busy, err
		}
	}
	return busy, nil
}

// deliver runs a job and settles it, or hands it to a worker.
func (p *pusher[T]) deliver(j *job[T]) error {
	l := j.lane
	if l.troubled {
		l.noteWaiting()
	}
	if !j.span.DeadLetter && j.bad == nil {
		p.own.delivered += uint64(len(j.values))
		p.own.flushed[j.delivery.Reason]++
	}
	if l.fan != nil {
		if l.commitsFirst(j) {
			if err := l.commitStarted(j); err != nil {
				return err
			}
		}
		p.showFlying(j)
		p.launch(j)
		return nil
	}
	p.showBusy(l.cur.part.index, j.span.From, len(j.values))
	if l.commitsFirst(j) {
		if err := l.commitNow(j.span); err != nil {
			return err
		}
	}
	j.call(p.run)
	return p.settle(j)
}

// settle ends a job.
func (p *pusher[T]) settle(j *job[T]) error {
	result := j.result(p.run)
	marked := j.delivery.Settle()
	p.countCall(j)
	if s := j.lane.cur.sought.Load(); s != nil && !(s.passed && j.span.Parked) { // see sought
		return p.abandon(j)
	}
	var now time.Time // the clock is read only where it decides
	p.failed = p.failed[:0]
	if result != nil || len(marked) > 0 {
		now = time.Now()
		p.noteFailures(j, marked, result)
		p.failed = j.outcomes(p.failed, marked, result)
		if j.lane.park != nil {
			j.lane.park.look(j.view())
		}
	} else if j.span.DeadLetter && p.group.options.deadLetter != nil {
		p.counts.deadLettered.Add(uint64(len(j.values)))
	}
	if result == nil {
		if j.bad != nil {
			p.group.seen.undecodable.Add(1)
		}
		j.countDiscarded()
	}
	err := p.settleIn(j.lane, now, j)
	if p.run.stopping() {
		j.lane.drained.Add(int64(len(j.values) - failedEvents(p.failed)))
	}
	clear(p.failed)
	j.reset()
	return err
}

// settleIn settles a job in its lane.
func (p *pusher[T]) settleIn(l *lane[T], now time.Time, j *job[T]) error {
	switch {
	case l.commitsFirst(j):
		if l.fan != nil {
			l.fan.schedule.finish(j.tasks)
			l.fan.drop(l.machine.Committed())
		}
		return l.afterAutoCommit(p.low(l))
	case len(j.tasks) > 0:
		return l.settleTasks(now, j, p.failed)
	}
	return l.settle(now, j.span, p.failed)
}

// hasWork reports whether something that was taken can still be finished
// before the drain ends.
func (p *pusher[T]) hasWork() bool {
	until := time.Unix(0, p.run.drainUntil.Load())
	if p.crew.flying > 0 {
		return true
	}
	for _, l := range p.lanes {
		if l.held() || l.fan == nil && l.trouble.Load() != nil { // nor can a retry be read
			continue
		}
		if due, ok := l.machine.Due(); ok && !due.After(until) {
			return true
		}
		if l.fan != nil && len(l.fan.schedule.again) > 0 { // what was due waits for the rate
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
	_, idle := p.free()
	if p.run.yielded() {
		idle = 0 // nothing is handed out
	}
	for _, l := range p.lanes {
		if l.fan != nil && l.cur.sought.Load() != nil {
			continue // it waits for the jobs in hand
		}
		if due, ok := l.due(idle > 0, p.run.stopping()); ok && (first.IsZero() || due.Before(first)) {
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
