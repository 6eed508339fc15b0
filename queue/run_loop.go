package queue

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// pusher delivers the partitions of one consumer. It belongs to the goroutine
// of its loop while a run lasts; only what its comments say is read by others.
//
// Invariant: at most one span is in hand, and only while user code runs.
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
	hand   inHand[T]
	inUser bool   // user code runs on this goroutine
	stack  []byte // where runtime.Goexit was called
	noise  noise
	dead   []penstock.Event[T] // scratch
	failed []settle.Outcome    // scratch
}

// inHand is the span that user code has.
type inHand[T any] struct {
	lane   *lane[T] // nil when there is none
	span   settle.Span
	values []T
}

func newPusher[T any](g *Group[T], c *Consumer[T]) *pusher[T] {
	p := &pusher[T]{group: g, consumer: c, logger: g.topic.logger.With("group", g.name)}
	for i, cur := range c.cursors {
		p.lanes = append(p.lanes, &lane[T]{group: g, consumer: c, cur: cur, index: i})
	}
	return p
}

// begin prepares for a run: what an earlier one left unsettled comes again.
func (p *pusher[T]) begin() error {
	p.hand, p.inUser, p.stack = inHand[T]{}, false, nil
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
		if p.inUser && p.stack != nil {
			go p.loop() // takes the place of this goroutine, which ends here
			return
		}
		p.end(&penstock.PanicError{Where: p.where(), Value: recover(), Stack: debug.Stack()})
	}()
	err := p.deliverAll()
	ended = true
	p.end(err)
}

func (p *pusher[T]) where() string { return fmt.Sprintf("group %s", p.group.name) }

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
	if p.inUser { // the goroutine before this one ended in user code
		if err := p.settle(nil); err != nil {
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
		span, values, err := l.next(p.run.stopping())
		if err != nil {
			return busy, err
		}
		if values != nil {
			busy = true
			if err := p.deliver(l, span, values); err != nil {
				return busy, err
			}
		}
		if err := l.commitDue(); err != nil {
			return busy, err
		}
	}
	return busy, nil
}

// deliver hands one span to user code and settles it.
func (p *pusher[T]) deliver(l *lane[T], span settle.Span, values []T) error {
	p.hand = inHand[T]{l, span, values}
	l.cur.delivery.Attempt = span.Attempt
	if l.troubled {
		l.noteWaiting()
	}
	if !span.DeadLetter {
		p.own.delivered += uint64(len(values))
		p.own.flushed[l.reason]++
	}
	p.showBusy(l.cur.part.index, span.From, len(values))
	if span.DeadLetter {
		p.dead = l.deadEvents(p.dead[:0], span, values)
		return p.settle(p.callDeadLetter(p.dead))
	}
	if p.group.config.AutoCommit {
		if err := l.commitNow(span); err != nil {
			return err
		}
	}
	return p.settle(p.callHandler(penstock.NewBatch(values, &l.cur.delivery)))
}

// callHandler runs the handler. A panic becomes an error.
func (p *pusher[T]) callHandler(b penstock.Batch[T]) (err error) {
	p.inUser = true
	defer p.caught(&err)
	err = p.run.handle(p.run.handlers, b)
	p.inUser = false
	return err
}

// callDeadLetter runs the dead-letter hook. A panic becomes an error.
func (p *pusher[T]) callDeadLetter(events []penstock.Event[T]) (err error) {
	p.inUser = true
	defer p.caught(&err)
	err = p.group.options.deadLetter(p.run.handlers, events...)
	p.inUser = false
	return err
}

// caught is deferred around user code, which has not returned when inUser is
// still set: it panicked, or called runtime.Goexit, which cannot be stopped.
func (p *pusher[T]) caught(err *error) {
	if !p.inUser {
		return
	}
	stack := debug.Stack()
	v := recover()
	if v == nil {
		p.stack = stack
		return
	}
	p.inUser = false
	*err = &penstock.PanicError{Where: p.where(), Value: v, Stack: stack}
}

// settle ends the delivery in hand, given what user code returned.
func (p *pusher[T]) settle(err error) error {
	if p.inUser { // it did not return, and did not panic with a value either
		err = &penstock.PanicError{Where: p.where(), Stack: p.stack}
		p.inUser, p.stack = false, nil
	}
	l, span := p.hand.lane, p.hand.span
	if !span.DeadLetter {
		p.own.busyNanos += max(0, p.group.topic.clock.UnixNano()-p.own.stamp)
	}
	marked := l.cur.delivery.Settle()
	p.hand = inHand[T]{}
	clear(p.dead)
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
		if due, ok := l.machine.Due(); ok && !due.After(until) {
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
		if due, ok := l.due(); ok && (first.IsZero() || due.Before(first)) {
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
