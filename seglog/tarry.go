package seglog

const (
	// pauseSteps is how long a pause of a waiting consumer lasts, in steps of a
	// third of a nanosecond or so.
	pauseSteps = 3000
	// pauses is how many there are at most before it parks.
	pauses = 8
	// mostVain bounds how seldom it is tried when it is in vain: once in
	// 1<<mostVain waits.
	mostVain = 6
)

// tarry decides whether a consumer that has found nothing waits a few
// microseconds before it parks. To park costs it little, but whoever then wakes
// it pays a call of the system, often more than all of its own work, and the
// consumer comes back tens of microseconds later. So a consumer that is as fast
// as its producers, or faster, does not look at every event, which moves the
// lines that they write to and fro, and does not park: it pauses, and finds some
// at once. Where that was in vain it is tried less often, and hardly ever at a
// consumer that is mostly idle.
type tarry struct {
	useless bool // there is one processor: nothing can come meanwhile
	vain    int  // how many in a row
	skip    int  // waits until the next one
}

// begin reports whether this wait begins with pauses.
func (t *tarry) begin() bool {
	if t.useless {
		return false
	}
	if t.skip > 0 {
		t.skip--
		return false
	}
	return true
}

// end notes whether something came during the pauses.
func (t *tarry) end(came bool) {
	if came {
		t.vain = 0
		return
	}
	t.vain = min(t.vain+1, mostVain)
	t.skip = 1<<t.vain - 1
}

// comesSoon pauses until there is a reason not to park, and reports whether
// there was one before the last pause had passed.
func (w *Waker) comesSoon() bool {
	for range pauses {
		for range pauseSteps {
		}
		if w.anyDirty() || w.rung.Load() || w.closed.Load() {
			return true
		}
	}
	return false
}
