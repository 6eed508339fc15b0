package queue

import (
	"context"
	"fmt"

	"github.com/penstock/penstock"
)

// What becomes of the dead letters that Redrive does not send back, or cannot
// even read.

// undecodable deals with a dead letter that its own topic cannot decode: as with
// one that the topic before it could not.
func (r *redrive[T]) undecodable(ctx context.Context, bad *UndecodableError) error {
	if err := r.reader.Seek(bad.Offset + 1); err != nil {
		return err
	}
	e := penstock.Event[T]{Meta: bad.Meta}
	if _, _, known := Undecoded(e); e.Origin == nil { // what it was before is lost
		e = r.from.deadUndecodable(r.reader.cursor.part.index, bad)
	} else if !known { // else its value was nothing in the first place
		e.Header = bad.header(e.Header)
	}
	to, err := r.target(e)
	done := 0
	if err == nil {
		done, err = r.send(ctx, to, []penstock.Event[T]{e}, bad.Offset)
	}
	return r.finish(bad.Offset, done, err)
}

// leave keeps an event among the dead letters that the filter or its origin
// keeps there.
func (r *redrive[T]) leave(ctx context.Context, e penstock.Event[T], at penstock.Offset) (int, error) {
	if e.Origin == nil || r.to[e.Origin.Topic] == nil {
		return r.keep(ctx, e, at, &r.report.Failed)
	}
	return r.keep(ctx, e, at, &r.report.Skipped)
}

// keep appends the dead letter at an offset to the dead letters again and
// counts it.
func (r *redrive[T]) keep(ctx context.Context, e penstock.Event[T], at penstock.Offset, count *int) (int, error) {
	if !r.config.DryRun {
		if err := r.append(ctx, e, at); err != nil {
			return 0, fmt.Errorf("keep a dead letter that does not go back: %w", err)
		}
	}
	*count++
	return 1, nil
}

// append appends the dead letter at an offset to its topic again. In a topic
// with a capacity, where nobody but this group keeps it, it takes over the room
// that it has, and is committed at once: a full topic would have none, and only
// that commit makes some.
func (r *redrive[T]) append(ctx context.Context, e penstock.Event[T], at penstock.Offset) error {
	t, p := r.from.topic, r.reader.cursor.part
	if t.budget == nil {
		return t.ProduceEvents(ctx, e)
	}
	if r.reader.Committed() < at {
		if err := r.reader.Commit(at); err != nil { // what lies before it is finished
			return err
		}
	}
	if p.marks.Committed() == at {
		if err := t.produceInStead(ctx, p, e); err != nil {
			return err
		}
		return r.reader.Commit(at + 1)
	}
	ctx, cancel := context.WithTimeout(ctx, requeueWait)
	defer cancel()
	return t.ProduceEvents(ctx, e)
}
