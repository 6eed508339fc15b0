package stream

import "github.com/penstock/penstock"

// withoutEmpty drops containers that hold no event (OR-52).
func withoutEmpty(batch []Container) []Container {
	for i := range batch {
		if batch[i].Events.Len() == 0 {
			kept := append([]Container(nil), batch[:i]...)
			for _, c := range batch[i:] {
				if c.Events.Len() > 0 {
					kept = append(kept, c)
				}
			}
			return kept
		}
	}
	return batch
}

// accept adds containers as add does. Those without events never enter the cache:
// the queue gets them back as finished, and the checkpoint may pass them.
func (r *run) accept(batch []Container) (refused []Container) {
	full := withoutEmpty(batch)
	if len(full) == len(batch) {
		return r.add(batch)
	}
	taken := len(full)
	if taken > 0 {
		refused = r.add(full)
		taken -= len(refused)
	}
	for i := range batch {
		c := &batch[i]
		switch {
		case c.Events.Len() == 0:
			r.passEmpty(c, taken == 0)
		case taken == 0: // refused for now, and what is behind it waits with it
			return batch[i:]
		default:
			taken--
		}
	}
	return nil
}

// passEmpty accounts for a container without events. The last ones of what was
// read move the end of that, as no other does.
func (r *run) passEmpty(c *Container, last bool) {
	r.stats.Empty++
	t := containerToken(c.Token)
	if r.first.IsZero() && last {
		r.first = c.Time
	}
	switch {
	case !last || !r.hasRead && c.Time.IsZero(): // places by time begin with the first one that has one
	case !r.hasRead:
		r.read, r.hasRead, r.taken = t, true, c.Time
	case t.Compare(r.read) > 0:
		if r.read = t; !c.Time.IsZero() {
			r.taken = c.Time
		}
	}
	if r.own == nil {
		done := *c
		done.Header = penstock.Header{}
		r.refusals.finished = append(r.refusals.finished, done)
	}
}

// nameless counts containers without a stream: nobody can subscribe to them.
func nameless(batch []Container) (n uint64) {
	for i := range batch {
		if batch[i].Stream == (penstock.StreamID{}) {
			n++
		}
	}
	return n
}
