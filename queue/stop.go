package queue

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// stopping is how Stop reaches a run, and how the run answers.
//
// Invariant: report and result are written before ended is closed, and not
// after.
type stopping struct {
	asked  chan struct{} // closed by the first Stop
	hurry  chan struct{} // closed when the context of a Stop has ended
	ended  chan struct{} // closed when the run has its result
	until  time.Time     // with asked: when the drain ends; zero takes Config.Drain
	begun  time.Time     // the drain
	report penstock.DrainReport
	result error

	askOnce, hurryOnce sync.Once
}

func newStopping() stopping {
	return stopping{asked: make(chan struct{}), hurry: make(chan struct{}), ended: make(chan struct{})}
}

// Stop ends the Run that is under way, wherever it was called, and waits for
// its end: nothing further is taken, and calls of the handler that run are
// waited for, and what failed is tried again, as when the context of Run ends,
// but until ctx ends. When ctx has no deadline, GroupConfig.Drain bounds that
// too. Then the context of the handlers is cancelled; a handler that does not
// return within one second of that is left behind. A drain that has begun is
// made shorter by a Stop, never longer.
//
// After Stop no handler starts: a later Run returns an error that matches
// [penstock.ErrClosed], also when there was none before. To halt a group for
// some time end the context of Run, or call [Group.Pause].
//
// Stop returns what the drain has done, and what that Run has returned: nil
// after a full drain, a [*penstock.DrainError] with the same report otherwise,
// the first cause after a failure or Close. Every further call returns the
// same; so does one after a Run that has ended by itself. Without a Run the
// report is empty. Stop may be called at any time and by several goroutines,
// but not by the handler, which would wait for itself until ctx ends.
func (g *Group[T]) Stop(ctx context.Context) (penstock.DrainReport, error) {
	s := &g.push
	s.mu.Lock()
	s.stopped = true
	r := s.run
	s.mu.Unlock()
	if r == nil {
		return penstock.DrainReport{}, nil
	}
	r.stop.askOnce.Do(func() {
		r.stop.until, _ = ctx.Deadline()
		close(r.stop.asked)
	})
	unhook := context.AfterFunc(ctx, func() {
		r.stop.hurryOnce.Do(func() { close(r.stop.hurry) })
	})
	defer unhook()
	<-r.stop.ended
	return r.stop.report, g.named(r.stop.result)
}

// errStopped is what Run returns after Stop.
var errStopped = fmt.Errorf("the group was stopped: %w", penstock.ErrClosed)

// drain ends the run step by step and returns when all pushers have ended, or
// when those that have not are left behind.
func (r *run[T]) drain() {
	limit := r.group.config.Drain
	r.stop.begun = time.Now()
	select {
	case <-r.stop.asked:
		if !r.stop.until.IsZero() {
			limit = max(0, r.stop.until.Sub(r.stop.begun))
		}
	default:
	}
	r.drainUntil.Store(addNano(r.stop.begun.UnixNano(), limit))
	r.step.Store(finishing)
	r.stopTake()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-r.done:
		return
	case <-timer.C:
	case <-r.stop.hurry:
	}
	r.step.Store(over)
	r.endHandle(errDrainOver)
	timer.Reset(abandonAfter)
	select {
	case <-r.done:
	case <-timer.C:
	}
}

// end makes the report of a run that has drained, and returns what Run returns.
func (r *run[T]) end(pushers []*pusher[T]) error {
	err := r.outcome(pushers)
	s := &r.group.push
	s.mu.Lock()
	r.stop.result = err
	s.mu.Unlock()
	close(r.stop.ended)
	return err
}

// outcome returns what Run returns.
func (r *run[T]) outcome(pushers []*pusher[T]) error {
	r.stop.report = r.drained(pushers)
	if r.noted.Load() {
		return r.err
	}
	if left := r.stop.report.Left(); left > 0 {
		return &penstock.DrainError{Left: left, Report: &r.stop.report, Err: errDrainOver}
	}
	return nil
}

// drained is the report, by partition.
func (r *run[T]) drained(pushers []*pusher[T]) penstock.DrainReport {
	d := penstock.DrainReport{Duration: time.Since(r.stop.begun)}
	d.Partitions = make([]penstock.DrainedPartition, len(r.group.topic.parts))
	for i := range d.Partitions {
		d.Partitions[i].Partition = i
	}
	for _, p := range pushers {
		for _, l := range p.lanes {
			at := &d.Partitions[l.cur.part.index]
			at.Settled, at.Left = int(l.drained.Load()), int(l.waiting.Load())
		}
		for _, c := range p.calls(nil) {
			d.Partitions[c.Partition].Left += c.Events
		}
	}
	for _, k := range r.group.parkedKeys() {
		d.Partitions[k.Partition].Parked += k.Events
	}
	return d
}
