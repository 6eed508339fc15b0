package stage

import "slices"

// FailFast lets a failure of the producer overtake the events before it: the
// consumer gets none of those that it has not begun to process, nor what the
// producer still holds for it. They are counted as undelivered or discarded. A
// normal end, and a cancel, come in order all the same. Without it a failure
// comes behind the events.
func FailFast() SubOption { return func(s *subscription) { s.hasty = true } }

// overtaken takes the failures that need not wait for their turn.
func (i *inlet[T]) overtaken() (progress bool) {
	if i.hasty == 0 || i.phase != running {
		return false
	}
	for _, e := range i.edges {
		if e.sub.hasty && !e.done && !e.cancelled() && e.ended.Load() && e.endErr != nil && i.phase == running {
			i.takeEnd(e)
			progress = true
		}
	}
	return progress
}

// overtake ends the subscriptions that are to hear of the stage's failure at
// once.
func (o *outlet[T]) overtake() {
	if o.cause == nil || !slices.ContainsFunc(o.edges, func(e *edge[T]) bool { return e.sub.hasty }) {
		return
	}
	kept := o.edges[:0]
	for _, e := range o.edges {
		if !e.sub.hasty {
			kept = append(kept, e)
			continue
		}
		e.end(o.cause)
		o.leaving = append(o.leaving, e)
		if o.router != nil {
			o.router.leave(o, e)
		}
	}
	clear(o.edges[len(kept):])
	o.edges = kept
	o.subscribers.Store(int32(len(kept)))
}
