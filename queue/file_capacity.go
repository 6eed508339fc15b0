package queue

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
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

// append is appendOnce that waits for disk space, if the topic is bounded in it.
func (e *fileEngine[T]) append(ctx context.Context, values []T, metas []penstock.Meta, m *measured, pl *plan, receipt *Receipt) error {
	if e.line == nil {
		return e.appendOnce(ctx, values, metas, m, pl, receipt)
	}
	return e.bounded(ctx, len(values), func() error { return e.appendOnce(ctx, values, metas, m, pl, receipt) })
}

// bounded is an append that may have to wait, by Config.WhenFull, until the
// segment files take less than Config.CapacityDisk. try appends the whole
// request, or nothing of it with an error that matches [penstock.ErrFull].
func (e *fileEngine[T]) bounded(ctx context.Context, n int, try func() error) error {
	if e.line.waiting.Load() == 0 {
		if err := try(); !refused(err) {
			return err
		}
	}
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
// request of which a part was appended is not tried again.
func refused(err error) bool {
	if err == nil || !errors.Is(err, penstock.ErrFull) {
		return false
	}
	_, kept := errors.AsType[*keptCapacity](err)
	return !kept
}

// boundedFirst tries until there is room.
func (e *fileEngine[T]) boundedFirst(ctx context.Context, n int, try func() error) error {
	t := e.topic
	for {
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
			if e.dropSegment() {
				continue
			}
		}
		t.warnNoGroup()
		select {
		case <-freed:
		case <-ctx.Done():
			return penstock.ContextError(ctx)
		case <-e.line.closed:
			return penstock.ErrClosed
		}
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
	return e.dropTo(func(p *segfile.Partition, _ penstock.Offset) penstock.Offset { return p.FirstEnd() })
}
