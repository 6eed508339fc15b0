package stream

import "slices"

// scan returns how many containers a delivery reads at once: a group, or, when
// a filter may pass over most of them, more.
func (r *run) scan() int {
	if r.filter == nil {
		return r.groupSize
	}
	return max(r.groupSize, filterScan)
}

// nextGroup takes the next group out of what was read with the last one, and
// offers it. What was before it has been processed: progress follows.
func (r *run) nextGroup(d *delivery) {
	if n := len(d.containers); n > 0 {
		d.safe, d.hasSafe = d.containers[n-1].Token, true
	}
	n := groupLen(d.rest, r.groupSize)
	d.containers, d.rest = d.rest[:n:n], d.rest[n:]
	d.items = d.items[:0]
	switch {
	case n == 0: // everything was filtered
		r.settled(d)
	case r.draining: // nothing begins any more; progress stays before it
		d.unpack()
		r.keep(d)
	default:
		d.unpack()
		r.firstTry(d)
	}
}

// groupLen returns how many of the containers make the next group: at most
// limit, and the mark of an end only by itself, so that a failure before it is
// not overtaken.
func groupLen(cs []Container, limit int) int {
	n := min(len(cs), limit)
	for i := range cs[:n] {
		if _, end := cs[i].End(); end {
			return max(i, 1)
		}
	}
	return n
}

// unpack makes an item of each event. Attempt counts the attempts made, from
// what the queue knows of earlier ones; the worker that makes one raises it.
func (d *delivery) unpack() {
	n := 0
	for i := range d.containers {
		n += d.containers[i].Events.Len()
	}
	d.items = slices.Grow(d.items[:0], n)
	for i := range d.containers {
		c := &d.containers[i]
		for j := range c.Events.Len() {
			t := c.Token
			t.Index = uint32(j)
			d.items = append(d.items, Item{Token: t, Attempt: c.Attempts, From: c, Index: j})
		}
	}
}

// unpackAgain makes items of all events anew, settled ones too: the consumer has
// been asked anew since. Those that were not settled keep their attempts.
func (d *delivery) unpackAgain() {
	before := slices.Clone(d.items)
	d.unpack()
	for i, j := 0, 0; i < len(d.items) && j < len(before); i++ {
		if d.items[i].Token == before[j].Token {
			d.items[i].Attempt = before[j].Attempt
			j++
		}
	}
}
