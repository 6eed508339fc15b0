package queue

import (
	"context"
	"runtime/debug"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// job is one call of user code: of the handler with a batch, or of DeadLetter.
// It is made by a lane, called, and settled, each of which ends before the next
// begins. It belongs to its pusher, and during the call to who makes it; only
// note is read by others.
type job[T any] struct {
	handlers context.Context // of user code, see inside.go
	lane     *lane[T]
	span     settle.Span
	values   []T
	delivery *penstock.Delivery  // of values
	dead     []penstock.Event[T] // for DeadLetter
	bad      *UndecodableError   // not nil: the one event cannot be decoded

	// Of one of several workers.
	own    penstock.Delivery
	tasks  []task
	spans  []settle.Span // backs parts
	flying bool          // a worker has it
	auto   bool          // its events are settled already
	note   callNote

	// What backs values and own where the events do not lie next to each other.
	copied []T
	metas  []penstock.Meta
	tokens []penstock.Token
	runs   []penstock.TimeRun

	inUser bool   // user code was called and has not returned
	stack  []byte // where it called runtime.Goexit
	err    error  // what it returned
}

// reset forgets what keeps memory alive, and how the user code ended.
func (j *job[T]) reset() {
	j.values, j.inUser, j.stack, j.err, j.bad = nil, false, nil, nil, nil
	if len(j.dead) > 0 {
		clear(j.dead)
		j.dead, j.span.Cause = j.dead[:0], nil
	}
	if len(j.tasks) > 0 {
		clear(j.tasks)
		clear(j.copied)
		clear(j.metas)
		j.tasks, j.copied, j.metas, j.auto = j.tasks[:0], j.copied[:0], j.metas[:0], false
		j.own.Metas, j.own.Tokens, j.own.Times = nil, nil, nil
	}
}

// call runs the user code. A panic becomes the job's error. runtime.Goexit
// cannot be stopped: it ends the goroutine, and exited tells.
func (j *job[T]) call(r *run[T]) {
	j.inUser = true
	defer j.caught(r)
	switch {
	case j.bad != nil && !j.span.DeadLetter:
		j.err = j.undecodable()
	case j.span.DeadLetter && r.group.options.deadLetter == nil:
		j.err = j.lane.drop(j.dead)
	case j.span.DeadLetter:
		j.err = r.group.options.deadLetter(j.handlers, j.dead...)
	case r.handle != nil:
		j.err = r.handle(j.handlers, penstock.NewBatch(j.values, j.delivery))
	default:
		j.err = r.callFresh(j.handlers, penstock.NewBatch(j.values, j.delivery))
	}
	j.inUser = false
}

// callFresh calls a handler that exists for this one batch.
func (r *run[T]) callFresh(ctx context.Context, b penstock.Batch[T]) error {
	h, dispose := r.factory()
	if dispose != nil {
		defer dispose()
	}
	if h == nil {
		return errNoHandler
	}
	return h(ctx, b)
}

// caught is deferred around user code, which has not returned when inUser is
// still set: it panicked, or called runtime.Goexit.
func (j *job[T]) caught(r *run[T]) {
	if !j.inUser {
		return
	}
	stack := debug.Stack()
	v := recover()
	if v == nil {
		j.stack = stack
		return
	}
	j.inUser = false
	j.err = &penstock.PanicError{Where: r.where(), Value: v, Stack: stack}
}

// exited reports whether the user code ended its goroutine.
func (j *job[T]) exited() bool { return j.inUser && j.stack != nil }

// result returns what the user code returned, and forgets that it was called.
func (j *job[T]) result(r *run[T]) error {
	err := j.err
	if j.exited() {
		err = &penstock.PanicError{Where: r.where(), Stack: j.stack}
	}
	j.inUser, j.stack, j.err = false, nil, nil
	return err
}

// undecodable is what becomes of an event that cannot be decoded, instead of a
// call of the handler.
func (j *job[T]) undecodable() error {
	if g := j.lane.group; g.config.OnUndecodable == DropUndecodable {
		g.dropUndecodable(j.lane.cur.part.index, j.bad)
		return nil
	}
	return j.bad
}

// bury makes a job whose span is a dead letter the call of DeadLetter. bad is
// not nil when its one event cannot be decoded.
func (j *job[T]) bury(bad *UndecodableError) {
	j.bad = bad
	if j.span.DeadLetter {
		j.dead = j.lane.group.deadEvents(j.dead[:0], j.span.Attempt, j.span.Cause, bad, penstock.NewBatch(j.values, j.delivery))
	}
}

// deadEvents appends the events of a batch with where they come from and why
// they were given up.
func (g *Group[T]) deadEvents(out []penstock.Event[T], attempt int, why error, bad *UndecodableError, b penstock.Batch[T]) []penstock.Event[T] {
	now := time.Now().UTC()
	cause := causeText(why)
	out = slices.Grow(out, b.Len())
	for i := range b.Len() {
		e := b.Event(i)
		e.Attempt = attempt
		e.Origin = &penstock.Origin{
			Topic: b.Topic(), Partition: b.Partition(), Offset: b.Offset(i),
			Group: g.name, Cause: cause, Time: now,
		}
		if bad != nil {
			e.Header = bad.header(e.Header)
		}
		out = append(out, e)
	}
	return out
}
