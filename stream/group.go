package stream

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
	d.items = nil
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
