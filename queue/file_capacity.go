package queue

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// diskLine is where requests wait that found the segment files as large as
// Config.CapacityDisk allows. The first of them tries again whenever something
// was deleted; the others, and those that come meanwhile, wait behind it in the
// order in which they came. They hold their capacity in events and bytes.
type diskLine struct {
	head    chan struct{} // has a token while somebody is the first
	closed  chan struct{} // closed with the topic
	waiting atomic.Int64
}

func newDiskLine() *diskLine {
	return &diskLine{head: make(chan struct{}, 1), closed: make(chan struct{})}
}

// boundedOnDisk reports whether the topic has a Config.CapacityDisk.
func (t *Topic[T]) boundedOnDisk() bool { return t.disk != nil && t.disk.line != nil }

// append is appendOnce that waits for disk space, if the topic is bounded in it.
func (e *fileEngine[T]) append(ctx context.Context, values []T, metas []penstock.Meta, m *measured, pl *plan, receipt *Receipt) error {
	if e.line == nil {
		return e.appendOnce(ctx, values, metas, m, pl, receipt)
	}
	return e.bounded(ctx, len(values), nothingToHold, func() error { return e.appendOnce(ctx, values, metas, m, pl, receipt) })
}

// nothingToHold is for requests that hold their capacity.
func nothingToHold() error { return nil }

// bounded is an append that may have to wait, by Config.WhenFull, until the
// segment files take less than Config.CapacityDisk. try appends the whole
// request, or nothing of it with an error that matches [penstock.ErrFull]. hold
// takes its capacity, which try has done when it returns such an error: the first
// of the line may not wait for what those behind it hold.
func (e *fileEngine[T]) bounded(ctx context.Context, n int, hold, try func() error) error {
	if e.line.waiting.Load() == 0 {
		if err := try(); !refused(err) {
			return err
		}
	} else if err := hold(); err != nil {
		return err
	}
	if e.topic.config.WhenFull != Wait {
		return e.boundedInLine(ctx, n, try)
	}
	if in := e.topic.insideOf(ctx); in != nil {
		w := &insider[T]{inside: in, n: n}
		return e.topic.waitInside(ctx, w, e.topic.stuckOnDisk, func(wait context.Context) error { return e.boundedInLine(wait, n, try) })
	}
	defer noteAsk(ctx, ask{n: n, disk: true})()
	return e.boundedInLine(ctx, n, try)
}

// boundedInLine waits until it is the first, and then for room.
func (e *fileEngine[T]) boundedInLine(ctx context.Context, n int, try func() error) error {
	e.line.waiting.Add(1)
	defer e.line.waiting.Add(-1)
	select {
	case e.line.head <- struct{}{}:
	case <-ctx.Done():
		return penstock.ContextError(ctx)
	case <-e.line.closed:
		return penstock.ErrClosed
	}
	defer func() { <-e.line.head }()
	return e.boundedFirst(ctx, n, try)
}

// refused reports whether an append found no room within Config.CapacityDisk. A
// request that was not admitted, or of which a part was appended, is not tried
// again.
func refused(err error) bool {
	if err == nil || !errors.Is(err, penstock.ErrFull) {
		return false
	}
	_, kept := errors.AsType[*keptCapacity](err)
	_, outside := errors.AsType[*notAdmitted](err)
	return !kept && !outside
}

// notAdmitted is an error of a request that got no capacity.
type notAdmitted struct{ error }

func (e *notAdmitted) Unwrap() error { return e.error }

// boundedFirst tries until there is room.
func (e *fileEngine[T]) boundedFirst(ctx context.Context, n int, try func() error) error {
	t := e.topic
	dropped := (<-chan struct{})(nil) // open until something was deleted since groups were moved
	pause := dropAgain
	for {
		again := (<-chan time.Time)(nil)
		e.log.MakeRoom()
		freed := e.log.Freed() // behind what this call gives back itself, which would wake it at once
		e.sweepAll()
		if err := t.open(ctx); err != nil {
			return err
		}
		if err := try(); !refused(err) {
			return err
		}
		switch t.config.WhenFull {
		case Fail:
			return t.refuse(n)
		case DropOldest:
			if dropped == nil || isClosed(dropped) {
				if dropped, pause = e.log.Freed(), dropAgain; e.dropSegment() {
					continue
				}
				dropped = nil
			} else { // what could not be deleted is tried again before more is dropped
				again, pause = time.After(pause), min(2*pause, dropAgainMax)
			}
		}
		t.warnNoGroup()
		select {
		case <-freed:
		case <-again:
		case <-ctx.Done():
			return penstock.ContextError(ctx)
		case <-e.line.closed:
			return penstock.ErrClosed
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// sweepAll deletes what is consumed in every partition.
func (e *fileEngine[T]) sweepAll() {
	for _, p := range e.topic.parts {
		p.sweep()
	}
}

// dropSegment moves all groups past the segment that holds the oldest event.
func (e *fileEngine[T]) dropSegment() bool {
	defer e.tellSkips()
	return e.dropTo(func(p *partition[T], _ penstock.Offset) penstock.Offset { return p.file.log.FirstEnd() })
}
